"""What to ask of which server, in which order, to do what a store is asked. Pure; no I/O.

A plan is a generator: it yields the steps that can be taken now, all of them in parallel, is sent the answer to each,
and returns what came of it. Stores for threads and for asyncio differ in how they take a step, and in nothing else.

On a cluster a command names keys of one slot only. What is in one slot is decided in one atomic step, as on a single
server. A group over several slots is charged slot by slot, in order; if one refuses or fails, those before it are
undone. So it is never charged too little; for a moment it may be charged too much.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from secrets import token_hex
from typing import Any, Final, NamedTuple, TypeVar

from headgate.core.check import (
    Answer,
    Charge,
    Check,
    Client,
    Group,
    Idempotency,
    Outcome,
    OutcomeAt,
    RepeatedResult,
    Result,
    are_faults,
    binding,
)
from headgate.core.key import penalty_keys
from headgate.core.ledger import Counted, Page, Swap
from headgate.core.reservation import Claim, Expired
from headgate.core.share import Standing
from headgate.errors import IdempotencyConflict, StoreError, StoreUnavailable
from headgate.stores.redis import idempotency, ledger, nodes, reservations, script
from headgate.stores.redis.options import Options
from headgate.stores.redis.slots import RESERVATIONS, slot_of, slot_of_check, slot_of_client, slot_of_key

T = TypeVar("T")
U = TypeVar("U")

BUSY_SECONDS: Final = 0.002  # between looks at an idempotency key that somebody else has claimed


class Step(NamedTuple):
    """Groups to decide in one slot, in order: answered with their results. Or a command: answered with its reply.

    What fails is answered with the `StoreError`; on a cluster, so may single groups be.
    """

    slot: int
    groups: Sequence[Group] = ()
    command: script.Command | None = None
    pause: float = 0.0  # seconds to wait before
    closing: bool = False  # it undoes something: it is given some time even if the deadline is over


Plan = Generator[list[Step], list[Any], T]


class Part(NamedTuple):
    """What of a group is in one slot."""

    slot: int
    places: tuple[int, ...]  # of its checks, in the group
    group: Group


class Plans:
    """Makes plans. `slotted`: slots matter, as they do on a cluster; else there is one server for all."""

    def __init__(self, options: Options, now_us: Callable[[], int | None], *, slotted: bool) -> None:
        self._options = options
        self._prefix = options.prefix
        self._now_us = now_us
        self._slotted = slotted

    def runs(self, groups: Sequence[Group]) -> Iterator[Sequence[Group]]:
        """What can be decided at a time: one after the other, so that none overtakes the one before.

        Not more than `max_batch`; on a cluster, none whose slot a group over several slots has yet to get to, and no
        idempotency key twice.
        """
        size = self._options.max_batch
        if not self._slotted:
            for start in range(0, len(groups), size):
                yield groups[start : start + size]
            return
        run: list[Group] = []
        taken: set[int] = set()  # slots of groups that take several steps
        keys: set[str] = set()
        for group in groups:
            slots = {part.slot for part in self._parts(group)}
            key = group.idempotency.name if group.idempotency is not None else None
            steps = len(slots) > 1 or key is not None
            if len(run) >= size or key in keys or (not steps and slots & taken):
                yield run
                run, taken, keys = [], set(), set()
            run.append(group)
            if steps:
                taken |= slots
            if key is not None:
                keys.add(key)
        if run:
            yield run

    def decide(self, run: Sequence[Group]) -> Plan[list[Answer]]:
        """Decide the groups of a run. A `StoreError` is the answer to each group that it met."""
        if not self._slotted:
            (answer,) = yield [Step(0, run)]
            return [answer] * len(run) if isinstance(answer, StoreError) else answer
        return (yield from _together([self._decide(group) for group in run]))

    def rest(self, decided: Sequence[Answer], left: int) -> list[Answer]:
        """The answers to groups of later runs, if they need not be asked: one server has failed, and would again."""
        return [decided[0]] * left if not self._slotted and are_faults(decided) else []

    def refund(self, charges: Sequence[Charge]) -> Plan[None]:
        now_us = self._now_us()
        yield from _all(
            Step(slot, command=script.encode_refund(some, now_us, self._prefix))
            for slot, some in self._by_slot(charges, lambda charge: slot_of_check(charge.check))
        )

    def reset(self, checks: Sequence[Check], clients: Sequence[Client]) -> Plan[None]:
        steps = [
            Step(slot, command=script.encode_reset(some, () if self._slotted else clients, self._prefix))
            for slot, some in self._by_slot(checks, slot_of_check)
        ]
        if clients and (self._slotted or not steps):
            steps += (
                Step(slot, command=script.encode_reset((), some, self._prefix))
                for slot, some in self._by_slot(clients, slot_of_client)
            )
        yield from _all(steps)

    def hold(self, reservation_id: str, record: str, ttl_us: int) -> Plan[None]:
        yield from self._one(reservations.encode_hold(reservation_id, record, ttl_us, self._now_us(), self._prefix))

    def renew(self, reservation_id: str, record: str, ttl_us: int) -> Plan[bool]:
        command = reservations.encode_renew(reservation_id, record, ttl_us, self._now_us(), self._prefix)
        reply = yield from self._one(command)
        return bool(reply[0])

    def claim(self, reservation_id: str) -> Plan[Claim | None]:
        reply = yield from self._one(reservations.encode_claim(reservation_id, self._now_us(), self._prefix))
        return reservations.decode_claim(reply)

    def expire(self) -> Plan[Expired]:
        reply = yield from self._one(reservations.encode_expire(self._now_us(), self._prefix))
        return reservations.decode_expire(reply)

    def adjust(self, refunds: Sequence[Charge], surcharges: Sequence[Check]) -> Plan[list[int]]:
        now_us = self._now_us()
        changes: list[tuple[int, Charge | Check]] = list(enumerate((*refunds, *surcharges)))
        steps, places = [], []
        for slot, some in self._by_slot(changes, lambda change: slot_of_check(_check_of(change[1]))):
            back = [one for _, one in some if isinstance(one, Charge)]
            more = [one for _, one in some if isinstance(one, Check)]
            steps.append(Step(slot, command=reservations.encode_adjust(back, more, now_us, self._prefix)))
            places.append([place for place, one in some if isinstance(one, Charge)])
        given = [0] * len(refunds)
        for replied, places_of_one in zip((yield steps) if steps else (), places, strict=True):
            for place, units in zip(places_of_one, _raised(replied), strict=True):
                given[place] = units
        return given

    def beat(self, name: str, node: str, ttl_us: int) -> Plan[Standing]:
        command = nodes.encode_beat(name, node, ttl_us, self._now_us(), self._prefix)
        (answer,) = yield [Step(slot_of(name) if self._slotted else 0, command=command)]
        return nodes.decode_beat(_raised(answer))

    def counts(self, checks: Sequence[Check]) -> Plan[list[Counted | None]]:
        return self._each(
            checks, slot_of_check, lambda some: ledger.encode_counts(some, self._prefix), ledger.decode_counts
        )

    def read(self, names: Sequence[str]) -> Plan[list[Page]]:
        now_us = self._now_us()
        return self._each(
            names,
            slot_of_key,
            lambda some: ledger.encode_read(some, now_us, self._prefix),
            lambda _, reply: ledger.decode_read(reply),
        )

    def swap(self, swaps: Sequence[Swap]) -> Plan[list[bool]]:
        now_us = self._now_us()
        return self._each(
            swaps,
            lambda swap: slot_of_key(swap.name),
            lambda some: ledger.encode_swap(some, now_us, self._prefix),
            lambda _, reply: ledger.decode_swap(reply),
        )

    def _each(
        self,
        things: Sequence[T],
        slot_of_thing: Callable[[T], int],
        encode: Callable[[Sequence[T]], script.Command],
        decode: Callable[[Sequence[T], Any], list[U]],
    ) -> Plan[list[U]]:
        """An answer to each of several things, in their order. Raises the first `StoreError`."""
        places = range(len(things))
        by_slot = list(self._by_slot(places, lambda place: slot_of_thing(things[place])))
        some = [[things[place] for place in those] for _, those in by_slot]
        steps = [Step(slot, command=encode(those)) for (slot, _), those in zip(by_slot, some, strict=True)]
        replies = (yield steps) if steps else []
        found: dict[int, U] = {}
        for (_, those), asked, reply in zip(by_slot, some, replies, strict=True):
            found.update(zip(those, decode(asked, _raised(reply)), strict=True))
        return [found[place] for place in places]

    def _one(self, command: script.Command) -> Plan[Any]:
        (answer,) = yield [Step(RESERVATIONS if self._slotted else 0, command=command)]
        return _raised(answer)

    def _by_slot(self, things: Sequence[T], slot_of_thing: Callable[[T], int]) -> Iterator[tuple[int, Sequence[T]]]:
        """Things in their order, those of one slot together."""
        if not self._slotted:
            if things:
                yield 0, things
            return
        by_slot: dict[int, list[T]] = {}
        for thing in things:
            by_slot.setdefault(slot_of_thing(thing), []).append(thing)
        yield from by_slot.items()

    def _parts(self, group: Group) -> list[Part]:
        """A group by slots. That of its client comes first, with the penalty: whoever is blocked is not charged."""
        if len(group.checks) == 1 and group.penalty is None:  # most of them
            return [Part(slot_of_check(group.checks[0]), (0,), group)]
        places: dict[int, list[int]] = {}
        if group.penalty is not None:
            places[slot_of_client(group.penalty.client)] = []
        for place, check in enumerate(group.checks):
            places.setdefault(slot_of_check(check), []).append(place)
        if len(places) == 1:
            ((slot, all_of_them),) = places.items()
            return [Part(slot, tuple(all_of_them), group)]
        penalty, parts = group.penalty, []
        for slot, some in places.items():
            checks = tuple(group.checks[place] for place in some)
            parts.append(Part(slot, tuple(some), Group(checks, group.peek, None, penalty)))
            penalty = None
        return parts or [Part(0, (), group)]

    def _decide(self, group: Group) -> Plan[Answer]:
        if group.idempotency is not None:
            plain = group._replace(idempotency=None)
            if group.idempotency.is_receipt and not group.peek:
                return self._decide_with_receipts(group, plain)
            return self._decide(plain) if group.peek else self._decide_once(group, plain)
        parts = self._parts(group)
        return self._decide_whole(parts[0]) if len(parts) == 1 else self._decide_parts(group, parts)

    def _decide_whole(self, part: Part) -> Plan[Answer]:
        (answer,) = yield [Step(part.slot, (part.group,))]
        return _single(answer)

    def _decide_once(self, group: Group, plain: Group) -> Plan[Answer]:
        """Claim the idempotency key, decide, and keep the answer. Whoever finds it claimed waits for the answer."""
        key = group.idempotency
        assert key is not None
        slot, token, timeout = slot_of(key.name), token_hex(8), self._options.timeout
        pause = 0.0
        while True:
            claim = idempotency.encode_claim(key, token, timeout, self._now_us(), self._prefix)
            (answer,) = yield [Step(slot, command=claim, pause=pause)]
            if isinstance(answer, StoreError):
                return answer
            status, result = idempotency.decode_claim(answer)
            if status == idempotency.CONFLICT:
                return IdempotencyConflict.of(key.key)
            if result is not None:
                return result
            if status == idempotency.CLAIMED:
                break
            pause = BUSY_SECONDS
        decided = yield from self._decide(plain)
        if isinstance(decided, Result):
            last = idempotency.encode_keep(key, token, decided, self._now_us(), self._prefix)
        elif isinstance(decided, StoreUnavailable) and not decided.sent:  # nothing stands: it can be tried again
            last = idempotency.encode_drop(key, token, self._now_us(), self._prefix)
        else:
            return decided
        yield [Step(slot, command=last, closing=True)]  # if it fails, a repetition is decided anew
        return decided

    def _decide_parts(self, group: Group, parts: list[Part]) -> Plan[Answer]:
        if group.peek:
            return (yield from self._look_at_parts(group, parts))
        decided: list[Result] = []
        for part in parts:
            (answer,) = yield [Step(part.slot, (part.group,))]
            result = _single(answer)
            if isinstance(result, StoreError):
                yield self._undoing(parts, decided, look=False)
                return _possibly_charged(result) if decided else result
            assert isinstance(result, Result)
            if part.group.penalty is not None and result.block is not None and not result.outcomes:
                return Result(result.now_us, (), result.block)  # the client is blocked
            decided.append(result)
            if _refuses(part, result):
                return (yield from self._refuse(group, parts, decided))
        return Result(decided[0].now_us, _merged(parts, decided))

    def _decide_with_receipts(self, group: Group, plain: Group) -> Plan[Answer]:
        """Decide a group slot by slot. Each slot keeps the answer to its part in the same step as the charge.

        So a part is charged once, and undone once, however often somebody tries: also when a reply was lost. A part
        that was undone refuses from then on.
        """
        parts = [_with_receipt(part, group.idempotency) for part in self._parts(plain)]
        decided: list[Result] = []
        kind: type[Result] = Result
        for part in parts:
            (answer,) = yield [Step(part.slot, (part.group,))]
            result = _single(answer)
            if isinstance(result, StoreError):
                yield self._undoing_once(parts)
                return _possibly_charged(result)
            if isinstance(result, IdempotencyConflict):
                yield self._undoing_once(parts)
                return RepeatedResult(0, (Outcome(1, 0, 1),) * len(group.checks))
            if isinstance(result, RepeatedResult):
                kind = RepeatedResult
            if part.group.penalty is not None and result.block is not None and not result.outcomes:
                return kind(result.now_us, (), result.block)  # the client is blocked
            decided.append(result)
            if _refuses(part, result):
                refused = yield from self._refuse(group, parts, decided)
                return kind(*refused)
        return kind(decided[0].now_us, _merged(parts, decided))

    def _undoing_once(self, parts: list[Part]) -> list[Step]:
        """Steps that undo parts that have receipts, whether they were charged or not."""
        now_us = self._now_us()
        return [
            Step(part.slot, command=script.encode_undo_once(part.group, now_us, self._prefix), closing=True)
            for part in parts
            if part.group.checks
        ]

    def _look_at_parts(self, group: Group, parts: list[Part]) -> Plan[Answer]:
        answers = yield [Step(part.slot, (part.group,)) for part in parts]
        looked: list[Result] = []
        for answer in answers:
            result = _single(answer)
            if not isinstance(result, Result):
                return result
            looked.append(result)
        if group.penalty is not None and looked[0].block is not None:
            return Result(looked[0].now_us, (), looked[0].block)
        return Result(looked[0].now_us, _merged(parts, looked))

    def _refuse(self, group: Group, parts: list[Part], decided: list[Result]) -> Plan[Result]:
        """The last part that was decided refuses: undo those before it, and see how the others stand."""
        refused = decided[-1]
        *before, _ = decided
        steps = self._undoing(parts, before, look=True)
        rest = parts[len(decided) :]
        steps += [Step(part.slot, (part.group._replace(peek=True, idempotency=None),)) for part in rest]
        answers = (yield steps) if steps else []
        looked: list[Result] = []
        for place, part in enumerate(parts):
            if place == len(before):
                looked.append(refused)
                continue
            answer = answers[place if place < len(before) else place - 1]
            known = before[place] if place < len(before) else None
            looked.append(_looked(part, answer, known))
        outcomes = _merged(parts, looked)
        block = refused.block
        check = binding(group.checks, outcomes)
        if group.penalty is not None and before and check is not None:  # else the refusal was the client's own part's
            slot = slot_of_client(group.penalty.client)
            command = script.encode_violation(group.penalty, check, self._now_us(), self._prefix)
            (reply,) = yield [Step(slot, command=command, closing=True)]
            block = None if isinstance(reply, StoreError) else script.decode_violation(reply)
        return Result(refused.now_us, outcomes, block)

    def _undoing(self, parts: list[Part], decided: list[Result], *, look: bool) -> list[Step]:
        """Steps that undo parts that were charged, and look at them then."""
        steps = []
        now_us = self._now_us()
        for part, result in zip(parts, decided, strict=False):
            charges = _charges(part, result)
            if part.group.idempotency is not None:
                seen = Group(part.group.checks, peek=True)
                command = script.encode_undo_once(part.group, now_us, self._prefix, look=seen)
                steps.append(Step(part.slot, command=command, closing=True))
            elif look:
                command = script.encode_undo(charges, Group(part.group.checks, peek=True), now_us, self._prefix)
                steps.append(Step(part.slot, command=command, closing=True))
            elif charges:
                steps.append(Step(part.slot, command=script.encode_refund(charges, now_us, self._prefix), closing=True))
        return steps


def _with_receipt(part: Part, key: Idempotency | None) -> Part:
    """A part whose answer is kept in its own slot."""
    assert key is not None
    group = part.group
    names = [check.key for check in group.checks]
    if not names and group.penalty is not None:
        names = list(penalty_keys(*group.penalty.client))
    tag = names[0][names[0].index("{") + 1 : names[0].index("}")] if names else ""
    return part._replace(group=group._replace(idempotency=key._replace(tag=tag)))


def _together(plans: Sequence[Plan[T]]) -> Plan[list[T]]:
    """Follow plans side by side. What they decide in one slot at a time is one step, in their order."""
    results: dict[int, T] = {}
    asked: dict[int, list[Step]] = {}

    def follow(place: int, answers: list[Any] | None) -> None:
        try:
            asked[place] = plans[place].send(answers)  # type: ignore[arg-type]  # None begins it
        except StopIteration as end:
            asked.pop(place, None)
            results[place] = end.value

    for place in range(len(plans)):
        follow(place, None)
    while asked:
        steps: list[Step] = []
        by_slot: dict[int, int] = {}  # where groups of a slot can still be added
        found: list[tuple[int, int, int, int]] = []  # of each step asked: by whom, in which step, and which part of it
        for place, wanted in asked.items():
            for step in wanted:
                if step.command is not None:
                    by_slot.pop(step.slot, None)
                    found.append((place, len(steps), 0, -1))
                    steps.append(step)
                    continue
                at = by_slot.get(step.slot)
                if at is None:
                    at = by_slot[step.slot] = len(steps)
                    steps.append(Step(step.slot, []))
                groups = steps[at].groups
                assert isinstance(groups, list)
                found.append((place, at, len(groups), len(groups) + len(step.groups)))
                groups += step.groups
        answers = (yield steps) if steps else []
        given: dict[int, list[Any]] = {place: [] for place in asked}
        for place, at, start, end in found:
            answer = answers[at]
            given[place].append(answer if end < 0 or isinstance(answer, StoreError) else answer[start:end])
        for place, some in given.items():
            follow(place, some)
    return [results[place] for place in range(len(plans))]


def _all(steps: Sequence[Step] | Iterator[Step]) -> Plan[None]:
    """Take steps of which the replies do not matter. Raises the first `StoreError`, when all others are done."""
    listed = list(steps)
    if listed:
        for answer in (yield listed):
            _raised(answer)


def _raised(answer: Any) -> Any:
    if isinstance(answer, StoreError):
        raise answer
    return answer


def _single(answer: list[Answer] | StoreError) -> Answer:
    """The answer to a step of one group."""
    if isinstance(answer, StoreError):
        return answer
    (decided,) = answer
    return decided


def _check_of(change: Charge | Check) -> Check:
    return change.check if isinstance(change, Charge) else change


def _refuses(part: Part, result: Result) -> bool:
    return any(
        check.enforced and outcome.wait_us for check, outcome in zip(part.group.checks, result.outcomes, strict=True)
    )


def _charges(part: Part, result: Result) -> list[Charge]:
    return [
        Charge(check, result.now_us, outcome.reset_us)
        for check, outcome in zip(part.group.checks, result.outcomes, strict=True)
        if outcome.wait_us == 0 and check.cost
    ]


def _merged(parts: Sequence[Part], results: Sequence[Result]) -> tuple[Outcome, ...]:
    """The outcomes of parts in the order of the group. Each server has told its own time."""
    outcomes: dict[int, Outcome] = {}
    now_us = results[0].now_us
    for part, result in zip(parts, results, strict=True):
        for place, outcome in zip(part.places, result.outcomes, strict=True):
            outcomes[place] = outcome if result.now_us == now_us else OutcomeAt.of(outcome, result.now_us)
    return tuple(outcomes[place] for place in sorted(outcomes))


def _looked(part: Part, answer: Any, known: Result | None) -> Result:
    """How a part stands whose group was refused elsewhere; if that could not be asked, as well as can be told."""
    if known is not None and not isinstance(answer, StoreError):
        answer = script.decode([Group(part.group.checks, peek=True)], answer)
    looked = _single(answer)
    if isinstance(looked, Result):
        return looked
    if known is not None:  # it is not undone, perhaps
        return known
    return Result(0, tuple(Outcome(0, check.quota.capacity, 0) for check in part.group.checks))


def _possibly_charged(error: StoreError) -> StoreError:
    """Something was charged before, and undone if that could be done: it is not to be tried again."""
    again = StoreUnavailable(str(error)) if isinstance(error, StoreUnavailable) else error
    again.__cause__ = error.__cause__
    return again
