"""Single key presses while a command runs, without echo."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import Self

try:
    import termios
    import tty
except ImportError:  # on Windows: use Ctrl-C there
    termios = None  # type: ignore[assignment]


class KeyboardReader:
    """Reads keys from the terminal while it is open. Without a terminal, it reads none."""

    def __init__(self) -> None:
        self._before: list[object] | None = None

    def __enter__(self) -> Self:
        if termios is not None and sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._before)  # type: ignore[arg-type]

    def wait(self, seconds: float, wanted: str) -> bool:
        """Wait for some seconds, or until one of the wanted keys is pressed. Return whether one was."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            if self._before is None:
                time.sleep(left)
            elif select.select([sys.stdin], [], [], left)[0]:
                keys = os.read(sys.stdin.fileno(), 1024)  # not through Python's buffer, which `select` cannot see
                if not keys or any(key in wanted for key in keys.decode(errors="replace")):  # none: end of input
                    return True
