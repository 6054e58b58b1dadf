"""The service under load: checks per second of each of its protocols, with one worker.

h2load keeps a few connections busy, with several calls under way on each. The service is `headgate serve`, as everybody
runs it. A method of another server that does nothing is what gRPC alone takes.

h2load, the server and Redis share the machine, so that checks per second also tell how the system shares out its
processors. The processor time that the server spent per call is told as well: noise disturbs it least.

Answers are looked at: before and after each turn the service is asked how much of the limits is left, which must have
gone down by the checks of all calls that h2load counted.
"""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from benchmarks.measure import Series, Turn, interleave
from benchmarks.plan import Plan
from benchmarks.report import Row, Section, Target
from benchmarks.web import PATIENCE, cpu_seconds
from benchmarks.web_apps import LIMIT
from tests.servers import Server, free_port
from tests.service import running_service
from tests.webserver import running

BATCH = 100  # checks
FINDER = Path(__file__).parent.parent / "scripts" / "h2load"
SERVICE = "/headgate.v1.RateLimiter"
ENVOY_PATH = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
ENVOY, ENVOY_TWO = "Envoy's RLS, one descriptor", "Envoy's RLS, two descriptors"
SUCCEEDED = re.compile(r"requests: .* (\d+) done, (\d+) succeeded")
GRPC = ("content-type: application/grpc", "te: trailers")
JSON = ("content-type: application/json",)
ENDPOINT = "/api/search"
RULES = f"""
[[rules]]
id = "searches"
dimension = "user"
endpoints = ["/api/*"]
algorithm = "fixed_window"
limit = {LIMIT}
window = "30d"

[[rules]]
id = "logins"
dimension = "ip"
endpoints = ["/login"]
limit = {LIMIT}
window = "30d"
"""
EDGE_RULES = f"""
[[rules]]
id = "addresses"
dimension = "ip"
algorithm = "fixed_window"
limit = {LIMIT}
window = "30d"

[[rules]]
id = "accounts"
dimension = "user"
algorithm = "fixed_window"
limit = {LIMIT}
window = "30d"
"""
MORE_RULES = f"""{RULES}
[[rules]]
id = "all"
dimension = "global"
algorithm = "fixed_window"
limit = {LIMIT}
window = "30d"
"""


@dataclass(frozen=True)
class Call:
    """What h2load sends, over and over. `checks` is how many each call makes; 0: none, as it has nothing to do."""

    name: str
    server: str  # one of SERVERS
    path: str
    body: Callable[[], bytes]
    headers: tuple[str, ...]
    checks: int
    connections: int
    streams: int  # under way at a time on each connection
    is_counted: bool = True  # whether it charges the rule "searches", so that calls and counts can be compared

    @property
    def is_http(self) -> bool:
        return self.headers is JSON


def grpc_unary() -> bytes:
    from headgate.service.protos.rate_limiter_pb2 import CheckRequest

    return framed(CheckRequest(identifier="user-0", endpoint=ENDPOINT))


def grpc_batch() -> bytes:
    from headgate.service.protos.rate_limiter_pb2 import CheckBatchRequest, CheckRequest

    users = (f"user-{number}" for number in range(BATCH))
    return framed(CheckBatchRequest(checks=[CheckRequest(identifier=user, endpoint=ENDPOINT) for user in users]))


def descriptors(**entries: str) -> bytes:
    """A request of Envoy's with a descriptor of one entry each."""
    from headgate.service.protos.rls_pb2 import RateLimitDescriptor, RateLimitRequest

    made = [
        RateLimitDescriptor(entries=[RateLimitDescriptor.Entry(key=key, value=value)]) for key, value in entries.items()
    ]
    return framed(RateLimitRequest(domain="edge", descriptors=made))


def empty_message() -> bytes:
    return struct.pack(">?I", False, 0)


def http_check() -> bytes:
    return json.dumps({"user": "user-0", "endpoint": ENDPOINT}).encode()


def http_batch() -> bytes:
    checks = [{"user": f"user-{number}", "endpoint": ENDPOINT} for number in range(BATCH)]
    return json.dumps({"checks": checks}).encode()


def framed(message: Any) -> bytes:
    """A message as gRPC sends it."""
    body: bytes = message.SerializeToString()
    return struct.pack(">?I", False, len(body)) + body


