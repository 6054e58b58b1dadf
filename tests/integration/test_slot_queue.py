"""Processes that wait for the same slots get them in order of arrival, and one that is killed is soon passed over."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from headgate import Limiter, RateLimited, Rule
from tests.topologies import Cluster, SentinelTrio
from tests.warm import Warm, workers

QUOTA = "1 concurrent ttl 30s"
TICKET_SECONDS = 1.0


def waiters(url: str, directory: Path, count: int, **job: Any) -> AbstractContextManager[list[Warm]]:
    """Processes whose tasks wait for the slot; what they say is in files of this directory."""
    common = {"url": url, "quota": QUOTA, "tasks": 1, "times": 1, "waits": [60], "pause": 0, "hold": 0, **job}
    return workers("tests.integration.slot_waiter", [{**common, "seed": number} for number in range(count)], directory)


def said(directory: Path, word: str) -> list[list[int]]:
    """The figures of all lines that begin with this word."""
    lines = [line.split() for file in directory.iterdir() for line in file.read_text().splitlines()]
    return [[int(figure) for figure in figures] for first, *figures in lines if first == word]


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.005)


def limiter_of(url: str) -> Limiter:
    return Limiter([Rule(id="slots", quota=QUOTA)], store=url)


def run(url: str, directory: Path) -> None:
    """Four processes of six tasks each. Some give up, others do not wait at all."""
    with waiters(url, directory, 4, tasks=6, times=4, waits=[0, 0.1, 60, 60, 60], pause=0.2, hold=0.01) as processes:
        assert [process.wait(120) for process in processes] == [0] * 4
    held = sorted(said(directory, "held"), key=lambda times: times[1])
    assert len(held) > 30, "too few were held to tell anything"
    assert len(said(directory, "waits")) > 20, "too few had to wait"
    assert [arrived for arrived, _ in held] == sorted(arrived for arrived, _ in held)
    with limiter_of(url) as limiter:
        assert limiter.peek(user="alice").remaining == 1


def test_processes_get_slots_in_order_of_arrival(redis_url: str, tmp_path: Path) -> None:
    run(redis_url, tmp_path)


@pytest.mark.extended
def test_in_order_on_a_cluster(tmp_path: Path) -> None:
    with Cluster() as cluster:
        run(cluster.url, tmp_path)


@pytest.mark.extended
def test_in_order_behind_sentinels(tmp_path: Path) -> None:
    with SentinelTrio() as sentinels:
        run(sentinels.url, tmp_path)


@pytest.mark.extended
def test_in_order_on_an_embedded_server(tmp_path: Path) -> None:
    directory = tmp_path / "said"
    directory.mkdir()
    run(f"embedded://{tmp_path / 'store'}", directory)


def test_a_killed_process_holds_the_others_up_no_longer_than_its_ticket_lives(redis_url: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with limiter_of(redis_url) as limiter:
        slot = limiter.acquire(user="alice")
        with waiters(redis_url, first, 1, tasks=8) as (head,):
            until(lambda: len(said(first, "waits")) == 8)
            with waiters(redis_url, second, 1) as (behind,):
                until(lambda: len(said(second, "waits")) == 1)
                head.kill()
                head.wait()
                killed = time.time_ns() // 1_000
                slot.release()
                with pytest.raises(RateLimited) as refused:  # the dead process is still ahead
                    limiter.acquire(user="alice")
                assert refused.value.decision.remaining == 0
                assert refused.value.decision.retry_after == TICKET_SECONDS
                assert behind.wait(60) == 0
        ((_, at_us),) = said(second, "held")
        assert not said(first, "held")
        assert at_us - killed < (TICKET_SECONDS + 1.0) * 1_000_000
        assert limiter.acquire(user="alice").is_held


def test_a_caller_that_does_not_wait_is_behind_those_who_do(redis_url: str, tmp_path: Path) -> None:
    with limiter_of(redis_url) as limiter:
        slot = limiter.acquire(user="alice")
        with waiters(redis_url, tmp_path, 1, hold=1.0) as (process,):
            until(lambda: len(said(tmp_path, "waits")) == 1)
            slot.release()
            with pytest.raises(RateLimited):  # the slot is spoken for, or taken
                limiter.acquire(user="alice")
            assert process.wait(60) == 0
        assert limiter.acquire(user="alice").is_held
