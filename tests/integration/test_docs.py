"""The pages of docs/: each shown command is run and its reply compared. Pictures, the table of
costs and the answers over HTTP are checked too.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import pytest
from rlproxy.ratelimit import help_text
from rlproxy.ratelimit.algorithms import ALGORITHMS

from bench import costs, pictures, traffic
from bench.client import Client
from bench.model import page as model_page
from bench.page import PREFIX
from tests import documents, harness
from tests.documents import Block
from tests.harness import ON_ONE_ENGINE, ROOT, Proxy, RedisServer
from tests.lua_headers import HEADERS

QUICK_S = 0.3  # a block that took longer than this beside its pauses was run on a busy machine
ATTEMPTS = 5
CHOOSING = ROOT / "docs" / "algorithms.md"
HTTP = ROOT / "docs" / "http-headers.md"
POLICIES = ROOT / "docs" / "policies.md"
IMAGES = ROOT / "docs" / "images"

SESSIONS = [
    block
    for page in documents.EVERY_PAGE
    for block in documents.blocks(page)
    if block.language == "redis"
]

PROGRAMS = [program for page in documents.EVERY_PAGE for program in documents.programs(page)]


@pytest.fixture(scope="module")
def module_proxy(
    module_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Proxy]:
    """A proxy with the policies of the page about them."""
    (table,) = [block for block in documents.blocks(POLICIES) if block.language == "toml"]
    file = tmp_path_factory.mktemp("policies") / "rlproxy.toml"
    file.write_text(table.text)
    with harness.proxy(module_server, "--config", str(file)) as made:
        yield made


# -- sessions --------------------------------------------------------------------------------------


def session(block: Block, proxy: Proxy) -> tuple[list[tuple[str, list[str]]], float]:
    """The replies to a block's commands, and the seconds it took beside its pauses."""
    found: list[tuple[str, list[str]]] = []
    began = time.monotonic()
    reply_s = 0.0
    with proxy.raw() as raw:
        for step in documents.steps(block):
            time.sleep(step.pause_s)
            sent_at = time.monotonic()
            reply = raw.ask(*step.words)
            reply_s += step.pause_s
            if "WAIT" in step.words:
                reply_s += time.monotonic() - sent_at
            found.append((" ".join(step.words), documents.shown(reply)))
    return found, time.monotonic() - began - reply_s


@ON_ONE_ENGINE
@pytest.mark.parametrize("block", SESSIONS, ids=str)
def test_each_reply_is_as_shown(block: Block, redis_server: RedisServer, proxy: Proxy) -> None:
    steps = documents.steps(block)
    wanted = [(" ".join(step.words), step.shown) for step in steps]
    waits = any("WAIT" in step.words for step in steps)  # how long such a reply was late is unknown
    assert wanted, f"{block} has no command"
    for attempt in range(1, ATTEMPTS + 1):
        with redis_server.raw() as raw:
            raw.ask("FLUSHALL")
        found, extra_s = session(block, proxy)
        quick = extra_s < QUICK_S and not waits
        if found == wanted or quick or attempt == ATTEMPTS:
            assert found == wanted
            return


# The form of a command in RL.HELP: `RL.RESET key [key ...]`.
SIGNATURES = {
    re.sub("[<>]", "", line) for line in help_text.LINES if re.match("(RL|CL)[.][A-Z]", line)
}


def test_reference_has_each_command_in_the_form_of_help() -> None:
    reference = ROOT / "docs" / "commands.md"
    rows = documents.rows(reference.read_text(), "| command | reply |")
    assert {row[0].strip("`") for row in rows} == SIGNATURES


@ON_ONE_ENGINE
def test_each_command_in_the_text_is_valid(module_proxy: Proxy) -> None:
    checked = 0
    for page in documents.PAGES:
        text = documents.outside(page)
        for command in re.findall(r"`((?:RL|CL)\.[A-Z]+ [^`]+)`", text):
            if command in SIGNATURES or "POLICY name" in command:  # the form of a command
                continue
            with module_proxy.raw() as raw:
                raw.ask("FLUSHALL")
                reply = raw.ask(*command.split())
            assert not isinstance(reply, Exception), f"{page.name}: {command}: {reply}"
            checked += 1
    assert checked > 5


def test_sessions_are_found() -> None:
    assert len(SESSIONS) > 15