UNARY, GRPC_BATCH, TWO_RULES, EMPTY, HEALTH, HTTP = (
    "gRPC unary",
    f"gRPC batch of {BATCH}",
    "the same, two rules each",
    "empty handler",
    "gRPC health check",
    "HTTP check",
)
CALLS = (
    Call(UNARY, "one rule", f"{SERVICE}/CheckRateLimit", grpc_unary, GRPC, 1, 8, 8),
    Call(EMPTY, "empty", "/benchmarks.Empty/Check", grpc_unary, GRPC, 0, 8, 8),
    Call(HEALTH, "one rule", "/grpc.health.v1.Health/Check", empty_message, GRPC, 0, 8, 8),
    Call(GRPC_BATCH, "one rule", f"{SERVICE}/CheckRateLimits", grpc_batch, GRPC, BATCH, 2, 4),
    Call(TWO_RULES, "two rules", f"{SERVICE}/CheckRateLimits", grpc_batch, GRPC, BATCH, 2, 4),
    Call(ENVOY, "edge", ENVOY_PATH, partial(descriptors, remote_address="192.0.2.7"), GRPC, 1, 8, 8, is_counted=False),
    Call(
        *(ENVOY_TWO, "edge", ENVOY_PATH, partial(descriptors, remote_address="192.0.2.7", user_id="user-0"), GRPC),
        *(1, 8, 8),
        is_counted=False,
    ),
    Call(HTTP, "one rule", "/v1/check", http_check, JSON, 1, 32, 1),
    Call(f"HTTP batch of {BATCH}", "one rule", "/v1/check/batch", http_batch, JSON, BATCH, 8, 1),
)
SERVERS = {"one rule": RULES, "two rules": MORE_RULES, "edge": EDGE_RULES}
TARGETS = {
    ("memory", GRPC_BATCH): Target(100_000, "checks/s"),
    ("Redis", GRPC_BATCH): Target(60_000, "checks/s"),
}
OVER_EMPTY = Target(0.9)
CPU_TARGETS = {
    ("memory", UNARY): Target(25, "µs/call", at_least=False),
    ("memory", ENVOY): Target(30, "µs/call", at_least=False),
    ("memory", ENVOY_TWO): Target(40, "µs/call", at_least=False),
    ("memory", HTTP): Target(60, "µs/call", at_least=False),
    ("Redis", UNARY): Target(45, "µs/call", at_least=False),
    ("Redis", ENVOY): Target(45, "µs/call", at_least=False),
}


class Served(NamedTuple):
    """A server, and where it listens; 0: nowhere."""

    pid: int
    grpc_port: int
    http_port: int = 0


@dataclass
class Work:
    """The turns of one call: checks per second, response times, and the server's processor time per call."""

    call: Call
    at: Served
    body: Path
    h2load: Path
    seconds: int
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def turn(self) -> float:
        left = self._left()
        cpu = cpu_seconds(self.at.pid)
        calls, times_us = self._load()
        self.cpu_us.append((cpu_seconds(self.at.pid) - cpu) / calls * 1e6)
        centiles = quantiles(times_us, n=100)
        self.p50_ms.append(centiles[49] / 1_000)
        self.p99_ms.append(centiles[98] / 1_000)
        self._look(left, calls)
        return calls * (self.call.checks or 1) / self.seconds

    def _load(self) -> tuple[int, list[int]]:
        call, log = self.call, self.body.with_suffix(".log")
        log.unlink(missing_ok=True)
        command = [str(self.h2load), "--threads", "1", "--clients", str(call.connections)]
        command += ["--max-concurrent-streams", str(call.streams), "--duration", str(self.seconds)]
        if call.is_http:
            command.append("--h1")
        command += ["--data", str(self.body), "--log-file", str(log)]
        for header in call.headers:
            command += ["--header", header]
        command.append(f"http://127.0.0.1:{self.at.http_port if call.is_http else self.at.grpc_port}{call.path}")
        told = subprocess.run(command, capture_output=True, text=True, timeout=self.seconds + PATIENCE, check=False)
        found = SUCCEEDED.search(told.stdout)
        if told.returncode != 0 or found is None or found[1] != found[2] or found[1] == "0":
            raise RuntimeError(f"{' '.join(command)} failed:\n{told.stdout}{told.stderr}")
        lines = (line.split("\t") for line in log.read_text(encoding="ascii").splitlines())
        return int(found[2]), [int(time_us) for _, _, time_us in lines]

    def _left(self) -> int:
        """How much is left of the limits of all users together."""
        if not self.call.checks or not self.call.is_counted:
            return 0
        import grpc

        from headgate.service.protos.rate_limiter_pb2 import CheckBatchRequest, CheckBatchResponse, CheckRequest

        looks = [CheckRequest(identifier=f"user-{number}", endpoint=ENDPOINT, cost=0) for number in range(BATCH)]
        with grpc.insecure_channel(f"127.0.0.1:{self.at.grpc_port}") as channel:
            method: Any = channel.unary_unary(f"{SERVICE}/CheckRateLimits")
            told = method(CheckBatchRequest(checks=looks).SerializeToString(), timeout=PATIENCE)
        answers = CheckBatchResponse.FromString(told).responses
        limits = [limit for answer in answers for limit in answer.limits if limit.rule == "searches"]
        if len(limits) != BATCH:
            raise RuntimeError(f"{self.call.name}: unexpected answers: {answers}")
        return sum(limit.remaining for limit in limits)

    def _look(self, before: int, calls: int) -> None:
        """Every check was counted, and no others but those that were under way when h2load ended."""
        if not self.call.is_counted:
            return
        counted = before - self._left()
        checks = self.call.checks
        spare = 2 * checks * self.call.connections * self.call.streams
        if not calls * checks <= counted <= calls * checks + spare:
            raise RuntimeError(f"{self.call.name}: it counted {counted} checks of {calls} calls")


