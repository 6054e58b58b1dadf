"""examples/grpc_server.py, as somebody at the terminal uses it."""

from __future__ import annotations

import subprocess
import sys

from tests.servers import free_port
from tests.webserver import ROOT, running


def test_the_third_story_is_refused() -> None:
    port = free_port()
    command = [sys.executable, "-m", "examples.grpc_server"]
    with running([*command, str(port)], port):
        done = subprocess.run(
            [*command, "call", str(port)], capture_output=True, text=True, cwd=ROOT, timeout=60, check=True
        )
    lines = done.stdout.splitlines()
    assert lines[0] == "Hello, Alice! You may call 99 more times."
    assert lines[1:3] == ["Once upon a time there was Alice, who waited for their turn."] * 2
    assert lines[3] == "RESOURCE_EXHAUSTED: Two stories an hour. The next one is worth waiting for."
    assert '  ratelimit-policy: "stories";q=2;w=3600, "all";q=100;w=60' in lines
    assert any(line.startswith("  grpc-retry-pushback-ms: ") for line in lines)
