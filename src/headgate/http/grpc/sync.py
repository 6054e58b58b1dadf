"""Limits on calls to `grpc.server`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, wraps
from typing import Any, Final

import grpc

from headgate.http.grpc.call import (
    CURRENT,
    CallWaiter,
    GrpcRequest,
    GrpcResponse,
    Handler,
    behaviour_of,
    metadata_of,
    replace_behaviour,
    status_of,
)
from headgate.http.limits import Limits
from headgate.http.request_limiter import RequestLimiter
from headgate.http.route import Ask, RouteLimit, charge
from headgate.limiter.limiter import Limiter

TICK: Final = 0.05  # seconds between a waiting call's checks whether its client is still connected


class SyncCalls:
    """Limits calls with a `Limiter`. A delayed call occupies its thread."""

    def __init__(self, request_limiter: RequestLimiter) -> None:
        self._request_limiter = request_limiter
        self.options = request_limiter.options

    def limit_handler(self, handler: Handler, path: str) -> Handler:
        """Wrap a method's handler to handle only allowed calls."""
        behaviour = behaviour_of(handler)

        @wraps(behaviour)  # copies the attributes that mark handlers with their own threads
        def call(message: Any, context: grpc.ServicerContext, *send: Callable[[Any], None]) -> Any:
            outer = CURRENT.get()
            request = GrpcRequest(path, context, None if handler.request_streaming else message)
            limits = self._admit(request, outer)
            CURRENT.set(limits)  # this call's only: it has its own context
            end = partial(_end, limits, context) if outer is None else _leave
            if limits.slots or limits.conditions:  # an outer interceptor had none, or has asked for them already
                give_up = partial(_give_up, limits)
                if not context.add_callback(give_up):
                    give_up()  # the client has left
            try:
                if not limits.charged[-1].decision.allowed:
                    context.abort(*status_of(limits))
                answer = behaviour(message, context, *(_with_fields(one, end) for one in send))
            except BaseException as error:
                end(error)
                raise
            if not handler.response_streaming:
                end()
            elif not send:
                return _until_end(answer, end)
            return answer

        return replace_behaviour(handler, call)

    def _admit(self, request: GrpcRequest, outer: Limits[Limiter] | None) -> Limits[Limiter]:
        """Check a call, and return its limits with the decision last."""
        checked = self._request_limiter.check(request)
        facts, cost, decision = checked
        if not decision.allowed or decision.hold:
            standing = self._request_limiter.hold(
                checked, _SyncWaiter(request.context, self._request_limiter.limiter.clock)
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
        options = self._request_limiter.options
        if options.deduct_when is not None:
            limits.charge_only_when(options.deduct_when)
        if options.defaults is not None and not limits.is_exempt(self._request_limiter.limiter):
            try:
                self._meet_defaults(options.defaults, limits, request)
            except BaseException:  # of the app's own function
                limits.release()
                raise
        return limits

    def _meet_defaults(self, defaults: RouteLimit, limits: Limits[Limiter], request: GrpcRequest) -> None:
        """Charge a call to the quota that its client has on its method."""
        ask = Ask.of(defaults, lambda function: function(request))
        if ask is not None:
            charge(defaults, limits, self._request_limiter.limiter, request.path, ask)


class _SyncWaiter(CallWaiter):
    """Makes a call wait in its thread."""

    def sleep(self, seconds: float) -> bool:
        while seconds > 0 and self.context.is_active():
            self.clock.sleep(min(seconds, TICK))
            seconds -= TICK
        return bool(self.context.is_active())


End = Callable[..., None]  # called at the end of a call, with the error that ended it, if any


def _end(limits: Limits[Limiter], context: Any, error: BaseException | None = None) -> None:
    """Refund what `deduct_when` says is not charged, add the limits' metadata, and release the slots."""
    try:
        if limits.conditions:
            limits.conclude(_response_of(context, error))
        _add_metadata(limits, context)
    finally:
        limits.release()


def _give_up(limits: Limits[Limiter]) -> None:
    """Refund and release a cancelled call, in grpc's own thread. Does nothing if the call has ended."""
    try:
        limits.conclude(GrpcResponse(grpc.StatusCode.CANCELLED, None, None))
    finally:
        limits.release()


def _response_of(context: Any, error: BaseException | None) -> GrpcResponse:
    try:
        code = context.code() if context.is_active() else grpc.StatusCode.CANCELLED
        return GrpcResponse(code, context.details(), error)
    except NotImplementedError:  # another interceptor's context
        return GrpcResponse(None, None, error)


def _add_metadata(limits: Limits[Limiter], context: grpc.ServicerContext) -> None:
    """Add the limits' metadata to what the handler has set."""
    try:
        own = context.trailing_metadata()
    except NotImplementedError:  # another interceptor's context: do not overwrite the handler's metadata
        return
    context.set_trailing_metadata((*(own or ()), *metadata_of(limits)))


def _leave(_: BaseException | None = None) -> None:
    """Do nothing: an outer interceptor ends the call."""


def _with_fields(send: Callable[[Any], None], end: End) -> Callable[[Any], None]:
    """Wrap the `send` of a non-blocking handler, which ends the call by sending None."""

    def start_with_fields(response: Any) -> None:
        if response is None:
            end()
        send(response)

    return start_with_fields


def _until_end(responses: Iterator[Any], end: End) -> Iterator[Any]:
    """Yield a stream of responses, and call `end` at its end, normal or not."""
    try:
        yield from responses
    except GeneratorExit:  # the client has left: grpc calls `_give_up`
        raise
    except BaseException as error:
        end(error)
        raise
    end()
