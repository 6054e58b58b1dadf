"""Conditions of requests, as RFC 9110 has them."""

from __future__ import annotations

import pytest

from headgate.service.admin.etags import Conditions
from headgate.service.http.problems import HttpError


def holds(if_match: str | None, if_none_match: str | None, version: int | None) -> bool:
    try:
        Conditions(if_match, if_none_match).require(version)
    except HttpError as error:
        return error.status != 412
    return True


@pytest.mark.parametrize(
    ("if_match", "version", "expected"),
    [
        (None, 7, True),
        (None, None, True),
        ('"7"', 7, True),
        ('"6"', 7, False),
        ('"6", "7"', 7, True),
        ('"6","7"', 7, True),
        ('W/"7"', 7, False),  # strong comparison
        ("7", 7, False),
        ("*", 7, True),
        ("*", None, False),
        ('"7"', None, False),
        ("", 7, False),
    ],
)
def test_if_match(if_match: str | None, version: int | None, expected: bool) -> None:
    assert holds(if_match, None, version) is expected


@pytest.mark.parametrize(
    ("if_none_match", "version", "expected"),
    [("*", None, True), ("*", 7, False), ('"7"', 7, False), ('W/"7"', 7, False), ('"6"', 7, True), ('"7"', None, True)],
)
def test_if_none_match(if_none_match: str, version: int | None, expected: bool) -> None:
    assert holds(None, if_none_match, version) is expected
    if version is not None:
        assert Conditions(None, if_none_match).has_known(version) is not expected


def test_both_must_hold() -> None:
    assert not holds('"7"', "*", 7)
