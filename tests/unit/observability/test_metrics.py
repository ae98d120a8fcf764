"""Metrics: the table, and the merge of several workers' samples."""

from __future__ import annotations

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rlproxy.admin.reader import exposition
from rlproxy.observability import metrics as m
from rlproxy.observability.metrics import Samples

from tests.unit.observability.histograms import times


@pytest.mark.parametrize("row", m.TABLE, ids=lambda row: row.name)
def test_row_follows_the_conventions(row: m.Row) -> None:
    assert re.fullmatch(r"rlproxy_[a-z_]+[a-z]", row.name)
    assert row.name.endswith("_total") == (row.kind == m.COUNTER)
    assert row.help and not row.help.endswith(".")
    assert row.across is sum or (row.kind == m.GAUGE and row.across in (max, min))


ONE: Samples = {
    "rlproxy_hits_total": {("log", "admitted"): 3, ("log", "refused"): 1},
    "rlproxy_upstream_up": {(): 1.0},
    "rlproxy_draining": {(): 0.0},
    "rlproxy_clients": {(): 5.0},
    "rlproxy_event_loop_lag_seconds": times((1,) * 14, 0.5),
}
OTHER: Samples = {
    "rlproxy_hits_total": {("log", "admitted"): 4, ("gcra", "admitted"): 7},
    "rlproxy_upstream_up": {(): 0.0},
    "rlproxy_draining": {(): 1.0},
    "rlproxy_clients": {(): 6.0},
    "rlproxy_event_loop_lag_seconds": times((2,) * 14, 0.25),
}


def test_samples_are_merged() -> None:
    assert m.merged([ONE, OTHER]) == {
        "rlproxy_hits_total": {
            ("log", "admitted"): 7,
            ("log", "refused"): 1,
            ("gcra", "admitted"): 7,
        },
        "rlproxy_upstream_up": {(): 0.0},
        "rlproxy_draining": {(): 1.0},
        "rlproxy_clients": {(): 11.0},
        "rlproxy_event_loop_lag_seconds": times((3,) * 14, 0.75),
    }
    assert ONE["rlproxy_clients"] == {(): 5.0}  # the inputs are unchanged


def test_exposition() -> None:
    text = exposition(ONE).decode()
    found = {family.name: family for family in text_string_to_metric_families(text)}
    hits = {tuple(sample.labels.values()): sample.value for sample in found["rlproxy_hits"].samples}
    assert hits == {("log", "admitted"): 3, ("log", "refused"): 1}
    lag = found["rlproxy_event_loop_lag_seconds"]
    assert lag.type == "histogram"
    buckets = [sample.value for sample in lag.samples if sample.name.endswith("_bucket")]
    assert buckets == list(range(1, 15))
    assert [sample.value for sample in lag.samples if sample.name.endswith("_sum")] == [0.5]
    assert found["rlproxy_upstream_up"].samples[0].value == 1


def test_labels_of_any_text() -> None:
    prefixes = [r"a\n", 'b"', "c\n", "d{},= ", "\u20ac"]
    samples: Samples = {m.PREFIX_HITS: {(each, "hits"): 1 for each in prefixes}}
    (family,) = text_string_to_metric_families(exposition(samples).decode())
    assert [sample.labels["prefix"] for sample in family.samples] == prefixes


def test_large_and_exact_values() -> None:
    values = [0, 7, 2**53, 1e300, 0.1, 1_700_000_000.123]
    samples: Samples = {m.POLICY_SHADOW: {(str(at),): each for at, each in enumerate(values)}}
    (family,) = text_string_to_metric_families(exposition(samples).decode())
    assert [sample.value for sample in family.samples] == values
