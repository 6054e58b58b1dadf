"""Processes that all do the same at the same time, for what several servers on one store have to promise together."""

from __future__ import annotations

import json
from typing import Any

from tests.warm import Piped


class Workers:
    """Processes that run a module and wait for jobs: started once, as starting them takes longer than what they do."""

    def __init__(self, module: str, count: int) -> None:
        self._processes = [Piped(module) for _ in range(count)]

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
        killed.close()
        return self._hear()

    def close(self) -> None:
        for process in self._processes:
            process.close()  # the end of its input ends it

    def _tell(self, lines: list[str]) -> None:
        for process, line in zip(self._processes, lines, strict=True):
            process.stdin.write(line + "\n")

    def _hear(self) -> list[Any]:
        return [json.loads(process.stdout.readline()) for process in self._processes]