# -- programs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("program", "shown"), PROGRAMS, ids=[str(each) for each, _ in PROGRAMS])
def test_each_program_prints_the_shown_output(
    program: Block, shown: str, one_server: RedisServer, one_proxy: Proxy
) -> None:
    if missing := documents.missing(program):
        pytest.skip(f"not on this machine: {' '.join(missing)}")
    for attempt in range(1, ATTEMPTS + 1):  # some programs sleep
        with one_server.raw() as raw:
            raw.ask("FLUSHALL")
        found = documents.printed(program, one_server.port, one_proxy.port)
        if found == shown or attempt == ATTEMPTS:
            assert found == shown
            return


OLD = [  # those that wait for no window
    program
    for program, _ in PROGRAMS
    if re.search("from limits|rate-limiter-f", program.text) and "sleep(" not in program.text
]


@pytest.mark.parametrize("program", OLD, ids=str)
def test_libraries_to_migrate_from_work_through_the_proxy(
    program: Block, one_server: RedisServer, one_proxy: Proxy
) -> None:
    if missing := documents.missing(program):
        pytest.skip(f"not on this machine: {' '.join(missing)}")
    wanted = {str(each): shown for each, shown in PROGRAMS}[str(program)]
    with one_server.raw() as raw:
        raw.ask("FLUSHALL")
    assert documents.printed(program, one_proxy.port, one_proxy.port) == wanted


def test_libraries_to_migrate_from_are_found() -> None:
    assert {program.language for program in OLD} == {"python", "js"}


# -- over HTTP -------------------------------------------------------------------------------------


def answers() -> list[tuple[dict[str, Any], str]]:
    """The examples of http-headers.md: the function's arguments, and the answer shown."""
    text = HTTP.read_text()
    found = re.findall(r"<!-- (\{[^\n]*\}) -->\n```http\n(.*?)```", text, re.DOTALL)
    assert len(found) == text.count("```http")
    return [(json.loads(given), shown) for given, shown in found]


@pytest.mark.parametrize(("given", "shown"), answers())
def test_each_answer_equals_the_functions_result(given: dict[str, Any], shown: str) -> None:
    status, fields = documents.rate_limit()(given["reply"], given["policies"], given["now"])
    head, _, body = shown.partition("\n\n")
    first, *lines = head.splitlines()
    assert first == f"HTTP/1.1 {status or 200} {phrase(status or 200)}"
    documented = dict(line.split(": ", 1) for line in lines)
    if body:
        assert documented.pop("Content-Type") == "application/problem+json"
        assert json.loads(body)["status"] == status
        assert set(json.loads(body)["violated-policies"]) <= set(given["policies"])
    assert documented == fields
    assert list(documented) == list(fields)


def phrase(status: int) -> str:
    """The reason phrase of RFC 9110; Python before 3.13 has those of an older one."""
    return "Content Too Large" if status == 413 else HTTPStatus(status).phrase


REPLIES = [
    ("RL.HIT k 3 60", 3, 60, 1),
    ("RL.HIT k 3 60", 3, 60, 4),
    ("RL.HIT k 3 60 COST 4", 3, 60, 1),
    ("RL.HIT k 100 60 ALGO GCRA BURST 20", 20, 12, 30),
    ("RL.HIT k 3 60 PENALTY 600", 3, 60, 4),
    ("RL.PEEK k 3 60", 3, 60, 1),
]


@ON_ONE_ENGINE
@pytest.mark.parametrize(("command", "quota", "window", "times"), REPLIES)
def test_fields_of_real_replies_are_valid(
    command: str, quota: int, window: int, times: int, proxy: Proxy
) -> None:
    """As the draft requires: integers that are not negative, t not after Retry-After, r not above
    q.
    """
    with proxy.raw() as raw:
        for _ in range(times):
            reply = raw.ask(*command.split())
    assert isinstance(reply, list)
    status, fields = documents.rate_limit()(reply, {"a": (quota, window)}, 1_784_000_000.5)
    policy = re.fullmatch(r'"a";q=(\d+);w=([1-9]\d*)', fields["RateLimit-Policy"])
    limit = re.fullmatch(r'"a";r=(\d+)(?:;t=([1-9]\d*))?', fields["RateLimit"])
    assert policy is not None
    assert limit is not None
    assert int(limit[1]) <= int(policy[1])
    assert (status == 0) == (reply[0] == 0)
    assert ("Retry-After" in fields) == (status == 429)
    if status == 429:
        assert fields["Retry-After"] == limit[2] == str(reply[3])
    assert all(value.isdigit() for name, value in fields.items() if name.startswith("X-"))


