"""`headgate events --follow`: which events, in which order."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from headgate.cli.events import new_events


def event(number: int, seconds_ago: float) -> dict[str, Any]:
    return {"id": f"e{number}", "at": (datetime.now(UTC) - timedelta(seconds=seconds_ago)).isoformat()}


class FakeClient:
    """A service whose events are at hand. Answers as it does: the latest first."""

    def __init__(self, *there: dict[str, Any]) -> None:
        self.there = list(there)

    def pages(self, _path: str, _name: str, wanted: dict[str, Any], *, max_items: int) -> Iterator[dict[str, Any]]:
        def time_of(one: dict[str, Any]) -> datetime:
            return datetime.fromisoformat(one["at"])

        since = wanted["since"]
        found = [one for one in self.there if since is None or time_of(one) >= datetime.fromisoformat(since)]
        return islice(sorted(found, key=time_of, reverse=True), max_items)


def followed(
    client: FakeClient,
    monkeypatch: pytest.MonkeyPatch,
    *coming: list[dict[str, Any]],
    max_items: int,
    since: str | None = None,
) -> list[str]:
    """The ids in the order in which they are shown, when these come between looks."""
    waiting = iter(coming)

    class Over(Exception):
        pass

    def sleep(_: float) -> None:
        try:
            client.there += next(waiting)
        except StopIteration:
            raise Over from None

    monkeypatch.setattr("headgate.cli.events.time.sleep", sleep)
    shown: list[str] = []
    wanted: dict[str, Any] = {"since": since}
    try:
        for one in new_events(client, wanted, max_items):  # type: ignore[arg-type]
            shown.append(one["id"])
    except Over:
        return shown
    raise AssertionError("it came to an end by itself")


def test_the_latest_come_first_and_then_only_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(*(event(number, 10 - number) for number in range(5)))
    assert followed(client, monkeypatch, [], [event(6, 1), event(7, 0)], [], max_items=2) == ["e3", "e4", "e6", "e7"]


def test_one_that_was_written_late_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(event(1, 9), event(3, 5))
    assert followed(client, monkeypatch, [event(2, 7)], [], max_items=50) == ["e1", "e3", "e2"]


def test_what_was_before_since_never_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    client = FakeClient(event(1, 9), event(2, 2))
    since = (datetime.now(UTC) - timedelta(seconds=4)).isoformat().replace("+00:00", "Z")
    assert followed(client, monkeypatch, [event(3, 8), event(4, 1)], [], max_items=50, since=since) == ["e2", "e4"]
