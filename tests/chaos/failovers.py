"""Servers that others take over from: masters that die or are demoted, slots that move."""

from __future__ import annotations

import time
from functools import partial
from itertools import count
from pathlib import Path
from threading import Event, Thread
from typing import Self

from redis.exceptions import RedisError

from headgate import Limiter
from headgate.stores.redis.topology import slot_of
from tests.chaos.callers import (
    by_store,
    entries_of,
    in_time,
    percentile_ms,
    rules,
    tell,
    undecided,
    under_load,
    usual_p99_ms,
)
from tests.chaos.case import Case, Figures
from tests.integration.limiters import calm
from tests.integration.load import BY_STORE, Callers
from tests.servers import Server, binaries
from tests.topologies import SERVICE, Cluster, SentinelTrio, calls_to, halt, is_master, kill, resume
from tests.waiting import until

MANY = 1_000_000
FEW = 20
PATIENT = "timeout=10"
FROZEN_TIMEOUT = 0.2  # seconds


def is_named(trio: SentinelTrio, server: Server) -> bool:
    """Whether one of the Sentinels says that it is the master; the others follow."""
    for sentinel in trio.sentinels:
        with sentinel.client() as client:
            if int(client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1]) == server.port:
                return True
    return False


def charged(url: str) -> int:
    """What the store has counted, of the two limits of `sentinel_kill`."""
    with Limiter(RULES, store=f"{url}?{PATIENT}", failure_mode="closed") as limiter:
        used = MANY - limiter.peek(user="alice").remaining
        return used + FEW - limiter.peek(ip="192.0.2.1").remaining


RULES = rules({"user": calm(MANY, "fixed_window"), "ip": calm(FEW, "fixed_window")})


def ask(number: int) -> dict[str, str]:
    return {"ip": "192.0.2.1"} if number % 2 else {"user": "alice"}


def sentinel_kill(figures: Figures, quick: bool) -> None:
    """What was admitted and not yet replicated is forgotten with the master; nothing else is."""
    with SentinelTrio() as trio:
        master, replica = trio.master(), trio.replica()
        with under_load(trio.url, RULES, ask) as loads:
            time.sleep(1)
            began = time.monotonic()
            kill(master)
            time.sleep(0.1)  # what it has answered, callers have counted
            answered = sum(entry.reason == "within_limit" for entry in entries_of(loads))
            replicated = charged(replica.url)
            until(lambda: is_master(replica), "a new master")
            promoted = time.monotonic()
            until(lambda: is_named(trio, replica), "a Sentinel that names it")
            named = time.monotonic()
            took = [load.decided_after(promoted) for load in loads]
            strict = time.monotonic()
            time.sleep(1)
        counted = charged(replica.url)
    tell(figures, loads, began)
    entries = entries_of(loads)
    figures.note("promoted, and named by a Sentinel, after", f"{promoted - began:.2f} s, {named - began:.2f} s")
    figures.healed("strict again after promotion", promoted, max(took), 1.0)
    late = [entry for entry in entries_of(loads, strict) if entry.reason == "fail_open"]
    share = 100 * len(late) / len(entries_of(loads, strict))
    figures.within("admitted by failure mode since then", share, 2.0, "%")
    figures.note("… and before", sum(entry.reason == "fail_open" for entry in entries) - len(late))
    extra = sum(entry.reason == "within_limit" for entry in entries) - counted
    figures.at_most("admissions forgotten (≤ not replicated)", max(0, extra), max(0, answered - replicated))


class Sampler:
    """Notes when a server has executed calls of ours, every 10 ms. Use as a context manager."""

    def __init__(self, server: Server) -> None:
        self.last = 0.0  # when the last were seen, by time.monotonic
        self.calls = calls_to(server)
        self._server = server
        self._stop = Event()
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            try:
                calls = calls_to(self._server)
            except RedisError:  # whoever demotes it ends all connections
                continue
            if calls != self.calls:
                self.last, self.calls = time.monotonic(), calls

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()


def planned(figures: Figures, quick: bool, binary: Path | None = None) -> None:
    """`SENTINEL FAILOVER`: the old master goes on accepting writes for some ten seconds after the promotion."""
    limit = 4_000
    given = rules({"user": calm(limit, "fixed_window")})
    with SentinelTrio(binary) as trio:
        old, new = trio.servers
        with under_load(trio.url, given, lambda _: {"user": "alice"}, failure_mode="closed", pause=0.01) as loads:
            with Sampler(old) as sampler:
                time.sleep(0.3)
                began = time.monotonic()
                trio.fail_over()
                until(lambda: is_master(new), "a new master")
                promoted = time.monotonic()
                until(lambda: is_named(trio, new), "a Sentinel that names it")
                named = time.monotonic()
                until(lambda: not is_master(old), "the end of the old master")
                demoted_at = time.monotonic()
            until(lambda: any(entry.reason == "over_limit" for entry in entries_of(loads)), "the limit")
            time.sleep(0.5)
    entries = entries_of(loads)
    figures.note("checks", f"{len(entries):,}")
    figures.exactly("errors to callers", sum(len(load.errors) for load in loads))
    times = ", ".join(f"{moment - began:.2f} s" for moment in (promoted, named, demoted_at))
    figures.note("promoted, named, old one demoted after", times)
    in_doubt = max(0.0, sampler.last - promoted)
    figures.note("old master used after the promotion for", f"{in_doubt:.3f} s")
    figures.within("… but for the machine", max(0.0, in_doubt - figures.witness.late(promoted, sampler.last)), 1.0, "s")
    a_second = round(sum(entry.ended < demoted_at for entry in entries) / (demoted_at - entries[0].ended))
    over = sum(entry.allowed for entry in entries) - limit
    figures.at_most("admitted over the limit (≤ 1 s of checks)", over, a_second)
    figures.note("decided by failure mode", len(entries) - by_store(entries))


