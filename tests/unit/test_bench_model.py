"""The cost model: its fit finds what made the data, its page equals the JSON, and a run works."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import asdict, replace
from functools import cache

import pytest

from bench import load
from bench.model import laws, page, runs
from bench.model.footprint import Footprint
from bench.model.laws import Laws, Result, Times
from bench.model.runs import Run, Values
from bench.plots import Image
from bench.result import Head
from tests.harness import ROOT
from tests.unit import pages

TRUE = Laws(
    scale=1.2,
    power=0.7,
    proxy=Times(2.0, 5.0, 18.0),
    redis=Times(7.0, batch=19.0),
    refused=Times(1.0, 5.5),
    client_bytes=97.0,
    node_bytes=158.0,
    worker=40e6,
    supervisor=25e6,
    client=16e3,
    link=3e3,
    node=2e6,
    node_link=17e3,
    node_key=150.0,
)


def measured(noise: float = 0.0, seed: int = 1) -> list[Run]:
    """Runs that follow the laws TRUE, but for a relative error of up to `noise`."""
    dice = random.Random(seed)

    def near(value: float) -> float:
        return value * (1 + dice.uniform(-noise, noise))

    found = []
    for masters, workers in runs.FULL.cells:
        for one in runs.LOADS:
            run = Run(masters, workers, one.work, one.clients, one.pipeline)
            spread = 1 if one.keys == 1 else masters
            batch = TRUE.batch(laws.under_way(run), spread)
            proxy, redis = TRUE.proxy.us(one.pipeline, batch), TRUE.redis.us(one.pipeline, batch)
            if one.refuses:
                proxy, redis = TRUE.refused.us(one.pipeline, 1), 0.01
            values = Values(
                rate=50_000.0,
                hits=60_000.0,
                proxy_us=proxy,
                proxy_system_us=proxy / 2,
                redis_us=redis,
                redis_system_us=redis / 4,
                top_us=redis / spread,
                calls=0.01 if one.refuses else 1.0,
                calls_s=51.0 * workers if one.refuses else 50_000.0,
                batch=batch,
                client_in=60.0,
                client_out=37.0,
                node_in=121.0,
                node_out=37.0,
            )
            for _ in range(3):
                run.add(replace(values, **{name: near(of) for name, of in asdict(values).items()}))
            found.append(run)
    return found


def looked() -> list[Footprint]:
    """Footprints that follow the laws TRUE."""
    found = []
    for masters, workers in runs.FULL.cells:
        for plain, piped, lanes, keys in (
            (0, 0, 0, 0),
            (4, 0, masters * workers, 64),
            (1000, 0, masters * workers, 1000),
            (1000, 1000, masters * workers, 60_000),
        ):
            made = Footprint(masters, workers, plain, piped, lanes, 0, 0, 0.0, keys)
            connections = round(laws.connections(made) * masters)
            proxy_bytes = TRUE.proxy_memory(workers, plain + piped, connections)
            node_bytes = TRUE.node_memory(connections / masters, keys / masters)
            found.append(
                Footprint(
                    *(masters, workers, plain, piped, lanes, connections),
                    *(round(proxy_bytes), node_bytes, keys),
                )
            )
    return found


def made() -> Result:
    """A result after it was written to a file and read again."""
    facts: dict[str, str | int | float] = {"processor": "Some CPU", "cores": 2}
    versions = {"rlproxy": "1.2.3 (compiled)"}
    sentences = ["one turn of all", "and so on"]
    found = Result(Head("2026-01-02", facts, versions, sentences), measured(), looked())
    return laws.parse(json.loads(json.dumps(found.to_json())))


@cache
def drawn() -> tuple[str, dict[str, Image]]:
    """The page of made(), and its pictures by name."""
    text, images = page.page(made())
    return text, {image.name: image for image in images}


# -- the laws --------------------------------------------------------------------------------------


def test_fit_finds_the_laws_that_made_the_runs() -> None:
    found = laws.fit(made())
    for name, value in asdict(TRUE).items():
        assert asdict(found)[name] == pytest.approx(value, rel=0.02), name
    checked = laws.checks(found, made())
    assert all(one.worst < 0.02 for one in checked.values()), checked


# -- the page --------------------------------------------------------------------------------------


def test_page_follows_the_rules_of_pages() -> None:
    text, images = drawn()
    pages.check_page(text, "Scale", images, page.PREFIX)


def test_pictures_are_legible_and_accessible() -> None:
    pages.check_pictures(drawn()[1], page.page(made())[1])


# -- a real run ------------------------------------------------------------------------------------


# One cluster: the laws need several, and are tested above.
MEASURE = """
import dataclasses, json
from bench import options
from bench.model import cli, runs
sizes = dataclasses.replace(runs.QUICK, cells=((3, 1),))
found = cli.measured(options.parse(["model", "--quick"]), sizes)
runs = [dataclasses.asdict(run) for run in found.runs]
print(json.dumps({"runs": runs, "lanes": [look.lanes for look in found.looks]}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="CPU times are read from /proc")
@pytest.mark.skipif(not load.has_redis_benchmark(), reason="redis-benchmark makes the load")
def test_every_load_is_measured() -> None:
    argv = [sys.executable, "-c", MEASURE]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["runs"]) == len(runs.LOADS)
    for run in found["runs"]:
        calls, hits = run["samples"]["calls"][0], run["samples"]["hits"][0]
        assert hits > 0
        assert run["work"] not in (runs.ADMITTED, runs.HOT) or calls > 0
    assert set(found["lanes"]) == {0, 3}
