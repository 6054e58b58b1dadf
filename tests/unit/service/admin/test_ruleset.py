"""A snapshot as a rules file: what is read back is the same."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime
from ipaddress import IPv4Network

from headgate import Quota, Rule
from headgate.rules import Exemption, Override, Penalties, Snapshot, Tier, User
from headgate.rules.sources.document import parse_toml, snapshot_of
from headgate.rules.sources.export import text_of

EVERYTHING = Snapshot(
    [
        Rule(
            id="every field",
            quota=Quota(10, 0.0015, burst=20, algorithm="gcra"),
            name='"Every" field\n',
            dimension="user+endpoint",
            endpoints=["/api/*", "/users/{id}"],
            methods=["GET", "POST"],
            tiers=["free"],
            match={"country": "DE", "größe": "ü"},
            action="throttle",
            max_delay=1.5,
            priority=-7,
            group="g",
            sync="leased",
            failure_mode="closed",
            cost=3,
            status=503,
            message="Später, bitte.",
            enabled=False,
        ),
        Rule(id="plain", quota="100/minute"),
        Rule(id="bucket", quota="10/s burst 10"),
        Rule(id="leaky", quota=Quota(10, 60, burst=5, algorithm="leaky_bucket"), dimension="global"),
    ],
    tiers=[Tier(name="free"), Tier(name="premium")],
    users=[
        User(id="alice", tier="premium"),
        User(
            id="bob",
            overrides=[
                Override(rule="plain", limit=5, window="2h", expires=datetime(2027, 1, 1, 12, 30, tzinfo=UTC)),
                Override(rule="bucket", limit=9, burst=10),
            ],
        ),
    ],
    exemptions=[Exemption(type="ip", value="10.0.0.0/8"), Exemption(type="user", value="root")],
    penalties=Penalties(enabled=True, multipliers=(1, 1, 2)),
    default_tier="free",
    failure_mode="local",
    trusted_proxies=[IPv4Network("10.0.0.0/8"), "unix"],
    trusted_proxy_depth=2,
    warning_at=70,
    facts=["größe"],
    unmatched="refuse",
    enabled=False,
)
PARTS = (
    *("rules", "tiers", "users", "exemptions", "penalties", "enabled", "default_tier", "failure_mode"),
    *("trusted_proxies", "trusted_proxy_depth", "warning_at", "warning_until", "facts", "unmatched"),
)


def test_everything_comes_back() -> None:
    again = snapshot_of(parse_toml(text_of(EVERYTHING).encode()), version="1")
    for part in PARTS:
        assert getattr(again, part) == getattr(EVERYTHING, part), part


def test_nothing_at_all_is_a_document_too() -> None:
    document = text_of(Snapshot([]))
    assert tomllib.loads(document) == {"headgate": {}}
    assert snapshot_of(parse_toml(document.encode()), version="1").rules == ()


def test_what_goes_without_saying_is_not_said() -> None:
    (rule,) = tomllib.loads(text_of(Snapshot([Rule(id="r", quota="100/hour")])))["rules"]
    assert rule == {
        **{"id": "r", "dimension": "user", "limit": 100, "window": "1h", "algorithm": "sliding_window_counter"},
    }
