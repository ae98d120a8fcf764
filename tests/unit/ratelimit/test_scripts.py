"""Scripts: their headers are complete, and stripping keeps the program."""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import pytest
import rlproxy
from rlproxy.config.config import StartError
from rlproxy.ratelimit import scripts as s
from rlproxy.ratelimit.scripts import strip

from tests.lua_headers import parse_header

MAX_EVAL_BYTES = 4096  # every hit by EVAL carries its script
HEAD = """\
-- algo     X
-- guarantee nothing
-- state    none
-- KEYS[1]  the key
-- ARGV[1]  max
-- returns  one
--          or two
-- cost     GET
"""
BODY = "return redis.call('GET', KEYS[1]) or ARGV[1]\n"


def without(word: str) -> str:
    return "".join(line for line in HEAD.splitlines(True) if f"-- {word} " not in line)


WRONG = [
    *[
        (without(word) + BODY, f"the header lacks {word}")
        for word in ("algo", "guarantee", "state", "cost")
    ],
    (without("KEYS[1]") + BODY, "the header lacks KEYS"),
    (HEAD + "-- algo     Y\n" + BODY, "the header has algo twice"),
    (HEAD + "--nothing\n" + BODY, "no header line: --nothing"),
    ("--   continued\n" + HEAD + BODY, "no header line"),
    (HEAD + "return 1\n", r"the header has ARGV \[1\], the code reads \[\]"),
    (HEAD + "return ARGV[1] + ARGV[2]\n", r"the header has ARGV \[1\], the code reads \[1, 2\]"),
    (without("ARGV[1]") + BODY, r"the header has ARGV \[\], the code reads \[1\]"),
    (BODY, "the header lacks algo"),
    ("", "the header lacks algo"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_wrong_header_is_an_error(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_header(text)


def test_argument_read_only_in_a_comment_is_unread() -> None:
    parse_header(HEAD + "-- not ARGV[7]\n" + BODY)
    with pytest.raises(ValueError, match="ARGV"):
        parse_header(HEAD + "  -- ARGV[1]\nreturn 1\n")


STRIPPED = [
    ("return 1", b"return 1"),
    ("-- gone\nreturn 1 -- gone too\n", b"return 1"),
    ("return  { 1 , 2 }", b"return{1,2}"),
    ("local first = 1\nreturn first", b"local a=1 return a"),
    ("local a = 1\nlocal bb = 2\nreturn a + bb", b"local a=1 local b=2 return a+b"),
    ("local x, y = 1, 2\nreturn x", b"local a,b=1,2 return a"),
    ("for index = 1, 2 do call(index) end", b"for a=1,2 do call(a)end"),
    ("local function go(one) return one end", b"local function a(b)return b end"),
    ("return 'a  --  b'", b"return'a  --  b'"),
    ("return 'it\\'s'", b"return'it\\'s'"),
    ("local t = 1\nreturn t.t, x.t", b"local a=1 return a.t,x.t"),
    ("return 1 .. 'x'", b"return 1 ..'x'"),
    ("return a - -1", b"return a- -1"),
    ("if a ~= b then return a <= b end", b"if a~=b then return a<=b end"),
    ("return 1.5", b"return 1.5"),
    ("return a[b[1]]", b"return a[b[1]]"),
]


@pytest.mark.parametrize(("text", "short"), STRIPPED)
def test_strip_shortens_the_text(text: str, short: bytes) -> None:
    assert strip(text) == short


def tokens(text: str) -> list[str]:
    return re.findall(r"'(?:[^'\\]|\\.)*'|\w+|\.\.|[^\s\w]", text)


@pytest.mark.parametrize("path", sorted(s.directory().glob("*.lua")), ids=lambda path: path.stem)
def test_stripped_file_is_the_same_program(path: Path) -> None:
    text = s.text(path.stem)
    code = "\n".join(line.partition("--")[0] for line in text.splitlines())
    assert "'--" not in text
    long, short = tokens(code), tokens(strip(text).decode())
    assert len(long) == len(short)
    names: dict[str, str] = {}
    for old, new, before in zip(long, short, ["", *long], strict=False):
        if old == new or before == ".":
            assert old == new
            continue
        assert old.isidentifier()
        assert names.setdefault(old, new) == new
    assert len(set(names.values())) == len(names)
    free = {word for at, word in enumerate(long) if word not in names and long[at - 1] != "."}
    assert not set(names.values()) & free


def test_all_files_load() -> None:
    loaded = s.load()
    names = sorted(path.stem for path in s.directory().glob("*.lua"))
    blocking = [s.blocking(name) for name in names if name != s.BLOCK]
    groups = [f"{name} group" for name in names if name != s.BLOCK]
    assert sorted(loaded) == sorted(names + blocking + groups)
    for name, script in loaded.items():
        assert script.name == name
        assert script.sha == hashlib.sha1(script.source).hexdigest().encode()
        assert b"--" not in script.source
        if name in names:
            assert len(script.source) <= MAX_EVAL_BYTES
            assert b"\n" not in script.source


@pytest.mark.parametrize("name", ["block", "gcra", "shared/exact_windows"])
def test_a_missing_file_is_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(s.directory(), tmp_path / "lua")
    (tmp_path / "lua" / f"{name}.lua").unlink()
    monkeypatch.setattr(rlproxy, "__file__", str(tmp_path / "proxy" / "rlproxy" / "__init__.py"))
    with pytest.raises(StartError, match=f"no {tmp_path}/lua/{name}.lua"):
        s.load.__wrapped__()


def test_sha_belongs_to_the_sent_text() -> None:
    one = s.Script("x", strip(HEAD + BODY))
    other = s.Script("x", strip(HEAD.replace("nothing", "much") + "\n" + BODY))
    assert (one.sha, one.source) == (other.sha, other.source)
    assert len(one.sha) == 40


def test_the_text_for_shadow_hits_is_another_one() -> None:
    script = s.Script("x", strip(HEAD + BODY))
    words = script.words[s.SHADOW]
    assert script.source in words
    assert b"local r=(function()" in words
    assert words != script.words[s.SOURCE]
