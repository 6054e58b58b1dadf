"""Steps: what to send to which slot, in which order. Pure; no I/O.

An operation of a store is a generator of steps: it yields those that can be taken now, in parallel, is sent the answer
to each, and returns the result. The stores for threads and for asyncio differ only in how they take a step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from headgate.errors import StoreError
from headgate.stores.redis import script
from headgate.stores.redis.encoding import CommandTemplate, Encoded, RequestParts

T = TypeVar("T")

Figures = tuple[int, Sequence[Any]]  # of one request: when it was decided, and its part of the reply


class SlotStep(NamedTuple):
    """Requests of one template to decide in one slot, in order; or a command.

    The answer to a failed step is its `StoreError`; on a cluster, so is that to a single failed request.
    """

    slot: int
    template: CommandTemplate | None = None
    requests: Sequence[RequestParts] = ()
    command: script.Command | None = None
    pause: float = 0.0  # seconds to wait first
    closing: bool = False  # it undoes something: it gets some time even after the deadline
    ordered: bool = False  # it must follow earlier steps, because they have keys in common


Steps = Generator[list[SlotStep], list[Any], T]


def step_of(slot: int, encoded: Encoded, *, closing: bool = False) -> SlotStep:
    """Return the step that decides one request."""
    return SlotStep(slot, encoded.template, (encoded.request,), closing=closing)


class Collector:
    """Gathers requests into as few steps as their order allows."""

    def __init__(self) -> None:
        self.steps: list[SlotStep] = []
        self._open: dict[tuple[int, CommandTemplate], int] = {}  # the step to extend, by slot and template
        self._last: dict[str, int] = {}  # the last step that has a key

    def add(self, step: SlotStep) -> tuple[int, int]:
        """Add a step of one request. Return the index of the step that it became part of, and its index there."""
        template = step.template
        assert template is not None
        (request,) = step.requests
        at = self._open.get((step.slot, template))
        last = max([self._last.get(key, -1) for key in request[0]], default=-1)
        if at is None or last > at:  # last > at: another step uses one of its keys first
            at = self._open[step.slot, template] = len(self.steps)
            self.steps.append(step._replace(requests=[], ordered=last >= 0))
        for key in request[0]:
            self._last[key] = at
        requests = self.steps[at].requests
        assert isinstance(requests, list)
        requests.append(request)
        return at, len(requests) - 1

    def add_command(self, step: SlotStep) -> int:
        """Add a step with a command: no request of its slot is moved across it. Return its index."""
        for slot, template in [known for known in self._open if known[0] == step.slot]:
            del self._open[slot, template]
        self.steps.append(step)
        return len(self.steps) - 1


def take_all(steps: Iterable[SlotStep]) -> Steps[None]:
    """Take steps and ignore their answers. Raises the first `StoreError` after all others are done."""
    listed = list(steps)
    if listed:
        for answer in (yield listed):
            unwrap(answer)


def take_one(step: SlotStep) -> Steps[Any]:
    """Take one step, and return its answer. Raises `StoreError`."""
    (answer,) = yield [step]
    return unwrap(answer)


def unwrap(answer: Any) -> Any:
    """Return the answer to a step. Raises it if it is a `StoreError`."""
    if isinstance(answer, StoreError):
        raise answer
    if isinstance(answer, list):
        for part in answer:
            if isinstance(part, StoreError):
                raise part
    return answer


def by_request(step: SlotStep, now_us: int, figures: Sequence[Any]) -> list[Figures]:
    """Divide figures among a step's requests. Raises `ValueError`."""
    assert step.template is not None
    each, count = step.template.figures, len(step.requests)
    if len(figures) != each * count:
        raise ValueError(f"expected {each} figures for each of {count} requests, got {len(figures)}")
    return [(now_us, figures[each * at : each * (at + 1)]) for at in range(count)]
