"""Rules that change while they are in use: by reload, by a watched file, by SIGHUP in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from headgate import AsyncLimiter, Decision, InvalidRule, Limiter
from headgate.rules.sources.file import FileSource

LIMIT = 1_000_000_000  # more than any number of checks that the tests make
PATIENCE = 20.0  # seconds that a busy machine may take to notice a change
BROKEN = ['[[rules]]\nid = "a"\nlimit = 0\nwindow = 1\n', "[[rules]\n", "", "[[rules]]\n"]


def rules(generation: int) -> str:
    """Rules whose parts only make sense together: tiers, limits and the default tier are all of one generation."""
    one = f'tiers = ["tier-{generation}"]\nlimit = {LIMIT + generation}\nwindow = "1h"\n'
    return (
        f'[headgate]\ndefault_tier = "tier-{generation}"\n'
        f'[[rules]]\nid = "user"\n{one}'
        f'[[rules]]\nid = "address"\ndimension = "ip"\nendpoints = ["/api/*"]\n{one}'
        f'[[tiers]]\nname = "tier-{generation}"\n'
    )


def is_whole(decision: Decision) -> bool:
    limits = {status.limit for status in decision.limits}
    return decision.allowed and len(decision.limits) == 2 and len(limits) == 1


def replace_with(path: Path, text: str) -> None:
    """As careful writers do it: a new file in the old one's place."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(rules(0))
    return path


@pytest.fixture
def reloads(thorough: bool) -> int:
    return 50 if thorough else 15


