"""What deploy/ and docs/ say of metrics is true of a real page; Prometheus' own tool reads all of it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.metrics_page import service_metrics

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/headgate.json"
REFERENCE = ROOT / "docs/reference/metrics.md"

PROMETHEUS_OWN = {"up"}  # which it makes itself
NOT_METRICS = {"by", "without", "and", "or", "unless", "on", "ignoring", "offset", "bool", "group_left", "group_right"}
ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|histogram) \| (.*?) ?\| .*\|$", re.MULTILINE)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    with service_metrics(tmp_path_factory.mktemp("metrics")) as metrics:
        return metrics.render()[0].decode()


@pytest.fixture(scope="module")
def samples(page: str) -> dict[str, set[str]]:
    """The labels of each sample on the page, by name."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


@pytest.fixture(scope="session")
def promtool() -> str:
    done = subprocess.run([ROOT / "scripts/promtool"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run(*command: str | Path, text: str | None = None) -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics_in(expression: str) -> set[str]:
    """The names of the metrics in an expression of PromQL: what is left of its words without all the others."""
    expression = re.sub(r'"(?:[^"\\]|\\.)*"', "", expression)
    expression = re.sub(r"\{[^}]*\}|\[[^\]]*\]", "", expression)
    expression = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", expression)
    expression = re.sub(r"\boffset\s+\w+", "", expression)
    words = re.finditer(r"(?<![\w.])([a-zA-Z_:][\w:]*)(?!\w)(?!\s*\()", expression)
    return {word[1] for word in words} - NOT_METRICS


def labels_in(expression: str) -> Iterator[tuple[str, str]]:
    """The metrics that an expression selects by labels, and those labels."""
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", expression):
        for label in re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', matchers):
            yield name, label


def alert_expressions() -> dict[str, str]:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return {rule["alert"]: rule["expr"] for rule in rules}


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def panel_expressions() -> dict[str, str]:
    return {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    }


def variable_expressions() -> dict[str, str]:
    """What the dashboard's variables select: `label_values(selector, label)`."""
    found = {}
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((.+), \w+\)", variable["query"]["query"])
            assert match is not None
            found[variable["name"]] = match[1]
    return found


EXPRESSIONS = {**alert_expressions(), **panel_expressions(), **variable_expressions()}


def test_names_are_found_in_expressions() -> None:
    text = 'a_b{x="c"} / sum by (d) (rate(e_total[5m] offset 1h)) > 0.5 and histogram_quantile(0.9, f) unless g == 1e3'
    assert metrics_in(text) == {"a_b", "e_total", "f", "g"}


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_expressions_name_metrics_and_labels_that_exist(where: str, samples: dict[str, set[str]]) -> None:
    names = metrics_in(EXPRESSIONS[where])
    assert names
    assert names <= samples.keys() | PROMETHEUS_OWN
    for name, label in labels_in(EXPRESSIONS[where]):
        assert label in samples.get(name, set()) | {"job", "instance", "worker"}, f"{name} has no label {label}"


def test_grouping_is_by_labels_that_exist(samples: dict[str, set[str]]) -> None:
    known = set().union(*samples.values()) | {"job", "instance", "worker"}
    for expression in EXPRESSIONS.values():
        for labels in re.findall(r"\bby\s*\(([^)]*)\)", expression):
            assert {label.strip() for label in labels.split(",")} <= known


def test_what_the_issue_wants_watched_has_an_alert() -> None:
    assert set(alert_expressions()) >= {
        "HeadgateDown",
        "HeadgateStoreFailing",
        "HeadgateAuthFailures",
        "HeadgateTokenExpires",
        "HeadgateErrors",
        "HeadgateCallsGivenUp",
        "HeadgateEventLoopLag",
        "HeadgateConnections",
        "HeadgateRulesRejected",
        "HeadgateNoRules",
        "HeadgateStoreErrors",
        "HeadgateBreakerOpen",
        "HeadgateSlow",
        "HeadgateSnapshotStale",
        "HeadgateDatabaseFailing",
        "HeadgateAuditDropped",
        "HeadgateAuditBacklog",
        "HeadgateRefusalSurge",
        "HeadgateClockSkew",
    }


@pytest.mark.extended
def test_promtool_accepts_rules_and_configuration(promtool: str) -> None:
    assert "21 rules found" in run(promtool, "check", "rules", ALERTS)
    run(promtool, "check", "config", ROOT / "deploy/prometheus/prometheus.yml")


@pytest.mark.extended
def test_alerts_fire_when_they_should_and_not_before(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", ROOT / "deploy/prometheus/alerts_test.yml")


@pytest.mark.extended
def test_promtool_has_nothing_to_say_against_the_page(promtool: str, page: str) -> None:
    run(promtool, "check", "metrics", text=page)


@pytest.mark.extended
def test_the_dashboards_expressions_are_promql(promtool: str, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": expression.replace("$__rate_interval", "1m")}
        for number, expression in enumerate(panel_expressions().values())
    ]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in run(promtool, "check", "rules", file)


def test_the_dashboard_is_one_that_grafana_can_show() -> None:
    whole = dashboard()
    assert (whole["uid"], whole["title"]) == ("headgate", "Headgate")
    ids = [panel["id"] for panel in whole["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in whole["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
        if panel["type"] != "row":
            assert panel["title"]
            assert panel["targets"]
            assert all(one["datasource"]["uid"] == "${datasource}" for one in (panel, *panel["targets"]))
    variables = {variable["name"] for variable in whole["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(whole["panels"]))) - {"__rate_interval"}
    assert used == variables


def test_the_reference_lists_what_there_is(page: str) -> None:
    documented = {
        (name, kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels in ROW.findall(REFERENCE.read_text())
    }
    real = set()
    for family in text_string_to_metric_families(page):
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        name = f"{family.name}_total" if family.type == "counter" else family.name
        real.add((name, family.type, frozenset(labels)))
    assert documented == real
