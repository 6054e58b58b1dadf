"""What answers of deprecated routes say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from headgate.errors import InvalidRule
from headgate.service.http.deprecation import Deprecated

SINCE = datetime(2027, 1, 1, tzinfo=UTC)


def test_since_when_until_when_and_where_to_read_on() -> None:
    said = Deprecated(
        since=SINCE,
        sunset=datetime(2027, 7, 1, 1, 0, tzinfo=timezone(timedelta(hours=2))),
        link="https://example.com/v2",
        successor="/v2/check",
    )
    assert dict(said.fields) == {
        b"deprecation": b"@1798761600",
        b"sunset": b"Wed, 30 Jun 2027 23:00:00 GMT",
        b"link": b'<https://example.com/v2>; rel="deprecation sunset"; type="text/html", </v2/check>; '
        b'rel="successor-version"',
    }


def test_the_date_alone() -> None:
    assert Deprecated(since=SINCE).fields == [(b"deprecation", b"@1798761600")]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("since", datetime(2027, 1, 1)),
        ("sunset", "tomorrow"),
        ("sunset", SINCE - timedelta(days=1)),
        ("link", "https://example.com/>\r\n"),
        ("successor", "a b"),
    ],
)
def test_what_makes_no_sense_is_told(field: str, wrong: Any) -> None:
    with pytest.raises(InvalidRule, match=f"Deprecated: {field}: must"):
        Deprecated(**{"since": SINCE, field: wrong})
