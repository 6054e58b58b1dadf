"""Calls to servers of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Final

import grpc

from headgate.core.decision import Decision, turned_away
from headgate.http.gate import Facts, Gate, Patience
from headgate.http.grpc.answer import CURRENT, metadata_of, status_of
from headgate.http.grpc.handler import Handler, behaviour_of, replaced
from headgate.http.grpc.request import GrpcRequest
from headgate.http.headers import Charged
from headgate.http.limits import Limits
from headgate.limiter.sync import Limiter

TICK: Final = 0.05  # seconds after which a call that waits looks whether its client is still there


class SyncCalls:
    """Limits calls by a `Limiter`. One that is held back occupies its thread."""

    def __init__(self, limiter: Limiter, gate: Gate) -> None:
        self._limiter = limiter
        self._gate = gate

    def limited(self, handler: Handler, path: str) -> Handler:
        """The handler of a method, that handles what is admitted."""
        behaviour = behaviour_of(handler)

        @wraps(behaviour)  # with the attributes by which grpc knows handlers that have threads of their own
        def call(message: Any, context: grpc.ServicerContext, *send: Callable[[Any], None]) -> Any:
            outer = CURRENT.get()
            request = GrpcRequest(path, context, None if handler.request_streaming else message)
            limits = self._admit(request, outer)
            CURRENT.set(limits)  # the call's alone: it has a context of its own
            tell = partial(_tell, limits, context) if outer is None else _leave
            try:
                if not limits.charged[-1].decision.allowed:
                    context.abort(*status_of(limits))
                answer = behaviour(message, context, *(_telling(one, tell) for one in send))
            except BaseException:
                tell()
                raise
            if not handler.response_streaming:
                tell()
            elif not send:
                return _Responses(answer, tell)
            return answer

        return replaced(handler, call)

    def _admit(self, request: GrpcRequest, outer: Limits[Limiter] | None) -> Limits[Limiter]:
        """Decide on a call. The decision is the last of those in what is returned."""
        gate = self._gate
        if gate.identify is None:
            client = gate.identity.facts(request, self._limiter.snapshot)
        else:
            client = gate.stated(gate.identify(request))
        facts = gate.facts(request, client)
        cost: Any = gate.cost(request) if callable(gate.cost) else gate.cost
        decision = self._limiter.check_facts(facts, cost=cost)
        if not decision.allowed or decision.hold:
            decision = self._hold(decision, request.context, facts, cost)
        limits = Limits(self._limiter, facts) if outer is None else outer
        limits.charged.append(Charged(decision, cost))
        return limits

    def _hold(self, decision: Decision, context: grpc.ServicerContext, facts: Facts, cost: int) -> Decision:
        """Hold a call back as its rules want it. Returns what is decided in the end."""
        patience = Patience(self._limiter.clock)
        while (seconds := patience.seconds(decision)) is not None and self._may_wait(seconds, context):
            self._sleep(seconds, context)
            decision = self._limiter.check_facts(facts, cost=cost)
        if decision.hold:
            if not self._may_wait(decision.hold, context):
                return turned_away(decision)
            self._sleep(decision.hold, context)
        return decision

    def _may_wait(self, seconds: float, context: grpc.ServicerContext) -> bool:
        """Whether there is a place to wait in, and the client's deadline is not before the end."""
        remaining = context.time_remaining()
        return not self._gate.full and (remaining is None or seconds < remaining)

    def _sleep(self, seconds: float, context: grpc.ServicerContext) -> None:
        with self._gate.place():
            while seconds > 0 and context.is_active():
                self._limiter.clock.sleep(min(seconds, TICK))
                seconds -= TICK
        if not context.is_active():
            context.abort(grpc.StatusCode.CANCELLED, "The client has gone.")  # which sends nothing, and ends the call


def _tell(limits: Limits[Limiter], context: grpc.ServicerContext) -> None:
    """Add the limits' metadata to what the handler has set."""
    try:
        own = context.trailing_metadata()
    except NotImplementedError:  # another interceptor's context: the handler's metadata matters more than ours
        return
    context.set_trailing_metadata((*(own or ()), *metadata_of(limits)))


def _leave() -> None:
    """Tell nothing: an interceptor further out does."""


def _telling(send: Callable[[Any], None], tell: Callable[[], None]) -> Callable[[Any], None]:
    """`send` of a handler that does not block: it ends the call by sending None."""

    def telling(response: Any) -> None:
        if response is None:
            tell()
        send(response)

    return telling


class _Responses:
    """A stream of responses that tells of the limits at its end, whichever end that is."""

    __slots__ = ("_responses", "_tell")

    def __init__(self, responses: Iterator[Any], tell: Callable[[], None]) -> None:
        self._responses = responses
        self._tell = tell

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._responses)
        except BaseException:
            self._tell()
            raise
