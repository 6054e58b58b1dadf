"""Metrics: a page that Prometheus' own parsers read, and nothing on it that tells who asked."""

from __future__ import annotations

import logging
import platform
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from headgate import Limiter, Quota, Rule
from headgate._version import __version__
from headgate.audit.auditor import AuditStatus
from headgate.rules.holder import Holder
from headgate.rules.snapshot import Snapshot
from headgate.telemetry.meter import Meter
from headgate.telemetry.metric_families import version_number
from headgate.telemetry.metrics import OPENMETRICS, TEXT, Metrics
from tests.metrics_page import service_metrics

LABELS = {
    "rule",
    "decision",
    "reason",
    "protocol",
    "kind",
    "node",
    "outcome",
    "region",
    "status",
    "token",  # the name that the operator gave it
    "version",
    "python",
    "le",
}  # that may be ours


def samples(page: bytes) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_text(page.decode())
        for sample in family.samples
    }


def value(page: bytes, name: str, **labels: str) -> float:
    return samples(page)[name, frozenset(labels.items())]


def test_figures_are_what_they_were_told(tmp_path: Path) -> None:
    with service_metrics(tmp_path) as metrics:
        page, content_type = metrics.render()
    assert content_type == TEXT
    assert value(page, "headgate_build_info", version=__version__, python=_python(), node=platform.node()) == 1
    assert value(page, "headgate_checks_total", rule="search", decision="allowed", reason="within_limit") == 2
    assert value(page, "headgate_checks_total", rule="search", decision="refused", reason="over_limit") == 1
    assert value(page, "headgate_near_limit_total", rule="search") == 1
    assert value(page, "headgate_request_seconds_bucket", protocol="http", le="0.00025") == 0
    assert value(page, "headgate_request_seconds_bucket", protocol="http", le="0.0005") == 1
    assert value(page, "headgate_checks_per_request_sum", protocol="http") == 1
    assert value(page, "headgate_webhook_messages_total", outcome="failed") == 1
    assert value(page, "headgate_store_call_seconds_count") == 2
    assert value(page, "headgate_store_batch_size_sum") == 2
    assert value(page, "headgate_store_errors_total", kind="timeout") == 1
    assert value(page, "headgate_breaker_state", node="127.0.0.1:6379") == 1
    assert value(page, "headgate_store_failing") == 0
    assert value(page, "headgate_snapshot_version") >= 1
    assert value(page, "headgate_rules") == 1
    assert value(page, "headgate_rules_rejected_total") == 0
    assert value(page, "headgate_database_failing") == 0
    assert value(page, "headgate_audit_backlog") == 3
    assert value(page, "headgate_audit_written_total") == 5
    assert value(page, "headgate_audit_dropped_total") == 2
    assert value(page, "headgate_lease_hits_total") == 98
    assert value(page, "headgate_lease_store_calls_total") == 3
    assert value(page, "headgate_lease_tokens_stranded_total") == 7
    assert value(page, "headgate_lease_tokens_outstanding") == 90
    assert value(page, "headgate_region_synced_bound") == 3
    assert value(page, "headgate_region_failures_total", region="us") == 1
    assert value(page, "headgate_clock_skew_total") == 1
    assert value(page, "headgate_identity_rejections_total", reason="token_expired") == 1
    assert value(page, "process_start_time_seconds") > 0


def test_openmetrics_when_asked_for(tmp_path: Path) -> None:
    with service_metrics(tmp_path) as metrics:
        page, content_type = metrics.render("application/openmetrics-text;version=1.0.0;q=0.8,text/plain;q=0.5")
        text, _ = metrics.render("text/html, */*")
    assert content_type == OPENMETRICS
    assert page.endswith(b"# EOF\n")
    names = {sample.name for family in parse_openmetrics(page.decode()) for sample in family.samples}  # type: ignore[no-untyped-call]
    assert {name for name, _ in samples(text)} == names


def test_no_label_tells_who_asked(tmp_path: Path) -> None:
    with service_metrics(tmp_path) as metrics:
        page, _ = metrics.render()
    assert b"alice" not in page
    for name, labels in samples(page):
        if name.startswith("headgate_"):
            assert {label for label, _ in labels} <= LABELS


def test_age_and_version_follow_the_rules_in_force() -> None:
    off = Rule(id="off", quota=Quota.parse("1/minute"), enabled=False)
    holder = Holder(Snapshot([Rule(id="on", quota=Quota.parse("1/minute")), off], version="7"))
    metrics = Metrics(Meter(), holder=holder, now=lambda: holder.since + 90.0)
    page, _ = metrics.render()
    assert value(page, "headgate_snapshot_age_seconds") == pytest.approx(90.0)
    assert (value(page, "headgate_snapshot_version"), value(page, "headgate_rules")) == (7, 1)
    before = holder.since
    holder.swap(Snapshot([], version="8"))
    assert holder.since > before
    page, _ = metrics.render()
    assert (value(page, "headgate_snapshot_version"), value(page, "headgate_rules")) == (8, 0)


def test_the_version_of_a_file_is_that_of_its_content() -> None:
    assert version_number("3-abc") == version_number("11-abc") != version_number("3-abd")
    assert version_number("12") == 12


def test_what_is_not_given_is_not_on_the_page() -> None:
    page, _ = Metrics(Meter(), holder=Holder(Snapshot([]))).render()
    names = {name for name, _ in samples(page)}
    assert not {name for name in names if name.startswith(("headgate_audit", "headgate_database", "headgate_users"))}
    assert not {"headgate_store_failing", "headgate_lease_keys"} & names


def test_figures_that_cannot_be_had_cost_only_themselves(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> AuditStatus:
        raise RuntimeError("no figures")

    metrics = Metrics(Meter(), holder=Holder(Snapshot([])), audit=broken)
    with caplog.at_level(logging.ERROR, "headgate"):
        page, _ = metrics.render()
    assert value(page, "headgate_rules") == 0
    assert "no figures" in caplog.text


def test_rule_ids_are_escaped() -> None:
    meter, odd = Meter(), 'a "quoted"\nrule\\'
    limiter = Limiter([Rule(id="odd", quota=Quota.parse("1/minute"))])
    meter.record_decision(limiter.check(user="alice"))
    meter._allowed = {(odd, "within_limit"): 2}
    page, _ = Metrics(meter, holder=Holder(Snapshot([]))).render()
    assert value(page, "headgate_checks_total", rule=odd, decision="allowed", reason="within_limit") == 2


def _python() -> str:
    import platform

    return platform.python_version()
