"""Slots against an oracle: a plain list of what is held, gone through again for every question. In memory and on Redis.

The oracle knows one subject under one rule, beside a rate that is charged in the same step.
"""

from __future__ import annotations

from itertools import count
from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from headgate.core.check import NEVER, NOT_WAITING, TICKET_US, Charge, Check, Group, Outcome
from headgate.core.key import key_template
from headgate.core.quota import CONCURRENCY, Quota
from headgate.core.slot import new_slot
from headgate.stores.memory import MemoryStore
from headgate.stores.redis.sync import RedisStore
from headgate.testing import FakeClock
from tests.property.strategies import examples, sequences, starts
from tests.property.world import World, expect_result

SECOND = 1_000_000
_runs = count()


class Held(NamedTuple):
    """A slot in the oracle's list."""

    slot: str
    cost: int
    ttl: int
    since: int  # when it was taken or last renewed

    @property
    def expires(self) -> int:
        return self.since + self.ttl


class Ticket(NamedTuple):
    """A place in the oracle's queue."""

    arrived: int
    slot: str
    cost: int
    expires: int


class Oracle:
    """What a store should answer. A slot from the future, by a clock that went back, was taken now."""

    def __init__(self) -> None:
        self.held: list[Held] = []
        self.tickets: list[Ticket] = []
        self.given_up: dict[str, int] = {}  # until when a slot's id is refused

    def queue(self, now: int) -> list[Ticket]:
        """The live tickets, in order."""
        return sorted(ticket for ticket in self.tickets if ticket.expires > now)

    def ahead(self, now: int, slot: str, arrived: int) -> int:
        """The cost of the tickets ahead of a request: of all tickets, if it has not been refused yet."""
        before = self.queue(now)
        if arrived > 0:
            before = [ticket for ticket in before if (ticket.arrived, ticket.slot) < (arrived, slot)]
        return sum(ticket.cost for ticket in before)

    def live(self, now: int) -> list[Held]:
        return [one for one in self.held if one.expires > now]

    def acquire(
        self,
        now: int,
        quota: Quota,
        cost: int,
        slot: str,
        *,
        other_fits: bool = True,
        arrived: int = NOT_WAITING,
    ) -> Outcome:
        live = self.live(now)
        used = sum(one.cost for one in live)
        if cost > quota.limit:
            wait = NEVER
        elif cost == 0 or used + cost <= quota.limit:
            wait = 0
        else:
            left = sorted(live, key=lambda one: one.expires)
            while used + cost > quota.limit:
                used -= left[0].cost
                wait = left.pop(0).expires - now
        ahead = self.ahead(now, slot, arrived)
        used = sum(one.cost for one in live)
        if cost and wait != NEVER and ((ahead and used + ahead + cost > quota.limit) or self.is_given_up(now, slot)):
            wait = max(wait, TICKET_US)
        self.tickets = [ticket for ticket in self.tickets if ticket.slot != slot]
        if wait == 0 and cost and other_fits:
            self.held.append(Held(slot, cost, quota.window_us, now))
        elif arrived != NOT_WAITING and wait > 0 and other_fits and not self.is_given_up(now, slot):
            self.tickets.append(Ticket(arrived or now, slot, cost, now + TICKET_US))
        return Outcome(wait, *self.figures(now, quota))

    def figures(self, now: int, quota: Quota) -> tuple[int, int]:
        live = self.live(now)
        queued = sum(ticket.cost for ticket in self.queue(now))
        remaining = max(0, quota.limit - sum(one.cost for one in live) - queued)
        return remaining, max([one.expires - now for one in live] + [TICKET_US] * bool(queued), default=0)

    def is_given_up(self, now: int, slot: str) -> bool:
        return self.given_up.get(slot, now) > now

    def release(self, now: int, slot: str, arrived: int = NOT_WAITING) -> bool:
        found = [one for one in self.live(now) if one.slot == slot]
        known = {one.slot for one in self.held} | {ticket.slot for ticket in self.tickets}
        if arrived != NOT_WAITING and slot not in known:
            self.given_up[slot] = now + TICKET_US
        self.held = [one for one in self.held if one.slot != slot]
        if arrived != NOT_WAITING:
            self.tickets = [ticket for ticket in self.tickets if ticket.slot != slot]
        return bool(found)

    def renew_ticket(self, now: int, slot: str) -> bool:
        live = [ticket.slot for ticket in self.queue(now)]
        self.tickets = [
            ticket._replace(expires=now + TICKET_US) if ticket.slot == slot and slot in live else ticket
            for ticket in self.tickets
        ]
        return slot in live

    def renew(self, now: int, slot: str) -> bool:
        found = [one for one in self.live(now) if one.slot == slot]
        self.held = [one._replace(since=now) if one in found else one for one in self.held]
        return bool(found)


