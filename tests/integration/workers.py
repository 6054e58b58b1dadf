"""Processes that all do the same at the same time, for what several servers on one store have to promise together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class Workers:
    """Processes that run a module and wait for jobs: started once, as starting them takes longer than what they do."""

    def __init__(self, module: str, count: int) -> None:
        command, root = [sys.executable, "-m", module], Path(__file__).parents[2]
        self._processes = [
            subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(count)
        ]

    def run(self, jobs: list[dict[str, Any]]) -> list[Any]:
        """Give each process its job, start them together, and return what each answers."""
        self.start(jobs)
        return self._hear()

    def start(self, jobs: list[dict[str, Any]]) -> None:
        """Give each process its job, and start them together."""
        self.prepare(jobs)
        self.go()

    def prepare(self, jobs: list[dict[str, Any]]) -> None:
        """Give each process its job, and wait until all are ready for it."""
        self._tell([json.dumps(job) for job in jobs])
        assert self._hear() == ["ready"] * len(jobs)

    def go(self) -> None:
        """Start all that are ready."""
        self._tell(["start"] * len(self._processes))

    def finish(self) -> list[Any]:
        """Return what each answers."""
        return self._hear()

    def kill_first(self) -> list[Any]:
        """Kill the first process with SIGKILL, and return what each of the others answers."""
        killed = self._processes.pop(0)
        killed.kill()
        killed.communicate()
        return self._hear()

    def close(self) -> None:
        for process in self._processes:
            process.communicate()  # the end of its input ends it

    def _tell(self, lines: list[str]) -> None:
        for process, line in zip(self._processes, lines, strict=True):
            assert process.stdin is not None
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def _hear(self) -> list[Any]:
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            answers.append(json.loads(process.stdout.readline()))
        return answers