def test_reloads_while_4_threads_check(path: Path, reloads: int) -> None:
    stop = threading.Event()
    done: list[int] = []
    wrong: list[object] = []

    with Limiter(path) as limiter:

        def check(number: int) -> None:
            checks = 0
            try:
                while not stop.is_set():
                    decision = limiter.check(user=f"u{number}", ip="192.0.2.1", endpoint="/api/x")
                    checks += 1
                    if not is_whole(decision):
                        wrong.append(decision)
            except Exception as error:  # noqa: BLE001 - any is a failure of the test
                wrong.append(error)
            done.append(checks)

        threads = [threading.Thread(target=check, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for generation in range(1, reloads + 1):
            replace_with(path, BROKEN[generation % len(BROKEN)])
            with pytest.raises(InvalidRule):
                limiter.reload()
            assert limiter.snapshot.default_tier == f"tier-{generation - 1}"
            replace_with(path, rules(generation))
            assert limiter.reload().version.startswith(f"{generation + 1}-")
        stop.set()
        for thread in threads:
            thread.join()
        assert limiter.check(user="u", ip="192.0.2.1", endpoint="/api/x").limit == LIMIT + reloads
    assert not wrong
    assert len(done) == 4
    assert min(done) > 0


async def reload_under_tasks(path: Path, reloads: int) -> tuple[list[Decision], list[int]]:
    stop = False
    wrong: list[Decision] = []
    checks = [0] * 4

    async with AsyncLimiter(path) as limiter:

        async def check(number: int) -> None:
            while not stop:
                decision = await limiter.check(user=f"u{number}", ip="192.0.2.1", endpoint="/api/x")
                checks[number] += 1
                if not is_whole(decision):
                    wrong.append(decision)
                await asyncio.sleep(0.001)  # or the thread that reloads would wait for the interpreter most of the time

        tasks = [asyncio.create_task(check(number)) for number in range(4)]
        for generation in range(1, reloads + 1):
            before = list(checks)
            await asyncio.to_thread(replace_with, path, rules(generation))
            await limiter.reload()
            while any(map(int.__eq__, before, checks)):  # noqa: ASYNC110 - until all have checked meanwhile
                await asyncio.sleep(0.001)
        stop = True
        await asyncio.gather(*tasks)
        return wrong, checks


def test_reloads_while_4_tasks_check(path: Path, reloads: int) -> None:
    wrong, checks = asyncio.run(reload_under_tasks(path, reloads))
    assert not wrong
    assert min(checks) >= reloads


def test_reloads_at_once_leave_the_latest_in_force(path: Path) -> None:
    source = FileSource(path)
    replace_with(path, rules(1))
    threads = [threading.Thread(target=source.reload) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert source.holder.current.version.startswith("2-")


def test_on_redis_a_reload_keeps_the_counts_and_a_refusal_its_message(path: Path, redis_url: str) -> None:
    def write(limit: int, message: str) -> None:
        replace_with(
            path,
            f'[[rules]]\nid = "a"\ndimension = "user+endpoint"\nendpoints = ["/users/{{id}}"]\nlimit = {limit}\n'
            f'window = "1h"\nstatus = 420\nmessage = "{message}"\n'
            f'[[users]]\nid = "vip"\noverrides = [{{ rule = "a", limit = 4 }}]\n',
        )

    write(2, "Two.")
    with Limiter(path, store=redis_url) as limiter:
        paths = ["/users/1", "/users/2/", "/users/%33"]
        decisions = [limiter.check(user="u", endpoint=endpoint) for endpoint in paths]
        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert (decisions[2].status, decisions[2].message) == (420, "Two.")
        assert [limiter.check(user="vip", endpoint="/users/1").allowed for _ in range(5)] == [True] * 4 + [False]
        write(3, "Three.")
        limiter.reload()
        again = [limiter.check(user="u", endpoint="/users/9") for _ in range(2)]
        assert [decision.allowed for decision in again] == [True, False]
        assert (again[1].limit, again[1].message) == (3, "Three.")
        assert decisions[2].message == "Two."


def test_a_watched_file_is_reloaded_however_it_is_written(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "headgate")
    with Limiter(path, watch=True) as limiter:
        replace_with(path, rules(1))
        wait_for(lambda: limiter.snapshot.default_tier == "tier-1")

        path.write_text(rules(2))
        wait_for(lambda: limiter.snapshot.default_tier == "tier-2")

        with path.open("w") as half:
            half.write(rules(3)[:-20])
            half.flush()
            half.write(rules(3)[-20:])
        wait_for(lambda: limiter.snapshot.default_tier == "tier-3")

        path.write_text(BROKEN[0])
        wait_for(lambda: "limit: must be a whole number" in caplog.text)
        assert limiter.snapshot.default_tier == "tier-3"
        assert is_whole(limiter.check(user="u", ip="192.0.2.1", endpoint="/api/x"))

        path.unlink()
        wait_for(lambda: "cannot be read" in caplog.text)
        assert limiter.snapshot.default_tier == "tier-3"

        path.write_text(rules(4))
        wait_for(lambda: limiter.snapshot.default_tier == "tier-4")
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert all("stays in force" in record.getMessage() for record in errors)


def test_a_link_that_is_swapped_counts_as_a_change(tmp_path: Path) -> None:
    """As Kubernetes mounts a ConfigMap: rules.toml -> ..data/rules.toml, ..data -> a directory of its own."""
    for generation in (0, 1):
        directory = tmp_path / f"..{generation}"
        directory.mkdir()
        (directory / "rules.toml").write_text(rules(generation))
    data = tmp_path / "..data"
    data.symlink_to("..0")
    path = tmp_path / "rules.toml"
    path.symlink_to("..data/rules.toml")
    with Limiter(path, watch=True) as limiter:
        swapped = tmp_path / "..new"
        swapped.symlink_to("..1")
        swapped.replace(data)
        wait_for(lambda: limiter.snapshot.default_tier == "tier-1")


def test_closing_stops_the_watcher(path: Path) -> None:
    before = set(threading.enumerate())
    limiter = Limiter(path, watch=True)
    assert {thread.name for thread in set(threading.enumerate()) - before} == {"headgate-watcher"}
    limiter.close()
    assert set(threading.enumerate()) == before
    asyncio.run(open_and_close(path))
    assert not [thread for thread in threading.enumerate() if thread.name == "headgate-watcher"]


async def open_and_close(path: Path) -> None:
    async with AsyncLimiter(path, watch=True) as limiter:
        assert (await limiter.check(user="u")).allowed


SERVER = """
import logging, sys
from headgate import Limiter
from headgate.rules.sources.file import FileSource

logging.basicConfig(format="%(levelname)s %(message)s")
source = FileSource(sys.argv[1], sighup=True)
limiter = Limiter(source)
for line in sys.stdin:
    decision = limiter.check(user="u", ip="192.0.2.1", endpoint="/api/x")
    print(limiter.snapshot.default_tier, decision.limit, flush=True)
"""


def test_sighup_reloads_in_a_process_of_its_own(path: Path, tmp_path: Path) -> None:
    errors = tmp_path / "errors.log"
    with errors.open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask() -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        return process.stdout.readline().strip()

    try:
        assert ask() == f"tier-0 {LIMIT}"
        for generation in (1, 2):
            replace_with(path, rules(generation))
            os.kill(process.pid, signal.SIGHUP)
            wait_for(lambda: ask() == f"tier-{generation} {LIMIT + generation}")  # noqa: B023
            replace_with(path, BROKEN[0])
            os.kill(process.pid, signal.SIGHUP)
            # Asking all the while: Python handles a signal when its main thread next runs, and a signal that comes
            # just before that begins to read would wait for something to read.
            still = f"tier-{generation} {LIMIT + generation}"
            wait_for(lambda: ask() == still and errors.read_text().count("limit: must be") == generation)  # noqa: B023
        assert errors.read_text().startswith("ERROR rules:")
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
