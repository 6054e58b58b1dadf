"""`headgate serve`, as a process: how it starts, what it refuses, and how it stops."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from headgate._version import __version__
from headgate.service.process import allow_many_files
from headgate.service.protos import rate_limiter_pb2 as messages
from tests import warm
from tests.embedded import keeper_pid, lives, server_pid, tcp_sockets
from tests.postgres import Postgres
from tests.servers import Server
from tests.service import COMMAND, Service, environment, running_service, warm_service
from tests.waiting import until

LATEST = 30.0  # seconds after which a test gives up
CHECK = "/headgate.v1.RateLimiter/CheckRateLimit"
ALICE = {"user": "alice", "endpoint": "/search"}
RULES = '[[rules]]\nid = "{name}"\nlimit = {limit}\nwindow = "1h"\n'


def refused(*flags: str, cwd: Path, **settings: Any) -> tuple[int, str]:
    """The exit code and the message of a service that does not start."""
    environ = environment({"data_dir": cwd / "data", **settings})
    done = warm.run("headgate", ["serve", *flags], cwd=cwd, env=environ, timeout=60)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.returncode, done.stderr


def health(address: str, credentials: grpc.ChannelCredentials | None = None) -> int:
    """What grpc.health.v1 says."""
    with (
        grpc.insecure_channel(address) if credentials is None else grpc.secure_channel(address, credentials) as channel
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        status: int = stub.Check(health_pb2.HealthCheckRequest(), timeout=LATEST).status
        return status


def check_method(channel: Any) -> Any:
    return channel.unary_unary(
        CHECK,
        request_serializer=messages.CheckRequest.SerializeToString,
        response_deserializer=messages.CheckResponse.FromString,
    )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One that tests only look at."""
    with running_service(tmp_path_factory.mktemp("service")) as service:
        yield service


# It serves


def test_http_and_grpc_answer_from_one_count(service: Service) -> None:
    first = httpx.post(f"{service.url}/v1/check", json={"user": "both", "cost": 3})
    assert first.json()["remaining"] == 97
    with grpc.insecure_channel(service.grpc_address) as channel:
        request = messages.CheckRequest(identifier="both", dimension=messages.USER)
        assert check_method(channel)(request, timeout=LATEST).remaining == 96


def test_the_three_commands_that_it_prints_work(tmp_path: Path) -> None:
    flags = ["--samples", "--hints", "--drain-delay", "0"]
    environ = environment({"data_dir": tmp_path, "http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"})
    with (tmp_path / "log").open("wb") as log:
        process = warm.Warm(
            "headgate", ["serve", *flags], cwd=tmp_path, env=environ, out=log.fileno(), err=log.fileno()
        )
    try:
        banner = until(lambda: (tmp_path / "log").read_text().partition("is serving.")[2], "the banner")
        passes, refused, console = re.findall(r"^  (?:curl|for|python3 -m webbrowser) .*$", banner, re.MULTILINE)
        assert json.loads(subprocess.check_output(["bash", "-c", passes], timeout=LATEST))["allowed"]
        assert subprocess.check_output(["bash", "-c", refused], timeout=LATEST).split() == [b"200"] * 5 + [b"429"]
        assert "You are signed in." in httpx.get(console.split()[-1].strip("'")).text
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(LATEST) == 0


def test_a_new_service_has_the_sample_rules(service: Service) -> None:
    rules = httpx.get(f"{service.url}/api/v1/rules", headers=service.headers).json()["rules"]
    assert {"everybody", "per-ip", "login", "user-free", "user-pro"} <= {rule["id"] for rule in rules}
    facts = {"ip": "192.0.2.7", "endpoint": "/login", "method": "POST"}
    statuses = [httpx.post(f"{service.url}/v1/check", json=facts).status_code for _ in range(6)]
    assert statuses == [200] * 5 + [429]


def test_without_samples_a_new_database_stays_empty(tmp_path: Path) -> None:
    with warm_service(tmp_path, samples=False) as service:
        rules = httpx.get(f"{service.url}/api/v1/rules", headers=service.headers).json()
        assert rules["rules"] == []
        decided = httpx.post(f"{service.url}/v1/check", json={"ip": "192.0.2.7", "endpoint": "/login"}).json()
        assert (decided["allowed"], decided["reason"]) == (True, "no_rule")
        assert "there are no rules: every request is allowed" in service.log


