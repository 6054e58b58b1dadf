"""Lines that are out of order are sorted, within a window."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from headgate.replay import ordering
from headgate.replay.log import Log
from headgate.replay.ordering import TooSmall, in_order
from headgate.replay.record import LogRecord
from headgate.replay.replay import replay
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot


def records(times: list[int]) -> list[LogRecord]:
    return [LogRecord(at_us, {"n": str(number)}) for number, at_us in enumerate(times)]


def never(record: LogRecord, late_us: int) -> None:
    raise AssertionError("nothing is too late here")


@pytest.mark.parametrize("seed", range(20))
def test_records_within_the_hold_come_in_order_and_stable(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MIN_SORTED", 16)
    chance = random.Random(seed)
    times = [at + chance.randrange(0, 50) for at in range(0, 5_000, 3)]
    given = records(times)
    assert list(in_order(given, 50, 1_000, never)) == sorted(given, key=lambda one: one.at_us)


def test_a_hold_that_is_too_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MIN_SORTED", 4)
    with pytest.raises(TooSmall) as error:
        list(in_order(records([0, 10, 20, 30, 40, 50, 60, 25]), 10, 1_000, never))
    assert error.value.late_us == 35
    assert error.value.next_hold_us(50) == 50


def test_records_beyond_the_window_are_left_out_and_named() -> None:
    late = []
    kept = list(in_order(records([0, 2_000, 999, 1_000]), 1_000, 1_000, lambda one, by: late.append((one.at_us, by))))
    assert [one.at_us for one in kept] == [0, 1_000, 2_000]
    assert late == [(999, 1_001)]


def line(at: int, ip: str = "192.0.2.1") -> str:
    return f'{ip} - - [17/May/2015:{at // 3600:02}:{at // 60 % 60:02}:{at % 60:02} +0000] "GET / HTTP/1.1" 200 1\n'


RULES = Snapshot([Rule(id="per-ip", quota="2/minute fixed_window", dimension="ip")])


def test_a_disorderly_log_is_read_again_with_a_larger_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ordering, "MIN_SORTED", 16)
    times = [*range(0, 3_000, 5), 100, *range(3_000, 4_000, 5)]  # one is late by 2,895 seconds
    shuffled, ordered = tmp_path / "shuffled.log", tmp_path / "ordered.log"
    shuffled.write_text("".join(map(line, times)))
    ordered.write_text("".join(map(line, sorted(times))))
    found, expected = (replay(Log([str(path)]), RULES) for path in (shuffled, ordered))
    assert (found.requests, found.refused, found.late) == (len(times), expected.refused, 0)
    assert found.timeline == expected.timeline


def test_lines_beyond_the_sort_window_are_counted_and_named(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text("".join(map(line, [0, 600, 10, 700])))
    report = replay(Log([str(path)], sort_window_us=300_000_000), RULES)
    assert (report.requests, report.late) == (3, 1)
    assert "590 s late" in report.late_lines[0]


def test_several_files_are_merged_by_time(tmp_path: Path) -> None:
    chance = random.Random(7)
    times = sorted(chance.sample(range(80_000), 3_000))
    whole = tmp_path / "whole.log"
    whole.write_text("".join(line(at, f"192.0.2.{at % 9}") for at in times))
    parts = []
    for number in range(3):
        part = tmp_path / f"part-{number}.log"
        part.write_text("".join(line(at, f"192.0.2.{at % 9}") for at in times[number::3]))
        parts.append(str(part))
    assert list(Log(parts).records()) == list(Log([str(whole)]).records())
