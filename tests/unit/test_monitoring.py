"""Dashboard and alerts use existing metrics, and the runbook has a section for each alert."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from rlproxy.observability.metrics import COUNTER, ERRORS, HISTOGRAM, TABLE, Row
from rlproxy.ratelimit.outcomes import CALLS, OUTCOMES, WAITS

from tests import documents, monitoring
from tests.harness import DEADLINE_S, ROOT
from tests.monitoring import ALERTS, DASHBOARD, DEPLOY, PANELS, RULES, Expression

EXPRESSIONS = monitoring.expressions()
OF_ALERTS = [Expression(rule["alert"], rule["expr"]) for rule in ALERTS]
EXTRA = {"job", "instance"}  # labels added by Prometheus
OF_COUNTERS = {"rate", "increase"}
OF_GAUGES = {"", "changes"}

# The values of a label.
VALUES = {
    ("rlproxy_hits_total", "outcome"): OUTCOMES,
    ("rlproxy_policy_hits_total", "outcome"): OUTCOMES,
    ("rlproxy_prefix_hits_total", "outcome"): ("hits", "refused"),
    ("rlproxy_waits_total", "outcome"): WAITS,
    ("rlproxy_calls_total", "command"): CALLS,
    ("rlproxy_errors_total", "kind"): tuple(ERRORS),
}


def row_of(metric: str) -> tuple[Row, set[str], set[str]]:
    """The metric's row, its labels, and the functions that suit its values."""
    for row in TABLE:
        if row.kind == HISTOGRAM:
            if metric == f"{row.name}_bucket":
                return row, {*row.labels, "le"}, OF_COUNTERS
            if metric in (f"{row.name}_sum", f"{row.name}_count"):
                return row, set(row.labels), OF_COUNTERS
        elif metric == row.name:
            return row, set(row.labels), OF_COUNTERS if row.kind == COUNTER else OF_GAUGES
    raise AssertionError(f"{metric} is no row of metrics.TABLE")


# A selector: the function that takes it as a range, its metric, its labels, and whether it is one.
SELECTOR = re.compile(r"(?:(\w+)\()?\b(rlproxy_\w+)(?:\{([^}]*)\})?(\[)?")
MATCHER = re.compile(r'(\w+)(?:=~|!~|!=|=)"([^"]*)"')


def errors_in(expr: str) -> list[str]:
    """The errors in an expression, checked against metrics.TABLE. promtool checks its form."""
    found = []
    every = set(EXTRA)
    for function, metric, matchers, ranged in SELECTOR.findall(expr):
        row, labels, functions = row_of(metric)
        every |= labels
        by = function if ranged else ""
        if by not in functions:
            found.append(f"{by or 'no function'} of {metric}, a {row.kind}")
        for label, value in MATCHER.findall(matchers):
            if label not in labels | EXTRA:
                found.append(f"{metric} has no label {label}")
            known = VALUES.get((row.name, label))
            if known is not None:
                found += [f"{label} is never {one}" for one in value.split("|") if one not in known]
    named = listed("by|on", expr)
    return found + [f"no metric has the label {label}" for label in sorted(named - every)]


def listed(clause: str, expr: str) -> set[str]:
    """The labels in all clauses of this name, as in `by (job, instance)`."""
    found = re.findall(rf"\b(?:{clause})\s*\(([^)]*)\)", expr)
    return {label for names in found for label in re.findall(r"\w+", names)}


def labels_of(expr: str) -> set[str]:
    """The labels that the values of an expression may have."""
    every = EXTRA.union(*(row_of(found[1])[1] for found in SELECTOR.findall(expr)))
    return listed("by", expr) or every


# -- expressions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("each", [*EXPRESSIONS, *OF_ALERTS], ids=str)
def test_selected_metrics_and_labels_exist(each: Expression) -> None:
    assert errors_in(each.expr) == []


@pytest.mark.parametrize("each", EXPRESSIONS, ids=str)
def test_legend_names_existing_labels(each: Expression) -> None:
    legend = set(re.findall(r"\{\{(\w+)\}\}", each.legend))
    assert legend <= labels_of(each.expr)
    assert legend or not listed("by", each.expr) - EXTRA - {"le"}, "no label distinguishes them"


def test_every_metric_is_shown_or_alerted_on() -> None:
    """Or list it here with a reason."""
    used = {
        row_of(found[1])[0].name
        for each in [*EXPRESSIONS, *OF_ALERTS]
        for found in SELECTOR.findall(each.expr)
    }
    assert {row.name for row in TABLE} - used == set()


