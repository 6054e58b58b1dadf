"""URLs of the embedded store."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.stores.embedded.options import read_url


def test_a_path_is_the_directory() -> None:
    assert read_url("embedded:///var/lib/app").directory == Path("/var/lib/app")
    assert read_url("embedded:///var/lib/app/").directory == Path("/var/lib/app")
    assert read_url("embedded:///var/lib/my%20app").directory == Path("/var/lib/my app")


@pytest.mark.parametrize(
    ("url", "name"), [("embedded://", "default"), ("embedded:///", "default"), ("embedded://App-1/", "App-1")]
)
def test_a_name_is_a_directory_of_this_user(url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    assert read_url(url).directory == Path(f"/tmp/headgate-{os.geteuid()}/{name}")


def test_options_are_ours_or_those_of_the_redis_store() -> None:
    options = read_url("embedded:///d?maxmemory=1gb&timeout=0.2&server=/usr/bin/valkey-server&max_batch=64")
    assert (options.maxmemory, options.server) == ("1gb", "/usr/bin/valkey-server")
    assert options.query == "timeout=0.2&max_batch=64"
    plain = read_url("embedded:///d")
    assert (plain.maxmemory, plain.server, plain.query) == ("256mb", None, "")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("embedded://var/lib/app", "three slashes"),
        ("embedded://..", "a name has up to 32"),
        ("embedded://gate:secret@one", "no user or password"),
        (f"embedded://{'a' * 33}", "a name has up to 32"),
        ("embedded:///d%00", "zero byte"),
        ("embedded:///d?maxmemory=lots", "maxmemory: must be a size such as 256mb or 1gb, got 'lots'"),
        ("embedded:///d?maxmemory=0", "maxmemory"),
    ],
)
def test_what_makes_no_sense_is_named(url: str, said: str) -> None:
    with pytest.raises(ValueError, match="store URL") as caught:
        read_url(url)
    assert said in str(caught.value)
