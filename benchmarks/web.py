"""Web servers under load: what a limiter in front of an app costs, beside the app alone and the peers' ways.

wrk keeps 64 connections busy with one request after the other. Every contender is a server of its own, one process with
one app of `benchmarks.web_apps`, which stays up through all rounds; an idle one costs nothing. Starlette runs on
granian, and in memory on uvicorn too, Flask on gunicorn with threads.

wrk, the server and Redis share the machine, so that requests per second also tell how the system shares out its
processors. The processor time that the server spent per request is told as well: noise disturbs it least.

Answers are looked at: every response must be a 2xx, and before and after each turn the app is asked how much is left of
its limit, which must have gone down by the requests that wrk counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.contenders import absent
from benchmarks.measure import Series, Turn, interleave
from benchmarks.plan import Plan
from benchmarks.report import Section, Target
from benchmarks.web_apps import APP, HELLO, LIMIT, STORE
from tests.servers import Server, free_port
from tests.webserver import COMMANDS, running

CONNECTIONS = 64
WARM_UP = 0.3  # seconds
PATIENCE = 30  # seconds after which a turn that should have ended is given up
SCRIPT = Path(__file__).with_name("wrk.lua")
FINDER = Path(__file__).parent.parent / "scripts" / "wrk"
TOLD = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")

SERVERS = {
    "Starlette": "granian",
    "Starlette, 3 rules": "granian",
    "Starlette on uvicorn": "uvicorn",
    "Starlette on uvicorn, 3 rules": "uvicorn",
    "Flask": "gunicorn",
}
# Contenders and their apps, Headgate first: with the peers' default algorithm, and with its own.
OURS, BARE = "headgate", "no limiter"
SLOWAPI, FLASK_LIMITER = "slowapi", "flask-limiter"
APPS = {
    "Starlette": {
        OURS: "starlette/headgate",
        "headgate, its default": "starlette/headgate-default",
        BARE: "starlette",
        SLOWAPI: "starlette/slowapi-middleware",
        "slowapi, ASGI middleware": "starlette/slowapi-asgi",
        "slowapi, decorator": "starlette/slowapi-decorator",
    },
    "Starlette, 3 rules": {OURS: "starlette/headgate-rules", BARE: "starlette"},
    "Starlette on uvicorn": {
        OURS: "starlette/headgate",
        BARE: "starlette",
        SLOWAPI: "starlette/slowapi-middleware",
    },
    "Starlette on uvicorn, 3 rules": {OURS: "starlette/headgate-rules", BARE: "starlette"},
    "Flask": {
        OURS: "flask/headgate",
        "headgate, its default": "flask/headgate-default",
        BARE: "flask",
        FLASK_LIMITER: "flask/flask-limiter",
    },
}
BRIEF = (OURS, BARE, SLOWAPI, FLASK_LIMITER)
TARGETS = {
    ("Starlette", "memory"): {BARE: Target(0.75), SLOWAPI: Target(4)},
    ("Starlette, 3 rules", "memory"): {BARE: Target(0.7)},
    ("Starlette on uvicorn", "memory"): {BARE: Target(0.75), SLOWAPI: Target(4)},
    ("Starlette on uvicorn, 3 rules", "memory"): {BARE: Target(0.7)},
    ("Starlette", "Redis"): {SLOWAPI: Target(8)},
    ("Flask", "memory"): {FLASK_LIMITER: Target(1)},
    ("Flask", "Redis"): {FLASK_LIMITER: Target(1)},
}
P99_TARGETS = {SLOWAPI: Target(1, at_least=False), FLASK_LIMITER: Target(1, at_least=False)}


class Work:
    """The turns of one contender: requests per second, their 99th percentile, and the server's processor time."""

    def __init__(self, name: str, port: int, pid: int, *, wrk: Path, seconds: int) -> None:
        self.name = name
        self.port = port
        self.pid = pid
        self.wrk = wrk
        self.seconds = seconds
        self.p99_ms: list[float] = []
        self.cpu_us: list[float] = []
        self._is_warm = False

    def turn(self) -> float:
        if not self._is_warm:  # the round that does not count
            self._warm_up()
            return 0.0
        left = self._left()
        cpu = cpu_seconds(self.pid)
        found = self._load()
        self.cpu_us.append((cpu_seconds(self.pid) - cpu) / found["requests"] * 1e6)
        self.p99_ms.append(found["p99_ms"])
        if left is not None:
            self._look(left, found["requests"])
        rate: float = found["requests"] / found["seconds"]
        return rate

    def _warm_up(self) -> None:
        until = monotonic() + WARM_UP
        while monotonic() < until:
            self._left()
        self._is_warm = True

    def _load(self) -> dict[str, Any]:
        command = [str(self.wrk), "--threads", "1", "--connections", str(CONNECTIONS)]
        command += ["--duration", f"{self.seconds}s", "--timeout", "10s", "--script", str(SCRIPT)]
        command.append(f"http://127.0.0.1:{self.port}/")
        told = subprocess.run(command, capture_output=True, text=True, timeout=self.seconds + PATIENCE, check=False)
        if told.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} failed:\n{told.stdout}{told.stderr}")
        found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
        if any(found["errors"].values()) or not found["requests"]:
            raise RuntimeError(f"{self.name}: not all went well: {found}")
        return found

    def _left(self) -> int | None:
        """How much is left of the limit, as a response tells; None without a limiter."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", "/")
            response = connection.getresponse()
            body = response.read().decode()
        finally:
            connection.close()
        limit, remaining, reset = map(response.headers.get, TOLD)
        if (response.status, body) != (200, HELLO) or (self.name != BARE and not (limit and remaining and reset)):
            raise RuntimeError(f"{self.name}: an unexpected response: {response.status} {response.getheaders()} {body}")
        if limit is None or remaining is None:
            return None
        if int(limit) != LIMIT:
            raise RuntimeError(f"{self.name}: its limit is {limit} instead of {LIMIT}")
        return int(remaining)

    def _look(self, before: int, requests: int) -> None:
        """Every request was counted, and no others but those that were under way when wrk ended."""
        left = self._left()
        assert left is not None
        counted = before - left - 1
        if not requests <= counted <= requests + 2 * CONNECTIONS:
            raise RuntimeError(f"{self.name}: it counted {counted} of {requests} requests")


def run(plan: Plan, server: Server, wrk: Path) -> Section:
    section = Section(
        "web",
        f"6. Web servers, {CONNECTIONS} connections" + (" (quick: in memory only)" if plan.brief else ""),
        "headgate is",
        notes=[
            "by client IP, in fixed windows, a limit that is not reached, told in headers; one process each;",
            "Starlette on granian unless said otherwise, Flask on gunicorn with 4 threads; p99: of the response times;",
            "CPU: the server's processor time per request, which noise disturbs least. Targets for slowapi are about",
            "SlowAPIMiddleware, which limits a whole app as our middleware does; its other ways are shown beside it.",
        ],
    )
    for framework, store in TARGETS:
        if not plan.brief or store == "memory":
            works = chosen(framework, store, brief=plan.brief)
            with opened(framework, works, server if store == "Redis" else None, wrk, plan.web_seconds) as all_works:
                compare(section, framework, store, all_works, plan.web_rounds)
    return section


def chosen(framework: str, store: str, *, brief: bool) -> dict[str, str]:
    """The contenders and their apps. The bare app counts nothing, so that one store is as good as the other."""
    left_out = {*missing(), *([] if store == "memory" else [BARE])}
    return {
        name: app
        for name, app in APPS[framework].items()
        if name.split(",")[0] not in left_out and (not brief or name in BRIEF)
    }


@contextmanager
def opened(
    framework: str, apps: Mapping[str, str], redis: Server | None, wrk: Path, seconds: int
) -> Iterator[list[Work]]:
    """A server for each, and in Redis a database for each."""
    with ExitStack() as stack:
        works = []
        for number, (name, app) in enumerate(apps.items()):
            port = free_port()
            store = "memory://" if redis is None else f"redis://127.0.0.1:{redis.port}/{number}"
            options = COMMANDS[SERVERS[framework]].format(port=port, app="benchmarks.web_apps:app")
            command = [sys.executable, "-m", *options.split()]
            process = stack.enter_context(running(command, port, env={APP: app, STORE: store}))
            works.append(Work(name, port, process.pid, wrk=wrk, seconds=seconds))
        yield works


def compare(section: Section, framework: str, store: str, works: list[Work], rounds: int) -> None:
    turns: dict[str, Turn] = {work.name: work.turn for work in works}
    title = f"{framework}, {store}"
    section.compare(title, interleave(turns, rounds), TARGETS[framework, store], "requests/s")
    section.compare(f"{title}, p99", {work.name: Series(tuple(work.p99_ms)) for work in works}, P99_TARGETS, "ms")
    section.compare(f"{title}, CPU", {work.name: Series(tuple(work.cpu_us)) for work in works}, {}, "µs/request")


def cpu_seconds(pid: int) -> float:
    """The processor time of a process and its children."""
    process = Path("/proc", str(pid))
    fields = process.joinpath("stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    spent = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # in user and in system mode
    children = " ".join(file.read_text(encoding="ascii") for file in process.glob("task/*/children"))
    return spent + sum(cpu_seconds(int(child)) for child in children.split())


def missing() -> list[str]:
    """Peers that are not installed."""
    return [package for package in (SLOWAPI, FLASK_LIMITER) if absent(package)]


def find_wrk() -> Path:
    """wrk, which is installed where that can be done."""
    told = subprocess.run([FINDER], stdout=subprocess.PIPE, text=True, check=False)
    if told.returncode != 0:
        raise SystemExit(told.returncode)  # it said why
    return Path(told.stdout.strip())


def wrk_version(wrk: Path) -> str:
    """What wrk says of itself, in short: `wrk debian/4.1.0-3+b2`. It exits with 1 when it has said so."""
    told = subprocess.run([wrk, "--version"], capture_output=True, text=True, timeout=10, check=False)
    return " ".join(told.stdout.split()[:2])
