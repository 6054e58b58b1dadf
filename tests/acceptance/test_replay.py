"""`headgate replay` as a process: its progress bar on a terminal, and what Ctrl-C leaves."""

from __future__ import annotations

import codecs
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

LINE = '192.0.2.{} - - [17/May/2015:{:02}:{:02}:{:02} +0000] "GET / HTTP/1.1" 200 12\n'
RULES = '[[rules]]\nid = "per-ip"\ndimension = "ip"\nlimit = 10\nwindow = "1h"\n'
SECONDS = 60.0


class Terminal:
    """What a process writes to a terminal of its own."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character
        self.text = ""

    def read_until(self, is_enough: Callable[[str], object]) -> None:
        """Read until it is enough, or the process has closed the terminal."""
        deadline = monotonic() + SECONDS
        while not is_enough(self.text):
            assert monotonic() < deadline, self.text[-2_000:]
            try:
                data = os.read(self._master, 65_536)
            except OSError:  # Linux says so when no process has the terminal open
                return
            if not data:
                return
            self.text += self._decoder.decode(data)


@contextmanager
def replaying(tmp_path: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Terminal]]:
    """Run `headgate replay`: standard input and output are pipes, and standard error is a terminal."""
    (tmp_path / "rules.toml").write_text(RULES)
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "replay", *arguments, "--rules", "rules.toml"],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=slave,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - jobs in the background ignore it
    )
    os.close(slave)
    try:
        yield process, Terminal(master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def lines(count: int) -> str:
    """A log of five clients, one request a second."""
    return "".join(LINE.format(at % 5, at // 3_600, at // 60 % 60, at % 60) for at in range(count))


def most_shown(text: str) -> int:
    """Return the largest count of requests on the bar so far: it is drawn at intervals, and skips numbers."""
    return max((int(count.replace(",", "")) for count in re.findall(r"([\d,]+) requests", text)), default=0)


def test_ctrl_c_reports_what_was_replayed_until_then(tmp_path: Path) -> None:
    with replaying(tmp_path, "-", "--sort-window", "1", "--html", "report.html") as (process, terminal):
        assert process.stdin is not None
        process.stdin.write(lines(40_000))
        process.stdin.flush()
        terminal.read_until(lambda text: most_shown(text) >= 10_000)  # and now it waits for more lines
        process.send_signal(signal.SIGINT)
        terminal.read_until(lambda _: False)  # first: a terminal that is not read would hold up the process
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "stopped before the end of the log: this report covers what was replayed so far" in output
    replayed = int(re.findall(r"([\d,]+) requests replayed", output)[0].replace(",", ""))
    allowed, refused = (
        int(re.findall(rf"^ *{name} +([\d,]+)", output, re.MULTILINE)[0].replace(",", ""))
        for name in ("allowed", "refused")
    )
    assert 10_000 <= replayed <= 40_000
    assert allowed + refused == replayed
    assert refused > allowed > 0
    assert "per-ip" in output
    assert "Traceback" not in output + terminal.text
    assert "stopped before the end" in (tmp_path / "report.html").read_text().lower()


def test_ctrl_c_while_limits_are_tried_keeps_the_report(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(lines(30_000))
    with replaying(tmp_path, "access.log", "--suggest", "per-ip") as (process, terminal):
        terminal.read_until(lambda text: most_shown(text.partition("trying limits")[2]) >= 5_000)
        process.send_signal(signal.SIGINT)
        terminal.read_until(lambda _: False)  # first: a terminal that is not read would hold up the process
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert "30,000 requests replayed" in output
    assert "stopped before the end of the log" not in output
    assert "stopped before a limit was found" in terminal.text
    assert "Traceback" not in output + terminal.text


def test_a_bar_shows_progress_rate_and_time_left_on_a_terminal(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(lines(60_000))
    with replaying(tmp_path, "access.log") as (process, terminal):
        terminal.read_until(lambda _: False)
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    shown = re.findall(
        r"replaying .*?([\d,]+) requests ([\d,]+)/s \d:\d\d:\d\d left (-|\d):(-|\d\d)", strip(terminal.text)
    )
    counts = [int(frame[0].replace(",", "")) for frame in shown]
    assert counts == sorted(counts)
    assert counts[-1] == 60_000
    assert any(frame[2] != "-" for frame in shown)
    assert terminal.text.rstrip().endswith("\x1b[2K")  # the bar is gone when the report comes
    assert "replaying" not in output


def test_no_bar_is_shown_beside_json(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(lines(100))
    with replaying(tmp_path, "access.log", "--json") as (process, terminal):
        terminal.read_until(lambda _: False)
        output, _ = process.communicate(timeout=SECONDS)
    assert json.loads(output)["requests"] == 100
    assert terminal.text == ""


def test_no_bar_is_shown_where_there_is_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "access.log").write_text(lines(100))
    (tmp_path / "rules.toml").write_text(RULES)
    command = [sys.executable, "-m", "headgate", "replay", "access.log", "--rules", "rules.toml"]
    assert subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stderr == ""


def strip(text: str) -> str:
    """Return what a terminal shows, without the commands to it."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
