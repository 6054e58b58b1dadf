"""Spans: what they tell, whose trace they are in, and that they do not tell who asked."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from headgate import Limiter, Quota, Rule
from headgate.errors import InvalidCheck, StoreTimeout
from headgate.telemetry.spans import TracedApp, TracedMeter, Tracing
from headgate.telemetry.traces import configure_tracing, process_tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
RULES = [Rule(id="search", quota=Quota.parse("1/minute"))]


class Traced:
    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracing = Tracing(provider)
        self.meter = TracedMeter(self.tracing)
        self.limiter = Limiter(RULES)

    def check(self, user: str) -> None:
        self.meter.record_decision(self.limiter.check(user=user))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    @property
    def span(self) -> ReadableSpan:
        (span,) = self.spans
        return span


@pytest.fixture
def traced() -> Traced:
    return Traced()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("headgate."): value for name, value in (span.attributes or {}).items()}


def test_a_check_tells_its_rule_decision_and_reason(traced: Traced) -> None:
    traced.check("alice")
    with traced.tracing.check("grpc", {}):
        traced.check("alice")
    assert (traced.span.name, traced.span.kind) == ("headgate.check", SpanKind.SERVER)
    expected = {"protocol": "grpc", "checks": 1, "rule": "search", "decision": "refused", "reason": "over_limit"}
    assert attributes(traced.span) == expected


def test_a_batch_tells_of_its_first_refusal(traced: Traced) -> None:
    with traced.tracing.check("http", {}):
        for user in ("alice", "bob", "alice", "bob"):
            traced.check(user)
    told = attributes(traced.span)
    assert (told["checks"], told["refused"], told["decision"], told["reason"]) == (4, 2, "refused", "over_limit")


def test_it_is_in_the_trace_of_the_caller(traced: Traced) -> None:
    with traced.tracing.check("http", {"traceparent": PARENT}):
        pass
    assert traced.span.context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert traced.span.parent is not None
    assert traced.span.parent.span_id == 0xB7AD6B7169203331


@pytest.mark.parametrize(
    "header", ["", "rubbish", PARENT.replace("00-", "ff-", 1), "00-" + "0" * 32 + "-b7ad6b7169203331-01"]
)
def test_a_header_that_names_no_trace_begins_one(traced: Traced, header: str) -> None:
    with traced.tracing.check("http", {"traceparent": header}):
        pass
    assert traced.span.parent is None


def test_an_exception_is_told_without_its_message(traced: Traced) -> None:
    with pytest.raises(InvalidCheck), traced.tracing.check("http", {}):
        raise InvalidCheck("user: alice is too long")
    assert (traced.span.status.status_code, traced.span.status.description) == (StatusCode.ERROR, "InvalidCheck")
    assert "alice" not in traced.span.to_json()


def test_nothing_tells_who_asked(traced: Traced) -> None:
    with traced.tracing.check("http", {}):
        traced.check("alice")
        traced.check("alice")
    assert "alice" not in traced.span.to_json()


def test_calls_to_the_store_are_spans_of_the_check_that_made_them(traced: Traced) -> None:
    with traced.tracing.check("http", {}):
        traced.meter.called(0.25, 3)
    store, check = traced.spans
    assert store.parent is not None
    assert store.parent.span_id == check.context.span_id
    assert (store.name, store.kind, attributes(store)) == ("headgate.store", SpanKind.CLIENT, {"groups": 3})
    assert store.start_time is not None
    assert store.end_time is not None
    assert store.end_time - store.start_time == 250_000_000


def test_calls_to_the_store_that_fail_say_how(traced: Traced) -> None:
    traced.meter.failed(StoreTimeout("redis://:secret@host did not answer"), 0.05, 1)
    assert traced.span.parent is None
    assert attributes(traced.span) == {"groups": 1, "error.type": "StoreTimeout"}
    assert "secret" not in traced.span.to_json()
    assert traced.meter.store_errors["timeout"] == 1


@pytest.mark.parametrize(
    ("path", "protocols"),
    [("/v1/check", ["http"]), ("/v1/authorize", ["authorize"]), ("/api/v1/rules", []), ("/metrics", [])],
)
def test_of_http_the_data_plane_is_traced(traced: Traced, path: str, protocols: list[str]) -> None:
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])

    headers = [(b"host", b"localhost"), (b"traceparent", PARENT.encode())]
    scope = {"type": "http", "path": path, "headers": headers}
    asyncio.run(TracedApp(app, traced.tracing)(scope, None, None))  # type: ignore[arg-type]
    assert asked == [path]
    assert [attributes(span)["protocol"] for span in traced.spans] == protocols
    assert all(span.parent is not None for span in traced.spans)


def test_lifespan_passes_through(traced: Traced) -> None:
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["type"])

    asyncio.run(TracedApp(app, traced.tracing)({"type": "lifespan"}, None, None))  # type: ignore[arg-type]
    assert (asked, traced.spans) == (["lifespan"], [])


@pytest.mark.parametrize("endpoint", ["localhost:4317", "ftp://localhost", "http://", ""])
def test_an_endpoint_that_is_no_address_is_named(endpoint: str) -> None:
    with pytest.raises(ValueError, match=f"otlp endpoint: must be like .*, got {endpoint!r}"):
        configure_tracing(endpoint)


def test_without_opentelemetry_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ImportError, match=r"headgate\[otel\]"):
        configure_tracing("http://localhost:4317")


def test_without_a_tracer_provider_there_is_no_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_tracing() is None
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    assert process_tracing() is None
