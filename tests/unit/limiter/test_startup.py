"""Workers of a server, each of which counts in its own memory."""

from __future__ import annotations

import logging
import sys

import pytest

from headgate import AsyncLimiter, Limiter
from headgate.limiter import startup
from headgate.stores.memory import MemoryStore


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup, "_warned", False)
    monkeypatch.setattr(sys, "argv", ["app.py"])
    monkeypatch.setattr(startup, "_command_of", lambda _: "bash")
    for name in ("WEB_CONCURRENCY", "GUNICORN_CMD_ARGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("argv", "workers"),
    [
        (["app.py"], 1),
        (["app.py", "--workers", "4"], 1),  # its own option, of whatever
        (["/usr/bin/gunicorn", "-w", "4", "app:app"], 4),
        (["gunicorn", "-w4", "app:app"], 4),
        (["gunicorn", "--workers=3", "--bind", "0.0.0.0:8000", "app:app"], 3),
        (["python", "-m", "uvicorn", "app:app", "--workers", "2"], 2),
        (["uvicorn", "app:app", "--port", "8000"], 1),
        (["granian", "--workers", "8", "app:app"], 8),
    ],
)
def test_workers_are_counted_by_the_servers_command(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], workers: int
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert startup.count_workers() == workers
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setattr(startup, "_command_of", lambda _: " ".join(argv))  # of the process that spawned this one
    assert startup.count_workers() == workers


@pytest.mark.parametrize(("name", "value"), [("WEB_CONCURRENCY", "3"), ("GUNICORN_CMD_ARGS", "--workers 3")])
def test_workers_are_counted_by_the_environment(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert startup.count_workers() == 3


def test_memory_warns_once_under_several_workers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, logger="headgate")
    Limiter("1/minute")
    assert not caplog.records
    monkeypatch.setenv("WEB_CONCURRENCY", "4")
    Limiter("1/minute", store=MemoryStore())  # on purpose
    assert not caplog.records
    for kind in (Limiter, AsyncLimiter, Limiter):
        kind("1/minute")
    (record,) = caplog.records
    assert "this server runs 4: a client may get up to 4 times each limit" in record.getMessage()