def planned_on_redis(figures: Figures, quick: bool) -> None:
    found = binaries()
    planned(figures, quick, found[min(found)])  # "override", "redis", "redis-6.2", "valkey"


def demoted(figures: Figures, quick: bool) -> None:
    """The old master is there, and read-only. By hand, because Sentinel takes its time over this."""
    given = rules({"user": calm(MANY)})
    with SentinelTrio() as trio:
        master, replica = trio.master(), trio.replica()
        with (
            under_load(trio.url, given, lambda _: {"user": "alice"}, failure_mode="closed") as loads,
            replica.client() as new,
            master.client() as old,
        ):
            began = time.monotonic()
            new.replicaof("NO", "ONE")
            for sentinel in trio.sentinels:
                with sentinel.client() as client:
                    client.execute_command("SENTINEL", "REMOVE", SERVICE)
                    client.execute_command("SENTINEL", "MONITOR", SERVICE, "127.0.0.1", replica.port, 2)
            old.replicaof("127.0.0.1", str(replica.port))
            moment = time.monotonic()
            took = [load.decided_after(moment) for load in loads]
            time.sleep(0.5)
    tell(figures, loads, began)
    figures.healed("strict again, without a restart", moment, max(took), 1.0)
    figures.note("decided by failure mode", sum(entry.reason == "fail_closed" for entry in entries_of(loads)))


def subject_of(cluster: Cluster, server: Server) -> str:
    """Somebody whose slot this server has."""
    return next(f"user-{n}" for n in range(10_000) if cluster.of_slot(slot_of(f"user-{n}")) is server)


def cluster_kill(figures: Figures, quick: bool) -> None:
    """With `cluster-require-full-coverage no`: else Redis itself stops the others until there is a new master."""
    given = rules({"user": calm(MANY)})
    with Cluster(replicas=True, options=("--cluster-require-full-coverage", "no")) as cluster:
        for server in cluster.masters:
            figures.witness.watch(server.pid)
        lost, replica = cluster.masters[0], cluster.replicas[0]
        dead, alive = subject_of(cluster, lost), subject_of(cluster, cluster.masters[1])
        with (
            under_load(cluster.url, given, lambda _: {"user": dead}, pause=0.02) as struck,
            under_load(cluster.url, given, lambda _: {"user": alive}, pause=0.02) as others,
        ):
            began = time.monotonic()
            time.sleep(3)
            killed = time.monotonic()
            kill(lost)
            while not is_master(replica):
                time.sleep(0.05)  # not in the way of those who check
            promoted = time.monotonic()
            took = [load.decided_after(promoted) for load in struck]
            time.sleep(max(0.0, killed + 3 - time.monotonic()))
    tell(figures, [*struck, *others], began)
    figures.note("promoted after", f"{promoted - killed:.2f} s")
    figures.healed("strict again after promotion", promoted, max(took), 1.0)
    usual, meanwhile = (
        usual_p99_ms(in_time(figures, entries_of(others, *times), servers=True))
        for times in ((began, killed), (killed, promoted + max(took)))
    )
    figures.within(f"p99 of other shards (2 x {usual:.2f} ms)", meanwhile, 2 * usual, "ms")
    undecided(figures, "other shards' checks not decided", entries_of(others, killed))
    figures.note("admitted by failure mode", sum(entry.reason == "fail_open" for entry in entries_of(struck)))


def cluster_frozen(figures: Figures, quick: bool) -> None:
    """With `cluster-require-full-coverage yes`, the default: Redis refuses all keys until the replica takes over."""
    given = rules({"user": calm(MANY)})
    with Cluster(replicas=True) as cluster:
        for server in cluster.servers:
            figures.witness.watch(server.pid)
        lost, replica = cluster.masters[0], cluster.replicas[0]
        dead, alive = subject_of(cluster, lost), subject_of(cluster, cluster.masters[1])
        url = f"{cluster.url}?timeout={FROZEN_TIMEOUT}"
        with under_load(url, given, lambda number: {"user": dead if number % 2 else alive}) as loads:
            time.sleep(1)
            began = time.monotonic()
            halt(lost)
            until(lambda: is_master(replica), "a new master")
            promoted = time.monotonic()
            took = max(until(partial(decided_odd, load, promoted), "decisions by it") for load in loads)
            time.sleep(1)
            resume(lost)
            time.sleep(1)
    struck, others = ([entry for entry in entries_of(loads, began) if entry.number % 2 == odd] for odd in (1, 0))
    figures.note("checks of other shards", f"{len(others):,}")
    figures.exactly("errors to callers", sum(len(load.errors) for load in loads))
    figures.note("promoted after", f"{promoted - began:.2f} s")
    figures.healed("strict again after promotion", promoted, took, 1.0)
    undecided(figures, "other shards' checks not decided", others)
    figures.note("slowest check of other shards", f"{percentile_ms(others, 1.0):.1f} ms")
    figures.note("admitted by failure mode", sum(entry.reason == "fail_open" for entry in struck))


