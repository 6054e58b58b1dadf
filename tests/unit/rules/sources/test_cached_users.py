"""Users that are looked up: remembered for a while, not more than so many, each asked for once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock

import pytest

from headgate.errors import DatabaseUnavailable
from headgate.rules import User
from headgate.rules.directory import UNKNOWN
from headgate.rules.sources.users import RETRY_SECONDS, CachedDirectory
from headgate.testing import FakeClock
from tests.waiting import until

PATIENCE = 10.0  # seconds: much longer than anything here takes


class Table:
    """A table of users that counts what it is asked, and can be held up or broken."""

    def __init__(self, *users: User) -> None:
        self.users = {user.id: user for user in users}
        self.asked: list[set[str]] = []
        self.broken = False
        self.open = Event()
        self.open.set()
        self.entered = Event()
        self._lock = Lock()

    def fetch(self, ids: Collection[str]) -> dict[str, User]:
        with self._lock:
            self.asked.append(set(ids))
        found = {one: self.users[one] for one in ids if one in self.users}
        self.entered.set()
        assert self.open.wait(PATIENCE)
        if self.broken:
            raise DatabaseUnavailable("the database is away")
        return found

    def hold(self) -> None:
        self.open.clear()
        self.entered.clear()


ALICE, BOB = User(id="alice", tier="premium"), User(id="bob", tier="free")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def table() -> Table:
    return Table(ALICE, BOB)


@pytest.fixture
def directory(table: Table, clock: FakeClock) -> Iterator[CachedDirectory]:
    made = CachedDirectory(table.fetch, size=10, seconds=300, deadline=PATIENCE, now=clock.now)
    yield made
    table.open.set()
    made.close()


def test_a_user_is_looked_up_once(directory: CachedDirectory, table: Table) -> None:
    assert directory.recall("alice") is UNKNOWN
    assert table.asked == []
    for _ in range(3):
        assert directory.find("alice") == ALICE
    assert directory.recall("alice") == ALICE
    assert table.asked == [{"alice"}]


def test_that_somebody_is_not_there_is_remembered_too(directory: CachedDirectory, table: Table) -> None:
    for _ in range(3):
        assert directory.find("nobody") is None
    assert directory.recall("nobody") is None
    assert table.asked == [{"nobody"}]


def test_users_are_looked_up_again_after_five_minutes(
    directory: CachedDirectory, table: Table, clock: FakeClock
) -> None:
    directory.find("alice")
    directory.find("nobody")
    clock.advance(299.999)
    assert directory.recall("alice") == ALICE
    clock.advance(0.001)
    assert directory.recall("alice") is UNKNOWN
    table.users["nobody"] = User(id="nobody", tier="free")
    assert directory.find("nobody") == table.users["nobody"]


def test_no_more_than_so_many_are_remembered(directory: CachedDirectory) -> None:
    for number in range(1_000):
        directory.find(f"user-{number}")
        assert directory.status().cached <= 10
    assert directory.recall("user-999") is None
    assert directory.recall("user-0") is UNKNOWN


def test_a_flood_of_strangers_does_not_drive_out_who_comes_all_the_time(
    directory: CachedDirectory, table: Table
) -> None:
    directory.find("alice")
    for number in range(100):
        directory.find(f"user-{number}")
        assert directory.recall("alice") == ALICE
    assert sum("alice" in asked for asked in table.asked) == 1


def test_who_was_forgotten_is_looked_up_again(directory: CachedDirectory, table: Table) -> None:
    directory.find("alice")
    directory.find("bob")
    table.users["alice"] = User(id="alice", tier="gold")
    directory.forget(["alice", "nobody"])
    assert directory.recall("alice") is UNKNOWN
    assert directory.recall("bob") == BOB
    assert directory.find("alice") == table.users["alice"]
    directory.forget(None)
    assert directory.recall("bob") is UNKNOWN


def test_those_who_ask_for_one_user_at_once_share_one_query(directory: CachedDirectory, table: Table) -> None:
    table.hold()
    with ThreadPoolExecutor(20) as threads:
        answers = [threads.submit(directory.find, "alice") for _ in range(20)]
        assert table.entered.wait(PATIENCE)
        waiters = directory._waited_for["alice"]._condition._waiters  # type: ignore[attr-defined]
        until(lambda: len(waiters) == 20, "twenty threads that wait")
        table.open.set()
        assert [answer.result() for answer in answers] == [ALICE] * 20
    assert table.asked == [{"alice"}]


def test_users_who_come_while_a_query_is_under_way_share_the_next_one(directory: CachedDirectory, table: Table) -> None:
    async def main() -> None:
        table.hold()
        tasks = [asyncio.create_task(directory.find_async("first"))]
        await asyncio.to_thread(table.entered.wait, PATIENCE)
        tasks += [asyncio.create_task(directory.find_async(f"user-{number}")) for number in range(50)]
        tasks.append(asyncio.create_task(directory.find_async("alice")))
        await asyncio.sleep(0)
        table.open.set()
        assert (await asyncio.gather(*tasks))[-1] == ALICE

    asyncio.run(main())
    assert [len(asked) for asked in table.asked] == [1, 51]


def test_who_gives_up_does_not_take_the_answer_from_the_others(directory: CachedDirectory, table: Table) -> None:
    async def main() -> None:
        table.hold()
        leaving, staying = (asyncio.create_task(directory.find_async("alice")) for _ in range(2))
        await asyncio.to_thread(table.entered.wait, PATIENCE)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        table.open.set()
        assert await staying == ALICE

    asyncio.run(main())
    assert table.asked == [{"alice"}]


def test_an_answer_from_before_a_change_is_not_remembered(directory: CachedDirectory, table: Table) -> None:
    table.hold()
    with ThreadPoolExecutor(1) as threads:
        early = threads.submit(directory.find, "alice")
        assert table.entered.wait(PATIENCE)  # the table has been read …
        table.users["alice"] = User(id="alice", tier="gold")
        directory.forget(["alice"])  # … when alice changes
        table.open.set()
        assert early.result() == ALICE
    assert directory.recall("alice") is UNKNOWN
    assert directory.find("alice") == table.users["alice"]


def test_while_the_database_is_away_users_are_what_they_were_or_nobody(
    directory: CachedDirectory, table: Table, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    directory.find("alice")
    clock.advance(300)
    table.broken = True
    with caplog.at_level(logging.WARNING, "headgate"):
        assert directory.find("alice") == ALICE  # known last
        assert directory.find("bob") is None  # not known
        assert len(table.asked) == 2  # and not asked for: it has failed a moment ago
        for _ in range(3):
            clock.advance(RETRY_SECONDS)
            assert directory.find("bob") is None
        assert len(table.asked) == 5
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        assert "the database is away" in caplog.text
        assert "default tier" in caplog.text
        status = directory.status()
        assert (status.failing, status.failures, status.unanswered) == (True, 4, 5)

        table.broken = False
        clock.advance(RETRY_SECONDS)
        assert directory.find("bob") == BOB
        assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert not directory.status().failing


def test_nobody_waits_longer_than_the_deadline_nor_behind_one_who_does(table: Table) -> None:
    clock = FakeClock()
    directory = CachedDirectory(table.fetch, deadline=0.05, now=clock.now)
    table.hold()
    assert directory.find("alice") is None  # after 50 ms
    clock.advance(0.06)
    assert directory._begin_lookup("bob") is None  # at once
    assert asyncio.run(directory.find_async("bob")) is None
    assert directory.status().failing
    table.open.set()
    directory.close()


def test_ids_that_no_database_can_hold_are_not_asked_for(directory: CachedDirectory, table: Table) -> None:
    assert directory.recall("x" * 513) is None
    assert directory.find("x" * 513) is None
    assert table.asked == []


def test_a_closed_directory_still_knows_whom_it_knew(directory: CachedDirectory, table: Table) -> None:
    directory.find("alice")
    directory.close()
    assert directory.find("alice") == ALICE
    assert directory.find("bob") is None
    assert table.asked == [{"alice"}]


def test_a_mistake_of_ours_is_logged_and_ends_nothing(
    table: Table, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fetch(ids: Collection[str]) -> dict[str, User]:
        if table.broken:
            raise KeyError("a bug")
        return table.fetch(ids)

    directory = CachedDirectory(fetch, deadline=PATIENCE, now=clock.now)
    table.broken = True
    assert directory.find("alice") is None
    assert "a bug" in caplog.text
    table.broken = False
    clock.advance(RETRY_SECONDS)
    assert directory.find("alice") == ALICE
    directory.close()


def test_hits_and_misses_are_counted(directory: CachedDirectory, clock: FakeClock) -> None:
    directory.find("alice")
    directory.find("alice")
    directory.recall("alice")
    directory.recall("bob")  # whoever does not ask on has missed nothing
    assert (directory.status().hits, directory.status().misses) == (2, 1)
    clock.advance(300)
    directory.find("alice")
    assert (directory.status().hits, directory.status().misses) == (2, 2)
