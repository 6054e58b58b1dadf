"""The spool: what was appended comes out in order, whatever happens to the process and to the files."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from headgate.audit.spool import SEGMENTS, Spool

LARGE = 1024 * 1024


def appended(spool: Spool, numbers: range, size: int = 0) -> None:
    for number in numbers:
        spool.append(number, number, b"payload %d" % number + b"." * size)


def taken(spool: Spool) -> list[int]:
    """The numbers of all batches, which are then done."""
    numbers: list[int] = []
    while True:
        run, records = spool.read()
        if not records:
            return numbers
        assert len(run) == 16
        for record in records:
            assert record.payload.split(b".")[0] == b"payload %d" % record.number
            assert record.events == record.number
        numbers += [record.number for record in records]
        spool.remove(records)


def crashed(spool: Spool) -> None:
    """What a kill does: the locks are gone, and nothing else happens."""
    for lock in spool._locks.values():
        os.close(lock)


def files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*/*.log"))


def test_what_was_appended_comes_out_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=LARGE)
    appended(spool, range(1, 4))
    assert spool.backlog == 1 + 2 + 3
    assert taken(spool) == [1, 2, 3]
    appended(spool, range(4, 6))
    assert taken(spool) == [4, 5]
    assert (spool.backlog, spool.dropped, spool.damaged) == (0, 0, 0)
    spool.close()
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_done_is_read_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=LARGE)
    appended(spool, range(1, 3))
    assert [record.number for record in spool.read()[1]] == [1, 2]
    assert taken(spool) == [1, 2]
    spool.close()


@pytest.mark.parametrize("orderly", [True, False])
def test_another_process_adopts_what_is_left(tmp_path: Path, orderly: bool) -> None:
    first = Spool(tmp_path, max_bytes=LARGE)
    appended(first, range(1, 4))
    if orderly:
        first.close()
    else:
        crashed(first)
    second = Spool(tmp_path, max_bytes=LARGE)
    appended(second, range(10, 12))
    assert second.adopt() == 6
    assert second.adopt() == 0
    assert second.backlog == 6 + 21
    assert taken(second) == [1, 2, 3, 10, 11]
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_later_process_left_is_adopted_too_while_appending_goes_on(tmp_path: Path) -> None:
    first, second = Spool(tmp_path, max_bytes=LARGE), Spool(tmp_path, max_bytes=LARGE)
    appended(first, range(1, 2))
    appended(second, range(5, 6))
    crashed(second)
    assert first.adopt() == 5
    appended(first, range(2, 3))
    assert sorted(taken(first)) == [1, 2, 5]
    first.close()
    assert list(tmp_path.iterdir()) == []


def test_a_living_process_keeps_its_own(tmp_path: Path) -> None:
    first, second = Spool(tmp_path, max_bytes=LARGE), Spool(tmp_path, max_bytes=LARGE)
    appended(first, range(1, 3))
    assert second.adopt() == 0
    assert taken(second) == []
    second.close()
    assert taken(first) == [1, 2]
    first.close()


@pytest.mark.parametrize("cut", range(1, 30))
def test_a_torn_last_batch_is_skipped(tmp_path: Path, cut: int) -> None:
    first = Spool(tmp_path, max_bytes=LARGE)
    appended(first, range(1, 4))
    crashed(first)
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-cut])
    second = Spool(tmp_path, max_bytes=LARGE)
    line = len(b"01234567 3 3 payload 3\n")
    assert second.adopt() == (1 + 2 if cut <= line else 1)
    assert taken(second) == ([1, 2] if cut <= line else [1])
    assert second.damaged == (0 if cut == line else 1)
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_batch_in_the_middle_is_skipped_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path, max_bytes=LARGE)
    appended(spool, range(1, 5))
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes().replace(b"payload 2", b"paylord 2"))
    assert taken(spool) == [1, 3, 4]
    assert spool.damaged == 1
    assert "skipping damaged data" in caplog.text
    spool.close()


def test_a_file_that_somebody_deleted_is_counted_as_dropped(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=LARGE)
    appended(spool, range(1, 4))
    files(tmp_path)[0].unlink()
    assert taken(spool) == []
    assert (spool.dropped, spool.backlog) == (6, 0)
    appended(spool, range(4, 5))
    spool.close()


def test_when_it_is_full_the_oldest_are_dropped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spool = Spool(tmp_path, max_bytes=64 * 1024)
    with caplog.at_level(logging.ERROR):
        appended(spool, range(1, 101), size=1_000)
    assert sum(file.stat().st_size for file in files(tmp_path)) == spool.size <= 64 * 1024
    left = taken(spool)
    assert left == list(range(left[0], 101))  # the latest
    assert len(left) * 1_000 > 64 * 1024 * (SEGMENTS - 2) // SEGMENTS
    assert spool.dropped == sum(range(1, left[0]))
    assert caplog.text.count("is full") == 1
    spool.close()


def test_what_was_dropped_while_it_was_being_written_is_not_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=64 * 1024)
    appended(spool, range(1, 3))
    _, records = spool.read()
    appended(spool, range(3, 101), size=1_000)
    dropped = spool.dropped
    spool.remove(records)
    assert spool.dropped == dropped - 1 - 2
    left = taken(spool)
    assert spool.dropped == sum(range(3, left[0]))
    spool.close()


def test_a_batch_larger_than_the_spool_is_dropped(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=64 * 1024)
    appended(spool, range(1, 2))
    spool.append(2, 7, b"x" * 100_000)
    assert spool.dropped == 7
    assert taken(spool) == [1]
    spool.close()


def test_a_disk_that_is_full_loses_nothing_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path, max_bytes=LARGE)
    appended(spool, range(1, 3))
    write = os.write

    def half(file: int, data: bytes) -> int:
        write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("headgate.audit.spool.os.write", half)
    with pytest.raises(OSError, match="No space left"):
        appended(spool, range(3, 4))
    monkeypatch.undo()
    appended(spool, range(3, 5))
    assert spool.backlog == 1 + 2 + 3 + 4
    crashed(spool)
    other = Spool(tmp_path, max_bytes=LARGE)
    other.adopt()
    assert taken(other) == [1, 2, 3, 4]
    other.close()


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", max_bytes=LARGE)
    appended(spool, range(1, 2))
    (file,) = files(tmp_path / "spool")
    assert [path.stat().st_mode & 0o077 for path in (tmp_path / "spool", file.parent, file)] == [0, 0, 0]
    spool.close()