def decided_odd(load: Callers, moment: float) -> float:
    """How long after `moment` the store decided a check of an odd number that began since; 0: it has not yet."""
    found = [entry.ended for entry in load.since(moment) if entry.number % 2 and entry.reason in BY_STORE]
    return found[0] - moment if found else 0.0


def cluster_planned(figures: Figures, quick: bool) -> None:
    """`CLUSTER FAILOVER`, to and fro: the old master waits until its replica has everything, and then follows it."""
    limit, rounds = 4_000, 4
    given = rules({"user": calm(limit, "fixed_window")})
    with Cluster(replicas=True) as cluster:
        for server in cluster.servers:
            figures.witness.watch(server.pid)
        pair = [cluster.masters[0], cluster.replicas[0]]
        subject = subject_of(cluster, pair[0])
        with under_load(f"{cluster.url}?timeout=0.2", given, lambda _: {"user": subject}, pause=0.01) as loads:
            began = time.monotonic()
            for _ in range(rounds):
                time.sleep(0.3)
                pair.reverse()
                until(cluster.follows, "a replica that follows")
                with pair[0].client() as client:
                    client.execute_command("CLUSTER", "FAILOVER")
                until(lambda: is_master(pair[0]), "a new master")
            until(lambda: any(entry.reason == "over_limit" for entry in entries_of(loads)), "the limit")
    entries = entries_of(loads, began)
    figures.note("checks, failovers", f"{len(entries):,}, {rounds}")
    figures.exactly("errors to callers", sum(len(load.errors) for load in loads))
    undecided(figures, "not decided by the store", entries)
    admitted = sum(entry.reason == "within_limit" for entry in entries_of(loads))
    figures.exactly("admitted by the store", admitted, limit)
    figures.note("slowest check", f"{percentile_ms(entries, 1.0):.1f} ms")


def migrate(figures: Figures, quick: bool) -> None:
    """Limits over several slots, all of which move all the time."""
    limit, users = 2_000, [f"user-{n}" for n in range(6)]
    slots = sorted({slot_of(name) for name in (*users, "")})  # the one that all share has an empty subject
    given = rules({"global": calm(limit, "gcra"), "user": calm(MANY, "fixed_window")})
    over, moves = Event(), count()

    def move() -> None:
        while not over.is_set():
            slot = slots[next(moves) % len(slots)]
            here = cluster.of_slot(slot)
            cluster.move(slot, cluster.masters[(cluster.masters.index(here) + 1) % 3])

    with Cluster() as cluster:
        url = f"{cluster.url}?{PATIENT}"
        with under_load(url, given, lambda n: {"user": users[n % 6]}, failure_mode="closed") as loads:
            mover = Thread(target=move)
            mover.start()
            time.sleep(5)
            over.set()
            mover.join()
        entries = entries_of(loads)
        admitted = sum(entry.allowed for entry in entries)
        with Limiter(given, store=url, failure_mode="closed") as limiter:
            used = sum(MANY - limiter.peek(user=user).limits[-1].remaining for user in users)
            left = 0
            while limiter.check(user="last").allowed:
                left += 1
    figures.note("checks", f"{len(entries):,}")
    figures.note("slots moved", next(moves))
    figures.exactly("errors to callers", sum(len(load.errors) for load in loads))
    figures.exactly("not decided by the store", len(entries) - by_store(entries))
    figures.exactly("charged and not admitted, or the reverse", abs(used - admitted))
    figures.exactly("admitted, with what was left", admitted + left, limit)


CASES = (
    Case("sentinel-kill", "Sentinel: the master is killed (kill -9)", sentinel_kill),
    Case("planned", "Sentinel: a planned failover (SENTINEL FAILOVER), Valkey", planned),
    Case("planned-redis", "Sentinel: a planned failover, Redis", planned_on_redis),
    Case("demoted", "Sentinel: the master is a read-only replica now", demoted),
    Case("cluster-kill", "Cluster: a master is killed", cluster_kill),
    Case("cluster-frozen", "Cluster: a master is frozen (SIGSTOP)", cluster_frozen),
    Case("cluster-planned", "Cluster: planned failovers (CLUSTER FAILOVER)", cluster_planned),
    Case("migrate", "Cluster: slots move all the time", migrate),
)