# -- pictures --------------------------------------------------------------------------------------


@ON_ONE_ENGINE
def test_pictures_equal_the_scripts_results(module_server: RedisServer) -> None:
    with Client(module_server.port) as client:
        drawn = pictures.drawn(client)
    measured = (PREFIX, model_page.PREFIX)
    shown = {path.name for path in IMAGES.iterdir() if not path.name.startswith(measured)}
    assert drawn.keys() == shown
    for name, text in drawn.items():
        file = (IMAGES / name).read_text()
        assert of_a_picture(file) == of_a_picture(text), "run: python -m bench.pictures docs/images"


def of_a_picture(text: str) -> tuple[str, str]:
    """The words of a picture, and the digest of its run: the rest differs by matplotlib."""
    words = re.search(r"<desc.*?</desc>", text)
    assert words is not None
    return words[0], text.splitlines()[-1]


def test_figures_in_the_captions_equal_the_pictures(one_server: RedisServer) -> None:
    """The figures that algorithms.md and the pictures' captions give in words."""
    with Client(one_server.port) as client:
        runs = {picture.name: traffic.run(client, picture.options) for picture in pictures.PICTURES}
    fullest = {name: run.worst()[1] for name, run in runs.items()}
    assert fullest["log"] == fullest["zlog"] == fullest["wait"] == traffic.MAX
    assert (fullest["fixed"], fullest["counter"], fullest["token"]) == (19, 16, 19)
    assert fullest["burst"] == 12
    assert runs["zlog"] == runs["log"]
    assert runs["token"].hits == runs["leaky"].hits == runs["gcra"].hits
    text = re.sub(r"\s+", " ", CHOOSING.read_text())
    for count in ("19 in 10 seconds", "16 in 10 seconds", "12 in 10 seconds"):
        assert count in text
    said = re.findall(r"!\[[^]]*?(\d+) of (\d+) hits admitted[^]]*\]\(images/(\w+)\.svg\)", text)
    assert {name for *_, name in said} == {"log", "fixed", "counter", "token", "burst"}
    for admitted, hits, name in said:
        assert (runs[name].admitted(), len(runs[name].hits)) == (int(admitted), int(hits))


# -- costs -----------------------------------------------------------------------------------------


def table() -> dict[str, list[str]]:
    """The rows of the table of costs, by ALGO."""
    rows = documents.rows(CHOOSING.read_text(), "| ALGO | an admitted hit calls")
    return {row[0]: row[1:] for row in rows}


def test_table_of_costs_has_every_algorithm() -> None:
    assert list(table()) == [name.decode() for name in ALGORITHMS]
    assert costs.filled(CHOOSING.read_text(), "") != CHOOSING.read_text()


@ON_ONE_ENGINE
@pytest.mark.parametrize("algorithm", list(table()))
def test_calls_of_a_hit_equal_the_table(algorithm: str, module_server: RedisServer) -> None:
    cells = table()[algorithm]
    for (most, _), cell in zip(costs.CASES.values(), (cells[0], cells[2]), strict=True):
        found = costs.called(module_server.port, algorithm.encode(), most)
        assert cell == f"{len(found)}: {' '.join(found)}"


@pytest.mark.parametrize("algorithm", list(table()))
def test_header_of_the_script_names_the_same_commands(algorithm: str) -> None:
    (header,) = [one for one in HEADERS.values() if one["algo"] == algorithm]
    documented = re.fullmatch(
        r"admitted: ([A-Z ]+).*?; refused: ([A-Z ]+), and no write.*", header["cost"]
    )
    assert documented is not None
    cells = table()[algorithm]
    for words, cell in zip(documented.groups(), (cells[0], cells[2]), strict=True):
        assert set(words.split()) == set(cell.split()[1:])


def test_bytes_of_a_key_equal_the_table() -> None:
    if costs.ENGINE not in harness.engines():
        pytest.skip(f"measured with {costs.ENGINE}, which is not here")
    with harness.server(costs.ENGINE) as made:
        found = {algorithm: costs.held(made.port, algorithm.encode()) for algorithm in table()}
    for algorithm, cells in table().items():
        documented = [int(cell.replace(",", "")) for cell in cells[4:]]
        for now, before in zip(found[algorithm], documented, strict=True):
            assert abs(now - before) <= max(16, 0.04 * before), (algorithm, now, before)
