"""Never more held than the limit, and none for longer than the ttl: four processes of 64 tasks each, which are
cancelled at random and killed with SIGKILL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from headgate import Limiter, Rule
from tests.integration import slot_holder
from tests.topologies import Cluster, SentinelTrio
from tests.warm import Warm, workers

PROCESSES = 4
TASKS = 64
LIMIT = 20
TTL_US = 2_000_000
QUOTA = f"{LIMIT} concurrent ttl 2s"
SLOT_HOLDER = "tests.integration.slot_holder"


def holders(url: str, directory: Path, seconds: float) -> AbstractContextManager[list[Warm]]:
    """Processes that hold slots; what they say is in files of this directory."""
    job = {"url": url, "quota": QUOTA, "tasks": TASKS, "seconds": seconds}
    return workers(SLOT_HOLDER, [{**job, "seed": number} for number in range(PROCESSES)], directory)


def spans(said: str) -> Iterator[tuple[int, int]]:
    """When each slot was surely held, by the store's clock, which is this machine's.

    One that was not released before its process was killed is held until it expires. One that ran late may have
    expired.
    """
    begun: dict[str, int] = {}
    for line in said.splitlines():
        word, *rest = line.split()
        if word == "held" and len(rest) == 2:
            begun[rest[0]] = int(rest[1])
        elif word == "done" and len(rest) == 2:
            start = begun.pop(rest[0])
            yield start, min(int(rest[1]), start + TTL_US)
    yield from ((start, start + TTL_US) for start in begun.values())


def most_at_once(held: list[tuple[int, int]]) -> int:
    """How many overlapped, at most."""
    changes = sorted([(end, -1) for _, end in held] + [(start, 1) for start, _ in held])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def free(url: str) -> int:
    with Limiter([Rule(id="slots", quota=QUOTA)], store=url) as limiter:
        return limiter.peek(user="alice").remaining


def run(url: str, directory: Path, *, seconds: float = 3.0, kills: int = 2) -> None:
    with holders(url, directory, seconds) as processes:
        deadline = time.monotonic() + 60
        while not all("ready" in directory.joinpath(str(number)).read_text() for number in range(PROCESSES)):
            assert time.monotonic() < deadline, "a process did not start"
            time.sleep(0.02)
        time.sleep(seconds / 2)
        for process in processes[:kills]:
            process.kill()
            time.sleep(seconds / 8)
        assert [process.wait(60) for process in processes[kills:]] == [0] * (PROCESSES - kills)
    ended = time.monotonic()
    held = [span for number in range(PROCESSES) for span in spans(directory.joinpath(str(number)).read_text())]
    assert len(held) > 2 * LIMIT, "too few were held to tell anything"  # usually a few hundred; 59 on a starved machine
    assert LIMIT / 2 < most_at_once(held) <= LIMIT
    if not kills:
        assert free(url) == LIMIT, "whoever was cancelled left slots behind"
    while free(url) < LIMIT:
        assert time.monotonic() < ended + TTL_US / 1_000_000 + 1, "a slot was held for longer than its ttl"
        time.sleep(0.05)


def test_whoever_is_killed_holds_slots_no_longer_than_the_ttl(redis_url: str, tmp_path: Path) -> None:
    run(redis_url, tmp_path)


def test_whoever_is_cancelled_leaves_no_slots_behind(redis_url: str, tmp_path: Path) -> None:
    run(redis_url, tmp_path, seconds=2.0, kills=0)


@pytest.mark.extended
def test_the_same_for_ten_seconds(redis_url: str, tmp_path: Path) -> None:
    run(redis_url, tmp_path, seconds=10.0)


@pytest.mark.extended
def test_on_a_cluster(tmp_path: Path) -> None:
    with Cluster() as cluster:
        run(cluster.url, tmp_path)


@pytest.mark.extended
def test_behind_sentinels(tmp_path: Path) -> None:
    with SentinelTrio() as sentinels:
        run(sentinels.url, tmp_path)


@pytest.mark.extended
def test_on_an_embedded_server(tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.mkdir()
    run(f"embedded://{tmp_path / 'store'}", said)


def test_in_memory_whoever_is_cancelled_leaves_no_slots_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(slot_holder, "say", lambda *words: lines.append(" ".join(map(str, words))))
    from headgate.stores.memory import MemoryStore

    store: Any = MemoryStore()
    asyncio.run(slot_holder.main({"url": store, "quota": QUOTA, "tasks": TASKS, "seconds": 1.0, "seed": 1}))
    assert LIMIT / 2 < most_at_once(list(spans("\n".join(lines)))) <= LIMIT
    assert Limiter([Rule(id="slots", quota=QUOTA)], store=store).peek(user="alice").remaining == LIMIT
