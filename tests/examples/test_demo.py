"""`make serve`: the demo, as somebody at the terminal uses it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
        check=True,
    )


def test_the_three_commands_that_it_suggests() -> None:
    answers = run("check alice 5\ncheck alice\nwait alice 10\nquit\n").stdout.split("> ")[1:]
    assert answers[0].startswith("allowed    0 of 5 left")
    assert answers[1].startswith("refused    0 of 5 left, retry after")
    assert answers[2].startswith("allowed")
    assert answers[3] == "Bye.\n"


def test_mistakes_are_answered_and_lose_nothing() -> None:
    done = run("check alice\ncheck alice x\nbogus\nwait\nquota 5/fortnight\npeek alice\ncheck alice 9\n")
    assert "not done" in done.stdout
    assert "no command 'bogus'" in done.stdout
    assert "cannot read 'fortnight'" in done.stdout
    assert "4 of 5 left" in done.stdout
    assert "never fits" in done.stdout
    assert done.stderr == ""


def test_ctrl_c_ends_it_cleanly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as demo:
        assert demo.stdout is not None
        while "quit" not in demo.stdout.readline():
            pass
        demo.send_signal(signal.SIGINT)
        assert demo.wait(10) == 0
        assert "Bye." in demo.stdout.read()
