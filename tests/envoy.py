"""A real Envoy in front of an application: started on free ports of loopback, stopped at the end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.servers import free_port
from tests.webserver import ROOT, running

CONFIG = ROOT / "deploy/envoy/envoy.yaml"


def binary() -> str:
    """Envoy's path; it is installed if need be. Raises `RuntimeError` that says how to get it."""
    found = subprocess.run([ROOT / "scripts/envoy"], capture_output=True, text=True, check=False)
    if found.returncode:
        raise RuntimeError(found.stderr)
    return found.stdout.strip()


@contextmanager
def envoy(
    folder: Path,
    *,
    grpc_port: int | Sequence[int],
    app_port: int,
    change: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[str]:
    """The URL of an Envoy with the configuration that we ship, which asks the service at `grpc_port`, or at several.

    `change` may change the rate limit filter's part of it.
    """
    config = yaml.safe_load(CONFIG.read_text())
    listener = config["static_resources"]["listeners"][0]
    port = listener["address"]["socket_address"]["port_value"] = free_port()
    ports = {"application": [app_port], "headgate": [grpc_port] if isinstance(grpc_port, int) else grpc_port}
    for cluster in config["static_resources"]["clusters"]:
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": one}}}}
            for one in ports[cluster["name"]]
        ]
    if change is not None:
        change(listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"][0]["typed_config"])
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [binary(), "-c", str(file), "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]
    with running(command, port):
        yield f"http://127.0.0.1:{port}"
