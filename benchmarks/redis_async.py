"""Redis, 64 asyncio tasks in one process: each checks its own subject again as soon as it has its answer.

The peers have a connection per check under way, and all of them are open before the clock starts. Redis's
own time per check is what INFO commandstats accounts to EVALSHA and EVAL during the turn, divided by the
checks made. It is the time on the clock, so the least disturbed of the rounds counts; it is not told for a
peer that does without a script.

`rules`: checks of requests with facts, by rules instead of one limit per subject. The client's processor time per check
is what this process used, in the least disturbed round.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time

import redis

from benchmarks.contenders import ALGORITHMS, AsyncContender, peers_for
from benchmarks.measure import Turn, interleave
from benchmarks.plan import Plan
from benchmarks.redis_sync import LIMIT, fastest
from benchmarks.report import Row, Section, Target
from headgate import AsyncLimiter, Rule
from tests.servers import Server

TASKS = 64
PATIENCE = 30  # seconds after which a turn that should have ended is given up
TIMES = Target(8)
REDIS_US = Target(5, "µs", at_least=False)
RULES = ("user", "tenant", "global")  # the dimensions of three rules; of one rule, the first
RULES_QUOTA = "1_000_000/hour"
CLIENT_US = {1: Target(10, "µs", at_least=False), 3: Target(15, "µs", at_least=False)}
RULES_REDIS_US = {1: REDIS_US, 3: Target(10, "µs", at_least=False)}


class Work:
    """The turns of one contender: checks per second, and what each cost Redis."""

    def __init__(
        self,
        name: str,
        contender: AsyncContender,
        seconds: float,
        client: redis.Redis,
        runner: asyncio.Runner,
    ) -> None:
        self.name = name
        self.contender = contender
        self.seconds = seconds
        self.client = client
        self.runner = runner
        self.redis_us: list[float] = []
        self.client_us: list[float] = []

    def turn(self) -> float:
        self.client.flushdb()
        self.runner.run(self._all_tasks(0))
        self.client.config_resetstat()
        start, cpu = perf_counter(), process_time()
        checks = self.runner.run(self._all_tasks(self.seconds))
        spent = perf_counter() - start
        self.client_us.append((process_time() - cpu) / checks * 1e6)
        stats: dict[str, dict[str, float]] = self.client.info("commandstats")
        used = [stats[name]["usec"] for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats]
        if used:
            self.redis_us.append(sum(used) / checks)
        return checks / spent

    async def _all_tasks(self, seconds: float) -> int:
        until = perf_counter() + seconds
        async with asyncio.timeout(seconds + PATIENCE):
            counts = await asyncio.gather(*(self._task(f"user-{number}", until) for number in range(TASKS)))
        return sum(counts)

    async def _task(self, subject: str, until: float) -> int:
        check = self.contender.check
        count = 0
        while True:
            answer = await check(subject)
            count += 1
            if perf_counter() >= until:
                break
        if not self.contender.allowed(answer):
            raise RuntimeError(f"{self.name}: it refused what it should have allowed")
        return count

    def close(self) -> None:
        async def close() -> None:
            await self.contender.close()

        self.runner.run(close())


def run(plan: Plan, server: Server) -> Section:
    section = Section(
        "async",
        f"3. Redis, {TASKS} asyncio tasks in one process",
        "headgate is",
        notes=[
            f"{LIMIT}/hour per subject, a subject per task; target: the fastest peer;",
            "in Redis: its own time per check by INFO commandstats, in the least disturbed round;",
            f"rules: {RULES_QUOTA} by user, or by user, by tenant and globally; CPU: the client's, in that round.",
        ],
    )
    times: list[Row] = []
    with server.client() as client, asyncio.Runner() as runner:
        for algorithm in ALGORITHMS:
            works = [
                Work(
                    peer.name,
                    runner.run(peer.asyncio(algorithm, LIMIT, server.url)),
                    plan.async_seconds,
                    client,
                    runner,
                )
                for peer in peers_for(algorithm, is_async=True)
            ]
            turns: dict[str, Turn] = {work.name: work.turn for work in works}
            series = interleave(turns, plan.async_rounds)
            section.compare(algorithm, series, {fastest(series): TIMES})
            for work in works:
                times += redis_time(algorithm, work, is_ours=work is works[0])
                work.close()
        section.rows += times
        for algorithm in ALGORITHMS:
            by_rules(
                section,
                algorithm,
                [rules_work(algorithm, number, plan, server, client, runner) for number in (1, 3)],
                plan,
            )
    return section


def rules_work(
    algorithm: str, number: int, plan: Plan, server: Server, client: redis.Redis, runner: asyncio.Runner
) -> Work:
    """The turns of a limiter with this many rules."""
    quota = f"{RULES_QUOTA} {algorithm}"
    rules = [Rule(id=dimension, quota=quota, dimension=dimension) for dimension in RULES[:number]]
    limiter = AsyncLimiter(rules, store=f"{server.url}?timeout=5")
    contender = AsyncContender(
        lambda user: limiter.check(user=user, tenant="acme", endpoint="/api/search"), close=limiter.close
    )
    return Work(f"{number} rules", contender, plan.async_seconds, client, runner)


def by_rules(section: Section, algorithm: str, works: list[Work], plan: Plan) -> None:
    """Add the client's processor time and Redis's own time per check, by one rule and by three."""
    interleave({work.name: work.turn for work in works}, plan.async_rounds)
    for number, work in zip(CLIENT_US, works, strict=True):
        for title, used, target in (
            (f"{algorithm}, rules, CPU", min(work.client_us), CLIENT_US[number]),
            (f"{algorithm}, rules, in Redis", min(work.redis_us), RULES_REDIS_US[number]),
        ):
            section.rows.append(Row(title, work.name, used, "µs", 0.0, used, target))
        work.close()


def redis_time(algorithm: str, work: Work, *, is_ours: bool) -> list[Row]:
    """What a check costs Redis; nothing for a contender that runs no script."""
    if not work.redis_us:
        return []
    used = min(work.redis_us)
    title = f"{algorithm}, in Redis"
    return [Row(title, work.name, used, "µs", 0.0, used if is_ours else None, REDIS_US if is_ours else None)]
