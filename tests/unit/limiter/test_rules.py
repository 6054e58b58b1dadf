"""Limiters that go by rules: reasons, overrides, changes of limits, what a refusal tells."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from headgate import AsyncLimiter, InvalidRule, Limiter, Rule
from headgate.core.check import Answer, Charge, Check, Client, Group
from headgate.core.decision import Decision
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.errors import StoreUnavailable
from headgate.rules import Exemption, Holder, Override, Snapshot, User
from headgate.rules.sources.file import FileSource
from headgate.stores.memory import MemoryStore
from headgate.stores.memory.program import MemoryProgram
from headgate.testing import FakeClock


class Counting(MemoryStore):
    """Counts the trips."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock=clock)
        self.trips = 0

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        self.trips += 1
        return super().check(groups)

    def compile(self, plan: Plan, states: WarningStates | None = None, told: Plan | None = None) -> MemoryProgram:
        program = super().compile(plan, states, told)

        def check(*request: Any) -> Decision:
            self.trips += 1
            return program(*request)

        return check


class Broken:
    """A store that cannot decide."""

    def check(self, groups: Sequence[Group]) -> list[Answer]:
        raise StoreUnavailable(f"down: {len(groups)} groups not decided")

    def refund(self, charges: Sequence[Charge]) -> None: ...

    def reset(self, checks: Sequence[Check], clients: Sequence[Client] = ()) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1_700_000_000)


def test_no_rule_and_exempt_cost_no_trip(clock: FakeClock) -> None:
    store = Counting(clock)
    snapshot = Snapshot(
        [Rule(id="a", quota="1/minute", endpoints=["/api/*"])], exemptions=[Exemption(type="user", value="root")]
    )
    limiter = Limiter(snapshot, store=store, clock=clock)
    free = limiter.check(user="u", endpoint="/other")
    exempt = limiter.check(user="root", endpoint="/api/x")
    assert (free.allowed, free.reason, free.rule) == (True, "no_rule", None)
    assert (exempt.allowed, exempt.reason, exempt.rule) == (True, "exempt", None)
    assert store.trips == 0
    assert limiter.check(user="u", endpoint="/api/x").reason == "within_limit"
    assert store.trips == 1


def test_a_batch_mixes_all_of_them(clock: FakeClock) -> None:
    snapshot = Snapshot(
        [Rule(id="a", quota="1/minute", endpoints=["/api/*"])], exemptions=[Exemption(type="user", value="root")]
    )
    limiter = Limiter(snapshot, clock=clock)
    asked = [
        {"user": "u", "endpoint": "/api/x"},
        {"user": "root", "endpoint": "/api/x"},
        {"user": "u", "endpoint": "/api/y"},
        {"user": "u", "endpoint": "/x"},
    ]
    reasons = [decision.reason for decision in limiter.check_many(asked)]
    assert reasons == ["within_limit", "exempt", "over_limit", "no_rule"]


def test_a_shadow_never_refuses_and_never_charges_the_others(clock: FakeClock) -> None:
    rules = [Rule(id="real", quota="3/minute"), Rule(id="shadow", quota="1/minute", action="log_only")]
    limiter = Limiter(rules, clock=clock)
    assert [limiter.check("u").reason for _ in range(4)] == ["within_limit", "shadow", "shadow", "over_limit"]
    assert limiter.check("u").rule == "real"


@pytest.mark.parametrize(
    ("algorithm", "remaining"),
    [
        ("fixed_window", 3),
        ("sliding_window_counter", 3),
        ("sliding_window_log", 3),
        ("leaky_bucket", 3),
        ("token_bucket", 0),  # an empty bucket that grows is still empty
        ("gcra", 0),
    ],
)
def test_a_change_of_limit_keeps_the_counts(clock: FakeClock, algorithm: str, remaining: int) -> None:
    store = MemoryStore(clock=clock)

    def limiter(limit: int) -> Limiter:
        return Limiter([Rule(id="a", quota=f"{limit}/hour {algorithm}")], store=store, clock=clock)

    assert [limiter(5).check("u").allowed for _ in range(6)] == [True] * 5 + [False]
    assert limiter(8).peek("u").remaining == remaining
    assert not limiter(3).check("u").allowed


