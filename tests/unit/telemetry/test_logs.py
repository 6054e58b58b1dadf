"""The log: one way for all loggers, JSON or for people, without secrets."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
import structlog

from headgate.masking import MASK, Masking, masked
from headgate.telemetry.logs import LOGGERS, QUIET, configure_logging


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    names = {*LOGGERS, *QUIET}
    level, handlers = root.level, root.handlers[:]
    levels = {name: logging.getLogger(name).level for name in names}
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    for name, one in levels.items():
        logging.getLogger(name).setLevel(one)
    structlog.reset_defaults()


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_both_ways_of_logging_give_the_same_lines() -> None:
    stream = StringIO()
    configure_logging("json", stream=stream)
    logging.getLogger("headgate").warning("rules: %d of %s", 3, "file", extra={"rule": "search"})
    structlog.get_logger("headgate").warning("rules: %d of %s", 3, "file", rule="search")
    one, other = lines(stream)
    assert datetime.fromisoformat(one.pop("timestamp")).tzinfo == UTC
    assert datetime.fromisoformat(other.pop("timestamp")).tzinfo == UTC
    assert one == other == {"level": "warning", "event": "rules: 3 of file", "logger": "headgate", "rule": "search"}


@pytest.mark.parametrize("name", ["uvicorn.error", "uvicorn.access", "grpc._server", "sqlalchemy.pool", "alembic"])
def test_loggers_of_others_go_the_same_way(name: str) -> None:
    stream = StringIO()
    logging.getLogger(name.partition(".")[0]).addHandler(logging.StreamHandler(stream))  # as uvicorn would
    configure_logging("json", stream=stream)
    logging.getLogger(name).warning("careful", extra={"color_message": "\x1b[31mcareful"})
    (line,) = lines(stream)
    assert (line["logger"], line["event"], "color_message" in line) == (name, "careful", False)


@pytest.mark.parametrize("log", [logging.getLogger("headgate"), structlog.get_logger("headgate")], ids=str)
def test_an_exception_is_one_field(log: Any) -> None:
    stream = StringIO()
    configure_logging("json", stream=stream)
    try:
        int("postgresql://headgate:hunter2@db/rules")
    except ValueError:
        log.exception("failed")
    (line,) = lines(stream)
    assert (
        "ValueError: invalid literal for int() with base 10: 'postgresql://headgate:***@db/rules'" in line["exception"]
    )
    assert "hunter2" not in stream.getvalue()


def test_auto_is_for_people_on_a_terminal_and_json_elsewhere() -> None:
    terminal, pipe = Terminal(), StringIO()
    for stream in (terminal, pipe):
        configure_logging("auto", stream=stream)
        logging.getLogger("headgate").info("hello")
    assert "\x1b[" in terminal.getvalue()
    assert lines(pipe)[0]["event"] == "hello"


def test_console_shows_what_a_terminal_would_obey() -> None:
    stream = StringIO()
    configure_logging("console", stream=stream)
    logging.getLogger("headgate").warning("user %s", "\x1b[2Jeve")
    assert "\x1b" not in stream.getvalue()
    assert r"\x1b[2Jeve" in stream.getvalue()


def test_levels() -> None:
    stream = StringIO()
    configure_logging("json", "Warning", stream=stream)
    for log in (logging.getLogger("headgate"), structlog.get_logger("headgate")):
        log.info("no")
        log.warning("yes")
    assert [line["event"] for line in lines(stream)] == ["yes", "yes"]


def test_it_can_be_configured_again() -> None:
    first, second = StringIO(), StringIO()
    configure_logging("json", stream=first)
    configure_logging("json", stream=second)
    logging.getLogger("headgate").info("once")
    assert (first.getvalue(), len(lines(second))) == ("", 1)


@pytest.mark.parametrize(("style", "level"), [("xml", "info"), ("json", "loud")])
def test_bad_settings_are_named(style: Any, level: str) -> None:
    with pytest.raises(ValueError, match=r"log (format|level): must be one of .*, got '(xml|loud)'"):
        configure_logging(style, level)


def test_a_line_that_cannot_be_written_is_not_shown_unmasked(capsys: pytest.CaptureFixture[str]) -> None:
    stream = StringIO()
    configure_logging("json", stream=stream)
    stream.close()
    logging.getLogger("headgate").error("password is %s", "hunter2")
    assert capsys.readouterr().err == "a line of logger headgate could not be logged: ValueError\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://headgate:hunter2@db:5432/rules", "postgresql://headgate:***@db:5432/rules"),
        ("redis://:p/w@d@cache/0 and more", "redis://:***@cache/0 and more"),
        ("http://localhost:8080/users/a@b", "http://localhost:8080/users/a@b"),
        ("http://[::1]:8080/ is up", "http://[::1]:8080/ is up"),
        ("Authorization: Basic YTpi", "Authorization: Basic ***"),
        ("authorization: Bearer abc.def", "authorization: Bearer ***"),
        ("the token hg_Zm9vYmFyYmF6 is new", "the token hg_*** is new"),
        ("Settings(admin_token='abc', port=1)", "Settings(admin_token=***, port=1)"),
        ('{"api_key": "a\\"bc", "user": "u"}', '{"api_key": ***, "user": "u"}'),
        ("GET /x?token=abc&y=1", "GET /x?token=***&y=1"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln", MASK),
        ("token: must be at least 16 characters", "token: must be at least 16 characters"),
        ("tokens=3 tokenizer=x", "tokens=3 tokenizer=x"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_structures_are_masked_by_name_and_by_look() -> None:
    class Odd:
        def __repr__(self) -> str:
            return "Odd(password='x')"

    value = {"a": [b"hg_abcdefgh1", Odd()], "X-API-Key": "k", "none": None, "secret": None, "n": 1.5, "key": ("t",)}
    assert Masking().value(value) == {
        "a": ["hg_***", "Odd(password=***)"],
        "X-API-Key": MASK,
        "none": None,
        "secret": None,
        "n": 1.5,
        "key": ["t"],
    }


def test_a_value_that_cannot_tell_its_text_does_not_lose_the_line() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert Masking().value(Broken()) == "<Broken: RuntimeError in repr>"
