"""Plan how to decide requests on the servers that have their keys, slot by slot. Pure; no I/O.

On a cluster, a command can only name keys of one slot. Within one slot, a request is decided in one atomic step, as on
a single server. A request with several slots is charged slot by slot, in order; if one refuses or fails, the charges
before it are undone. So it is never charged too little, but for a moment it may be charged too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from secrets import token_hex
from typing import Any, Final

from headgate.core.check import (
    Answer,
    Check,
    Group,
    Outcome,
    RepeatedResult,
    Result,
    are_faults,
    binding,
)
from headgate.errors import IdempotencyConflict, StoreError, StoreUnavailable
from headgate.stores.redis import commands
from headgate.stores.redis.encoding import Encoder
from headgate.stores.redis.options import RedisOptions
from headgate.stores.redis.slot_parts import (
    SlotPart,
    charges_of_part,
    is_refused,
    lacks_more_than_slots,
    merge_outcomes,
    read_answer,
    result_of_part,
    waiting_checks,
    with_receipt,
    with_waits_of,
)
from headgate.stores.redis.steps import Collector, Figures, SlotStep, Steps, step_of
from headgate.stores.redis.topology import slot_of, slot_of_check, slot_of_client

BUSY_SECONDS: Final = 0.002  # between reads of an idempotency key that another caller has claimed


class SlotPlanner:
    """Plans how groups are decided. `slotted`: slots matter, as on a cluster; else one server has all keys."""

    def __init__(
        self, options: RedisOptions, encoder: Encoder, now_us: Callable[[], int | None], *, slotted: bool
    ) -> None:
        self._options = options
        self._encoder = encoder
        self._now_us = now_us
        self._slotted = slotted

    def runs(self, groups: Sequence[Group]) -> Iterator[Sequence[Group]]:
        """Yield runs of groups that can be decided at the same time. Runs follow one another, so that order is kept.

        A run has at most `max_batch` groups. On a cluster, it contains no group in a slot that an earlier group over
        several slots still has to reach, and no idempotency key twice.
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
            slots = {part.slot for part in self.parts(group)}
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

    def decide(self, run: Sequence[Group]) -> Steps[list[Answer]]:
        """Decide the groups of a run. Each group that fails has its `StoreError` as the answer."""
        if self._slotted:
            return (yield from _together([self._decide(group) for group in run]))
        collector, encoded = Collector(), [self._encoder.group(group) for group in run]
        indexes = [collector.add(step_of(0, one)) for one in encoded]
        answers = yield collector.steps
        return [
            read_answer(group, one.template, _part_of(answers[at], index))
            for group, one, (at, index) in zip(run, encoded, indexes, strict=True)
        ]

    def reserve(self, group: Group, decide_first: Callable[[SlotPart], Steps[Answer]]) -> Steps[Answer]:
        """Decide a reservation in several slots. `decide_first` decides its first part."""
        (answer,) = yield from _together([self._decide_with_receipts(group, decide_first)])
        return answer

    def rest(self, decided: Sequence[Answer], left: int) -> list[Answer]:
        """Return the answers to groups of later runs, if they need not be sent because the one server has failed."""
        return [decided[0]] * left if not self._slotted and are_faults(decided) else []

    def parts(self, group: Group) -> list[SlotPart]:
        """Divide a group by slots. The client's slot comes first, with the penalty: a blocked client is not charged."""
        if not self._slotted:
            return [SlotPart(0, tuple(range(len(group.checks))), group)]
        if len(group.checks) == 1 and group.penalty is None:  # the common case
            return [SlotPart(slot_of_check(group.checks[0]), (0,), group)]
        indexes: dict[int, list[int]] = {}
        if group.penalty is not None:
            indexes[slot_of_client(group.penalty.client)] = []
        for index, check in enumerate(group.checks):
            indexes.setdefault(slot_of_check(check), []).append(index)
        if len(indexes) == 1:
            ((slot, all_of_them),) = indexes.items()
            return [SlotPart(slot, tuple(all_of_them), group)]
        penalty, parts = group.penalty, []
        for slot, some in indexes.items():
            checks = tuple(group.checks[index] for index in some)
            parts.append(SlotPart(slot, tuple(some), Group(checks, group.peek, None, penalty)))
            penalty = None
        return parts or [SlotPart(0, (), group)]

    def _decide(self, group: Group) -> Steps[Answer]:
        if group.idempotency is not None:
            plain = group._replace(idempotency=None)
            if group.idempotency.is_receipt and not group.peek:
                return self._decide_with_receipts(group, self._decide_whole)
            return self._decide(plain) if group.peek else self._decide_once(group, plain)
        parts = self.parts(group)
        return self._decide_whole(parts[0]) if len(parts) == 1 else self._decide_parts(group, parts)

    def _decide_whole(self, part: SlotPart) -> Steps[Answer]:
        encoded = self._encoder.group(part.group)
        (answer,) = yield [step_of(part.slot, encoded)]
        return read_answer(part.group, encoded.template, answer)

    def _decide_once(self, group: Group, plain: Group) -> Steps[Answer]:
        """Claim the idempotency key, decide, and store the answer; or wait for another caller that claimed it."""
        key = group.idempotency
        assert key is not None
        slot, token, timeout = slot_of(key.name), token_hex(8), self._options.timeout
        pause = 0.0
        while True:
            claim = commands.encode_claim(key, token, timeout, self._now_us(), self._encoder)
            (answer,) = yield [SlotStep(slot, command=claim, pause=pause)]
            if isinstance(answer, StoreError):
                return answer
            status, result = commands.decode_claim(answer)
            if status == commands.CONFLICT:
                return IdempotencyConflict.of(key.key)
            if result is not None:
                return result
            if status == commands.CLAIMED:
                break
            pause = BUSY_SECONDS
        decided = yield from self._decide(plain)
        if isinstance(decided, Result):
            last = commands.encode_keep(key, token, decided, self._now_us(), self._encoder)
        elif isinstance(decided, StoreUnavailable) and not decided.sent:  # nothing was charged, so it can be retried
            last = commands.encode_drop(key, token, self._now_us(), self._encoder)
        else:
            return decided
        yield [SlotStep(slot, command=last, closing=True)]  # if this fails, a repetition is decided again
        return decided

    def _decide_parts(self, group: Group, parts: list[SlotPart]) -> Steps[Answer]:
        if group.peek:
            return (yield from self._look_at_parts(group, parts))
        decided: list[Result] = []
        for part in parts:
            result = yield from self._decide_whole(part)
            if isinstance(result, StoreError):
                yield self._undo_steps(parts, decided)
                return _possibly_charged(result) if decided else result
            assert isinstance(result, Result)
            if part.group.penalty is not None and result.block is not None and not result.outcomes:
                return Result(result.now_us, (), result.block)  # the client is blocked
            decided.append(result)
            if is_refused(part, result):
                return (yield from self._refuse(group, parts, decided))
        return Result(decided[0].now_us, merge_outcomes(parts, decided))

    def _decide_with_receipts(self, group: Group, decide_first: Callable[[SlotPart], Steps[Answer]]) -> Steps[Answer]:
        """Decide a group slot by slot. Each slot stores the answer to its part in the same step as the charge.

        So a part is charged once, and undone once, however often it is tried, even if a reply was lost. A part that was
        undone always refuses after that.
        """
        plain = group._replace(idempotency=None)
        parts = [with_receipt(part, group.idempotency) for part in self.parts(plain)]
        decided: list[Result] = []
        kind: type[Result] = Result
        for part in parts:
            result = yield from (self._decide_whole(part) if decided else decide_first(part))
            if isinstance(result, StoreError):
                yield self._undo_once_steps(parts)
                return _possibly_charged(result)
            if isinstance(result, IdempotencyConflict):
                yield self._undo_once_steps(parts)
                return RepeatedResult(0, (Outcome(1, 0, 1),) * len(group.checks))
            if isinstance(result, RepeatedResult):
                kind = RepeatedResult
            if part.group.penalty is not None and result.block is not None and not result.outcomes:
                return kind(result.now_us, (), result.block)  # the client is blocked
            decided.append(result)
            if is_refused(part, result):
                refused = yield from self._refuse(group, parts, decided)
                return kind(*refused)
        return kind(decided[0].now_us, merge_outcomes(parts, decided))

    def _undo_once_steps(self, parts: list[SlotPart]) -> list[SlotStep]:
        """Return steps that undo parts with receipts, whether they were charged or not."""
        return [
            step_of(part.slot, self._encoder.undo_once(part.group), closing=True) for part in parts if part.group.checks
        ]

    def _look_at_parts(self, group: Group, parts: list[SlotPart]) -> Steps[Answer]:
        encoded = [self._encoder.group(part.group) for part in parts]
        answers = yield [step_of(part.slot, one) for part, one in zip(parts, encoded, strict=True)]
        looked: list[Result] = []
        for part, one, answer in zip(parts, encoded, answers, strict=True):
            result = read_answer(part.group, one.template, answer)
            if not isinstance(result, Result):
                return result
            looked.append(result)
        if group.penalty is not None and looked[0].block is not None:
            return Result(looked[0].now_us, (), looked[0].block)
        return Result(looked[0].now_us, merge_outcomes(parts, looked))

    def _refuse(self, group: Group, parts: list[SlotPart], decided: list[Result]) -> Steps[Result]:
        """Undo the parts before the last one, which refused, and read the state of the others.

        A request that waits for slots gets its place in the queues of all parts: before a part is undone, so that it
        does not lose its turn, and after a part was read, whose figures would count the request itself.
        """
        refused = decided[-1]
        *before, _ = decided
        waiting = waiting_checks(group, refused.now_us)
        queues = waiting and not lacks_more_than_slots(parts[len(before)].group.checks, refused.outcomes)
        earlier = {part.slot for part in parts[: len(before)]}
        if queues and earlier:
            yield self._each_queue(commands.QUEUE, [one for one in waiting if slot_of_check(one) in earlier])
        steps = self._undo_steps(parts, before)
        for part in parts[len(decided) :]:
            peeked = self._encoder.group(part.group._replace(peek=True, idempotency=None))
            steps.append(step_of(part.slot, peeked))
        answers = (yield steps) if steps else []
        looked: list[Result] = []
        for index, part in enumerate(parts):
            if index == len(before):
                looked.append(refused)
                continue
            at = index if index < len(before) else index - 1
            known = before[index] if index < len(before) else None
            result = result_of_part(part, steps[at].template, answers[at], known)
            looked.append(result if known is None or not queues else with_waits_of(known, result))
        outcomes = merge_outcomes(parts, looked)
        if waiting and lacks_more_than_slots(group.checks, outcomes):
            yield self._each_queue(commands.RELEASE, waiting)
        elif len(decided) < len(parts) and queues:
            later = {part.slot for part in parts[len(decided) :]}
            yield self._each_queue(commands.QUEUE, [one for one in waiting if slot_of_check(one) in later])
        block = refused.block
        check = binding(group.checks, outcomes)
        if group.penalty is not None and before and check is not None:  # else the refusal was in the client's own slot
            slot = slot_of_client(group.penalty.client)
            violation = self._encoder.violation(group.penalty, check)
            (answer,) = yield [step_of(slot, violation, closing=True)]
            counted = None if isinstance(answer, StoreError) else violation.template.read(*answer)
            block = None if counted is None else counted.block
        return Result(refused.now_us, outcomes, block)

    def _each_queue(self, verb: str, checks: Sequence[Check]) -> list[SlotStep]:
        """Return steps that queue for the slots of these checks, or leave their queues."""
        encode, now_us, prefix = commands.encode_slots, self._now_us(), self._encoder.prefix
        return [
            SlotStep(slot_of_check(check), command=encode(verb, (check,), now_us, prefix), closing=True)
            for check in checks
        ]

    def _undo_steps(self, parts: list[SlotPart], decided: list[Result]) -> list[SlotStep]:
        """Return steps that undo parts that were charged, and then read their state."""
        steps = []
        for part, result in zip(parts, decided, strict=False):
            if part.group.idempotency is not None:
                undone = self._encoder.undo_once(part.group)
            else:
                undone = self._encoder.undo(part.group.checks, charges_of_part(part, result))
            steps.append(step_of(part.slot, undone, closing=True))
        return steps