def test_it_is_ready_and_healthy(service: Service) -> None:
    ready = httpx.get(f"{service.url}/readyz")
    assert (ready.status_code, ready.json()["status"]) == (200, "ready")
    assert health(service.grpc_address) == health_pb2.HealthCheckResponse.SERVING
    assert "headgate_build_info" in httpx.get(f"{service.url}/metrics").text
    assert httpx.get(f"{service.url}/docs").status_code == 200


def test_the_admin_token_is_made_and_told_to_nobody(service: Service) -> None:
    file = service.data_dir / "admin-token"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.read_text().strip() == service.admin_token
    assert len(service.admin_token) > 40
    assert service.admin_token not in service.log
    assert f"the admin token is in {file}" in service.log
    assert httpx.get(f"{service.url}/api/v1/rules").status_code == 401


def test_what_it_keeps_is_for_its_owner_alone(service: Service) -> None:
    until((service.data_dir / "rules-last-good.toml").exists)
    for name in ("headgate.db", "headgate.db-wal", "rules-last-good.toml"):
        assert (service.data_dir / name).stat().st_mode & 0o777 == 0o600, name


def test_it_logs_json_where_there_is_no_terminal(service: Service) -> None:
    assert all(json.loads(line)["event"] for line in service.log.splitlines())


def test_what_was_changed_is_there_after_a_restart(tmp_path: Path) -> None:
    with warm_service(tmp_path) as first:
        rule = {"id": "mine", "limit": 1, "window": "1h", "dimension": "tenant"}
        made = httpx.post(f"{first.url}/api/v1/rules", json=rule, headers=first.headers)
        assert made.status_code == 201
        assert first.stop() == 0
    with warm_service(tmp_path) as second:
        assert second.admin_token == first.admin_token
        statuses = [httpx.post(f"{second.url}/v1/check", json={"tenant": "t"}).status_code for _ in range(2)]
        assert statuses == [200, 429]
        until(lambda: '"mine"' in (second.data_dir / "rules-last-good.toml").read_text())


def test_refusals_become_events(service: Service) -> None:
    facts = {"user": "eve", "cost": 1000}
    assert httpx.post(f"{service.url}/v1/check", json=facts).status_code == 429

    def written() -> bool:
        events = httpx.get(f"{service.url}/api/v1/events", params={"user": "eve"}, headers=service.headers)
        return bool(events.json()["events"])

    until(written)


def test_a_rules_file_is_the_only_source_and_followed(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULES.format(name="of-the-file", limit=5))
    with warm_service(tmp_path, rules=file) as service:

        def limit() -> int:
            return int(httpx.post(f"{service.url}/v1/peek", json=ALICE).json()["limit"])

        assert limit() == 5
        made = httpx.post(
            f"{service.url}/api/v1/rules", json={"id": "r", "limit": 1, "window": 60}, headers=service.headers
        )
        assert made.status_code == 409
        file.write_text(RULES.format(name="of-the-file", limit=7))
        until(lambda: limit() == 7)
        token = {"name": "ci", "role": "viewer", "scopes": ["rules"], "expires_in": 3600}
        until(
            lambda: httpx.post(f"{service.url}/api/v1/tokens", json=token, headers=service.headers).status_code == 201
        )


def test_sighup_reads_the_rules_again_and_ends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULES.format(name="r", limit=5))
    with warm_service(tmp_path, rules=file) as service:
        file.write_text("[[rules]]\nid = 'r'\nlimit = -1\nwindow = 1\n")
        service.process.send_signal(signal.SIGHUP)
        until(lambda: "is invalid" in service.log)
        assert httpx.post(f"{service.url}/v1/peek", json=ALICE).json()["limit"] == 5


# It refuses


def test_every_bad_setting_is_named_at_once(tmp_path: Path) -> None:
    code, said = refused("--http-address", "nowhere", cwd=tmp_path, workers="many", log_level="loud")
    assert code == 2
    lines = said.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("headgate: --http-address: must be host:port")
    assert "HEADGATE_WORKERS" in lines[1]
    assert "HEADGATE_LOG_LEVEL" in lines[2]