@pytest.mark.parametrize(
    ("expr", "mistake"),
    [
        ("rlproxy_hits_total", "no function of rlproxy_hits_total, a counter"),
        ("rate(rlproxy_clients[5m])", "rate of rlproxy_clients, a gauge"),
        ('rate(rlproxy_hits_total{kind="x"}[5m])', "rlproxy_hits_total has no label kind"),
        ('rate(rlproxy_hits_total{outcome="lost"}[5m])', "outcome is never lost"),
        ("sum by (worker) (rlproxy_clients)", "no metric has the label worker"),
    ],
)
def test_errors_in_expressions_are_found(expr: str, mistake: str) -> None:
    assert errors_in(expr) == [mistake]


def promtool(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [monitoring.program("promtool"), *words],
        capture_output=True,
        text=True,
        timeout=6 * DEADLINE_S,
    )


def test_promtool_reads_every_expression(tmp_path: Path) -> None:
    made = tmp_path / "rules.yml"

    def checked(exprs: list[str]) -> subprocess.CompletedProcess[str]:
        rules = [{"record": f"r:{number}", "expr": expr} for number, expr in enumerate(exprs)]
        made.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
        return promtool("check", "rules", str(made))

    done = checked([each.expr for each in EXPRESSIONS])
    assert done.returncode == 0, done.stderr
    assert checked([EXPRESSIONS[0].expr + ")"]).returncode != 0


def test_promtool_reads_rules_and_configuration(tmp_path: Path) -> None:
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout
    config = tmp_path / "prometheus.yml"
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    config.write_text(text.replace("/etc/prometheus/rlproxy.rules.yml", str(RULES)))
    done = promtool("check", "config", str(config))
    assert done.returncode == 0, done.stderr


# -- the dashboard ---------------------------------------------------------------------------------


def test_every_panel_has_a_description() -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    for panel in PANELS:
        title = panel["title"]
        assert len(panel["description"]) > 20, title
        assert panel["description"].endswith("."), title
        assert panel["fieldConfig"]["defaults"]["unit"], title
        assert panel["datasource"] == source, title
        assert [target["datasource"] for target in panel["targets"]] == [source] * len(
            panel["targets"]
        )
        refs = [target["refId"] for target in panel["targets"]]
        assert refs == sorted(set(refs)), title


def test_panels_have_their_own_ids_and_places() -> None:
    every = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    taken: dict[tuple[int, int], str] = {}
    for panel in every:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24, panel["title"]
        for x, y in itertools.product(range(place["w"]), range(place["h"])):
            at = (place["x"] + x, place["y"] + y)
            assert at not in taken, f"{panel['title']} covers {taken[at]}"
            taken[at] = panel["title"]
    rows = max(y for _, y in taken) + 1
    assert len(taken) == 24 * rows  # without gaps
    assert [panel["gridPos"]["y"] for panel in every] == sorted(
        panel["gridPos"]["y"] for panel in every
    )


def test_variables_are_queried_and_used() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance"]
    for name in ("job", "instance"):
        query = variables[name]["query"]["query"]
        assert query == variables[name]["definition"]
        query_of = re.fullmatch(rf"label_values\((.+), {name}\)", query)
        assert query_of is not None
        assert errors_in(monitoring.filled(query_of[1])) == []
    for panel in PANELS:
        for target in panel["targets"]:
            for _, _, matchers, _ in SELECTOR.findall(target["expr"]):
                assert {label for label, _ in MATCHER.findall(matchers)} >= EXTRA, panel["title"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert used - {"__all", "__rate_interval"} == set(variables)


def test_colours_refer_to_existing_series() -> None:
    (panel,) = [panel for panel in PANELS if panel["title"] == "Hits by what became of them"]
    coloured = [each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]]
    assert tuple(coloured) == OUTCOMES
    assert all(f"{outcome}" in panel["description"] for outcome in OUTCOMES)
    (panel,) = [panel for panel in PANELS if panel["title"] == "Errors by kind"]
    assert all(kind in panel["description"] for kind in ERRORS)


