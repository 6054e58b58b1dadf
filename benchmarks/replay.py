"""Replaying a log: requests per second and core with three rules that apply, and whether memory grows with the lines.

The log is in the combined format, of 1,000 clients and 202 paths, a hundred requests a second; its lines are made on
the fly. The rate is by the CPU time of the process, without making the lines. Memory is looked at in a process of its
own (`python -m benchmarks.replay LINES` prints JSON): after a tenth of the lines, and at the end.
"""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

from benchmarks.measure import Series
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from headgate.replay.log import Log
from headgate.replay.replay import replay, wanted_facts
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot

RULES = Snapshot(
    [
        Rule(id="everybody", quota="100000/minute", dimension="global"),
        Rule(id="per-ip", quota="100/minute", dimension="ip"),
        Rule(id="api", quota="1000/hour gcra", dimension="ip", endpoints=["/api/*", "/search", "/login"]),
    ]
)
PATHS = [f"/api/v1/things/{number}" for number in range(200)] + ["/search?q=abc", "/login"]
AGENT = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/32.0 Safari/537.36"
START = 1_431_857_103
RATE_LINES = 300_000
ROUNDS = 5
SORT_WINDOW_US = 10_000_000
SECONDS = 1_800


def run(plan: Plan) -> Section:
    section = Section("replay", "7. Replay of a log, three rules that apply", "figure", notes=[__doc__.split("\n")[0]])
    lines = RATE_LINES // 3 if plan.brief else RATE_LINES
    rates = Series(tuple(measured(lines, 2 if plan.brief else ROUNDS)))
    target = Target(100_000, "requests/s")
    section.rows.append(
        Row("combined format", "headgate", rates.median, "requests/s", rates.spread, rates.median, target)
    )
    total = 1_000_000 if plan.brief else 10_000_000
    requests, growth = grown(total)
    if requests != total:
        raise RuntimeError(f"{requests} requests were replayed instead of {total}")
    most = Target(20, "MiB", at_least=False)
    section.rows.append(
        Row(f"growth, {total // 10:,} to {total:,} lines", "headgate", growth, "MiB", 0.0, growth, most)
    )
    return section


def measured(lines: int, rounds: int) -> Iterator[float]:
    """Requests per second of CPU time."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "access.log")
        with path.open("wb") as file:
            file.writelines(made_lines(lines))
        for _ in range(rounds):
            start = process_time()
            report = replay(Log([str(path)], wanted=wanted_facts(RULES)), RULES)
            spent = process_time() - start
            if report.requests != lines or any(rule.requests != lines for rule in report.rules):
                raise RuntimeError(f"{report.requests} requests were replayed instead of {lines}")
            yield lines / spent


def made_lines(lines: int) -> Iterator[bytes]:
    chance = random.Random(1)
    when = ""
    for number in range(lines):
        if number % 100 == 0:
            when = datetime.fromtimestamp(START + number // 100, UTC).strftime("%d/%b/%Y:%H:%M:%S +0000")
        address = f"10.{chance.randrange(20)}.{chance.randrange(50)}.7"
        request = f'"GET {chance.choice(PATHS)} HTTP/1.1" 200 1234 "http://example.com/" "{AGENT}"'
        yield f"{address} - - [{when}] {request}\n".encode()


class Generated(io.RawIOBase):
    """A log that is never anywhere as a whole."""

    def __init__(self, lines: int) -> None:
        self._lines = made_lines(lines)
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self._rest) < len(buffer):
            line = next(self._lines, b"")
            if not line:
                break
            self._rest += line
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def grown(lines: int) -> tuple[int, float]:
    """Replay so many lines in a process of its own: how many there were, and by how many MiB its peak grew after a
    tenth of them."""
    command = [sys.executable, "-m", "benchmarks.replay", str(lines)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS)
    found = json.loads(done.stdout)
    return found["requests"], (found["end"] - found["tenth"]) / 1024


def peak_kib() -> int:
    """The most memory that this program has had. getrusage would begin with that of the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def main() -> None:
    total = int(sys.argv[1])
    peaks = {"tenth": 0}

    def look(done: int, _: float | None) -> None:
        if done <= total // 10:
            peaks["tenth"] = peak_kib()

    stdin: Any = Generated(total)
    report = replay(
        Log(["-"], wanted=wanted_facts(RULES), sort_window_us=SORT_WINDOW_US, stdin=stdin), RULES, progress=look
    )
    peaks["end"] = peak_kib()
    json.dump(peaks | {"requests": report.requests}, sys.stdout)


if __name__ == "__main__":
    main()
