"""Redis URLs, as they reach the connection."""

from __future__ import annotations

import pytest

from headgate.stores.redis.options import read_url


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("unix:///run/valkey.sock", "/run/valkey.sock"),
        ("unix:///run/valkey.sock?timeout=0.5", "/run/valkey.sock"),
        ("unix://user:secret@/run/valkey.sock?db=1", "/run/valkey.sock"),
        ("unix:///run/with%20space.sock", "/run/with space.sock"),
    ],
)
def test_a_unix_socket_keeps_its_path(url: str, path: str) -> None:
    *_, arguments = read_url(url)
    assert arguments["path"] == path
