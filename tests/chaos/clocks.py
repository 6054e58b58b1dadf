"""Clocks that jump: that of Redis, and that of one client, moved by libfaketime while they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headgate import Limiter, Quota, Rule
from tests.chaos.case import Case, Figures
from tests.integration.limiters import ALGORITHMS, DAY, HOUR, calm
from tests.servers import Server, default_binary
from tests.waiting import until

ROOT = Path(__file__).parents[2]
LIMIT = 10
WINDOW = 60
TRIES = 2 * LIMIT
NOW = "return redis.call('TIME')[1]"


class Clock:
    """The clock of a process that is started with `environment`: it is off by `jump_to`'s seconds."""

    def __init__(self, directory: str) -> None:
        self._file = Path(directory, "faketime")
        self.jump_to(0)

    @property
    def environment(self) -> dict[str, str]:
        found = subprocess.run([ROOT / "scripts" / "faketime"], stdout=subprocess.PIPE, text=True, check=True)
        return {
            "LD_PRELOAD": found.stdout.strip(),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def jump_to(self, seconds: float) -> None:
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+.6f}\n")
        written.replace(self._file)


@dataclass
class ServerOutOfTime(Server):
    """A server with a clock that can jump."""

    clock: Clock | None = None

    def command(self, directory: str, log: Path) -> list[str]:
        assert self.clock is not None
        variables = [f"{name}={value}" for name, value in self.clock.environment.items()]
        return ["env", *variables, *super().command(directory, log)]

    def jump_to(self, seconds: float) -> None:
        """Have its clock off by so much, and wait until its scripts see that."""
        assert self.clock is not None
        self.clock.jump_to(seconds)
        with self.client() as client:
            until(lambda: abs(int(client.eval(NOW, 0)) - time.time() - seconds) < 1.5, "the clock has jumped")


class Limiters:
    """A limiter for each algorithm, of `LIMIT` a minute. They remember no refusals: each is to be the server's own."""

    def __init__(self, url: str) -> None:
        self._limiters = {
            name: Limiter(
                Quota(LIMIT, WINDOW, algorithm=name),  # type: ignore[arg-type]
                store=f"{url}?timeout=10&remember=0",
                failure_mode="closed",
            )
            for name in ALGORITHMS
        }

    def admitted(self) -> dict[str, int]:
        """How many are let in now, of more than there can be."""
        return {
            name: sum(limiter.check("alice").allowed for _ in range(TRIES)) for name, limiter in self._limiters.items()
        }

    def waits(self) -> dict[str, float]:
        """What those are told who are refused."""
        return {name: limiter.check("alice").retry_after or 0.0 for name, limiter in self._limiters.items()}

    def check(self, algorithm: str) -> bool:
        return self._limiters[algorithm].check("alice").allowed

    def close(self) -> None:
        for limiter in self._limiters.values():
            limiter.close()


def longest(waits: dict[str, float]) -> float:
    """In windows; of what the algorithm lets anybody wait, whose share of the window before has to go first."""
    return max(
        wait / (WINDOW * (1 + 1 / LIMIT) if name == "sliding_window_counter" else WINDOW)
        for name, wait in waits.items()
    )


def redis_jumps(figures: Figures, quick: bool) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="headgate-clock-") as directory,
        ServerOutOfTime(default_binary(), clock=Clock(directory)) as server,
    ):
        now = WINDOW / 4 - time.time() % WINDOW  # no window ends while this runs
        server.jump_to(now)
        each = Limiters(server.url)
        figures.exactly("admitted at first", sum(each.admitted().values()), LIMIT * len(ALGORITHMS))
        server.jump_to(now - HOUR)
        figures.exactly("an hour back: admitted", sum(each.admitted().values()))
        waits = each.waits()
        figures.at_most("… longest wait, in windows", longest(waits), 1.0)
        reopened = 0
        for name, wait in sorted(waits.items(), key=lambda pair: pair[1]):
            server.jump_to(now - HOUR + wait)
            reopened += each.check(name)
        figures.exactly("… and let in again after it", reopened, len(ALGORITHMS))
        server.jump_to(now + DAY)
        figures.exactly("a day on: admitted", sum(each.admitted().values()), LIMIT * len(ALGORITHMS))
        server.jump_to(now)
        figures.exactly("a day back: admitted", sum(each.admitted().values()))
        figures.at_most("… longest wait, in windows", longest(each.waits()), 1.0)
        each.close()


@contextmanager
def client(url: str, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """A process that checks, each time that it is told to."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.clocks", url],
        cwd=ROOT,
        env={**os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str], tries: int) -> dict[str, float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{tries}\n")
    process.stdin.flush()
    answer: dict[str, float] = json.loads(process.stdout.readline())
    return answer


def client_jumps(figures: Figures, quick: bool) -> None:
    """A limit that two share: only one of them knows what time it is."""
    with tempfile.TemporaryDirectory(prefix="headgate-clock-") as directory, Server(default_binary()) as server:
        clock = Clock(directory)
        with client(server.url, {}) as right, client(server.url, clock.environment) as wrong:
            admitted, clocks = told(right, 4)["admitted"], []
            for seconds in (-HOUR, DAY, 0):
                clock.jump_to(seconds)
                answer = told(wrong, 3)
                admitted += answer["admitted"]
                clocks.append(round((answer["clock"] - time.time()) / HOUR))
            for seconds in (-HOUR, DAY):
                clock.jump_to(seconds)
                admitted += told(wrong, TRIES)["admitted"] + told(right, TRIES)["admitted"]
    figures.note("its clock was off by", " / ".join(f"{hours:+} h" for hours in clocks))
    figures.exactly("admitted to both", int(admitted), LIMIT * len(ALGORITHMS))


def serve(url: str) -> None:
    """In the process of a client: so many checks for each algorithm, as a line of standard input says."""
    given = [Rule(id=name, quota=calm(LIMIT, name), dimension="user", endpoints=[f"/{name}"]) for name in ALGORITHMS]
    with Limiter(given, store=f"{url}?timeout=10&remember=0", failure_mode="closed") as limiter:
        for line in sys.stdin:
            decisions = [limiter.check(user="alice", endpoint=f"/{name}") for name in ALGORITHMS * int(line)]
            answer = {"admitted": sum(each.allowed for each in decisions), "clock": time.time()}
            print(json.dumps(answer), flush=True)


CASES = (
    Case("redis-clock", "the clock of Redis jumps -1 h, +1 day", redis_jumps, quick=True, extended=True),
    Case("client-clock", "the clock of a client jumps -1 h, +1 day", client_jumps, quick=True, extended=True),
)

if __name__ == "__main__":
    serve(sys.argv[1])