def run(plan: Plan, server: Server, h2load: Path) -> Section:
    section = Section(
        "service",
        "7. The service, one worker" + (" (quick: in memory only)" if plan.brief else ""),
        "reached",
        notes=[
            "one rule applies to each check, in fixed windows, by user; a limit that is not reached;",
            "p50, p99: of the response times of calls, with as many under way as it takes to keep the worker busy;",
            "CPU: the worker's processor time per call, which noise disturbs least. The empty handler is a method that",
            "does nothing, of grpcio's asyncio server: it is compared with unary calls.",
        ],
    )
    for store in ("memory",) if plan.brief else ("memory", "Redis"):
        with opened(store, server, h2load, plan.web_seconds) as works:
            tell(section, store, works, plan.web_rounds)
    return section


@contextmanager
def opened(store: str, redis: Server, h2load: Path, seconds: int) -> Iterator[list[Work]]:
    """All servers. Those in Redis share their counts."""
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        url = "memory://" if store == "memory" else f"{redis.url}?timeout=1"
        port = free_port()
        empty = stack.enter_context(running([sys.executable, "-m", "benchmarks.service_apps", str(port)], port))
        servers = {"empty": Served(empty.pid, port)}
        for name, rules in SERVERS.items():
            folder = scratch / name
            folder.mkdir()
            file = folder / "rules.toml"
            file.write_text(rules)
            served = stack.enter_context(running_service(folder, store=url, rules=file))
            ports = (int(address.rpartition(":")[2]) for address in (served.grpc_address, served.url))
            servers[name] = Served(served.process.pid, *ports)
        works = []
        for number, call in enumerate(CALLS):
            body = scratch / f"{number}.body"
            body.write_bytes(call.body())
            works.append(Work(call, servers[call.server], body, h2load, seconds))
        yield works


def tell(section: Section, store: str, works: list[Work], rounds: int) -> None:
    turns: dict[str, Turn] = {work.call.name: work.turn for work in works}
    rates = interleave(turns, rounds)
    for work in works:
        work.p50_ms, work.p99_ms, work.cpu_us = work.p50_ms[1:], work.p99_ms[1:], work.cpu_us[1:]  # it warmed up
    for name, rate in rates.items():
        target = TARGETS.get((store, name))
        compared = None if target is None else rate.median
        section.rows.append(Row(store, name, rate.median, "checks/s", rate.spread, compared, target))
    for title, figures, unit in (("p50", "p50_ms", "ms"), ("p99", "p99_ms", "ms"), ("CPU", "cpu_us", "µs/call")):
        series = {work.call.name: Series(tuple(getattr(work, figures))) for work in works}
        for name, one in series.items():
            target = CPU_TARGETS.get((store, name)) if title == "CPU" else None
            compared = None if target is None else one.median
            if (store, title, name) == ("memory", "CPU", EMPTY):
                target, compared = OVER_EMPTY, one.times(series[UNARY])
            section.rows.append(Row(f"{store}, {title}", name, one.median, unit, one.spread, compared, target))


def find_h2load() -> Path:
    """h2load, which is installed where that can be done."""
    told = subprocess.run([FINDER], stdout=subprocess.PIPE, text=True, check=False)
    if told.returncode != 0:
        raise SystemExit(told.returncode)  # it said why
    return Path(told.stdout.strip())


def h2load_version(h2load: Path) -> str:
    """What h2load says of itself: `h2load nghttp2/1.52.0`."""
    told = subprocess.run([h2load, "--version"], capture_output=True, text=True, timeout=10, check=True)
    return told.stdout.strip()
