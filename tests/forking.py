"""Children that are forked off by tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> int:
    """The exit code of a child that does something: 0 if it is true, 1 if not, -14 if it hangs."""
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        signal.alarm(5)
        code = 2
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
