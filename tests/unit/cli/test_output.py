"""Text of figures, times and tables; nothing that somebody sent reaches the terminal as a command to it."""

from __future__ import annotations

import pytest
import typer

from headgate.cli.output import CommandFault, cell, duration, plain_table, printable, report_faults
from headgate.errors import InvalidSettings


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0004, "0 s"),
        (0.25, "0.25 s"),
        (9.999, "10 s"),
        (17.4, "17 s"),
        (59.9, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3601, "1 h"),
        (7_530, "2 h 5 min"),
        (90_000, "1 d 1 h"),
        (86_400 * 2000, "2,000 d"),
        (None, "never"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, ""), (True, "yes"), (False, "no"), (12_345, "12,345"), (0.25, "0.2"), ("a", "a")]
)
def test_cells(value: str | float | None, text: str) -> None:
    assert cell(value) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("alice", "alice"),
        ("Zoë 東京", "Zoë 東京"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("two\nlines", "two\\nlines"),
        ("\u202etxt.exe", "\\u202etxt.exe"),
        ("\x9b31m", "\\x9b31m"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_plain_tables_are_aligned_whatever_the_width_of_characters() -> None:
    rows = [("東京", 5, None), ("a\tb", 12_000, "x")]
    assert list(plain_table(("who", "hits", "note"), rows)) == [
        "WHO     HITS  NOTE",
        "東京       5  -",
        "a\\tb  12,000  x",
    ]


def test_faults_are_lines_on_stderr_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, report_faults():
        raise CommandFault("the \x1b[31mfirst", "and the second", code=1)
    assert ended.value.exit_code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "headgate: the \\x1b[31mfirst\nheadgate: and the second\n"


def test_what_headgate_raises_is_a_fault_too(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, report_faults():
        raise InvalidSettings("HEADGATE_ADMIN_TOKEN_FILE: x: cannot be read")
    assert ended.value.exit_code == 2
    assert capsys.readouterr().err == "headgate: HEADGATE_ADMIN_TOKEN_FILE: x: cannot be read\n"


def test_what_nobody_expected_stays_what_it_is() -> None:
    with pytest.raises(ZeroDivisionError), report_faults():
        _ = 1 // 0
