"""Python programs that start quickly: forked from a process that has imported what they need, and has no threads.

Everything else is as if they had been started from a shell: a process, environment, directory and output of their own.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, Final, Protocol

ROOT: Final = Path(__file__).parent.parent
CONTEXT: Final = get_context("forkserver")
CONTEXT.set_forkserver_preload(  # here alone: the last who sets it would be the only one
    [
        "alembic.command",
        "fastapi",
        "flask",
        "gunicorn.app.wsgiapp",
        "headgate.audit.auditor",
        "headgate.cli.app",
        "headgate.http.asgi",
        "headgate.http.wsgi",
        "headgate.rules.sources.database",
        "headgate.service.server",
        "headgate.service.supervisor",
        "headgate.stores.redis",
        "httpx",
        "litestar",
        "quart",
        "tests.integration.nodes",
        "tests.warm",
        "typer.rich_utils",
        "uvicorn.protocols.http.httptools_impl",
        "tests.frozen",  # last
    ]
)


class Process(Protocol):
    """What `subprocess.Popen` and `Warm` have in common."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Warm:
    """A process that does what `python -m module *arguments` does. What it says goes to the files."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        out: int,
        err: int,
        stdin: int | None = None,
    ) -> None:
        self._name = f"{module} {' '.join(arguments)}"
        files = [None if file is None else DupFd(file) for file in (stdin, out, err)]
        self._process = CONTEXT.Process(
            target=_run, args=(module, list(arguments), str(cwd), dict(env), files), name=self._name
        )
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(self._name, timeout or 0)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Piped(Warm):
    """A warm process to exchange lines with, through its standard input and output. Runs in the project's root."""

    def __init__(self, module: str, *arguments: str) -> None:
        theirs, ours = os.pipe()
        answers, output = os.pipe()
        super().__init__(module, arguments, cwd=ROOT, env=os.environ, out=output, err=2, stdin=theirs)
        os.close(theirs)
        os.close(output)
        self.stdin = os.fdopen(ours, "w", buffering=1)
        self.stdout = os.fdopen(answers)

    def close(self) -> str:
        """End its input, wait for its end, and return what it said since the last line that was read."""
        with suppress(BrokenPipeError):
            self.stdin.close()
        with self.stdout:
            last = self.stdout.read()
        self.wait()
        return last


def run(
    module: str, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """What came of it, as `subprocess.run` tells."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Warm(module, arguments, cwd=cwd, env=env, out=out.fileno(), err=err.fileno())
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(arguments, code, *texts)


def _run(module: str, arguments: list[str], cwd: str, environ: dict[str, str], files: list[Any]) -> None:
    """The same in this process, which is new."""
    for number, file in enumerate(files):
        if file is not None:
            os.dup2(file.detach(), number)
    if files[0] is not None:
        sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has closed the one that was there
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = [module, *arguments]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where whoever runs the tests ignores it
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out


@contextmanager
def workers(module: str, jobs: Iterable[Mapping[str, Any]], directory: Path) -> Iterator[list[Warm]]:
    """A process for each job, which it gets as JSON. What each writes is in a new file of this directory."""
    processes = []
    for job in jobs:
        with directory.joinpath(str(len(list(directory.iterdir())))).open("wb") as written:
            processes.append(Warm(module, [json.dumps(job)], cwd=ROOT, env=os.environ, out=written.fileno(), err=2))
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
