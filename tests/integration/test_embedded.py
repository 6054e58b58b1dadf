"""`embedded://`: processes share a server that they start, that outlives any of them, and that leaves with the last."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import redis

from headgate import AsyncLimiter, Limiter
from headgate.errors import StoreUnavailable
from headgate.stores.embedded.options import find_server
from headgate.stores.embedded.server_handle import ServerHandle
from tests.conftest import TIMEOUT
from tests.embedded import keeper_pid, lives, server_pid, tcp_sockets
from tests.integration.workers import Workers
from tests.waiting import until
from tests.warm import Piped

ROOT = Path(__file__).parents[2]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """One of which nothing runs any more at the end."""
    yield tmp_path / "c"
    with closing(ServerHandle(f"embedded://{tmp_path}/c")):
        left = [server_pid(tmp_path / "c"), keeper_pid(tmp_path / "c")]
    until(lambda: not any(map(lives, left)))


@pytest.fixture
def url(directory: Path) -> str:
    return f"embedded://{directory}?{TIMEOUT}"


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path."""
    with TemporaryDirectory(prefix="hg-", dir="/tmp") as path:
        yield Path(path)


class Holder:
    """Another process that holds a limiter of 3/hour."""

    def __init__(self, url: str) -> None:
        self._process = Piped("tests.integration.holder", url)

    def hear(self) -> str:
        return self._process.stdout.readline().strip()

    def check(self, subject: str) -> str:
        self._process.stdin.write(f"{subject}\n")
        return self.hear()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Holder:
        assert self.hear() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()


def decides_again(limiter: Limiter, subject: str) -> None:
    until(lambda: limiter.check(subject).reason == "within_limit")


def client(url: str) -> redis.Redis:
    """An ordinary client on the server of a hold's URL."""
    return redis.Redis(unix_socket_path=url.removeprefix("unix://").partition("?")[0])


def test_two_processes_admit_exactly_the_limit(url: str) -> None:
    rule = {"id": "one", "dimension": "user", "limit": 500, "window": 86_400, "algorithm": "gcra"}
    job: dict[str, Any] = {"url": url, "rules": [rule], "facts": {"user": "alice"}, "tasks": 16, "checks_per_task": 25}
    workers = Workers("tests.integration.hammer", 2)
    try:
        counted = sum(map(Counter, workers.run([job] * 2)), Counter[str]())
    finally:
        workers.close()
    assert counted == {"within_limit": 500, "over_limit": 300}


def test_threads_and_tasks_and_processes_share_one_count(url: str) -> None:
    async def checked() -> list[str]:
        async with AsyncLimiter("3/hour", store=url) as limiter:
            return [(await limiter.check("alice")).reason for _ in range(2)]

    with Limiter("3/hour", store=url) as limiter, Holder(url) as other:
        assert limiter.check("alice").reason == "within_limit"
        assert other.check("alice") == "within_limit"
        assert asyncio.run(checked()) == ["within_limit", "over_limit"]
        assert other.check("alice") == "over_limit"


def test_the_server_ends_with_its_last_user_and_not_before(directory: Path, url: str) -> None:
    first, second = Limiter("3/hour", store=url), Limiter("3/hour", store=url)
    server, keeper = server_pid(directory), keeper_pid(directory)
    with second:
        first.check("alice")
        first.close()
        assert second.check("alice").remaining == 1
        assert server_pid(directory) == server
    until(lambda: not lives(server) and not lives(keeper))
    assert sorted(path.name for path in directory.iterdir()) == ["keeper.lock", "server.log"]
    with Limiter("3/hour", store=url) as anew:
        assert anew.check("alice").remaining == 2


def test_a_limiter_that_was_only_dropped_lets_go_too(directory: Path, url: str) -> None:
    limiter = Limiter("3/hour", store=url)
    server = server_pid(directory)
    del limiter
    gc.collect()  # its store refers to itself
    until(lambda: not lives(server))


def test_the_server_outlives_the_process_that_started_it(directory: Path, url: str) -> None:
    with Holder(url) as starter:
        starter.check("alice")
        server = server_pid(directory)
        with Limiter("3/hour", store=url) as limiter:
            starter.kill()
            assert limiter.check("alice").remaining == 1
            assert server_pid(directory) == server


