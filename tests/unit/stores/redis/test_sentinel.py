"""What Sentinels say, and which server is believed."""

from __future__ import annotations

import pytest

from headgate.stores.redis.sentinel import SETTLE_SECONDS, Candidates, SentinelReport, is_about, read_report

OLD, NEW = ("192.0.2.1", 6379), ("192.0.2.2", 6379)

MASTER = {b"name": b"shop", b"ip": b"192.0.2.1", b"port": b"6379", b"flags": b"master", b"config-epoch": b"7"}
REPLICA = {b"name": b"192.0.2.2:6379", b"ip": b"192.0.2.2", b"port": b"6379", b"flags": b"slave"}


def flat(fields: dict[bytes, bytes]) -> list[bytes]:
    return [part for pair in fields.items() for part in pair]


def test_a_report_is_read_from_maps_and_from_lists() -> None:
    assert read_report(MASTER, [REPLICA]) == SentinelReport(7, OLD) == read_report(flat(MASTER), [flat(REPLICA)])


def test_a_report_names_the_replica_that_is_being_promoted() -> None:
    promoted = {**REPLICA, b"flags": b"slave,promoted"}
    assert read_report(MASTER, [{**REPLICA, b"ip": b"192.0.2.3"}, promoted]) == SentinelReport(7, OLD, NEW)


@pytest.mark.parametrize("reply", [{b"ip": b"192.0.2.1"}, [b"odd"], {**MASTER, b"port": b"?"}])
def test_a_reply_that_makes_no_sense_is_refused(reply: object) -> None:
    with pytest.raises((LookupError, ValueError)):
        read_report(reply, [])


def test_the_latest_epoch_counts() -> None:
    assert Candidates().rank([SentinelReport(3, OLD), SentinelReport(4, NEW), SentinelReport(3, OLD)], 0.0) == [NEW]


def test_a_replica_that_is_being_promoted_comes_first() -> None:
    assert Candidates().rank([SentinelReport(3, OLD), SentinelReport(3, OLD, NEW)], 0.0) == [NEW, OLD]


def test_a_failover_is_not_forgotten_when_the_sentinel_that_knows_it_falls_silent() -> None:
    candidates = Candidates()
    assert candidates.rank([SentinelReport(3, OLD), SentinelReport(4, NEW)], 100.0) == [NEW]
    assert candidates.rank([SentinelReport(3, OLD)], 100.0 + SETTLE_SECONDS - 0.1) == []
    assert candidates.rank([SentinelReport(4, NEW)], 101.0) == [NEW]


def test_sentinels_that_go_on_with_an_earlier_epoch_are_believed_in_the_end() -> None:
    """All of them were set up anew, or those that knew better are gone for good."""
    candidates = Candidates()
    assert candidates.rank([SentinelReport(4, NEW)], 100.0) == [NEW]
    assert candidates.rank([SentinelReport(0, OLD)], 100.0 + SETTLE_SECONDS) == [OLD]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ([b"message", b"+switch-master", b"shop 192.0.2.1 6379 192.0.2.2 6379"], True),
        ([b"message", b"+selected-slave", b"slave 192.0.2.2:6379 192.0.2.2 6379 @ shop 192.0.2.1 6379"], True),
        ([b"message", b"+switch-master", b"workshop 192.0.2.1 6379 192.0.2.2 6379"], False),
        ([b"subscribe", b"+switch-master", 1], False),
    ],
)
def test_messages_about_other_services_are_passed_over(message: list[object], expected: bool) -> None:
    assert is_about(message, "shop") is expected