class Operation(NamedTuple):
    """Let time pass, then do something. `which` is a slot, counted from the newest; or one that never was."""

    kind: str  # one of KINDS
    us: int
    cost: int
    version: int  # of the quota
    which: int


KINDS = (
    *("acquire", "acquire", "acquire", "beside", "release", "release", "renew", "renew", "peek", "refund", "reset"),
    *(
        "wait",
        "wait",
        "wait",
        "wait beside",
        "poll",
        "poll",
        "poll",
        "poll beside",
        "renew ticket",
        "give up",
        "overtake",
    ),
)
MOVES = (0, 0, 1, 1, SECOND // 3, SECOND - 1, SECOND, SECOND + 1, 5 * SECOND, 100 * SECOND)


def operations(*, back: bool = False) -> st.SearchStrategy[list[Operation]]:
    moves = (*MOVES, -1, -SECOND, -7 * SECOND) if back else MOVES
    drawn = st.tuples(
        st.sampled_from(KINDS), st.sampled_from(moves), st.integers(0, 4), st.integers(0, 2), st.integers(0, 5)
    )
    return sequences(drawn.map(lambda values: Operation(*values)), 40)


quotas = st.lists(
    st.builds(
        lambda limit, ttl: Quota(limit, ttl=ttl / SECOND, algorithm=CONCURRENCY),
        st.integers(1, 6),
        st.sampled_from([SECOND, 2 * SECOND, 10 * SECOND]),
    ),
    min_size=3,
    max_size=3,
)


DEAD_TICKET_FIRST = {  # one slot, held, and two tickets for it, of which only the second is still live
    "quotas": [Quota(1, ttl=ttl, algorithm=CONCURRENCY) for ttl in (2, 1, 1)],
    "start": 1_600_000_000_000_000,
    "done": [
        Operation("acquire", 0, 1, 0, 0),
        Operation("wait", 1, 1, 0, 0),
        Operation("wait", 1, 1, 0, 0),
        Operation("peek", SECOND - 1, 0, 0, 0),
    ],
}


class Trio:
    """Both stores and, while the clock goes forward, the oracle: all on one clock."""

    def __init__(self, redis: RedisStore, clock: FakeClock, quotas: list[Quota], start: int, *, back: bool) -> None:
        self.stores = (MemoryStore(clock=clock), redis)
        self.world = World(self.stores[0], clock)
        self.world.begin(start)
        self.quotas, self.rule = quotas, f"slots {next(_runs)}"
        self.oracle = None if back else Oracle()
        self.taken: list[Check] = []
        self.waiting: list[Check] = []
        self.rate = self._check("rate", Quota(3, "1s", algorithm="fixed_window"), 1)
        # Both keys, one by one: the memory store drops moot keys when it meets new ones only. Which of them a store
        # still has is its own affair, until a clock goes back to when they mattered.
        first = self._check("slots", quotas[0], 1)._replace(slot=new_slot())
        for check in (self.rate, first):
            self._decide(Group((check,)))
        self._both("release_slots", first)

    def perform(self, operation: Operation) -> None:
        kind, us, cost, version, which = operation
        self.world.move(us)
        now, quota = self.world.now, self.quotas[version]
        check = self._check("slots", quota, cost)._replace(slot=new_slot())
        known = self.taken[-1 - which % len(self.taken)] if self.taken and which < 5 else check
        match kind:
            case "acquire":
                (outcome,) = self._decide(Group((check,)))
                self._expect(outcome, lambda oracle: oracle.acquire(now, quota, cost, check.slot))
                self.taken += [check] if cost and outcome.wait_us == 0 else []
            case "beside":
                outcome, rate = self._decide(Group((check, self.rate._replace(slot=check.slot))))
                fits = rate.wait_us == 0
                self._expect(outcome, lambda oracle: oracle.acquire(now, quota, cost, check.slot, other_fits=fits))
                if outcome.wait_us:
                    before = self._decide(Group((self.rate,), peek=True))[0].remaining
                    assert before == rate.remaining, "a refusal for lack of a slot was charged to the rate"
                self.taken += [check] if cost and outcome.wait_us == 0 and fits else []
            case "wait" | "wait beside" if cost:
                self._wait(check._replace(arrived_us=0), beside=kind == "wait beside")
            case "poll" | "poll beside" if self.waiting:
                polled = self.waiting.pop(-1 - which % len(self.waiting))
                self._wait(polled._replace(quota=quota), beside=kind == "poll beside")
            case "renew ticket" if self.waiting:
                ticket = self.waiting[-1 - which % len(self.waiting)]
                renewed = self._both("renew_slots", ticket)
                self._expect(renewed, lambda oracle: oracle.renew_ticket(now, ticket.slot))
            case "give up" if self.waiting:
                ticket = self.waiting.pop(-1 - which % len(self.waiting))
                released = self._both("release_slots", ticket)
                self._expect(released, lambda oracle: oracle.release(now, ticket.slot, ticket.arrived_us))
            case "overtake" if cost:  # the release comes before the check
                late = check._replace(arrived_us=0)
                self._expect(self._both("release_slots", late), lambda oracle: oracle.release(now, late.slot, 0))
                self._wait(late, beside=False)
            case "release":
                self._expect(self._both("release_slots", known), lambda oracle: oracle.release(now, known.slot))
            case "renew":
                self._expect(self._both("renew_slots", known), lambda oracle: oracle.renew(now, known.slot))
            case "refund":
                for store in self.stores:
                    store.refund([Charge(known, now, 0)])
                if self.oracle is not None:
                    self.oracle.release(now, known.slot)
            case "reset" if which == 0:
                for store in self.stores:
                    store.reset([check])
                if self.oracle is not None:
                    self.oracle = Oracle()
        for look in self.quotas:
            (looked,) = self._decide(Group((self._check("slots", look, 1),), peek=True))
            self._expect(tuple(looked[1:]), lambda oracle, look=look: oracle.figures(self.world.now, look))

    def _wait(self, check: Check, *, beside: bool) -> None:
        """Ask for a slot and wait for it, beside a rate or alone."""
        now, cost, slot, arrived = self.world.now, check.cost, check.slot, check.arrived_us
        checks = (check, self.rate._replace(slot=slot, arrived_us=arrived)) if beside else (check,)
        outcome, *others = self._decide(Group(checks))
        fits = not any(other.wait_us for other in others)
        self._expect(
            outcome,
            lambda oracle: oracle.acquire(now, check.quota, cost, slot, other_fits=fits, arrived=arrived),
        )
        if outcome.wait_us == 0 and fits:
            self.taken.append(check._replace(arrived_us=NOT_WAITING))
        elif outcome.wait_us > 0 and fits:
            self.waiting.append(check._replace(arrived_us=arrived or now))
        else:
            self.waiting.append(check._replace(arrived_us=0))  # it has lost its place

    def _check(self, name: str, quota: Quota, cost: int) -> Check:
        return Check(name, key_template("user", f"{self.rule} {name}", quota.algorithm), "alice", quota, cost)

    def _decide(self, group: Group) -> tuple[Outcome, ...]:
        memory, redis = (expect_result(store.check([group])[0]) for store in self.stores)
        assert memory == redis, f"memory: {memory}\nredis:  {redis}\nasked: {group}"
        return memory.outcomes

    def _both(self, verb: str, check: Check) -> bool:
        (memory,), (redis,) = (getattr(store, verb)([check]) for store in self.stores)
        assert memory == redis, f"{verb}: memory {memory}, redis {redis}"
        held: bool = memory
        return held

    def _expect(self, answered: object, by_oracle: object) -> None:
        if self.oracle is not None:
            assert callable(by_oracle)
            expected = by_oracle(self.oracle)
            assert answered == expected, f"answered {answered}, by the oracle {expected}"


@examples(150)
@example(**DEAD_TICKET_FIRST)
@given(quotas=quotas, start=starts(), done=operations())
def test_slots_are_as_the_oracle_says(
    redis_store: RedisStore, clock: FakeClock, quotas: list[Quota], start: int, done: list[Operation]
) -> None:
    trio = Trio(redis_store, clock, quotas, start, back=False)
    for operation in done:
        trio.perform(operation)


@examples(150)
@example(**DEAD_TICKET_FIRST)
@given(quotas=quotas, start=starts(), done=operations(back=True))
def test_twins_of_slots_agree_when_the_clock_goes_back(
    redis_store: RedisStore, clock: FakeClock, quotas: list[Quota], start: int, done: list[Operation]
) -> None:
    trio = Trio(redis_store, clock, quotas, start, back=True)
    for operation in done:
        trio.perform(operation)


class Event(NamedTuple):
    """Something that happens at the only slot of a key."""

    kind: str
    us: int
    which: int


EVENTS = ("come", "come", "poll", "poll", "poll", "poll all", "outsider", "release", "release", "give up", "sleep")


@examples(150)
@given(
    start=starts(),
    events=sequences(
        st.builds(Event, st.sampled_from(EVENTS), st.sampled_from((0, 1, 1_000, SECOND // 4)), st.integers(0, 7)), 60
    ),
)
def test_slots_are_given_in_order_of_arrival(
    redis_store: RedisStore, clock: FakeClock, start: int, events: list[Event]
) -> None:
    """Whoever gets the slot came before all others that wait, also when some give up, die, or do not wait at all."""
    trio = Trio(redis_store, clock, [Quota(1, ttl=100, algorithm=CONCURRENCY)] * 3, start, back=False)
    waiting: dict[str, Check] = {}  # those that never slept for as long as a ticket lives
    renewed: dict[str, int] = {}
    held: Check | None = None

    def ask(check: Check) -> bool:
        (outcome,) = trio._decide(Group((check,)))
        now = trio.world.now
        if outcome.wait_us == 0:
            return True
        if check.arrived_us != NOT_WAITING:
            waiting[check.slot] = check._replace(arrived_us=check.arrived_us or now)
            renewed[check.slot] = now
        return False

    for kind, us, which in events:
        trio.world.move(4 * us if kind == "sleep" else us)
        now = trio.world.now
        for slot in [slot for slot in waiting if renewed[slot] + TICKET_US <= now]:  # as if its process had died
            del waiting[slot]
        asking: list[Check] = []
        match kind:
            case "come":
                asking = [trio._check("slots", trio.quotas[0], 1)._replace(slot=new_slot(), arrived_us=0)]
            case "outsider":
                asking = [trio._check("slots", trio.quotas[0], 1)._replace(slot=new_slot())]
            case "poll" if waiting:
                asking = [list(waiting.values())[which % len(waiting)]]
            case "poll all":
                asking = list(waiting.values())[:: -1 if which % 2 else 1]
            case "give up" if waiting:
                trio._both("release_slots", waiting.pop(list(waiting)[which % len(waiting)]))
            case "release" if held is not None:
                trio._both("release_slots", held)
                held = None
        for check in asking:
            if not ask(check):
                continue
            assert held is None, "two hold the only slot"
            waiting.pop(check.slot, None)
            first = min([(one.arrived_us, one.slot) for one in waiting.values()], default=None)
            own = (check.arrived_us, check.slot) if check.arrived_us > 0 else (trio.world.now + 1, "")
            assert first is None or own < first, "somebody who came later got the slot"
            held = check._replace(arrived_us=NOT_WAITING)