def _together(plans: Sequence[Steps[Answer]]) -> Steps[list[Answer]]:
    """Take the steps of several plans in parallel: simultaneous steps of one slot and template are merged."""
    results: dict[int, Answer] = {}
    wanted: dict[int, list[SlotStep]] = {}

    def advance(plan: int, answers: list[Any] | None) -> None:
        try:
            wanted[plan] = plans[plan].send(answers)  # type: ignore[arg-type]  # None begins it
        except StopIteration as end:
            wanted.pop(plan, None)
            results[plan] = end.value

    for plan in range(len(plans)):
        advance(plan, None)
    while wanted:
        collector = Collector()
        indexes: list[tuple[int, int, int | None]] = []  # of each wanted step: its plan, its step, and its index there
        for plan, steps in wanted.items():
            for step in steps:
                if step.command is None:
                    indexes.append((plan, *collector.add(step)))
                else:
                    indexes.append((plan, collector.add_command(step), None))
        answers = (yield collector.steps) if collector.steps else []
        by_plan: dict[int, list[Any]] = {plan: [] for plan in wanted}
        for plan, at, index in indexes:
            by_plan[plan].append(answers[at] if index is None else _part_of(answers[at], index))
        for plan, own in by_plan.items():
            advance(plan, own)
    return [results[plan] for plan in range(len(plans))]


def _part_of(answer: list[Figures | StoreError] | StoreError, index: int) -> Figures | StoreError:
    """Return the answer to one request of a step."""
    return answer if isinstance(answer, StoreError) else answer[index]


def _possibly_charged(error: StoreError) -> StoreError:
    """Return an error that must not be retried: a part was charged before, and undone if possible."""
    again = StoreUnavailable(str(error)) if isinstance(error, StoreUnavailable) else error
    again.__cause__ = error.__cause__
    return again
