"""Calls to servers of threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Final

import grpc

from headgate.core.clock import Clock
from headgate.http.grpc.answer import CURRENT, metadata_of, status_of
from headgate.http.grpc.handler import Handler, behaviour_of, replaced
from headgate.http.grpc.request import GrpcRequest
from headgate.http.limits import Limits
from headgate.http.request_limiter import RequestLimiter
from headgate.limiter.limiter import Limiter

TICK: Final = 0.05  # seconds after which a call that waits looks whether its client is still there


class SyncCalls:
    """Limits calls by a `Limiter`. One that is held back occupies its thread."""

    def __init__(self, request_limiter: RequestLimiter) -> None:
        self._request_limiter = request_limiter
        self.options = request_limiter.options

    def limited(self, handler: Handler, path: str) -> Handler:
        """The handler of a method, that handles what is admitted."""
        behaviour = behaviour_of(handler)

        @wraps(behaviour)  # with the attributes by which grpc knows handlers that have threads of their own
        def call(message: Any, context: grpc.ServicerContext, *send: Callable[[Any], None]) -> Any:
            outer = CURRENT.get()
            request = GrpcRequest(path, context, None if handler.request_streaming else message)
            limits = self._admit(request, outer)
            CURRENT.set(limits)  # the call's alone: it has a context of its own
            tell = partial(_end, limits, context) if outer is None else _leave
            if limits.slots and outer is None and not context.add_callback(limits.release):
                limits.release()  # the client has gone meanwhile
            try:
                if not limits.charged[-1].decision.allowed:
                    context.abort(*status_of(limits))
                answer = behaviour(message, context, *(_with_fields(one, tell) for one in send))
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
        checked = self._request_limiter.check(request)
        facts, cost, decision = checked
        if not decision.allowed or decision.hold:
            standing = self._request_limiter.hold(
                checked, _CallWaiter(request.context, self._request_limiter.limiter.clock)
            )
            if standing is None:  # no client sees this, but it ends the call
                request.context.abort(grpc.StatusCode.CANCELLED, "The client has gone.")
            else:
                decision = standing
        limits = self._request_limiter.limits(facts) if outer is None else outer
        limits.add(decision, cost, self._request_limiter.limiter)
        if not decision.allowed:
            limits.refuse()
        return limits


class _CallWaiter:
    """A call that waits in its thread."""

    def __init__(self, context: grpc.ServicerContext, clock: Clock) -> None:
        self._context = context
        self._clock = clock

    def may_wait(self, seconds: float) -> bool:
        """Whether the client's deadline is not before the end."""
        remaining = self._context.time_remaining()
        return remaining is None or seconds < remaining

    def sleep(self, seconds: float) -> bool:
        while seconds > 0 and self._context.is_active():
            self._clock.sleep(min(seconds, TICK))
            seconds -= TICK
        return self._context.is_active()


def _end(limits: Limits[Limiter], context: grpc.ServicerContext) -> None:
    """Tell of the limits, and release what the call holds: grpc's own thread does so for calls that are broken off."""
    try:
        _tell(limits, context)
    finally:
        limits.release()


def _tell(limits: Limits[Limiter], context: grpc.ServicerContext) -> None:
    """Add the limits' metadata to what the handler has set."""
    try:
        own = context.trailing_metadata()
    except NotImplementedError:  # another interceptor's context: the handler's metadata matters more than ours
        return
    context.set_trailing_metadata((*(own or ()), *metadata_of(limits)))


def _leave() -> None:
    """Tell nothing: an interceptor further out does."""


def _with_fields(send: Callable[[Any], None], tell: Callable[[], None]) -> Callable[[Any], None]:
    """`send` of a handler that does not block: it ends the call by sending None."""

    def start_with_fields(response: Any) -> None:
        if response is None:
            tell()
        send(response)

    return start_with_fields


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
