"""Steps: what to send to which slot, in which order. Pure; no I/O.

What a store does is a generator of steps: it yields those that can be taken now, all of them in parallel, is sent the
answer to each, and returns what came of it. Stores for threads and for asyncio differ in how they take a step, and in
nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from headgate.errors import StoreError
from headgate.stores.redis import script
from headgate.stores.redis.encoding import CommandTemplate, Encoded, EncodedRequest

T = TypeVar("T")

Figures = tuple[int, Sequence[Any]]  # of one request: when it was decided, and what the reply says of it


class SlotStep(NamedTuple):
    """Requests of one template to decide in one slot, in order; or a command. What fails is answered with the
    `StoreError`; on a cluster, so may single requests be."""

    slot: int
    template: CommandTemplate | None = None
    requests: Sequence[EncodedRequest] = ()
    command: script.Command | None = None
    pause: float = 0.0  # seconds to wait before
    closing: bool = False  # it undoes something: it is given some time even if the deadline is over
    ordered: bool = False  # it comes after the steps before it: they have keys in common


Steps = Generator[list[SlotStep], list[Any], T]


def step_of(slot: int, encoded: Encoded, *, closing: bool = False) -> SlotStep:
    """Return the step that decides one request."""
    return SlotStep(slot, encoded.template, (encoded.request,), closing=closing)


class Collector:
    """Gathers requests into as few steps as their order allows."""

    def __init__(self) -> None:
        self.steps: list[SlotStep] = []
        self._open: dict[tuple[int, CommandTemplate], int] = {}  # the step that takes more, by slot and template
        self._last: dict[str, int] = {}  # the last step that has a key

    def add(self, step: SlotStep) -> tuple[int, int]:
        """Take a step of one request. Return which step it became a part of, and its place in it."""
        template = step.template
        assert template is not None
        (request,) = step.requests
        at = self._open.get((step.slot, template))
        last = max([self._last.get(key, -1) for key in request.keys], default=-1)
        if at is None or last > at:  # the second: something else is to be done with a key of it before
            at = self._open[step.slot, template] = len(self.steps)
            self.steps.append(step._replace(requests=[], ordered=last >= 0))
        for key in request.keys:
            self._last[key] = at
        requests = self.steps[at].requests
        assert isinstance(requests, list)
        requests.append(request)
        return at, len(requests) - 1

    def add_command(self, step: SlotStep) -> int:
        """Take a step that is a command: no request of its slot is moved across it. Return which step it is."""
        for slot, template in [known for known in self._open if known[0] == step.slot]:
            del self._open[slot, template]
        self.steps.append(step)
        return len(self.steps) - 1


def take_all(steps: Iterable[SlotStep]) -> Steps[None]:
    """Take steps whose answers do not matter. Raises the first `StoreError`, when all others are done."""
    listed = list(steps)
    if listed:
        for answer in (yield listed):
            unwrap(answer)


def take_one(step: SlotStep) -> Steps[Any]:
    """Take one step, and return its answer. Raises `StoreError`."""
    (answer,) = yield [step]
    return unwrap(answer)


def unwrap(answer: Any) -> Any:
    """Return the answer to a step. Raises it, if it is a `StoreError`."""
    if isinstance(answer, StoreError):
        raise answer
    if isinstance(answer, list):
        for part in answer:
            if isinstance(part, StoreError):
                raise part
    return answer


def by_request(step: SlotStep, now_us: int, figures: Sequence[Any]) -> list[Figures]:
    """Return the figures of a step's requests, each by itself. Raises `ValueError`."""
    assert step.template is not None
    each, count = step.template.figures, len(step.requests)
    if len(figures) != each * count:
        raise ValueError(f"expected {each} figures for each of {count} requests, got {len(figures)}")
    return [(now_us, figures[each * at : each * (at + 1)]) for at in range(count)]
