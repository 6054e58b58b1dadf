"""From a snapshot to a rules file and back: nothing is lost, and nothing is said that goes without saying."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from headgate.rules import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.document import snapshot_of
from headgate.rules.sources.export import document_of, text_of
from tests.unit.rules.sources.test_document import CONTRACT

SAMPLES = files("headgate.service.samples").joinpath("rules.toml").read_text()
PARTS = ("rules", "tiers", "users", "exemptions", "penalties", "enabled", "default_tier", "failure_mode")
PROXIES = ("trusted_proxies", "trusted_proxy_depth", "warning_at", "warning_until", "regions")


def again(snapshot: Snapshot) -> Snapshot:
    """The snapshot of the file that a snapshot makes."""
    return snapshot_of(tomllib.loads(text_of(snapshot)), version="2")


@pytest.mark.parametrize("text", [CONTRACT, SAMPLES], ids=["contract", "samples"])
def test_a_file_comes_back_as_it_was(text: str) -> None:
    before = snapshot_of(tomllib.loads(text), version="1")
    after = again(before)
    assert before.rules
    for part in (*PARTS, *PROXIES):
        assert getattr(after, part) == getattr(before, part), part


def test_shards_are_said_where_there_are_any() -> None:
    rules = (Rule(id="hot", quota="100/s", shards=8), Rule(id="cold", quota="100/s"))
    assert again(Snapshot(rules)).rules == rules
    assert [rule.get("shards") for rule in document_of(Snapshot(rules))["rules"]] == [8, None]


@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "gcra"])
def test_a_burst_does_not_change_the_algorithm(algorithm: str) -> None:
    rule = snapshot_of(
        {"rules": [{"id": "r", "limit": 5, "window": "1500ms", "burst": 9, "algorithm": algorithm}]}, version="1"
    ).rules[0]
    assert again(Snapshot([rule])).rules == (rule,)


def test_what_goes_without_saying_is_not_said() -> None:
    document = document_of(Snapshot([Rule(id="r", quota="5/minute", methods=["GET"])]))
    assert list(document) == ["headgate", "rules"]
    assert document["rules"] == [
        {"id": "r", "dimension": "user", "methods": ["GET"], "limit": 5, "window": "1m"}
        | {"algorithm": "sliding_window_counter"}
    ]


def test_no_rules_at_all_can_be_said() -> None:
    assert document_of(Snapshot([])) == {"headgate": {}}
    assert again(Snapshot([])).rules == ()
