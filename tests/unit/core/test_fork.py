"""Children that are forked off while other threads are at work: what they use is free there, and whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headgate import Limiter, Quota
from headgate.core.check import Check, Group, Result
from headgate.http.identity.keys import FetchedKeys
from headgate.http.identity.rejections import Rejections
from headgate.http.middleware_options import MiddlewareOptions
from headgate.http.route import RouteLimit
from headgate.limiter.shares import LocalShares
from headgate.rules.sources.file import FileSource
from headgate.stores.memory import MemoryStore
from headgate.stores.memory import store as memory
from headgate.testing import FakeClock
from tests.forking import in_child

RULES = '[[rules]]\nid = "a"\nlimit = {}\nwindow = "1m"\ndimension = "user"\n'


class Busy:
    """A memory store, on which somebody is in the midst of a check of a new subject."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.inside, self.go_on = threading.Event(), threading.Event()
        tables: Any = self.store._tables
        make_room = tables.make_room

        def slowly(count: int, now: int) -> None:
            if threading.current_thread() is self._thread:
                self.inside.set()
                assert self.go_on.wait(10)
            make_room(count, now)

        tables.make_room = slowly
        self.limiter = Limiter("3/hour", store=self.store)
        self._thread = threading.Thread(target=self.limiter.check, args=("slow",))

    def __enter__(self) -> Busy:
        self._thread.start()
        assert self.inside.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._thread.join()


def test_a_child_forked_in_the_midst_of_a_check_does_not_hang_and_has_all_of_it() -> None:
    with Busy() as busy:
        later = threading.Timer(0.1, busy.go_on.set)
        later.start()
        assert in_child(lambda: [busy.limiter.check("slow").remaining, len(busy.store)] == [1, 1]) == 0
        assert busy.limiter.check("slow").remaining == 1  # and the parent goes on


def test_a_child_forked_off_a_check_that_does_not_end_counts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "HALT_SECONDS", 0.05)
    with Busy() as busy:
        assert in_child(lambda: [busy.limiter.check("slow").remaining for _ in range(2)] == [2, 1]) == 0
    assert busy.limiter.check("slow").remaining == 1


def test_a_child_begins_with_what_its_parent_has_counted() -> None:
    limiter = Limiter("3/hour")
    limiter.check("alice")
    assert in_child(lambda: limiter.check("alice").remaining == 1) == 0
    assert limiter.check("alice").remaining == 1


def test_what_was_spent_in_an_outage_is_the_parent_s_to_tell() -> None:
    shares, local = LocalShares(), MemoryStore()
    check = Check("a", "space", "alice", Quota.parse("3/hour"), 1)
    (result,) = local.check([Group((check,))])
    assert isinstance(result, Result)
    shares.spent([check], [check], result.outcomes)
    assert in_child(lambda: shares.take_owed(local) == []) == 0
    assert shares.take_owed(local) == [check]


def shares() -> tuple[Any, Callable[[], object]]:
    one = LocalShares()
    return one, lambda: one.take_owed(MemoryStore()) == []


def rejections() -> tuple[Any, Callable[[], object]]:
    one = Rejections(FakeClock())
    return one, lambda: one.counts == {}


def keys() -> tuple[Any, Callable[[], object]]:
    one = FetchedKeys("http://127.0.0.1:9/", ["RS256"], FakeClock(), lifetime=1, stale=1, timeout=1)
    return one, one._fetch_if_due


def gate() -> tuple[Any, Callable[[], object]]:
    one = MiddlewareOptions(Limiter("1/hour"), max_waiting=1)
    one._waiting = 1

    def waits() -> bool:
        with one.waiting_place() as free:
            return free

    return one, waits


def route() -> tuple[Any, Callable[[], object]]:
    one, limiter = RouteLimit("1/hour"), Limiter("1/hour")
    return one._sync, lambda: one.limiter(limiter, "a", "1/hour").check("b").allowed


@pytest.mark.parametrize("make", [shares, rejections, keys, gate, route])
def test_a_lock_that_another_thread_held_is_free_in_the_child(
    make: Callable[[], tuple[Any, Callable[[], object]]],
) -> None:
    thing, work = make()
    with thing._lock:
        assert in_child(work) == 0


def test_a_child_forked_in_the_midst_of_a_load_can_load(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(RULES.format(1))
    source = FileSource(path)
    path.write_text(RULES.format(2))
    with source._lock:
        source._load()  # which is noted, and not in force yet
        assert in_child(lambda: [rule.quota.limit for rule in source.reload().rules] == [2]) == 0
