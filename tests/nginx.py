"""A real nginx in front of an application: started on a free port of loopback, stopped at the end."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.servers import free_port
from tests.webserver import ROOT, running

CONFIGURATION = ROOT / "deploy" / "nginx" / "headgate.conf"
MAIN = """
daemon off;
worker_processes 1;
pid {directory}/nginx.pid;
error_log stderr;
{user}
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    include {directory}/headgate.conf;
}}
"""


def replaced(text: str, old: str, new: str) -> str:
    assert old in text, f"{CONFIGURATION} has no {old!r}"
    return text.replace(old, new)


@contextmanager
def nginx(
    directory: Path, *, service: str | Sequence[str], backend: str, configuration: str | None = None
) -> Iterator[str]:
    """The URL of an nginx in front of a backend, with the configuration of deploy/nginx.

    `service` is the URL of a node of the service, or those of several.
    """
    found = subprocess.run([ROOT / "scripts" / "nginx"], stdout=subprocess.PIPE, text=True, check=True)
    port = free_port()
    text = CONFIGURATION.read_text() if configuration is None else configuration
    nodes = [service] if isinstance(service, str) else service
    line = next(line for line in text.splitlines() if "server 127.0.0.1:8080" in line)
    text = replaced(
        text, line, "\n".join(replaced(line, "127.0.0.1:8080", node.removeprefix("http://")) for node in nodes)
    )
    text = replaced(text, "127.0.0.1:8000", backend.removeprefix("http://"))
    text = replaced(text, "listen 80;", f"listen 127.0.0.1:{port};")
    (directory / "headgate.conf").write_text(text)
    user = "user root;" if os.geteuid() == 0 else ""
    (directory / "nginx.conf").write_text(MAIN.format(directory=directory, user=user))
    command = [found.stdout.strip(), "-p", str(directory), "-c", str(directory / "nginx.conf"), "-e", "stderr"]
    with running(command, port):
        yield f"http://127.0.0.1:{port}"