def test_a_reload_that_changes_a_limit_keeps_the_counts(clock: FakeClock, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nid = "a"\nlimit = 2\nwindow = "1h"\n')
    limiter = Limiter(path, clock=clock)
    assert [limiter.check("u").allowed for _ in range(3)] == [True, True, False]
    path.write_text('[[rules]]\nid = "a"\nlimit = 3\nwindow = "1h"\n')
    limiter.reload()
    assert [limiter.check("u").allowed for _ in range(2)] == [True, False]


def test_an_override_keeps_the_counts_and_is_what_the_decision_shows(clock: FakeClock) -> None:
    expires = datetime.fromtimestamp(clock.now() + 60, UTC)
    users = [User(id="vip", overrides=[Override(rule="a", limit=5, expires=expires)])]
    limiter = Limiter(Snapshot([Rule(id="a", quota="2/hour")], users=users), clock=clock)
    assert [limiter.check("vip").remaining for _ in range(4)] == [4, 3, 2, 1]
    assert limiter.check("other").limit == 2
    clock.advance(60)
    after = limiter.check("vip")
    assert (after.allowed, after.limit) == (False, 2)


def test_a_refusal_tells_the_binding_rule_s_status_and_message(clock: FakeClock) -> None:
    rules = [
        Rule(id="minute", quota="1/minute", status=420, message="A minute."),
        Rule(id="hour", quota="1/hour", status=503, message="An hour.", action="throttle", max_delay="2s"),
    ]
    limiter = Limiter(rules, clock=clock)
    first = limiter.check("u")
    assert (first.status, first.message, first.max_delay) == (200, "", 0.0)
    refused = limiter.check("u")
    assert (refused.rule, refused.status, refused.message, refused.max_delay) == ("hour", 503, "An hour.", 2.0)


def test_the_short_way_tells_them_too(clock: FakeClock) -> None:
    limiter = Limiter([Rule(id="a", quota="1/minute", status=420, message="Calm down.")], clock=clock)
    limiter.check("u")
    refused = limiter.check("u")
    assert (refused.status, refused.message) == (420, "Calm down.")
    plain = Limiter("1/minute", clock=clock)
    plain.check("u")
    assert (plain.check("u").status, plain.check("u").message) == (429, "")


def test_the_status_of_a_refusal_outlives_its_rule(clock: FakeClock, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nid = "a"\nlimit = 1\nwindow = "1h"\nstatus = 420\n')
    limiter = Limiter(path, clock=clock)
    limiter.check("u")
    refused = limiter.check("u")
    path.write_text("[headgate]\n")
    limiter.reload()
    assert limiter.check("u").reason == "no_rule"
    assert (refused.status, refused.rule) == (420, "a")


def test_a_store_that_is_down_is_503_when_the_rules_say_closed(clock: FakeClock) -> None:
    rules = [Rule(id="a", quota="1/minute", status=420)]
    closed = Limiter(Snapshot(rules, failure_mode="closed"), store=Broken(), clock=clock).check("u")
    assert (closed.allowed, closed.reason, closed.status) == (False, "fail_closed", 503)
    own = Limiter(rules, store=Broken(), clock=clock, failure_mode="closed").check("u")
    assert own.reason == "fail_closed"
    opened = Limiter(Snapshot(rules, failure_mode="open"), store=Broken(), clock=clock, failure_mode="closed")
    assert opened.check("u").reason == "fail_open"


def test_rules_with_conditions_do_not_take_the_short_way(clock: FakeClock) -> None:
    for fields in ({"endpoints": ["/a"]}, {"methods": ["GET"]}, {"tiers": ["x"]}, {"match": {"country": "b"}}):
        limiter = Limiter([Rule(id="a", quota="1/minute", **fields)], clock=clock)
        assert limiter.check("u").reason == "no_rule"
    one = [Rule(id="a", quota="1/minute")]
    assert Limiter(Snapshot(one, exemptions=[Exemption(type="user", value="u")])).check("u").reason == "exempt"
    assert Limiter(Snapshot(one, enabled=False)).check("u").reason == "no_rule"
    assert Limiter(Snapshot(one, users=[User(id="u", overrides=[Override(rule="a", limit=9)])])).check("u").limit == 9


def test_every_spelling_of_a_path_counts_together(clock: FakeClock) -> None:
    limiter = Limiter([Rule(id="a", quota="2/minute", endpoints=["/api/search"])], clock=clock)
    spellings = ["/api/search", "//api/search/", "/api/%73earch", "/api/x/../search?q=1"]
    assert [limiter.check(user="u", endpoint=path).allowed for path in spellings] == [True, True, False, False]


def test_several_limiters_share_a_holder(clock: FakeClock, tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nid = "a"\nlimit = 1\nwindow = "1h"\n')
    source = FileSource(path)
    one, other = Limiter(source, clock=clock), Limiter(source, clock=clock)
    path.write_text("[headgate]\n")
    one.reload()
    assert other.check("u").reason == "no_rule"
    assert one.snapshot is other.snapshot is source.holder.current


def test_a_limiter_leaves_a_source_open_that_it_did_not_open(clock: FakeClock) -> None:
    class Source:
        closed = False
        holder = Holder(Snapshot([Rule(id="a", quota="1/s")], version="7"))

        def reload(self) -> Snapshot:
            return self.holder.current

        def close(self) -> None:
            self.closed = True

    source = Source()
    with Limiter(source, clock=clock) as limiter:
        assert limiter.snapshot.version == "7"
        assert limiter.reload().version == "7"
    assert not source.closed


def test_rules_that_are_fixed_cannot_be_reloaded_or_watched() -> None:
    with pytest.raises(InvalidRule, match="cannot be reloaded"):
        Limiter("1/s").reload()
    with pytest.raises(InvalidRule, match="watch: only rules from a file"):
        Limiter("1/s", watch=True)
    with pytest.raises(InvalidRule, match="must be a notation"):
        Limiter(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("as_path", [True, False])
def test_a_file_is_read_by_name_or_path(tmp_path: Path, as_path: bool) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nid = "a"\nlimit = 1\nwindow = "1h"\n')
    with Limiter(rules=path if as_path else str(path)) as limiter:
        assert limiter.check(user="u").rule == "a"


async def check_twice(path: Path) -> list[str]:
    async with AsyncLimiter(rules=path) as limiter:
        before = (await limiter.check(user="u")).reason
        await asyncio.to_thread(path.write_text, "[headgate]\nenabled = false\n")
        await limiter.reload()
        return [before, (await limiter.check(user="u")).reason]


def test_async_limiters_read_files_too(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('[[rules]]\nid = "a"\nlimit = 1\nwindow = "1h"\n')
    assert asyncio.run(check_twice(path)) == ["within_limit", "no_rule"]


def test_rules_in_memory_import_nothing_but_the_standard_library() -> None:
    program = (
        "import sys; from headgate import Limiter, Rule; from headgate.rules import Snapshot, User\n"
        "Limiter([Rule(id='a', quota='1/s', endpoints=['/a'])]).check(user='u', endpoint='/a')\n"
        "print([name for name in ('pydantic', 'redis', 'watchfiles') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "[]"


def test_programs_of_former_rules_are_not_kept() -> None:
    limiter = Limiter(Snapshot([Rule(id="r", quota="1/minute", dimension="user")]))
    kept = []
    for limit in range(1, 4):
        limiter.holder.swap(Snapshot([Rule(id="r", quota=f"{limit}/minute", dimension="user")]))
        limiter.check(user="alice")
        kept += [ref(plan) for plan in limiter._engine.programs]
    gc.collect()
    assert [plan() is None for plan in kept] == [True, True, False]
