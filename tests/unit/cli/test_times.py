"""Times and durations as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer

from headgate.cli.times import seconds_of, time_of

NOW = datetime(2027, 1, 31, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("30d", 2_592_000), ("1.5h", 5_400), ("hour", 3_600)])
def test_durations(text: str, seconds: float) -> None:
    assert seconds_of(text, "--expires") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1h", "30"])
def test_what_is_no_duration_is_named_with_its_option(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="must be a duration") as error:
        seconds_of(text, "--expires")
    assert error.value.param_hint == "--expires"
    assert repr(text) in error.value.message


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("1h", "2027-01-31T11:00:00Z"),
        ("2 days", "2027-01-29T12:00:00Z"),
        ("2027-01-01T00:00:00+02:00", "2026-12-31T22:00:00Z"),
        ("2027-01-01T00:00:00Z", "2027-01-01T00:00:00Z"),
    ],
)
def test_times_are_told_in_utc(text: str, time: str) -> None:
    assert time_of(text, "--since", NOW) == time


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2027, 1, 1, 8, 30).astimezone()
    assert time_of("2027-01-01 08:30", "--since", NOW) == local.astimezone(UTC).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize("text", ["yesterday", "2027-13-01", "9999999y", ""])
def test_what_is_no_time_is_named_with_its_option(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="must be a time") as error:
        time_of(text, "--since", NOW)
    assert error.value.param_hint == "--since"
