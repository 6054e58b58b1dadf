"""Who may do what: own tokens, those in a database, and what is remembered of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection

import pytest

from headgate.db.tokens import Token, hash_of
from headgate.errors import DatabaseError, DatabaseUnavailable, Forbidden, Unauthenticated
from headgate.service import access as module
from headgate.service.access import ANYBODY, BOOTSTRAP, DATA, Access
from headgate.testing import FakeClock

START = 1_700_000_000.0
HOUR_US = 3_600_000_000
GOOD = "hg_good"


class Kept:
    """Tokens by hash, and how often they were asked for."""

    def __init__(self) -> None:
        self.tokens: dict[str, Token] = {}
        self.asked: list[list[str]] = []
        self.error: Exception | None = None
        self.gate: threading.Event | None = None
        self.started = threading.Event()

    def add(self, secret: str, **fields: object) -> None:
        created_us = round(START * 1e6)
        token = Token("1", "ci", "operator", ("check", "users"), created_us, "alice", created_us + HOUR_US, None)
        self.tokens[hash_of(secret)] = token._replace(**fields)  # type: ignore[arg-type]

    def find(self, hashes: Collection[str]) -> dict[str, Token]:
        self.asked.append(list(hashes))
        self.started.set()
        found = {one: self.tokens[one] for one in hashes if one in self.tokens}
        if self.gate is not None:
            self.gate.wait(10)
        if self.error is not None:
            raise self.error
        return found


@pytest.fixture
def kept() -> Kept:
    tokens = Kept()
    tokens.add(GOOD)
    return tokens


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def access(kept: Kept, clock: FakeClock) -> Access:
    return Access(admin_token="root", data_token="data", tokens=kept, clock=clock, now=clock.now, deadline=30)


def refused(access: Access, token: str | None) -> str:
    with pytest.raises(Unauthenticated) as caught:
        asyncio.run(access.caller(token))
    return str(caught.value)


def test_own_tokens_need_no_database(access: Access, kept: Kept) -> None:
    assert asyncio.run(access.caller("root")) is BOOTSTRAP
    assert asyncio.run(access.caller("data")) is DATA
    assert kept.asked == []


def test_own_tokens_are_good_while_the_database_is_away(access: Access, kept: Kept) -> None:
    kept.error = DatabaseUnavailable("away")
    assert asyncio.run(access.caller("root")) is BOOTSTRAP


@pytest.mark.parametrize("field", ["admin_token", "data_token"])
def test_an_empty_token_is_a_mistake(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field}: must not be empty"):
        Access(**{field: ""})  # type: ignore[arg-type]


def test_a_token_of_the_database(access: Access) -> None:
    caller = asyncio.run(access.caller(GOOD))
    assert caller == ("ci", "operator", frozenset({"check", "users"}), "")
    caller.require("users", "operator")
    with pytest.raises(Forbidden, match="the role admin"):
        caller.require("users", "admin")
    with pytest.raises(Forbidden, match="not for rules"):
        caller.require("rules")


@pytest.mark.parametrize(
    "token", ["", "nobody", "hg_", "hg_nobody", "Root", "root ", "hg_\ud800", "hg_ü", "hg_" * 1000]
)
def test_what_is_no_token(access: Access, token: str) -> None:
    assert refused(access, token) == "this token is not known"


def test_no_token_at_all(access: Access) -> None:
    assert "a bearer token is needed" in refused(access, None)


def test_what_cannot_be_one_of_ours_is_not_looked_up(access: Access, kept: Kept) -> None:
    refused(access, "nobody")
    refused(access, "hg_" + "x" * 1_000)
    assert kept.asked == []


def test_expired_and_revoked(access: Access, kept: Kept, clock: FakeClock) -> None:
    kept.add("hg_old", expires_us=clock.now_us())
    kept.add("hg_ended", revoked_us=clock.now_us())
    kept.add("hg_odd", role="king")
    assert refused(access, "hg_old") == "this token has expired"
    assert refused(access, "hg_ended") == "this token was revoked"
    assert refused(access, "hg_odd") == "this token is not known"


def test_a_token_expires_while_it_is_remembered(access: Access, kept: Kept, clock: FakeClock) -> None:
    kept.add("hg_brief", expires_us=clock.now_us() + 1_000_000)
    asyncio.run(access.caller("hg_brief"))
    clock.advance(1)
    assert refused(access, "hg_brief") == "this token has expired"
    assert len(kept.asked) == 1


def test_answers_count_for_two_seconds(access: Access, kept: Kept, clock: FakeClock) -> None:
    for _ in range(3):
        asyncio.run(access.caller(GOOD))
        refused(access, "hg_nobody")
    assert len(kept.asked) == 2
    clock.advance(1.9)
    kept.add(GOOD, revoked_us=1)
    kept.add("hg_nobody")
    asyncio.run(access.caller(GOOD))
    refused(access, "hg_nobody")
    clock.advance(0.1)
    assert refused(access, GOOD) == "this token was revoked"
    asyncio.run(access.caller("hg_nobody"))


def test_what_was_revoked_here_is_forgotten_at_once(access: Access, kept: Kept) -> None:
    asyncio.run(access.caller(GOOD))
    kept.add(GOOD, revoked_us=1)
    access.forget()
    assert refused(access, GOOD) == "this token was revoked"


def test_an_answer_from_before_a_revocation_is_not_remembered(access: Access, kept: Kept) -> None:
    kept.gate = threading.Event()

    async def main() -> None:
        before = asyncio.create_task(access.caller(GOOD))
        await asyncio.to_thread(kept.started.wait, 10)
        kept.add(GOOD, revoked_us=1)
        access.forget()
        assert kept.gate is not None
        kept.gate.set()
        await before
        with pytest.raises(Unauthenticated, match="revoked"):
            await access.caller(GOOD)

    asyncio.run(main())


def test_without_the_database_what_is_fresh_still_counts(access: Access, kept: Kept, clock: FakeClock) -> None:
    asyncio.run(access.caller(GOOD))
    kept.error = DatabaseUnavailable("away")
    clock.advance(1.9)
    asyncio.run(access.caller(GOOD))
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(access.caller("hg_nobody"))
    clock.advance(0.1)
    with pytest.raises(DatabaseUnavailable):
        asyncio.run(access.caller(GOOD))
    kept.error = None
    asyncio.run(access.caller(GOOD))


def known_to_the_data_plane(access: Access, token: str) -> bool:
    try:
        return asyncio.run(access.require_data(token)).may("check")
    except DatabaseUnavailable:
        return False


def test_without_the_database_what_was_good_is_for_an_hour_on_the_data_plane(
    access: Access, kept: Kept, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    kept.add(GOOD, expires_us=clock.now_us() + 2 * HOUR_US)
    assert known_to_the_data_plane(access, GOOD)
    kept.error = DatabaseUnavailable("away")
    for _ in range(10):
        clock.advance(359)
        assert known_to_the_data_plane(access, GOOD)
        assert not known_to_the_data_plane(access, "hg_nobody")
    assert len(caplog.messages) == 1, "once when it begins"
    clock.advance(10)
    assert not known_to_the_data_plane(access, GOOD)
    kept.error = None
    assert known_to_the_data_plane(access, GOOD)
    assert caplog.messages[1:] == ["the database answers again: looking up tokens again"]


def test_without_the_database_a_token_still_ends(access: Access, kept: Kept, clock: FakeClock) -> None:
    kept.add("hg_brief", expires_us=clock.now_us() + 60_000_000)
    kept.add("hg_ended", revoked_us=1)
    assert known_to_the_data_plane(access, "hg_brief")
    with pytest.raises(Unauthenticated, match="revoked"):
        known_to_the_data_plane(access, "hg_ended")
    kept.error = DatabaseUnavailable("away")
    clock.advance(59)
    assert known_to_the_data_plane(access, "hg_brief")
    with pytest.raises(Unauthenticated, match="revoked"):
        known_to_the_data_plane(access, "hg_ended")
    clock.advance(1)
    with pytest.raises(Unauthenticated, match="expired"):
        known_to_the_data_plane(access, "hg_brief")


def test_without_the_database_what_was_revoked_here_is_not_good(access: Access, kept: Kept) -> None:
    kept.add("hg_other", id="2")
    for token in (GOOD, "hg_other"):
        assert known_to_the_data_plane(access, token)
    access.forget(revoked="1")
    kept.error = DatabaseUnavailable("away")
    assert not known_to_the_data_plane(access, GOOD)
    assert known_to_the_data_plane(access, "hg_other")


def test_a_database_that_hangs_keeps_nobody_waiting_who_was_good(
    access: Access, kept: Kept, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.gate = threading.Event()
    kept.gate.set()

    async def main() -> None:
        assert kept.gate is not None
        await access.require_data(GOOD)
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.01)
        kept.gate.clear()
        clock.advance(2)
        await access.require_data(GOOD)  # after some patience
        for _ in range(1_000):
            with pytest.raises(StopIteration):  # it has ended at its first step
                access.require_data(GOOD).send(None)
        kept.gate.set()

    asyncio.run(main())
    assert len(kept.asked) == 2


def test_that_the_database_is_back_is_known_before_anybody_comes(
    access: Access, kept: Kept, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.0)
    kept.add("hg_rare")

    async def main() -> None:
        for token in (GOOD, "hg_rare"):
            await access.require_data(token)
        kept.error = DatabaseUnavailable("away")
        clock.advance(2)
        await access.require_data(GOOD)
        kept.error = None
        kept.add("hg_rare", revoked_us=1)
        lookup = access._lookup
        assert lookup is not None
        while lookup._failing:  # noqa: ASYNC110 - what it does by itself
            await asyncio.sleep(0)
        with pytest.raises(Unauthenticated, match="revoked"):
            await access.require_data("hg_rare")

    asyncio.run(main())


def test_who_was_good_goes_before_a_flood(access: Access, kept: Kept, clock: FakeClock) -> None:
    async def main() -> None:
        await access.require_data(GOOD)
        clock.advance(2)
        kept.gate = threading.Event()
        kept.started.clear()
        flood = [asyncio.create_task(access.caller(f"hg_{number}")) for number in range(module.MAX_WAITING)]
        await asyncio.to_thread(kept.started.wait, 10)
        good = asyncio.create_task(access.require_data(GOOD))
        await asyncio.sleep(0)
        kept.gate.set()
        await good
        await asyncio.gather(*flood, return_exceptions=True)

    asyncio.run(main())
    assert hash_of(GOOD) in kept.asked[2], "the next after what was under way"


def test_a_fault_that_nobody_foresaw_is_one_of_the_database(
    access: Access, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.error = RuntimeError("secret")
    with pytest.raises(DatabaseError, match="RuntimeError"):
        asyncio.run(access.caller(GOOD))
    assert "could not be looked up" in caplog.text


def test_who_waits_for_the_same_is_answered_by_one_query(access: Access, kept: Kept) -> None:
    async def main() -> None:
        await asyncio.gather(*(access.caller(GOOD) for _ in range(50)))

    asyncio.run(main())
    assert kept.asked == [[hash_of(GOOD)]]


def test_one_who_gives_up_takes_it_from_nobody(access: Access, kept: Kept) -> None:
    kept.gate = threading.Event()

    async def main() -> None:
        first, second = asyncio.create_task(access.caller(GOOD)), asyncio.create_task(access.caller(GOOD))
        await asyncio.to_thread(kept.started.wait, 10)
        first.cancel()
        assert kept.gate is not None
        kept.gate.set()
        assert (await second).name == "ci"

    asyncio.run(main())


def test_nobody_waits_for_ever(kept: Kept) -> None:
    kept.gate = threading.Event()
    access = Access(tokens=kept, deadline=0.01)

    async def main() -> None:
        with pytest.raises(DatabaseUnavailable, match=r"no answer within 0\.01 s"):
            await access.caller(GOOD)
        assert kept.gate is not None
        kept.gate.set()

    asyncio.run(main())


def test_a_flood_of_made_up_tokens_is_a_few_queries_and_bounded(access: Access, kept: Kept) -> None:
    async def main() -> None:
        await access.caller(GOOD)
        for start in range(0, 12_000, 2_000):
            flood = [access.caller(f"hg_{number}") for number in range(start, start + 2_000)]
            answers = await asyncio.gather(*flood, return_exceptions=True)
            assert {type(answer) for answer in answers} == {Unauthenticated}
        await access.caller(GOOD)  # still remembered

    asyncio.run(main())
    assert len(kept.asked) <= 1 + 12_000 / module.MAX_BATCH + 6
    assert sum(hashes.count(hash_of(GOOD)) for hashes in kept.asked) == 1
    lookup = access._lookup
    assert lookup is not None
    assert len(lookup._bad) <= module.MAX_REMEMBERED
    assert not lookup._waiting


def test_too_many_at_once_are_told_to_come_back(access: Access, kept: Kept) -> None:
    kept.gate = threading.Event()

    async def main() -> None:
        flood = [asyncio.create_task(access.caller(f"hg_{number}")) for number in range(module.MAX_WAITING + 10)]
        await asyncio.to_thread(kept.started.wait, 10)
        assert kept.gate is not None
        kept.gate.set()
        answers = await asyncio.gather(*flood, return_exceptions=True)
        assert sum(isinstance(answer, DatabaseUnavailable) for answer in answers) == 10

    asyncio.run(main())


def test_the_data_plane_is_open_without_a_data_token(kept: Kept) -> None:
    access = Access(admin_token="root", tokens=kept)
    assert asyncio.run(access.require_data(None, "operator")) is ANYBODY


def test_the_data_plane_with_a_data_token(access: Access, kept: Kept) -> None:
    kept.add("hg_viewer", role="viewer")
    kept.add("hg_events", scopes=("events",))
    for token in ("data", "root", GOOD):
        asyncio.run(access.require_data(token, "operator"))
    asyncio.run(access.require_data("hg_viewer"))
    for token, role in (("hg_viewer", "operator"), ("hg_events", "viewer")):
        with pytest.raises(Forbidden):
            asyncio.run(access.require_data(token, role))  # type: ignore[arg-type]
    with pytest.raises(Unauthenticated):
        asyncio.run(access.require_data(None))
