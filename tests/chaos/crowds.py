"""Many at once: they reconnect together, give up while their reply is on its way, and go on with other keys."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from headgate import AsyncLimiter, Decision, Limiter
from tests.chaos.case import Case, Figures
from tests.integration.limiters import calm
from tests.integration.load import BY_STORE
from tests.proxy import Proxy, no_delay
from tests.servers import Server, default_binary

CLIENTS = 1_000
THREADS = 64
PACE = 0.03  # seconds between two checks of late replies, so that a breaker gets to probe
PATIENCE = 10.0  # seconds after which those who wait give up
CONNECTIONS = 4  # max_in_flight, by default
LIMIT = 1_000_000_000
QUOTA = calm(LIMIT, "fixed_window")


def reconnect(figures: Figures, quick: bool) -> None:
    """Every connection is cut, and everybody checks at once, until the store decides for all of them."""
    rounds = 2 if quick else 10
    reasons: Counter[str] = Counter()
    took: list[float] = []
    with Server(default_binary()) as server:
        with Proxy(server.port) as proxy:
            asyncio.run(_tasks_reconnect(proxy, rounds, reasons, took))
            figures.at_most(f"connections of {CLIENTS:,} tasks", proxy.most_open, CONNECTIONS)
        most = _threads_reconnect(server, rounds, reasons, took)
        figures.at_most(f"connections of {THREADS} threads", most, THREADS)
    figures.note("checks", f"{reasons.total():,}")
    figures.note("admitted by failure mode", f"{reasons['fail_open']:,} in {2 * rounds} rounds")
    figures.note("all decided again after", f"{max(took):.2f} s at most")


async def _tasks_reconnect(proxy: Proxy, rounds: int, reasons: Counter[str], took: list[float]) -> None:
    async with AsyncLimiter(QUOTA, store=proxy.url) as limiter:
        await limiter.check("warm")
        for _ in range(rounds):
            proxy.cut()
            began = time.monotonic()
            undecided = list(range(CLIENTS))
            while undecided and time.monotonic() < began + PATIENCE:
                decisions = await asyncio.gather(*(limiter.check(f"user-{n}") for n in undecided))
                reasons.update(each.reason for each in decisions)
                pairs = zip(undecided, decisions, strict=True)
                undecided = [n for n, each in pairs if each.reason not in BY_STORE]
                await asyncio.sleep(0.02)
            took.append(time.monotonic() - began)


def _threads_reconnect(server: Server, rounds: int, reasons: Counter[str], took: list[float]) -> int:
    """How many connections there were at most."""

    def check(number: int) -> Counter[str]:
        met: Counter[str] = Counter()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            reason = limiter.check(f"user-{number}").reason
            met[reason] += 1
            if reason in BY_STORE:
                break
            time.sleep(0.02)
        return met

    most = 0
    with server.client() as client, Limiter(QUOTA, store=server.url) as limiter, ThreadPoolExecutor(THREADS) as pool:
        for _ in range(rounds):
            client.client_kill_filter(_type="normal", skipme=True)
            began = time.monotonic()
            for met in pool.map(check, range(THREADS)):
                reasons.update(met)
            took.append(time.monotonic() - began)
            most = max(most, client.info("clients")["connected_clients"] - 1)
    return most


def late_replies(figures: Figures, quick: bool) -> None:
    """Every check has a key and a cost of its own: whoever got the reply to another would know."""
    chance = random.Random(3)
    counts: Counter[str] = Counter()

    def judge(decision: Decision, cost: int) -> None:
        counts[decision.reason] += 1
        if decision.reason in BY_STORE and decision.remaining != LIMIT - cost:
            counts["of another"] += 1

    async def task(limiter: AsyncLimiter, number: int) -> None:
        for turn in range(1, turns + 1):
            cost = number * 1_000 + turn
            check = asyncio.create_task(limiter.check(f"{number}-{turn}", cost=cost))
            if turn % 4 == 0:
                await asyncio.sleep(chance.random() * 0.03)
                if check.cancel():
                    counts["cancelled"] += 1
                    await asyncio.wait([check])
                    continue
            judge(await check, cost)
            await asyncio.sleep(PACE)

    async def tasks(url: str) -> None:
        async with AsyncLimiter(QUOTA, store=url) as limiter:
            await asyncio.gather(*(task(limiter, number) for number in range(1, 65)))

    def thread(number: int) -> None:
        for turn in range(1, turns + 1):
            cost = number * 1_000 + turn
            judge(limiter.check(f"{number}-{turn}", cost=cost), cost)
            time.sleep(PACE)

    turns = 20 if quick else 100
    with Server(default_binary()) as server, Proxy(server.port) as proxy:
        url = f"{proxy.url}?max_batch=4&probe_every=0.001"
        proxy.delay = lambda: chance.choice((0.0, 0.01, 0.01, 0.02, 0.02, 0.06))
        asyncio.run(tasks(url))
        with Limiter(QUOTA, store=url) as limiter, ThreadPoolExecutor(8) as pool:
            list(pool.map(thread, range(101, 109)))
        proxy.delay = no_delay
    figures.note("checks", f"{counts.total() - counts['of another']:,}")
    figures.note("timed out or left out / cancelled", f"{counts['fail_open']:,} / {counts['cancelled']:,}")
    figures.note("answered", f"{counts['within_limit']:,}")
    figures.exactly("given the reply to another", counts["of another"])


CASES = (
    Case("reconnect", f"{CLIENTS:,} clients reconnect at once", reconnect, quick=True),
    Case("late-replies", "replies after a timeout or a cancellation", late_replies, quick=True),
)