def test_kill_9_of_all_users_leaves_no_process(directory: Path, url: str) -> None:
    with Holder(url) as one, Holder(url) as other:
        left = [server_pid(directory), keeper_pid(directory)]
        one.kill()
        other.kill()
    until(lambda: not any(map(lives, left)))


def test_kill_9_of_everybody_leaves_no_process(directory: Path, url: str) -> None:
    with Holder(url) as user:
        server, keeper = server_pid(directory), keeper_pid(directory)
        os.kill(keeper, signal.SIGSTOP)  # so that it cannot clean up
        user.kill()
        os.kill(keeper, signal.SIGKILL)
    until(lambda: not lives(server))
    assert (directory / "server.sock").exists()
    with Limiter("3/hour", store=url) as limiter:
        assert limiter.check("alice").reason == "within_limit"


def test_a_server_that_is_killed_is_started_again(directory: Path, url: str) -> None:
    with Limiter("3/hour", store=url, failure_mode="closed") as limiter:
        server, keeper = server_pid(directory), keeper_pid(directory)
        os.kill(keeper, signal.SIGSTOP)  # so that there is none for a moment
        os.kill(server, signal.SIGKILL)
        until(lambda: limiter.check("alice").reason == "fail_closed")
        os.kill(keeper, signal.SIGCONT)
        decides_again(limiter, "alice")
        assert keeper_pid(directory) == keeper
        assert "ended with -9" in (directory / "server.log").read_text()


def test_a_keeper_that_is_killed_is_replaced_by_any_user(
    directory: Path, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Holder(url) as starter, Limiter("3/hour", store=url) as limiter:
        assert starter.check("alice") == "within_limit"
        keeper, server = keeper_pid(directory), server_pid(directory)
        os.kill(keeper, signal.SIGKILL)
        until(lambda: not lives(keeper) and not lives(server))
        decides_again(limiter, "alice")
        assert keeper_pid(directory) != keeper
        until(lambda: starter.check("bob") == "within_limit")
        assert "restarted it, and counts start from zero" in caplog.text


def test_an_async_limiter_replaces_its_keeper_too(directory: Path, url: str) -> None:
    async def killed() -> None:
        async with AsyncLimiter("3/hour", store=url, failure_mode="closed") as limiter:
            assert await limiter.check("alice")
            os.kill(keeper_pid(directory), signal.SIGKILL)
            async with asyncio.timeout(20):
                while True:
                    if (await limiter.check("bob")).reason == "within_limit":
                        return
                    await asyncio.sleep(0.01)

    asyncio.run(killed())


def test_a_directory_that_was_deleted_is_made_again(directory: Path, url: str) -> None:
    with Limiter("3/hour", store=url) as limiter:
        server, keeper = server_pid(directory), keeper_pid(directory)
        shutil.rmtree(directory)
        os.kill(server, signal.SIGKILL)
        until(lambda: limiter.check("alice").reason == "fail_open")
        decides_again(limiter, "alice")
        until(lambda: not lives(keeper))


def test_what_a_crash_has_left_is_replaced(directory: Path, url: str) -> None:
    directory.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(directory / "server.sock"))
    (directory / "server.pid").write_text("1\n")
    with Limiter("3/hour", store=url) as limiter:
        assert limiter.check("alice").reason == "within_limit"


def test_a_server_without_a_keeper_is_replaced(directory: Path, url: str) -> None:
    directory.mkdir(mode=0o700)
    leftover = subprocess.Popen(
        [find_server(None), "--port", "0", "--unixsocket", "server.sock", "--save", "", "--logfile", "leftover.log"],
        cwd=directory,
    )
    until((directory / "server.sock").exists)
    with Limiter("3/hour", store=url) as limiter:
        assert leftover.wait(20) == 0
        assert limiter.check("alice").reason == "within_limit"


def test_nobody_else_can_reach_it(directory: Path, url: str) -> None:
    with Limiter("3/hour", store=url):
        assert tcp_sockets(server_pid(directory)) == set()
        modes = {path.name: path.lstat().st_mode & 0o777 for path in (directory, *directory.iterdir())}
    assert modes == {
        directory.name: 0o700,
        "server.sock": 0o700,
        "server.pid": 0o600,
        "server.log": 0o600,
        "keeper.lock": 0o600,
    }


