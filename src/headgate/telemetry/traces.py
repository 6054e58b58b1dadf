"""Configures tracing. `spans` creates the spans, and is imported only if tracing is on."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from headgate.telemetry.spans import Tracing

EXPORT_SECONDS: Final = 5  # for a collector to accept spans


def configure_tracing(endpoint: str, service_name: str = "headgate") -> Tracing:
    """Send spans to the OpenTelemetry collector at `endpoint` by gRPC: `http://localhost:4317`, or `https://`.

    Raises `ValueError` for any other address, and `ImportError` without `headgate[otel]`.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"otlp endpoint: must be like http://localhost:4317 or https://…, got {endpoint!r}")
    try:
        trace = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        resources = import_module("opentelemetry.sdk.resources")
        otlp = import_module("opentelemetry.exporter.otlp.proto.grpc.trace_exporter")
    except ImportError as error:
        raise ImportError("sending traces needs OpenTelemetry: pip install 'headgate[otel]'") from error
    exporter = otlp.OTLPSpanExporter(endpoint=endpoint, insecure=parts.scheme == "http", timeout=EXPORT_SECONDS)
    provider = trace.TracerProvider(resource=resources.Resource.create({"service.name": service_name}))
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return _make_tracing(provider, owned=True)


def process_tracing() -> Tracing | None:
    """Return tracing with the process's own tracer provider, such as the one that `opentelemetry-instrument` sets.

    Returns None if there is no such provider.
    """
    try:
        trace = import_module("opentelemetry.trace")
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return _make_tracing(provider, owned=False)


def _make_tracing(provider: object, *, owned: bool) -> Tracing:
    tracing: Tracing = import_module("headgate.telemetry.spans").Tracing(provider, owned=owned)
    return tracing
