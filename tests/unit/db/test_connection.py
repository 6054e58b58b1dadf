"""URLs of databases: how they are shown, and which are refused."""

from __future__ import annotations

import pytest

from headgate.db import Database


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://u:kret@h:5433/db?sslmode=require", "postgresql://u:***@h:5433/db"),
        ("postgres://h/db?user=u&password=kret&sslpassword=kret", "postgresql://h/db"),
        ("postgresql:///db?host=/run/pg&port=5433&password=a:b@kret", "postgresql:///db?host=%2Frun%2Fpg&port=5433"),
        ("postgresql://u%40x:se%40kret@h/db", "postgresql://u%40x:***@h/db"),
        ("sqlite:////var/lib/rules.db?timeout=5", "sqlite:////var/lib/rules.db"),
    ],
)
def test_a_database_is_shown_without_what_may_be_a_secret(url: str, name: str) -> None:
    assert Database(url).name == name


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:se@kret@h/db",
        "postgresql://u:se/kret@h/db",
        "postgresql://u:se?kret@h/db",
        "postgresql://u:se#kret@h/db",
        "postgresql://h:5432/db?password=se@kret",
        "postgresql://u:se@h:kret/db",
        "mysql://u:se@kret@h/db?password=kret",
        "sqlite://u:kret@h",
        "kret",
    ],
)
def test_a_url_that_is_refused_is_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match=r"^database: ") as caught:
        Database(url)
    assert "kret" not in str(caught.value)