def test_it_forgets_nothing_for_want_of_memory_and_writes_nothing_to_disk(directory: Path) -> None:
    with closing(ServerHandle(f"embedded://{directory}?maxmemory=8mb")) as handle, client(handle.url) as server:
        wanted = {"maxmemory": "8388608", "maxmemory-policy": "noeviction", "save": "", "appendonly": "no", "port": "0"}
        assert {name: server.config_get(name)[name] for name in wanted} == wanted


@pytest.mark.parametrize("kind", ["redis-server", "valkey-server"])
def test_the_server_can_be_named(directory: Path, kind: str) -> None:
    found = shutil.which(kind) or find_server(None)
    with Limiter("3/hour", store=f"embedded://{directory}?server={found}&{TIMEOUT}") as limiter:
        assert limiter.check("alice").reason == "within_limit"
        assert Path(f"/proc/{server_pid(directory)}/exe").resolve() == Path(found).resolve()


def test_a_directory_with_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(short))
    monkeypatch.setenv("TMPDIR", str(short))  # of the other process
    directory = tmp_path / ("long" * 30) / "Verzeichnis für Zähler?"
    url = f"embedded://{str(directory).replace(' ', '%20').replace('?', '%3F')}?{TIMEOUT}"
    with Limiter("3/hour", store=url) as limiter, Holder(url) as other:
        server = server_pid(directory)
        (link,) = (short / f"headgate-{os.geteuid()}").iterdir()
        assert link.readlink() == directory
        assert limiter.check("alice").reason == "within_limit"
        assert [other.check("alice") for _ in range(3)] == ["within_limit", "within_limit", "over_limit"]
    until(lambda: not lives(server))


def test_forked_children_share_what_their_parent_opened(directory: Path, url: str) -> None:
    """As gunicorn's workers do with --preload; the parent may let go before them."""
    program = f"""
import os, sys
from headgate import Limiter
limiter = Limiter("3/hour", store={url!r})
limiter.check("alice")
if os.fork():
    limiter.close()
    os.wait()
else:
    sys.stdin.readline()
    print(limiter.check("alice").remaining, flush=True)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        server = server_pid(directory)
        assert process.communicate("go\n")[0] == "1\n"
    until(lambda: not lives(server))


def test_names_are_directories_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    with TemporaryDirectory(prefix="hg-") as short:  # the path of a socket in a test's own directory may be too long
        monkeypatch.setattr("tempfile.tempdir", short)
        own = Path(short, f"headgate-{os.geteuid()}")
        with Limiter("3/hour", store="embedded://"), Limiter("3/hour", store=f"embedded://app?{TIMEOUT}"):
            servers = [server_pid(own / "default"), server_pid(own / "app")]
            assert own.stat().st_mode & 0o777 == 0o700
        until(lambda: not any(map(lives, servers)))


# What cannot be


def test_a_directory_with_a_path_too_long_everywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("long" * 30)))
    assert "use a directory with a shorter path" in refusal(f"embedded://{tmp_path}/{'long' * 30}")


def refusal(url: str) -> str:
    with pytest.raises(StoreUnavailable) as caught:
        Limiter("3/hour", store=url)
    return str(caught.value)


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert f"cannot use {tmp_path}/file/counters: " in refusal(f"embedded://{tmp_path}/file/counters")
    assert "cannot use /proc/counters: " in refusal("embedded:///proc/counters")


def test_a_directory_that_others_could_tamper_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o777)
    assert "every user may write to it" in refusal(f"embedded://{tmp_path}/shared")
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    assert "it belongs to another user" in refusal(f"embedded://{tmp_path}")


def test_a_server_that_cannot_be_run(tmp_path: Path) -> None:
    assert "server: '/no/such/server' is not a program" in refusal(f"embedded://{tmp_path}/c?server=/no/such/server")


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    url = f"embedded://{tmp_path}/c?server={_script(tmp_path / 'broken', 'echo it is broken; exit 3')}"
    said = refusal(url)
    assert "cannot be started" in said
    assert "it is broken" in said


def test_without_any_server_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.stores.embedded.options.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "pip install 'headgate[embedded]'" in refusal(f"embedded://{tmp_path}/c")


def test_the_machines_own_server_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.stores.embedded.options.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    own = _script(tmp_path / "redis-server", "exit 1")
    assert find_server(None) == own
    better = _script(tmp_path / "valkey-server", "exit 1")
    assert find_server(None) == better


def _script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path