def test_dashboard_satisfies_grafanas_schema() -> None:
    """Fields unknown to the schema are lost on the way through it."""
    sdk = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    pytest.importorskip("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder").JSONEncoder()

    def through(dashboard: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(encoder.encode(sdk.Dashboard.from_json(dashboard)))
        return found

    # Grafana itself writes these two, and its schema lacks them.
    assert set(lost(DASHBOARD, through(DASHBOARD))) <= {"definition", "titleFormat"}
    wrong = json.loads(json.dumps(DASHBOARD).replace('"showLegend"', '"showLegends"'))
    assert "showLegends" in set(lost(wrong, through(wrong)))


def lost(before: Any, after: Any) -> list[str]:
    """The names of fields that have changed."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = [name for name in before if name not in after]
        return found + [
            each for name in before if name in after for each in lost(before[name], after[name])
        ]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        return [name for one, other in pairs for name in lost(one, other)]
    return [] if before == after else [repr(before)]


# -- alerts and runbook ----------------------------------------------------------------------------


def test_every_alert_is_complete() -> None:
    names = [rule["alert"] for rule in ALERTS]
    assert len(set(names)) == len(names)
    for rule in ALERTS:
        name = rule["alert"]
        assert name.startswith("Rlproxy")
        assert rule["labels"]["severity"] in ("critical", "warning"), name
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert anchor in documents.anchors(ROOT / page), name
        assert anchor == name.lower()


def test_annotations_name_existing_labels() -> None:
    for rule in ALERTS:
        had = labels_of(rule["expr"])
        if rule["alert"] == "RlproxyAbsent":
            had = {"job"}
        for text in rule["annotations"].values():
            for word in re.findall(r"\{\{ *(.*?) *\}\}", text):
                label = re.fullmatch(r"\$labels\.(\w+)", word)
                if label is not None:
                    assert label[1] in had, rule["alert"]
                else:
                    assert re.fullmatch(r"\$value( \| humanize(Percentage|Duration)?)?", word), word


def test_runbook_has_a_section_for_each_alert() -> None:
    found = monitoring.sections()
    assert set(found) == {rule["alert"] for rule in ALERTS}
    for name, text in found.items():
        parts = re.findall(r"^\*\*(\w+)\b", text, re.MULTILINE)
        assert parts == ["Look", "Do"], name


def test_events_in_the_runbook_equal_those_of_the_log() -> None:
    found = re.findall(r"^\*Log:\*.*?(?=\n\n)", monitoring.RUNBOOK.read_text(), re.M | re.S)
    named = {word for text in found for word in re.findall(r"`([^`]+)`", text)}
    assert len(named) > 10
    table = documents.rows((ROOT / "docs" / "logging.md").read_text(), "| event ")
    assert named <= {row[0].strip("`") for row in table}


def test_documented_prometheus_settings_match_the_rules(tmp_path: Path) -> None:
    page = ROOT / "docs" / "observability.md"
    (block,) = [each for each in documents.blocks(page) if each.language == "yaml"]
    (job,) = yaml.safe_load(block.text)["scrape_configs"]
    matches = {rule["expr"].count(f'job="{job["job_name"]}"') for rule in ALERTS}
    assert max(matches) == 1
    (line,) = [
        line
        for each in documents.blocks(page)
        for line in each.text.splitlines()
        if line.startswith("sed ")
    ]
    made = tmp_path / RULES.relative_to(ROOT)
    made.parent.mkdir(parents=True)
    made.write_text(RULES.read_text())
    subprocess.run(["sh", "-c", line], cwd=tmp_path, check=True, timeout=DEADLINE_S)
    for group in yaml.safe_load(made.read_text())["groups"]:
        for rule in group["rules"]:
            address = rule["annotations"]["runbook_url"]
            assert re.fullmatch(rf"https://.+/runbook\.html#{rule['alert'].lower()}", address)


# -- alerts on synthetic series --------------------------------------------------------------------

AT = 'job="rlproxy", instance="a:9121"'
ONE = {"job": "rlproxy", "instance": "a:9121"}
MINUTES = 30  # of each series, one value per minute
UP = [(f"up{{{AT}}}", "1x30"), (f"rlproxy_workers{{{AT}}}", "2x30")]
NOT_UP = [(f"up{{{AT}}}", "0x30")]


def hits(outcome: str, per_minute: int) -> tuple[str, str]:
    return (
        f'rlproxy_hits_total{{{AT}, algorithm="gcra", outcome="{outcome}"}}',
        f"0+{per_minute}x{MINUTES}",
    )


def policy(outcome: str, per_minute: int) -> tuple[str, str]:
    labels = f'{AT}, policy="login", outcome="{outcome}"'
    return f"rlproxy_policy_hits_total{{{labels}}}", f"0+{per_minute}x{MINUTES}"


def slow(name: str, bound: float) -> list[tuple[str, str]]:
    """A histogram: 98 of 100 below a millisecond, the others below `bound`."""
    return [
        (f'{name}_bucket{{{AT}, le="0.001"}}', f"0+980x{MINUTES}"),
        (f'{name}_bucket{{{AT}, le="{bound}"}}', f"0+1000x{MINUTES}"),
        (f'{name}_bucket{{{AT}, le="+Inf"}}', f"0+1000x{MINUTES}"),
    ]


def of(metric: str, values: str, *labels: str) -> tuple[str, str]:
    return f"{metric}{{{', '.join([AT, *labels])}}}", values


Series = list[tuple[str, str]]

# The alert, series that make it fire, the value in its texts, and series just below the threshold.
CASES: list[tuple[str, Series, str, Series]] = [
    ("RlproxyDown", NOT_UP, "", UP),
    ("RlproxyAbsent", [("up{job='other'}", "1x30")], "", UP),
    ("RlproxyNoWorkers", [UP[0], of("rlproxy_workers", "0x30")], "", UP),
    ("RlproxyWorkersMissing",
     [UP[0], of("rlproxy_workers", "1x30"), of("rlproxy_workers_wanted", "2x30")], "1",
     [*UP, of("rlproxy_workers_wanted", "2x30")]),
    ("RlproxyWorkersDying",
     [*UP, of("rlproxy_process_start_time_seconds", "100+10x30", 'worker="1"')], "15",
     [*UP, of("rlproxy_process_start_time_seconds", "100x10 200x10 300x8", 'worker="1"')]),
    ("RlproxySettingsRejected", [*UP, of("rlproxy_settings_rejected", "1x30")], "",
     [*UP, of("rlproxy_settings_rejected", "1x20 0x10")]),
    ("RlproxyUpstreamDown", [*UP, of("rlproxy_upstream_up", "0x30")], "",
     [*UP, of("rlproxy_upstream_up", "1x30")]),
    ("RlproxyUpstreamFlapping", [*UP, of("rlproxy_upstream_opened_total", "0+0.5x30")], "7.5",
     [*UP, of("rlproxy_upstream_opened_total", "0+0.1x30")]),
    ("RlproxyConnectsFailing",
     [*UP, of("rlproxy_upstream_connects_failed_total", "0+60x30"),
      of("rlproxy_upstream_up", "1x30")], "1",
     [*UP, of("rlproxy_upstream_connects_failed_total", "0+3x30"),
      of("rlproxy_upstream_up", "1x30")]),
    ("RlproxyUpstreamUnusable",
     [*UP, of("rlproxy_upstream_problem", "1x30", 'kind="cluster"'),
      of("rlproxy_upstream_up", "1x30")], "",
     [*UP, of("rlproxy_upstream_problem", "1x30", 'kind="unreachable"'),
      of("rlproxy_upstream_up", "1x24 0x5")]),  # too short for RlproxyUpstreamDown
    ("RlproxyLoginRefused", [*UP, of("rlproxy_upstream_problem", "1x30", 'kind="login"')], "",
     [*UP, of("rlproxy_upstream_problem", "1x30", 'kind="scripts"')]),
    ("RlproxyScriptsMissing",
     [*UP, of("rlproxy_scripts_loaded", "0x30"), of("rlproxy_upstream_up", "1x30")], "",
     [*UP, of("rlproxy_scripts_loaded", "1x30"), of("rlproxy_upstream_up", "1x30")]),
    ("RlproxyScriptsSentAgain", [*UP, of("rlproxy_noscript_repairs_total", "0+120x30")], "2",
     [*UP, of("rlproxy_noscript_repairs_total", "0x5 7000x25")]),
    ("RlproxyFailingOpen", [*UP, hits("failed_open", 5), hits("admitted", 95)], "5%",
     [*UP, hits("failed_open", 1), hits("admitted", 999)]),
    ("RlproxyFailingClosed", [*UP, hits("failed_closed", 5), hits("admitted", 95)], "5%",
     [*UP, hits("failed_closed", 1), hits("admitted", 999)]),
    ("RlproxyHitsFailing", [*UP, hits("failed", 5), hits("admitted", 95)], "5%",
     [*UP, hits("failed", 1), hits("admitted", 999)]),
    ("RlproxyRefusalsHigh",
     [*UP, hits("refused", 300), hits("refused_locally", 300), hits("admitted", 400)], "60%",
     [*UP, hits("refused", 30), hits("refused_locally", 20), hits("admitted", 1)]),  # too few
    ("RlproxyPolicyRefuses",
     [*UP, policy("refused", 6), policy("refused_locally", 6), policy("admitted", 8)], "60%",
     [*UP, policy("refused", 6), policy("admitted", 3), policy("shadow_refused", 4)]),
    ("RlproxyPolicyRefuses",
     [*UP, policy("refused", 12), policy("admitted", 8), policy("failed", 90)], "60%",
     [*UP, policy("refused", 4), policy("admitted", 1)]),  # too few
    ("RlproxyLatencyHigh", [*UP, *slow("rlproxy_lane_round_trip_seconds", 1.0)], "500.5ms",
     [*UP, *slow("rlproxy_lane_round_trip_seconds", 0.05)]),
    ("RlproxyEventLoopLag", [*UP, *slow("rlproxy_event_loop_lag_seconds", 1.0)], "500.5ms",
     [*UP, *slow("rlproxy_event_loop_lag_seconds", 0.1)]),
    ("RlproxyClientsNearMax",
     [*UP, of("rlproxy_clients", "900x30"), of("rlproxy_clients_max", "1000x30")], "90%",
     [*UP, of("rlproxy_clients", "800x30"), of("rlproxy_clients_max", "1000x30")]),
    ("RlproxyClientsTurnedAway",
     [*UP, of("rlproxy_errors_total", "0+30x30", 'kind="turned_away"')], "500m",
     [*UP, of("rlproxy_errors_total", "0+3000x30", 'kind="handshake"')]),
    ("RlproxyOpenFilesNearMax",
     [*UP, of("rlproxy_process_open_fds", "9x30", 'worker="1"'),
      of("rlproxy_process_max_fds", "10x30", 'worker="1"')], "90%",
     [*UP, of("rlproxy_process_open_fds", "9x30", 'worker="1"'),
      of("rlproxy_process_max_fds", "100x30", 'worker="1"')]),
    ("RlproxyCpuSaturated",
     [*UP, of("rlproxy_process_cpu_seconds_total", "0+57x30", 'worker="1"')], "95%",
     [*UP, of("rlproxy_process_cpu_seconds_total", "0+50x30", 'worker="1"')]),
]  # fmt: skip
# The labels of alerts that have others than job and instance.
LABELS = {
    "RlproxyAbsent": {"job": "rlproxy"},
    "RlproxyOpenFilesNearMax": {**ONE, "worker": "1"},
    "RlproxyCpuSaturated": {**ONE, "worker": "1"},
    "RlproxyUpstreamUnusable": {**ONE, "kind": "cluster"},
    "RlproxyLoginRefused": {**ONE, "kind": "login"},
    "RlproxyClientsTurnedAway": {**ONE, "kind": "turned_away"},
    "RlproxyPolicyRefuses": {**ONE, "policy": "login"},
}


def test_every_alert_has_test_series() -> None:
    assert {case[0] for case in CASES} == {rule["alert"] for rule in ALERTS}


def test_alerts_fire_alone_and_only_on_their_condition(tmp_path: Path) -> None:
    done = promtool_output(tmp_path, CASES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alert_that_does_not_fire_is_found(tmp_path: Path) -> None:
    name, fires, value, quiet = CASES[0]
    assert promtool_output(tmp_path, [(name, quiet, value, quiet)]).returncode != 0
    assert promtool_output(tmp_path, [(name, fires, value, fires)]).returncode != 0


def promtool_output(
    tmp_path: Path, cases: list[tuple[str, Series, str, Series]]
) -> subprocess.CompletedProcess[str]:
    """promtool's output for the rules on these series."""
    made = tmp_path / "tests.yml"
    tests = []
    for name, fires, value, quiet in cases:
        tests += [promtool_test(name, fires, value), promtool_test(name, quiet, None)]
    made.write_text(
        yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests})
    )
    return promtool("test", "rules", str(made))


def promtool_test(name: str, series: Series, value: str | None) -> dict[str, Any]:
    """A promtool test that the alert fires after 25 minutes with these texts, and no other does;
    `value` is None where none may fire.
    """
    (rule,) = [rule for rule in ALERTS if rule["alert"] == name]
    labels = LABELS.get(name, ONE)
    texts = {}
    for key, text in rule["annotations"].items():
        shown = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels.get(found[1], "?"), text)
        texts[key] = re.sub(r"\{\{ \$value.*?\}\}", value or "", shown)
    fires = value is not None
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series],
        "alert_rule_test": [
            {
                "eval_time": "25m",
                "alertname": name,
                "exp_alerts": [
                    {"exp_labels": {**rule["labels"], **labels}, "exp_annotations": texts}
                ]
                if fires
                else [],
            }
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "25m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}] if fires else [],
            }
        ],
    }
