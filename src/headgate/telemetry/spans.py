"""OpenTelemetry spans: one for each call to the data plane, and one for each call to the store. Needs headgate[otel].

They hold rules, decisions, reasons and numbers, but never identify a client.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from time import time_ns
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode, TracerProvider, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headgate._version import __version__
from headgate.core.decision import Decision
from headgate.core.plan import Reason
from headgate.errors import StoreError
from headgate.rules.holder import Holder
from headgate.telemetry.meter import Meter

CARRIED: Final = ("traceparent", "tracestate")  # the headers of the trace context
CLOSE_SECONDS: Final = 5.0

_PROPAGATOR: Final = TraceContextTextMapPropagator()

Message = MutableMapping[str, Any]
App = Callable[[Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]]


class _TracedCall:
    """The decisions of one call to the data plane. Of several decisions, the span shows the first refusal."""

    __slots__ = ("checks", "first", "refused")

    def __init__(self) -> None:
        self.checks = self.refused = 0
        self.first: tuple[str | None, str, Reason] | None = None

    def add(self, decision: Decision) -> None:
        self.checks += 1
        if not decision.allowed:
            self.refused += 1
            if self.refused == 1:
                self.first = None
        if self.first is None:
            rule, reason = decision.cause()
            how = "refused" if not decision.allowed else "shadow" if reason == "shadow" else "allowed"
            self.first = rule, how, reason

    def describe(self, span: Span) -> None:
        span.set_attribute("headgate.checks", self.checks)
        if self.first is not None:
            rule, how, reason = self.first
            if rule is not None:
                span.set_attribute("headgate.rule", rule)
            span.set_attribute("headgate.decision", how)
            span.set_attribute("headgate.reason", reason)
        if self.checks > 1:
            span.set_attribute("headgate.refused", self.refused)


_current: ContextVar[_TracedCall | None] = ContextVar("headgate-call", default=None)


class Tracing:
    """Creates spans with a tracer provider, which it closes if `owned`."""

    def __init__(self, provider: TracerProvider, *, owned: bool = False) -> None:
        self._provider: Any = provider
        self._owned = owned
        self._tracer = provider.get_tracer("headgate", __version__)

    @contextmanager
    def check(self, protocol: str, headers: Mapping[str, str]) -> Iterator[None]:
        """Wrap a call to the data plane in the span `headgate.check`, in the trace that the caller's headers name.

        A `TracedMeter` adds the decisions made meanwhile.
        """
        with self._tracer.start_as_current_span(
            "headgate.check",
            context=_PROPAGATOR.extract(headers),
            kind=SpanKind.SERVER,
            attributes={"headgate.protocol": protocol},
            record_exception=False,  # its message may identify the client
            set_status_on_exception=False,
        ) as span:
            call = _TracedCall()
            token = _current.set(call)
            try:
                yield
            except BaseException as error:
                span.set_status(StatusCode.ERROR, type(error).__name__)
                raise
            finally:
                _current.reset(token)
                call.describe(span)

    def record_store_call(self, seconds: float, groups: int, error: StoreError | None = None) -> None:
        """Create the span `headgate.store` of a call to the store that has ended.

        A call may carry checks of many requests. Its span belongs to the trace of the first of them, or to none if they
        had to wait for the call.
        """
        ended = time_ns()
        span = self._tracer.start_span(
            "headgate.store",
            context=None if get_current_span().is_recording() else Context(),
            kind=SpanKind.CLIENT,
            start_time=ended - int(seconds * 1e9),
            attributes={"headgate.groups": groups},
        )
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(StatusCode.ERROR, type(error).__name__)
        span.end(ended)

    async def close(self) -> None:
        """Send the remaining spans, within `CLOSE_SECONDS`."""
        if self._owned:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await asyncio.to_thread(self._provider.shutdown)
            except TimeoutError:
                pass  # the collector does not answer: its spans are lost


class TracedMeter(Meter):
    """A meter that also adds decisions and the store's calls to the current span."""

    def __init__(self, tracing: Tracing, *, holder: Holder | None = None) -> None:
        super().__init__(holder=holder)
        self._tracing = tracing

    def record_decision(self, decision: Decision) -> None:
        super().record_decision(decision)
        call = _current.get()
        if call is not None:
            call.add(decision)

    def called(self, seconds: float, groups: int) -> None:
        super().called(seconds, groups)
        self._tracing.record_store_call(seconds, groups)

    def failed(self, error: StoreError, seconds: float, groups: int) -> None:
        super().failed(error, seconds, groups)
        self._tracing.record_store_call(seconds, groups, error)


class TracedApp:
    """An ASGI app that traces the data plane: all paths below `/v1/`."""

    def __init__(self, app: App, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            await self._app(scope, receive, send)
            return
        names = {name.encode(): name for name in CARRIED}
        headers = {names[name]: value.decode("latin-1") for name, value in scope["headers"] if name in names}
        with self._tracing.check("authorize" if scope["path"] == "/v1/authorize" else "http", headers):
            await self._app(scope, receive, send)