def test_services_with_prefixes_of_their_own_share_a_redis_and_nothing_else(
    tmp_path: Path, redis_server: Server, redis_url: str
) -> None:
    places = [tmp_path / name for name in ("a", "b")]
    for place in places:
        place.mkdir()
    with (
        warm_service(places[0], store=redis_url, store_prefix="shop-a") as one,
        warm_service(places[1], "--store-prefix", "prod:shop-b", store=redis_url) as other,
        redis_server.client() as client,
    ):

        def remaining(service: Service, path: str = "check") -> int:
            answer = httpx.post(f"{service.url}/v1/{path}", json=ALICE, timeout=LATEST)
            left: int = answer.json()["remaining"]
            return left

        assert [remaining(one), remaining(one)] == [99, 98]
        assert remaining(other) == 99
        assert httpx.post(f"{one.url}/v1/reset", json=ALICE, headers=one.headers, timeout=LATEST).is_success
        assert [remaining(one, "peek"), remaining(other, "peek")] == [100, 99]
        assert remaining(one) == 99
        assert httpx.get(f"{one.url}/api/v1/rules", headers=one.headers, timeout=LATEST).is_success
        prefixes = {key.decode().partition(":user:")[0] for key in client.scan_iter() if b":user:" in key}
        assert prefixes == {"shop-a", "prod:shop-b"}
        assert all(key.startswith((b"shop-a:", b"prod:shop-b:")) for key in client.scan_iter())


def test_a_store_that_makes_no_sense_is_told_before_anything_is_changed(tmp_path: Path) -> None:
    addresses = {"http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"}
    code, said = refused(cwd=tmp_path, store="redis://127.0.0.1/zero", **addresses)
    assert code == 2
    assert said.startswith("headgate: HEADGATE_STORE: store URL: the database must be a number")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("setting", ["store", "database_url", "admin_token", "data_token"])
def test_every_secret_has_a_flag_that_names_its_file(tmp_path: Path, setting: str) -> None:
    flag = f"--{setting.replace('_', '-')}-file"
    (tmp_path / "secret").write_text("n o t h i n g")
    code, said = refused(flag, str(tmp_path / "secret"), cwd=tmp_path)
    assert code == 2
    assert said.startswith(f"headgate: {flag}: must be ")


@pytest.mark.parametrize("setting", ["http_address", "grpc_address"])
def test_others_are_not_served_without_tokens_and_tls(tmp_path: Path, setting: str) -> None:
    code, said = refused(cwd=tmp_path, **{setting: "0.0.0.0:0"})
    assert code == 2
    assert "HEADGATE_ADMIN_TOKEN and HEADGATE_DATA_TOKEN" in said
    assert "HEADGATE_TLS_CERTIFICATE" in said


def test_others_are_served_with_tokens_and_when_told_without_tls(tmp_path: Path) -> None:
    tokens = {"admin_token": "admin-" * 5, "data_token": "data-" * 5}
    with warm_service(tmp_path, "--insecure", http_address="0.0.0.0:0", **tokens) as service:
        url = service.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.post(f"{url}/v1/check", json=ALICE).status_code == 401
        headers = {"Authorization": f"Bearer {tokens['data_token']}"}
        assert httpx.post(f"{url}/v1/check", json=ALICE, headers=headers).status_code == 200
        assert not (service.data_dir / "admin-token").exists()


