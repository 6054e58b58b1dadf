"""Checks when a limiter starts: whether its store answers, and whether a store in memory is enough."""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from headgate.core.check import Answer, Check, Group
from headgate.core.clock import Clock
from headgate.core.key import key_template
from headgate.core.quota import Quota
from headgate.errors import InvalidRule, StoreError
from headgate.stores.memory import AsyncMemoryStore
from headgate.stores.urls import open_store

SERVERS: Final = ("gunicorn", "uvicorn", "hypercorn", "granian", "uwsgi", "fastapi")
_FLAGS: Final = re.compile(r"(?:^|\s)(?:-w|--workers?|-p|--processes)(?:\s+|=)?(\d+)(?=\s|$)")

# Charges nothing, and shows whether a store answers.
PROBE: Final = (
    Group((Check("ready", key_template("global", "ready", "gcra"), "", Quota(1, 1, algorithm="gcra")),), peek=True),
)

log = logging.getLogger("headgate")
_warned = False


def require_clock(clock: object) -> None:
    """Raise `InvalidRule` if this is not a clock: functions such as `time.time` are not, nor is a class."""
    if clock is not None and (isinstance(clock, type) or not isinstance(clock, Clock)):
        raise InvalidRule(
            "clock: must be an object with now_us(), sleep() and sleep_async(), such as headgate.testing.FakeClock(), "
            f"got {clock!r}; leave it out for the time of the machine"
        )


def require_decided(answers: Sequence[Answer]) -> None:
    """Raise the `StoreError` among the answers to `PROBE`, if the store could not decide."""
    for answer in answers:
        if isinstance(answer, StoreError):
            raise answer


def require_answer(store: Any, clock: Clock | None) -> None:
    """Raise `StoreError` if a store, or the store of a URL, does not answer. Needs no event loop."""
    if isinstance(store, str):
        opened = open_store(store, clock)  # not the limiter's own store, which may belong to an event loop
        try:
            require_decided(opened.check(PROBE))
        finally:
            opened.close()
    elif not inspect.iscoroutinefunction(store.check):
        require_decided(store.check(PROBE))
    elif not isinstance(store, AsyncMemoryStore):
        raise InvalidRule("require_store: needs the URL of a store; of a store object, await limiter.ready()")


def count_workers() -> int:
    """Return how many processes this server runs, according to its command and environment; 1 if they do not say."""
    found = [1]
    concurrency = os.environ.get("WEB_CONCURRENCY", "")
    if concurrency.isdecimal():
        found.append(int(concurrency))
    found.append(int(getattr(sys.modules.get("uwsgi"), "numproc", 1)))
    own, gunicorn = " ".join(sys.argv), f"gunicorn {os.environ.get('GUNICORN_CMD_ARGS', '')}"
    for command in (own, gunicorn, _command_of(os.getppid())):  # the parent's, for a spawned worker
        if any(Path(word).name in SERVERS for word in command.split()[:4]):
            found += [int(number) for number in _FLAGS.findall(command)]
    return max(found)


def warn_of_workers() -> None:
    """Log once that limits in memory are not shared, if the server runs several processes."""
    global _warned  # noqa: PLW0603 - once in a process
    if _warned:
        return
    workers = count_workers()
    if workers > 1:
        _warned = True
        log.warning(
            "memory:// counts per process, and this server runs %d: a client may get up to %d times each "
            "limit; use store='redis://…', or 'embedded://' for the processes of one machine",
            workers,
            workers,
        )


def _command_of(pid: int) -> str:
    """Return the command line of a process; empty if it cannot be read."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    except OSError:
        return ""
