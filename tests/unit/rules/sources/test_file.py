"""FileSource: loading, reloading, versions, and what it says in the log."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
from pathlib import Path

import pytest

from headgate import InvalidRule
from headgate.rules import Source
from headgate.rules.sources.file import FileSource, load
from headgate.testing import FakeClock


def text(limit: int) -> str:
    return f'[[rules]]\nid = "a"\nlimit = {limit}\nwindow = "1h"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(text(1))
    return path


def limit(source: FileSource) -> int:
    return source.holder.current.rules[0].quota.limit


def test_it_is_a_source(path: Path) -> None:
    assert isinstance(FileSource(path), Source)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"[[rules]\n", "is not TOML: Expected ']]'"),
        (b"id = \xff", "is not UTF-8 at byte 5"),
        (b"x = " + b"9" * 5_000, "is not TOML: "),
        (b"x = " + b"[" * 100_000, "is not TOML: "),
        (b"", "is empty, or only half written"),
        (b"  \n# nothing yet\n", "is empty, or only half written"),
        (b"[[rules]]\nid = 'a'\nlimit = 1\n", "rule 'a': window: is missing"),
    ],
)
def test_a_file_that_is_not_good(path: Path, content: bytes, complaint: str) -> None:
    path.write_bytes(content)
    with pytest.raises(InvalidRule) as caught:
        load(path)
    (problem,) = caught.value.problems
    assert problem.file == str(path)
    assert str(problem).startswith(f"{path}: {complaint}")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRule, match=r"none\.toml: cannot be read: No such file or directory"):
        load(tmp_path / "none.toml")
    with pytest.raises(InvalidRule, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_a_file_without_rules_is_fine_when_it_says_so(path: Path) -> None:
    path.write_text("[headgate]\n")
    assert load(path).rules == ()


def test_a_version_counts_the_loads_and_tells_the_content(path: Path) -> None:
    source = FileSource(path)
    first = source.holder.current.version
    assert first.startswith("1-")
    path.write_text(text(2))
    second = source.reload().version
    assert second.startswith("2-")
    assert second.split("-")[1] != first.split("-")[1]
    path.write_text(text(1))
    third = source.reload().version
    assert third.startswith("3-")
    assert third.split("-")[1] == first.split("-")[1]


def test_a_reload_of_the_same_content_changes_nothing(path: Path) -> None:
    source = FileSource(path)
    before = source.holder.current
    os.utime(path, ns=(1, 1))
    assert source.reload() is before is source.holder.current


def test_a_bad_reload_raises_and_leaves_what_is_in_force(path: Path) -> None:
    source = FileSource(path)
    before = source.holder.current
    path.write_text(text(0) + "x = 1\n")
    with pytest.raises(InvalidRule) as caught:
        source.reload()
    assert len(caught.value.problems) == 2
    assert source.holder.current is before
    path.write_text(text(2))
    assert source.reload().version.startswith("2-")


def test_refreshing_logs_every_problem_as_an_error(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = FileSource(path)
    version = source.holder.current.version
    path.write_text(text(0) + "x = 1\n")
    source.refresh()
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.name == "headgate"
    message = record.getMessage()
    assert f"{path}: rule 'a': limit: must be a whole number" in message
    assert f"{path}: rule 'a': x: unknown key" in message
    assert f"version {version} stays in force" in message
    assert limit(source) == 1


def test_refreshing_reads_a_file_only_when_it_has_changed(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = FileSource(path)
    caplog.set_level(logging.INFO, "headgate")
    source.refresh()
    assert not caplog.records
    path.write_text(text(20))
    source.refresh()
    assert limit(source) == 20
    assert "is in force" in caplog.text
    caplog.clear()
    path.write_text("broken")
    source.refresh()
    source.refresh()
    assert len(caplog.records) == 1


def test_a_file_that_goes_away_leaves_what_is_in_force(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = FileSource(path)
    path.unlink()
    source.refresh()
    assert "cannot be read" in caplog.text
    assert limit(source) == 1
    path.write_text(text(2))
    source.refresh()
    assert limit(source) == 2


def test_a_file_that_is_being_written_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = FileSource(path)
    pieces = iter([text(3) + "[[rules]]\n", text(3) + '[[rules]]\nid = "b"\nlimit = 1\nwindow = 1\n'])

    def sleep(seconds: float) -> None:
        """While it sleeps, the writer writes."""
        assert seconds > 0
        path.write_text(next(pieces, path.read_text()))
        os.utime(path, ns=(0, len(path.read_text())))

    monkeypatch.setattr("headgate.rules.sources.file.time.sleep", sleep)
    path.write_text("[[rul")
    source.refresh()
    assert [rule.id for rule in source.holder.current.rules] == ["a", "b"]


def test_a_change_right_after_the_load_is_noticed_even_if_the_file_looks_the_same(path: Path) -> None:
    """Of the same size, in the same place, and within a tick of the clock by which files are dated."""
    now = time.time_ns()
    os.utime(path, ns=(now, now))
    source = FileSource(path)
    path.write_text(text(2))
    os.utime(path, ns=(now, now))
    source.refresh()
    assert limit(source) == 2


def test_a_file_that_looks_new_and_is_not_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = FileSource(path)
    caplog.set_level(logging.INFO, "headgate")
    os.utime(path, ns=(1, 1))
    source.refresh()
    path.unlink()
    path.write_text(text(1))
    source.refresh()
    assert not caplog.records


def test_an_error_that_nobody_thought_of_is_logged_and_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FileSource(path)
    monkeypatch.setattr("headgate.rules.sources.file.snapshot_of", lambda *_, **__: 1 / 0)
    path.write_text(text(2))
    source.refresh()
    assert "could not be loaded: version 1-" in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert limit(source) == 1


def test_what_may_be_a_mistake_is_a_warning(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text(
        text(1)
        + '[[tiers]]\nname = "free"\n[[users]]\nid = "alice"\ntier = "gold"\n'
        + 'overrides = [{ rule = "a", limit = 9, expires = 2020-01-01T00:00:00Z }]\n'
    )
    source = FileSource(path, clock=FakeClock(1_700_000_000))
    assert limit(source) == 1
    tier, override = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"{path}: user 'alice': tier: 'gold' is not one of the tiers (free)" in tier
    assert "user 'alice': override of rule 'a': expired at 2020-01-01 00:00:00+00:00 and is ignored" in override


def test_an_override_that_has_not_expired_by_the_clock_is_no_news(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text(
        text(1) + '[[users]]\nid = "u"\noverrides = [{ rule = "a", limit = 9, expires = 2020-01-01T00:00:00Z }]\n'
    )
    FileSource(path, clock=FakeClock(1_500_000_000))
    assert not caplog.records


def test_the_garbage_collector_is_left_as_it_was(path: Path) -> None:
    assert gc.isenabled()
    load(path)
    assert gc.isenabled()
    gc.disable()
    try:
        load(path)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_its_status_counts_loads_and_files_that_were_not_good(path: Path) -> None:
    source = FileSource(path)
    for content in (text(2), "rubbish", "more rubbish", text(3)):
        path.write_text(content)
        with contextlib.suppress(InvalidRule):
            source.reload()
    status = source.status()
    assert (status.version, status.loads, status.rejected) == (source.holder.current.version, 3, 2)


def test_rules_are_stale_from_a_file_that_is_not_good_to_the_next_that_is(path: Path) -> None:
    source = FileSource(path)
    good = path.read_text()
    stale = [source.status().stale]
    for content in ("rubbish", good, text(2), "rubbish", text(3)):
        path.write_text(content)
        with contextlib.suppress(InvalidRule):
            source.reload()
        stale.append(source.status().stale)
    path.unlink()
    with contextlib.suppress(InvalidRule):
        source.reload()
    stale.append(source.status().stale)
    assert stale == [False, True, False, False, True, False, True]
