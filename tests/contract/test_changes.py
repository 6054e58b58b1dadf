"""Changes: what is changed in a database is all there, with its row in the change log, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime

import pytest
from sqlalchemy import text, update

from headgate import Quota, Rule
from headgate.db import Changes, RuleRecord, migrate, schema
from headgate.db.connection import Database
from headgate.db.schema import VERSION_TABLE
from headgate.errors import ChangeConflict, DatabaseError, DatabaseUnavailable, InvalidRule, NotFound
from headgate.rules import Exemption, Override, Penalties, Snapshot, Tier, User
from headgate.testing import FakeClock

SEARCH = Rule(id="search", quota="100/minute")
EVERYTHING = Rule(
    id="everything",
    quota=Quota(10, "15m", burst=20, algorithm="gcra"),
    name="Every field",
    dimension="user+endpoint",
    endpoints=["/api/*", "/users/{id}"],
    methods=["GET", "POST"],
    tiers=["free", "premium"],
    match={"country": "DE", "größe": "ü"},
    action="throttle",
    max_delay=1.5,
    priority=-7,
    group="g",
    sync="leased",
    regions="quota",
    failure_mode="closed",
    cost=3,
    status=503,
    message="Später, bitte.",
    enabled=False,
)


@pytest.fixture
def changes(migrated_url: str) -> Iterator[Changes]:
    with Changes(migrated_url, clock=FakeClock(start=1_700_000_000.5)) as opened:
        yield opened


def rules(changes: Changes) -> list[Rule]:
    return [entry.rule for entry in changes.content().rules.values()]


def test_an_empty_database_is_a_good_snapshot(changes: Changes) -> None:
    snapshot = changes.content().snapshot(changes.version())
    assert (snapshot.version, snapshot.rules, changes.log()) == ("1", (), [])


def test_what_was_put_in_comes_out(changes: Changes) -> None:
    with changes.begin("alice") as change:
        for tier in ("free", "premium"):
            change.create_tier(Tier(name=tier))
        change.create_rule(EVERYTHING)
        change.create_rule(SEARCH)
        change.create_exemption(Exemption(type="ip", value="10.0.0.0/8"))
        change.update_settings(
            default_tier="free", trusted_proxies=["10.0.0.0/8"], failure_mode="local", facts=["größe"]
        )
        change.update_penalties(Penalties(enabled=True, multipliers=(1, 1, 2)))
    snapshot = changes.content().snapshot(change.version)
    assert snapshot.rules == (EVERYTHING, SEARCH)
    assert snapshot.rules[0].match == EVERYTHING.match
    assert [tier.name for tier in snapshot.tiers] == ["free", "premium"]
    assert snapshot.exemptions == (Exemption(type="ip", value="10.0.0.0/8"),)
    assert (snapshot.default_tier, snapshot.failure_mode) == ("free", "local")
    assert [str(network) for network in snapshot.trusted_proxies] == ["10.0.0.0/8"]
    assert snapshot.penalties == Penalties(enabled=True, multipliers=(1, 1, 2))


def test_shards_are_kept_and_do_not_go_with_penalties(changes: Changes) -> None:
    rule = Rule(id="hot", quota="100/minute", shards=8)
    with changes.begin("alice") as change:
        change.create_rule(rule)
    assert rules(changes) == [rule]
    with (
        pytest.raises(InvalidRule, match="shards: cannot be above 1 while penalties are enabled"),
        changes.begin("alice") as change,
    ):
        change.update_penalties(Penalties(enabled=True))
    assert rules(changes) == [rule]


def test_rules_stay_in_the_order_in_which_they_came(changes: Changes) -> None:
    for name in ("c", "a", "b"):
        with changes.begin("alice") as change:
            change.create_rule(Rule(id=name, quota="1/s"))
            change.create_rule(Rule(id=f"{name}2", quota="1/s"))
    with changes.begin("alice") as change:
        change.update_rule(Rule(id="a", quota="2/s"))
    assert [rule.id for rule in rules(changes)] == ["c", "c2", "a", "a2", "b", "b2"]


def test_every_change_is_logged_with_who_when_what_before_and_after(changes: Changes) -> None:
    with changes.begin("alice") as first:
        first.create_rule(SEARCH)
    with changes.begin("bob") as second:
        second.update_rule(Rule(id="search", quota="50/minute"))
        second.delete_rule("search")
    deleted, updated, created = changes.log()
    assert (created.actor, created.action, created.kind, created.subject) == ("alice", "create", "rule", "search")
    assert created.at_us == 1_700_000_000_500_000
    assert created.before is None
    assert created.after is not None
    assert (created.after["limit"], created.after["window"]) == (100, 60.0)
    assert updated.before == created.after
    assert updated.after is not None
    assert updated.after["limit"] == 50
    assert (deleted.action, deleted.before, deleted.after) == ("delete", updated.after, None)
    assert (created.version, updated.version, deleted.version) == (first.version, second.version, second.version)
    assert second.version == first.version + 1 == changes.version()


def test_the_log_has_pages_and_can_be_narrowed(changes: Changes) -> None:
    for number in range(5):
        with changes.begin("alice") as change:
            change.create_rule(Rule(id=f"r{number}", quota="1/s"))
            change.set_tier("bob", f"t{number}")
    assert [one.subject for one in changes.log(kind="rule", max_items=2)] == ["r4", "r3"]
    last = changes.log(kind="rule", max_items=2)[-1]
    assert [one.subject for one in changes.log(kind="rule", before=last.id)] == ["r2", "r1", "r0"]
    assert [one.subject for one in changes.log(kind="rule", subject="r3")] == ["r3"]
    assert len(changes.log(kind="user", subject="bob")) == 5


@pytest.mark.parametrize("late", [False, True], ids=["in the method", "at the end"])
def test_a_bad_change_changes_nothing(changes: Changes, late: bool) -> None:
    with changes.begin("alice") as change:
        change.create_tier(Tier(name="free"))
        change.create_rule(SEARCH)
    before = (changes.content(), changes.log(), changes.version(), changes.user("bob"))
    with pytest.raises(InvalidRule, match="gold"), changes.begin("alice") as change:  # noqa: PT012
        change.set_tier("bob", "free")
        change.update_rule(Rule(id="search", quota="1/minute"))
        if late:
            change.create_rule(Rule(id="other", quota="1/s", tiers=["gold"]))
        else:
            change.set_tier("bob", "gold")
    assert (changes.content(), changes.log(), changes.version(), changes.user("bob")) == before


def test_an_exception_in_between_changes_nothing(changes: Changes) -> None:
    with pytest.raises(ZeroDivisionError), changes.begin("alice") as change:  # noqa: PT012
        change.create_rule(SEARCH)
        raise ZeroDivisionError
    assert (rules(changes), changes.log(), changes.version()) == ([], [], 1)


def test_a_change_to_what_already_is_leaves_no_trace(changes: Changes) -> None:
    with changes.begin("alice") as change:
        change.create_rule(SEARCH)
        change.set_tier("bob", "free")
        change.update_settings(default_tier="free")
    with changes.begin("alice") as nothing:
        nothing.update_rule(Rule(id="search", quota="100/minute"))
        nothing.set_tier("bob", "free")
        nothing.set_tier("nobody", None)
        nothing.update_settings(default_tier="free")
        nothing.update_penalties(Penalties())
    assert nothing.version == change.version == changes.version()
    assert len(changes.log()) == 3


def test_rules_are_changed_by_who_has_seen_them_last(changes: Changes) -> None:
    with changes.begin("alice") as change:
        change.create_rule(SEARCH)
    seen = changes.rule("search")
    assert seen == RuleRecord(SEARCH, change.version)
    with changes.begin("bob") as change:
        change.update_rule(Rule(id="search", quota="50/minute"), version=seen.version)
    told = f"version {change.version}, not {seen.version}"
    with pytest.raises(ChangeConflict, match=told), changes.begin("alice") as late:
        late.update_rule(Rule(id="search", quota="70/minute"), version=seen.version)
    with pytest.raises(ChangeConflict), changes.begin("alice") as late:
        late.delete_rule("search", version=seen.version)
    assert [rule.quota.limit for rule in rules(changes)] == [50]


def test_what_is_there_is_not_created_and_what_is_not_is_not_changed(changes: Changes) -> None:
    with changes.begin("alice") as change:
        change.create_rule(SEARCH)
        change.create_tier(Tier(name="free"))
    exemption = Exemption(type="user", value="bob")
    with changes.begin("alice") as change:
        with pytest.raises(ChangeConflict, match="exists already"):
            change.create_rule(SEARCH)
        with pytest.raises(ChangeConflict, match="exists already"):
            change.create_tier(Tier(name="free"))
        attempts: list[Callable[[], None]] = [
            lambda: change.update_rule(EVERYTHING),
            lambda: change.delete_rule("everything"),
            lambda: change.delete_tier("gold"),
            lambda: change.delete_exemption(exemption),
            lambda: change.delete_override("bob", "search"),
            lambda: change.delete_user("bob"),
        ]
        for attempt in attempts:
            with pytest.raises(NotFound):
                attempt()
    assert changes.version() == 2


def test_users_have_tiers_and_overrides(changes: Changes) -> None:
    expires = datetime(2027, 1, 1, tzinfo=UTC)
    override = Override(rule="search", limit=500, window="1h", burst=7, expires=expires)
    with changes.begin("alice") as change:
        change.create_rule(SEARCH)
        change.set_tier("bob", "premium")
        change.put_override("bob", override)
    assert changes.user("bob") == User(id="bob", tier="premium", overrides=[override])
    with changes.begin("alice") as change:
        change.put_override("bob", Override(rule="search", limit=600))
        change.set_tier("bob", None)
    assert changes.user("bob") == User(id="bob", overrides=[Override(rule="search", limit=600)])
    latest = changes.log(kind="user", subject="bob")[0]
    assert latest.after == {"id": "bob", "overrides": [{"rule": "search", "limit": 600}]}
    with changes.begin("alice") as change:
        change.delete_override("bob", "search")
    assert changes.user("bob") is None
    assert changes.log()[0].after is None


def test_an_override_has_to_fit_its_rule(changes: Changes) -> None:
    with changes.begin("alice") as change:
        change.create_rule(SEARCH)
        change.create_rule(Rule(id="by-ip", quota="1/s", dimension="ip"))
        change.put_override("bob", Override(rule="search", limit=5))
    for rule, message in (("nowhere", "no rule has this id"), ("by-ip", "not by user")):
        with pytest.raises(InvalidRule, match=message), changes.begin("alice") as change:
            change.put_override("bob", Override(rule=rule, limit=5))
    told = "user 'bob': override of rule 'search': rule: it counts by ip"
    with pytest.raises(InvalidRule, match=told), changes.begin("alice") as change:
        change.update_rule(Rule(id="search", quota="100/minute", dimension="ip"))
    with pytest.raises(InvalidRule, match="has overrides of 1 users"), changes.begin("alice") as change:
        change.delete_rule("search")
    with changes.begin("alice") as change:
        change.delete_rule("search", with_overrides=True)
    assert changes.user("bob") is None
    assert [(one.kind, one.action) for one in changes.log()[:2]] == [("rule", "delete"), ("user", "delete")]


def test_a_rule_and_an_override_of_it_in_one_transaction(changes: Changes) -> None:
    with changes.begin("alice") as change:
        change.create_rule(SEARCH)
        change.put_override("bob", Override(rule="search", limit=5))
        change.create_rule(Rule(id="later", quota="1/s"))
    assert [rule.id for rule in rules(changes)] == ["search", "later"]
    assert changes.user("bob") is not None


def test_a_tier_that_is_in_use_stays(changes: Changes) -> None:
    with changes.begin("alice") as change:
        change.create_tier(Tier(name="free"))
        change.create_tier(Tier(name="gold"))
        change.create_rule(Rule(id="r", quota="1/s", tiers=["free"]))
        change.set_tier("bob", "gold")
    for name, message in (("free", "not one of the tiers"), ("gold", "users are on it")):
        with pytest.raises(InvalidRule, match=message), changes.begin("alice") as change:
            change.delete_tier(name)
    assert changes.content().tiers == ["free", "gold"]


@pytest.mark.parametrize("settings", [{"default_tire": "free"}, {"trusted_proxy_depth": 0}, {"failure_mode": "ajar"}])
def test_settings_are_checked(changes: Changes, settings: dict[str, object]) -> None:
    with pytest.raises(InvalidRule, match=next(iter(settings))), changes.begin("alice") as change:
        change.update_settings(**settings)
    assert changes.content().settings == {}


@pytest.mark.parametrize("text", ["a\0b", "a\udc80b"])
def test_texts_that_a_database_cannot_keep_are_refused(changes: Changes, text: str) -> None:
    with pytest.raises(InvalidRule, match="user"), changes.begin("alice") as change:
        change.set_tier(text, "free")
    with pytest.raises(InvalidRule, match="rule 'search'"), changes.begin("alice") as change:
        change.create_rule(Rule(id="search", quota="1/s", message=text))
    with pytest.raises(InvalidRule, match="actor"), changes.begin(text):
        pass
    with pytest.raises(ValueError, match="actor"), changes.begin(""):
        pass
    assert changes.version() == 1


@pytest.mark.parametrize("user", ["", "x" * 513])
def test_ids_of_users_have_bounds(changes: Changes, user: str) -> None:
    with pytest.raises(InvalidRule, match="from 1 to 512"), changes.begin("alice") as change:
        change.set_tier(user, "free")


def test_apply_makes_everything_that_of_a_snapshot(changes: Changes) -> None:
    with changes.begin("alice") as change:
        change.create_tier(Tier(name="old"))
        change.create_rule(Rule(id="gone", quota="1/s", tiers=["old"]))
        change.create_rule(SEARCH)
        change.put_override("carol", Override(rule="gone", limit=5))
        change.create_exemption(Exemption(type="user", value="x"))
    wanted = Snapshot(
        [Rule(id="search", quota="7/minute"), Rule(id="fresh", quota="1/s", tiers=["new"])],
        tiers=[Tier(name="new")],
        users=[User(id="bob", tier="new", overrides=[Override(rule="fresh", limit=3)])],
        exemptions=[Exemption(type="tenant", value="us")],
        penalties=Penalties(enabled=True),
        default_tier="new",
    )
    with changes.begin("file") as change:
        change.apply(wanted)
    after = changes.content().snapshot(1)
    assert (after.rules, after.tiers, after.exemptions) == (wanted.rules, wanted.tiers, wanted.exemptions)
    assert (after.penalties, after.default_tier) == (wanted.penalties, "new")
    assert changes.user("bob") == wanted.users[0]
    assert changes.user("carol") is None
    with changes.begin("file") as again:
        again.apply(wanted)
    assert again.version == change.version


def test_who_else_should_hear_of_it_does_once_it_is_there(database_url: str) -> None:
    migrate(database_url)
    with Changes(database_url) as reader:
        heard: list[tuple[int, int]] = []
        with Changes(database_url, announce=lambda version: heard.append((version, reader.version()))) as changes:
            with changes.begin("alice") as change:
                change.create_rule(SEARCH)
            with changes.begin("alice"):
                pass
        assert heard == [(change.version, change.version)]


def test_errors_of_the_driver_become_ours_with_their_cause(database_url: str) -> None:
    with Changes(database_url) as changes, pytest.raises(DatabaseError, match="headgate_snapshot") as caught:
        changes.version()  # there are no tables yet
    assert caught.value.__cause__ is not None


def test_a_database_that_is_not_there() -> None:
    changes = Changes("postgresql://nobody:secret@127.0.0.1:1/none")
    with pytest.raises(DatabaseUnavailable, match=r"127\.0\.0\.1:1/none") as caught:
        changes.version()
    changes.close()
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["mysql://localhost/x", "rules.db", "sqlite://", "sqlite:///:memory:"])
def test_urls_that_name_no_database_that_we_know(url: str) -> None:
    with pytest.raises(ValueError, match=r"sqlite:///rules\.db"):
        Changes(url)


def test_rules_of_the_calendar_and_anchors_of_users_are_kept(changes: Changes) -> None:
    monthly = Rule(id="plan", quota="100/calendar month tz Europe/Berlin anchor 31", unit="tokens", action="annotate")
    with changes.begin("alice") as change:
        change.create_rule(monthly)
        change.put_users([User(id="bob", anchor=15), User(id="carol", anchor="friday")])
    assert rules(changes) == [monthly]
    assert changes.user("bob") == User(id="bob", anchor=15)
    assert changes.user("carol") == User(id="carol", anchor="friday")
    with changes.begin("alice") as change:
        change.set_tier("bob", "free")
        change.put_override("bob", Override(rule="plan", limit=5))
        change.put_users([User(id="carol")])
    assert changes.user("bob") == User(id="bob", tier="free", anchor=15, overrides=[Override(rule="plan", limit=5)])
    assert changes.user("carol") is None
    with changes.begin("alice") as change:
        change.put_users([User(id="bob", tier="free", anchor=16)])
    assert changes.user("bob") == User(id="bob", tier="free", anchor=16)


def test_facts_that_rules_went_by_before_they_had_to_be_declared_are_declared(database_url: str) -> None:
    migrate(database_url)
    device = Rule(id="device", quota="1/minute", dimension="device+user", match={"größe": "ü"})
    with Changes(database_url, clock=FakeClock(start=1_700_000_000.5)) as changes:
        with changes.begin("alice") as change:
            change.update_settings(facts=["device", "größe"])
            change.create_rule(device)
        with closing(Database(database_url)) as database, database.write() as connection:  # as it was before
            connection.execute(text("DELETE FROM headgate_settings"))
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0009'"))
        migrate(database_url)
        snapshot = changes.content().snapshot(change.version)
    assert snapshot.facts == ("device", "größe")
    assert snapshot.rules == (device,)


def test_patterns_of_other_frameworks_in_stored_rules_stay_literal_text(
    database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Rules with such patterns are refused now. Those that were stored before must not keep a node from starting."""
    migrate(database_url)
    with Changes(database_url) as changes:
        with changes.begin("alice") as change:
            change.create_rule(Rule(id="old", quota="1/minute", endpoints=["/stored"]))
            change.create_rule(Rule(id="other", quota="1/minute", endpoints=["/v1/rules:dry-run", "/users/{id}"]))
        with closing(Database(database_url)) as database, database.write() as connection:  # as it was before
            before = update(schema.rules).where(schema.rules.c.id == "old")
            connection.execute(before.values(endpoints=["/users/<int:id>", "/a/:id/*", "/users/{id}"]))
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0010'"))
        migrate(database_url)
        old, other = rules(changes)
    assert old.endpoints == ("/users/%3Cint:id%3E", "/a/%3Aid/*", "/users/{id}")
    assert other.endpoints == ("/v1/rules:dry-run", "/users/{id}")
    assert "rule 'old': endpoints: ['/users/<int:id>', '/a/:id/*', '/users/{id}'] was literal text" in caplog.text
    assert "'other'" not in caplog.text