@pytest.mark.parametrize("setting", ["http_address", "grpc_address"])
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_a_port_that_is_taken_is_named(tmp_path: Path, setting: str, workers: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = "grpc_address" if setting == "http_address" else "http_address"
        addresses = {setting: f"127.0.0.1:{port}", other: "127.0.0.1:0"}
        code, said = refused(cwd=tmp_path, workers=workers, log_level="error", **addresses)
    assert code == 2
    assert f"port {port} is taken" in said
    assert f"--{setting.replace('_', '-')}" in said
    assert len(said.splitlines()) == 1


def test_two_services_do_not_share_a_port_by_accident(service: Service, tmp_path: Path) -> None:
    code, said = refused(cwd=tmp_path, http_address="127.0.0.1:0", grpc_address=service.grpc_address)
    assert code == 2
    assert "is taken" in said


def test_a_rules_file_that_is_not_good(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULES.format(name="r", limit=-1))
    code, said = refused(cwd=tmp_path, rules=file, http_address="127.0.0.1:0", grpc_address="127.0.0.1:0")
    assert code == 1
    assert re.search(r"headgate: .*rules.toml: rule 'r': limit: ", said)


def test_a_data_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, said = refused(cwd=tmp_path, data_dir=tmp_path / "file" / "data")
    assert code == 2
    assert "HEADGATE_DATA_DIR" in said


def test_version_and_help(tmp_path: Path) -> None:
    version = subprocess.run([*COMMAND, "version"], capture_output=True, text=True, timeout=60, check=True)
    assert version.stdout.startswith(f"headgate {__version__} ")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return warm.run("headgate", words, cwd=tmp_path, env=environment({}), timeout=60)

    assert "serve" in run("--help").stdout
    assert "HEADGATE_HTTP_ADDRESS" in run("serve", "--help").stdout
    wrong = run("serve", "--bogus")
    assert wrong.returncode == 2
    assert "--bogus" in wrong.stderr


# Without its database


def test_without_postgresql_it_starts_by_the_last_good_rules_and_catches_up(tmp_path: Path) -> None:
    server = Postgres()
    url = f"{server.url}?sslpassword=kret"
    settings = {"database_url": url, "http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"}
    code, said = refused(cwd=tmp_path, **settings)
    assert code == 2
    assert "has no rules of an earlier run" in said
    assert "kret" not in said
    rule = {"id": "mine", "limit": 2, "window": "1h", "dimension": "tenant"}
    with server:
        with warm_service(tmp_path, database_url=server.url) as first:
            assert httpx.post(f"{first.url}/api/v1/rules", json=rule, headers=first.headers).status_code == 201
            assert first.stop() == 0
        server.stop()
        with warm_service(tmp_path, database_url=server.url) as second:
            checks = [httpx.post(f"{second.url}/v1/check", json={"tenant": "t"}) for _ in range(3)]
            assert [one.status_code for one in checks] == [200, 200, 429]
            ready = httpx.get(f"{second.url}/readyz")
            assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
            assert "database" in ready.json()["faults"]
            changed = httpx.put(f"{second.url}/api/v1/rules/mine", json={**rule, "limit": 9}, headers=second.headers)
            assert changed.status_code == 503
            server.start()
            until(lambda: httpx.get(f"{second.url}/readyz").json()["status"] == "ready")
            changed = httpx.put(f"{second.url}/api/v1/rules/mine", json={**rule, "limit": 9}, headers=second.headers)
            assert changed.status_code == 200
            assert httpx.post(f"{second.url}/v1/peek", json={"tenant": "t"}).json()["limit"] == 9


def test_with_a_rules_file_it_starts_without_any_database(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(RULES.format(name="r", limit=5))
    with warm_service(tmp_path, rules=file, database_url=Postgres().url) as service:
        assert httpx.post(f"{service.url}/v1/check", json=ALICE).json()["limit"] == 5


# Its clients


def test_two_thousand_idle_and_slow_connections_are_nobodys_problem(tmp_path: Path) -> None:
    allow_many_files()
    with warm_service(tmp_path) as service, ExitStack() as stack:
        host, port = service.url.removeprefix("http://").split(":")
        for number in range(2_000):
            slow = stack.enter_context(socket.create_connection((host, int(port)), timeout=LATEST))
            if number % 2:
                slow.sendall(b"POST /v1/check HTTP/1.1\r\nHost: h\r\nX-Slow: ")
        with httpx.Client(timeout=LATEST) as client:
            statuses = {client.post(f"{service.url}/v1/peek", json=ALICE).status_code for _ in range(200)}
        assert statuses == {200}
        assert httpx.get(f"{service.url}/readyz").json()["status"] == "ready"


# It stops


class Load:
    """Callers who go on until they are told that it is over; what they were answered, and what failed."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.answered = 0
        self.failed: list[str] = []
        self._over = asyncio.Event()

    async def http(self) -> None:
        """One after the other on a connection that is kept, as long as the service keeps it."""
        async with httpx.AsyncClient(timeout=LATEST) as client:
            while not self._over.is_set():
                try:
                    answer = await client.post(f"{self._service.url}/v1/check", json=ALICE)
                except httpx.ConnectError:
                    return  # it takes no more calls
                except httpx.HTTPError as error:
                    self.failed.append(repr(error))
                    return
                if answer.status_code in (200, 429):
                    self.answered += 1
                else:
                    self.failed.append(f"HTTP {answer.status_code}")

    async def grpc(self) -> None:
        async with grpc.aio.insecure_channel(self._service.grpc_address) as channel:
            check = check_method(channel)
            while not self._over.is_set():
                try:
                    await check(messages.CheckRequest(identifier="alice", dimension=messages.USER), timeout=LATEST)
                except grpc.aio.AioRpcError as error:
                    if "Connection refused" not in str(error.details()):
                        self.failed.append(f"{error.code()}: {error.details()}")
                    return
                self.answered += 1

    async def stopped_under(self, callers: int, number: int) -> int:
        """The exit code of a service that is stopped while everybody calls."""
        tasks = [asyncio.create_task(one()) for _ in range(callers) for one in (self.http, self.grpc)]
        deadline = time.monotonic() + LATEST
        while self.answered < 20 * callers and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        code = await asyncio.to_thread(self._service.stop, number)
        self._over.set()
        await asyncio.gather(*tasks)
        return code


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_a_stop_under_load_fails_no_call(tmp_path: Path, workers: int) -> None:
    with warm_service(tmp_path, drain_delay="1s", workers=workers) as service:
        load = Load(service)
        assert asyncio.run(load.stopped_under(8, signal.SIGTERM)) == 0
        assert load.failed == []
        assert load.answered >= 160


def begun(service: Service) -> socket.socket:
    """A connection with a request that has begun and waits for its body."""
    host, port = service.url.removeprefix("http://").split(":")
    client = socket.create_connection((host, int(port)), timeout=LATEST)
    client.sendall(
        b"POST /v1/check HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{"
    )
    return client


def test_what_has_begun_is_answered_and_nobody_else(tmp_path: Path) -> None:
    with warm_service(tmp_path, drain_delay="1s") as service, begun(service) as client:
        service.process.send_signal(signal.SIGTERM)
        until(lambda: httpx.get(f"{service.url}/readyz").status_code == 503)
        assert health(service.grpc_address) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert httpx.post(f"{service.url}/v1/check", json=ALICE).headers["connection"] == "close"

        def takes_no_more() -> bool:
            try:
                httpx.get(f"{service.url}/healthz")
            except httpx.TransportError:
                return True
            return False

        until(takes_no_more)
        assert service.process.poll() is None
        client.sendall(b'"user":"alice"}')
        answer = client.recv(65_536)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"connection: close\r\n" in answer
        assert service.process.wait(LATEST) == 0


def test_what_takes_too_long_is_cut_off(tmp_path: Path) -> None:
    with warm_service(tmp_path, drain_timeout="200ms") as service, begun(service) as client:
        assert service.stop() == 0
        assert client.recv(1) == b""
        assert "1 connections were cut off" in service.log


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_a_second_signal_stops_it_at_once(tmp_path: Path, workers: int) -> None:
    with warm_service(tmp_path, drain_delay="5m", workers=workers) as service, begun(service):
        service.process.send_signal(signal.SIGINT)
        until(lambda: service.log.count("stopping") == workers)
        assert service.stop(signal.SIGINT) == 1


# Several workers


def worker_pids(service: Service) -> set[int]:
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
    return {int(child) for child in children if b"spawn_main" in _command_line(child)}


def _command_line(pid: str) -> bytes:
    """What a process was started with; nothing of one that ends while it is looked at."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_workers_share_the_ports_and_their_metrics(tmp_path: Path) -> None:
    with warm_service(tmp_path, workers=2, store="memory://") as service:
        assert "2 workers with counters in memory: each counts separately" in service.log
        for _ in range(20):  # on connections of their own, which the kernel spreads
            assert httpx.post(f"{service.url}/v1/check", json=ALICE).status_code == 200
        page = httpx.get(f"{service.url}/metrics").text
        assert re.search(r'headgate_build_info\{.*worker="0"', page)
        assert re.search(r'headgate_build_info\{.*worker="1"', page)
        counted = re.findall(r"^headgate_checks_total\{.*rule=\"user-free\".* (\d+)", page, re.M)
        assert sum(map(int, counted)) == 20
        assert health(service.grpc_address) == health_pb2.HealthCheckResponse.SERVING
        assert service.stop() == 0


def test_workers_share_their_counters(tmp_path: Path) -> None:
    """In the store that they have by default, but with a deadline that a busy machine keeps."""
    counters = tmp_path / "data" / "counters"
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nid = "ten"\ndimension = "user"\nlimit = 10\nwindow = "1d"\nfailure_mode = "closed"\n')
    with warm_service(tmp_path, workers=2, rules=rules, store=f"embedded://{counters}?timeout=10") as service:
        codes = [httpx.post(f"{service.url}/v1/check", json=ALICE).status_code for _ in range(40)]
        assert codes == [200] * 10 + [429] * 30
        page = httpx.get(f"{service.url}/metrics").text
        counted = dict.fromkeys("01", 0)
        for worker, number in re.findall(r'^headgate_checks_total\{.*worker="(\d)".* (\d+)', page, re.M):
            counted[worker] += int(number)
        assert sum(counted.values()) == 40
        assert all(counted.values()), "only one of them was asked"
        assert "each counts separately" not in service.log
        processes = [server_pid(counters), keeper_pid(counters)]
        assert tcp_sockets(processes[0]) == set()
        victim = min(worker_pids(service))
        subprocess.run(["kill", "-9", str(victim)], check=True)
        until(lambda: victim not in worker_pids(service) and len(worker_pids(service)) == 2)
        assert re.search("worker [01] ended", service.log)
        assert httpx.post(f"{service.url}/v1/check", json=ALICE).status_code == 429  # the count outlives a worker
        assert service.stop() == 0
    until(lambda: not any(map(lives, processes)))


def test_one_process_may_have_an_embedded_store_too_and_mends_it(tmp_path: Path) -> None:
    counters = tmp_path / "c"
    with warm_service(tmp_path, store=f"embedded://{counters}?timeout=10") as service:
        assert httpx.post(f"{service.url}/v1/check", json=ALICE).json()["reason"] == "within_limit"
        server = server_pid(counters)
        os.kill(keeper_pid(counters), signal.SIGKILL)
        until(lambda: not lives(server))
        until(lambda: httpx.post(f"{service.url}/v1/check", json=ALICE).json()["reason"] == "within_limit")
        processes = [server_pid(counters), keeper_pid(counters)]
        assert service.stop() == 0
    until(lambda: not any(map(lives, processes)))


def test_a_service_that_is_killed_leaves_no_worker_and_no_server(tmp_path: Path) -> None:
    with warm_service(tmp_path, workers=2) as service:
        counters = service.data_dir / "counters"
        workers = worker_pids(service)
        assert len(workers) == 2
        processes = [*workers, server_pid(counters), keeper_pid(counters)]
        service.kill()
    until(lambda: not any(map(lives, processes)))


def test_workers_that_cannot_share_counters_do_not_start(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "counters").touch()
    addresses = {"http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"}
    code, said = refused(cwd=tmp_path, workers=2, data_dir=tmp_path / "data", log_level="error", **addresses)
    assert code == 2
    assert "HEADGATE_WORKERS (--workers): 2 workers cannot share their counters" in said
    assert "memory://" in said


def test_what_keeps_workers_from_beginning_is_said_once(tmp_path: Path) -> None:
    settings = {"database_url": Postgres().url, "http_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"}
    code, said = refused(cwd=tmp_path, workers=2, log_level="error", **settings)
    assert code == 2
    assert said.count("has no rules of an earlier run") == 1
