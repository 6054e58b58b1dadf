"""scripts/generate-sync: sync modules are what their async sources make."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "scripts/generate-sync"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def twin(script: dict[str, Any], source: str) -> str:
    text: str = script["twin"](dedent(source))
    return text


def test_every_sync_module_is_what_its_async_source_makes() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_twin_that_was_edited_fails_the_check(tmp_path: Path) -> None:
    package = tmp_path / "src/headgate"
    package.mkdir(parents=True)
    (tmp_path / "scripts").mkdir()
    copy = tmp_path / "scripts/generate-sync"
    copy.write_text(SCRIPT.read_text())
    (package / "async_thing.py").write_text("async def run_async() -> int:\n    return 1\n")
    subprocess.run([sys.executable, copy], check=True)
    written = (package / "thing.py").read_text()
    assert written.startswith("# Generated from async_thing.py by scripts/generate-sync")
    assert written.endswith("def run() -> int:\n    return 1\n")
    (package / "thing.py").write_text(written.replace("return 1", "return 2"))
    done = subprocess.run([sys.executable, copy, "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(":")[0]) == (1, "src/headgate/thing.py")


def test_async_and_await_go_and_names_follow(script: dict[str, Any]) -> None:
    made = twin(
        script,
        """
        class AsyncThing:
            async def __aenter__(self) -> AsyncThing:
                return await open_async_store(async_program, await run_async())
        """,
    )
    assert made == dedent(
        """
        class Thing:
            def __enter__(self) -> Thing:
                return open_store(program, run())
        """
    )


@pytest.mark.parametrize(
    ("kind", "becomes"),
    [
        ("Awaitable[list[int]]", "list[int]"),
        ("int | Awaitable[int]", "int"),
        ("Coroutine[Any, Any, dict[str, int]]", "dict[str, int]"),
        ("Callable[[Callable[P, Awaitable[R]]], Awaitable[R]]", "Callable[[Callable[P, R]], R]"),
    ],
)
def test_types_of_what_is_awaited_become_the_types_themselves(script: dict[str, Any], kind: str, becomes: str) -> None:
    assert twin(script, f"value: {kind}\n") == f"value: {becomes}\n"


def test_comments_choose_between_async_and_sync(script: dict[str, Any]) -> None:
    made = twin(
        script,
        """
        def first(
            known: int,  # async only
        ) -> None:
            if known:  # async only
                return
            # sync: call()
            # sync: if done:
            # sync:     stop()
            await other()  # sync: third()

        @decorated
        async def second(
            self,
        ) -> None:  # async only
            # sync: never()
            first()
        """,
    )
    assert made == dedent(
        """
        def first(
        ) -> None:
            call()
            if done:
                stop()
            third()

        """
    )


def test_paragraphs_about_asyncio_are_left_out(script: dict[str, Any]) -> None:
    made = twin(
        script,
        '''
        def check() -> None:
            """Check.

            With asyncio, a caller
            may be cancelled.

            The end.

            With asyncio, it is awaited.
            """
        ''',
    )
    assert made == dedent(
        '''
        def check() -> None:
            """Check.

            The end.
            """
        '''
    )
