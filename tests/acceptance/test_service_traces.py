"""Spans of a real service whose process has a tracer provider already, as under `opentelemetry-instrument`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.service import environment
from tests.waiting import until

LATEST = 30.0
INSTRUMENTED = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)

from headgate.cli import main

main()
"""


def test_a_service_makes_spans_with_the_tracer_provider_of_its_process(tmp_path: Path) -> None:
    settings = {"data_dir": tmp_path / "data", "http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"}
    command = [sys.executable, "-c", INSTRUMENTED, "serve", "--samples", "--hints", "--drain-delay", "0"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment(settings), stdout=log, stderr=log)
    try:
        banner = until(lambda: (tmp_path / "log").read_text().partition("is serving.")[2], "the banner")
        url = next(word for word in banner.split() if word.startswith("http://"))
        assert httpx.post(f"{url}/v1/check", json={"user": "alice"}).status_code == 200
        spans = until(lambda: (tmp_path / "log").read_text().partition('"name": "headgate.check"')[2], "a span")
        assert '"headgate.decision": "allowed"' in spans
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(LATEST) == 0
