"""The watcher: a thread that notices changes of a file. Needs `headgate[watch]`.

It watches directories, not the file, because editors and deployments replace the file: the directory of the path as
written and, behind symbolic links, the directory of the file itself. It also checks once a second, because some file
systems send no notifications, and neither do links in between (Kubernetes swaps those).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any, Final

DEBOUNCE_MS: Final = 200
STEP_MS: Final = 20
POLL_MS: Final = 1_000

log = logging.getLogger("headgate")


class Watcher:
    """Calls `look` when something near `path` changes, and once a second. `look` must not raise."""

    def __init__(self, path: Path, look: Callable[[], None]) -> None:
        try:
            self._watchfiles: Any = import_module("watchfiles")
        except ImportError as error:
            raise ImportError("watching a rules file needs watchfiles: pip install 'headgate[watch]'") from error
        self._directories = {path.absolute().parent, path.resolve().parent}
        self._look = look
        self._complaint = ""
        self._stop = Event()
        self._thread = Thread(target=self._run, name="headgate-watcher", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and wait for its end."""
        self._stop.set()
        if self._thread is not current_thread():
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._watch()

    def _watch(self) -> None:
        options = {
            "watch_filter": None,
            "recursive": False,
            "stop_event": self._stop,
            "debounce": DEBOUNCE_MS,
            "step": STEP_MS,
            "rust_timeout": POLL_MS,
            "yield_on_timeout": True,
            "raise_interrupt": False,
        }
        try:
            for _ in self._watchfiles.watch(*self._directories, **options):
                self._look()
        except (OSError, RuntimeError) as error:  # the directory is gone, or there are too many watches
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("rules: no notifications of changes (%s): looking once a second instead", error)
            self._look()
            self._stop.wait(POLL_MS / 1_000)
