"""Spans on their way: through a gRPC server and a Redis store, to an OpenTelemetry collector."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as messages
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as services
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headgate import AsyncLimiter, Rule
from headgate.service.access import Access
from headgate.service.data_plane import DataPlane
from headgate.service.grpc.server import GrpcServer
from headgate.service.protos import rate_limiter_pb2 as rl
from headgate.service.protos import rls_pb2 as rls
from headgate.service.rpc.envoy import RateLimitService
from headgate.service.rpc.method import Service
from headgate.service.rpc.rate_limiter import RateLimiter
from headgate.service.sockets import bind
from headgate.settings_fields import Address
from headgate.stores.urls import open_async_store
from headgate.telemetry.spans import TracedMeter, Tracing
from headgate.telemetry.traces import configure_tracing
from tests.servers import free_port

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(services.TraceServiceServicer):
    """A collector that keeps what it is sent."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:  # noqa: ARG002, N802 - the protocol's
        self.requests.append(request)
        return messages.ExportTraceServiceResponse()


@contextmanager
def collector() -> Iterator[tuple[Collector, str]]:
    with ThreadPoolExecutor(2) as threads:
        server, kept = grpc.server(threads), Collector()
        services.add_TraceServiceServicer_to_server(kept, server)  # type: ignore[no-untyped-call]
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield kept, f"http://127.0.0.1:{port}"
        finally:
            server.stop(None).wait()


async def checked(tracing: Tracing, url: str) -> None:
    """One check on Redis, in a span."""
    meter = TracedMeter(tracing)
    store = open_async_store(url, None, observer=meter)
    limiter = AsyncLimiter("5/minute", store=store)
    with tracing.check("http", {"traceparent": PARENT}):
        meter.record_decision(await limiter.check("alice"))
    await store.close()


def test_spans_reach_a_collector(redis_url: str) -> None:
    async def main(endpoint: str) -> None:
        tracing = configure_tracing(endpoint, "gatekeeper")
        await checked(tracing, redis_url)
        await tracing.close()

    with collector() as (kept, endpoint):
        asyncio.run(main(endpoint))
    (resource,) = [spans for request in kept.requests for spans in request.resource_spans]
    named = {one.key: one.value.string_value for one in resource.resource.attributes}
    assert named["service.name"] == "gatekeeper"
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    check, store = spans["headgate.check"], spans["headgate.store"]
    assert check.trace_id.hex() == store.trace_id.hex() == PARENT.split("-")[1]
    assert store.parent_span_id == check.span_id
    told = {one.key: one.value.string_value or one.value.int_value for one in check.attributes}
    assert told["headgate.decision"] == "allowed"
    assert told["headgate.checks"] == 1
    assert b"alice" not in b"".join(request.SerializeToString() for request in kept.requests)


def test_a_collector_that_is_not_there_does_not_keep_the_service_from_stopping() -> None:
    # In a process of its own: what the exporter logs and leaves behind is not this test's concern.
    program = f"""
import asyncio
from headgate.telemetry.traces import configure_tracing

async def main():
    tracing = configure_tracing("http://127.0.0.1:{free_port()}")
    with tracing.check("http", {{}}):
        pass
    await tracing.close()
    print("stopped")

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


def test_checks_of_one_tick_share_a_call_which_belongs_to_the_first(redis_url: str) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracing = Tracing(provider)

    async def main() -> None:
        meter = TracedMeter(tracing)
        store = open_async_store(f"{redis_url}&max_in_flight=1&max_batch=2", None, observer=meter)
        limiter = AsyncLimiter("5/minute", store=store)

        async def check(user: str) -> None:
            with tracing.check("http", {}):
                meter.record_decision(await limiter.check(user))

        await asyncio.gather(*(check(f"user-{n}") for n in range(4)))
        await store.close()

    asyncio.run(main())
    spans = kept.get_finished_spans()
    calls = [span for span in spans if span.name == "headgate.store"]
    checks = {span.context.span_id for span in spans if span.name == "headgate.check"}
    assert len(checks) == 4
    assert [span.parent is not None for span in calls] == [True, False]  # the second call had to wait for the first
    assert calls[0].parent is not None
    assert calls[0].parent.span_id in checks


def test_grpc_calls_of_the_data_plane_are_traced() -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))

    async def main() -> None:
        meter = TracedMeter(Tracing(provider))
        data = DataPlane(AsyncLimiter([Rule(id="users", quota="5/day")]), meter=meter)
        services: list[Service] = [RateLimiter(data), RateLimitService(data)]
        server = GrpcServer(services, access=Access(), meter=meter, around=Tracing(provider).check)
        sockets = bind(Address("127.0.0.1", 0), "grpc_address")
        address = f"127.0.0.1:{sockets[0].getsockname()[1]}"
        await server.start(sockets)
        request = rls.RateLimitRequest(domain="d", descriptors=[rls.RateLimitDescriptor()])
        async with grpc.aio.insecure_channel(address) as channel:
            for path, message in (
                ("headgate.v1.RateLimiter/CheckRateLimit", rl.CheckRequest(identifier="u")),
                ("envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit", request),
                ("grpc.health.v1.Health/Check", rl.CheckRequest()),
            ):
                call: Any = channel.unary_unary(f"/{path}")
                assert await call(message.SerializeToString(), metadata=(("traceparent", PARENT),))
        await server.stop(0)

    asyncio.run(main())
    spans = kept.get_finished_spans()
    assert [(span.attributes or {})["headgate.protocol"] for span in spans] == ["grpc", "envoy"]
    assert [(span.attributes or {}).get("headgate.rule") for span in spans] == ["users", None]
    assert {f"{span.context.trace_id:032x}" for span in spans} == {PARENT.split("-")[1]}
