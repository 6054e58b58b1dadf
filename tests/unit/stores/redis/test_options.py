"""URLs of Redis stores: what they say, and what is said of those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis.connection import SSLConnection

from headgate.stores.redis.options import read_url
from headgate.stores.urls import check_url, open_store
from tests.certificates import Authority


def test_a_single_server() -> None:
    target = read_url("rediss://gate:secret@example.org:6380/3?timeout=0.2&probe_every=5&ssl_check_hostname=true")
    assert target.topology == "single"
    assert target.params.name == "example.org:6380"
    assert target.params.kind is SSLConnection
    assert (target.options.timeout, target.options.probe_every) == (0.2, 5.0)
    wanted = {"username": "gate", "password": "secret", "db": 3, "ssl_check_hostname": True}
    assert wanted.items() <= target.params.arguments.items()


@pytest.mark.parametrize(
    "url",
    [
        *("redis://localhost", "rediss://localhost/1", "unix:///run/valkey.sock"),
        *("redis+sentinel://one:1,two/main", "redis+cluster://one:1,two:2"),
    ],
)
def test_the_prefix_of_keys(url: str) -> None:
    assert read_url(url).options.prefix == "rl"
    assert read_url(f"{url}?prefix=prod:shop-a&timeout=1").options.prefix == "prod:shop-a"
    with pytest.raises(ValueError, match=r"store URL: prefix: must be 1 to 64 letters, .* got '\{a\}'"):
        read_url(f"{url}?prefix=%7Ba%7D")


@pytest.mark.parametrize("prefix", ["", "a%20b", "%7Ba%7D", "x" * 65])
@pytest.mark.parametrize("url", ["memory://", "embedded://name", "redis://localhost"])
def test_a_prefix_that_makes_no_sense_is_refused_by_every_store(url: str, prefix: str) -> None:
    with pytest.raises(ValueError, match="store URL: prefix: must be 1 to 64 letters"):
        check_url(f"{url}?prefix={prefix}")


@pytest.mark.parametrize("url", ["memory://", "embedded://name", "redis://localhost"])
def test_every_store_takes_a_prefix(url: str) -> None:
    check_url(f"{url}?prefix=shop-a")


def test_a_socket_is_named_by_its_path() -> None:
    assert read_url("unix:///run/redis.sock?db=2").params.name == "/run/redis.sock"


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
    assert read_url(url).params.arguments["path"] == path


def test_sentinel() -> None:
    target = read_url(
        "redis+sentinel://gate:secret@one:1,two,[::1]:3/main%20one/2?timeout=0.1"
        "&sentinel_username=watcher&sentinel_password=w%40tch"
    )
    assert target.topology == "sentinel"
    assert target.seeds == (("one", 1), ("two", 26379), ("::1", 3))
    assert target.service == "main one"
    assert target.options.timeout == 0.1
    server = target.params.to(("host", 7)).arguments
    assert {"host": "host", "port": 7, "username": "gate", "password": "secret", "db": 2}.items() <= server.items()
    assert target.seed_params is not None
    sentinel = target.seed_params.to(target.seeds[0]).arguments
    assert {"host": "one", "port": 1, "username": "watcher", "password": "w@tch"}.items() <= sentinel.items()
    assert "db" not in sentinel


def test_servers_passwords_are_not_told_to_sentinels() -> None:
    target = read_url("redis+sentinel://gate:secret@one/main")
    assert target.seed_params is not None
    assert "secret" not in target.seed_params.arguments.values()


@pytest.mark.parametrize(
    ("url", "server", "sentinel"),
    [
        ("redis+sentinel://one/main", False, False),
        ("rediss+sentinel://one/main?ssl_ca_certs={ca}", True, True),
        ("rediss+sentinel://one/main?ssl_ca_certs={ca}&sentinel_ssl=false", True, False),
        ("redis+sentinel://one/main?sentinel_ssl=true", False, True),
    ],
)
def test_tls_of_servers_and_sentinels(url: str, server: bool, sentinel: bool, tmp_path: Path) -> None:
    target = read_url(url.format(ca=Authority(tmp_path).file))
    assert target.seed_params is not None
    assert (target.params.kind is SSLConnection, target.params.tls is not None) == (server, server)
    assert (target.seed_params.kind is SSLConnection, target.seed_params.tls is not None) == (sentinel, sentinel)
    assert ("ssl_ca_certs" in target.seed_params.arguments) is (sentinel and "ssl_ca_certs" in url)


def test_a_cluster() -> None:
    target = read_url("rediss+cluster://gate:secret@one:7000,two:7001?max_in_flight=2")
    assert target.topology == "cluster"
    assert target.seeds == (("one", 7000), ("two", 7001))
    assert target.params.kind is SSLConnection
    assert target.options.max_in_flight == 2
    assert {"username": "gate", "password": "secret"}.items() <= target.params.arguments.items()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis+sentinel://one:26379", "with Sentinel's name of the service"),
        ("redis+sentinel://one:26379/main/first", "with Sentinel's name of the service"),
        ("redis+sentinel://one:26379/main?sentinel_ssl=yes", "sentinel_ssl: must be true or false, got 'yes'"),
        ("redis+sentinel:///main", "hosts must be host:port,host:port, got ''"),
        ("redis+cluster://one,two:port", "hosts must be host:port,host:port, got 'two:port'"),
        ("redis+cluster://one/3", "a cluster has only database 0, got '/3'"),
        ("redis+cluster://one?probe_every=0", "probe_every: must be a number above 0, got '0'"),
        ("redis+herd://one", "is not a store URL"),
        ("redis://one?tiemout=1", "tiemout: unknown option; did you mean 'timeout'?"),
        ("unix:///one?tiemout=1", "tiemout: unknown option; did you mean 'timeout'?"),
        ("redis+cluster://one?max_connections=9", "max_connections: unknown option"),
        ("rediss://one?ssl_cert_reqs=perhaps", "perhaps"),
        ("rediss://one?ssl_ca_certs=/no/ca.pem", "TLS: there is no /no/ca.pem"),
        (f"rediss://one?ssl_ca_certs={__file__}", f"({__file__})"),
        ("rediss://one?ssl_min_version=1.3", "Invalid value for 'ssl_min_version'"),
        ("rediss://one?ssl_validate_ocsp=true", "ssl_validate_ocsp: unknown option"),
        ("redis://one?socket_timeout=1", "socket_timeout: unknown option; use timeout"),
        ("redis+cluster://one?retry=3", "retry: unknown option"),
        ("redis://one:secret", "store URL: the port must be a number"),
    ],
)
def test_what_is_wrong_is_told(url: str, told: str) -> None:
    with pytest.raises(ValueError, match="store") as raised:
        open_store(url, None)
    assert told in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url", ["redis2://gate:secret@one/0?timeout=1", "redis2:gate:s@secret@one", "gate:secret?@one"]
)
def test_a_password_is_not_told(url: str) -> None:
    with pytest.raises(ValueError, match="is not a store URL") as raised:
        open_store(url, None)
    assert "secret" not in str(raised.value)
    assert "@one" in str(raised.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "redis+sentinel"])
@pytest.mark.parametrize("mark", ["/", "?", "#", "?x=1&", "/@", "@?", "\u2100"])
def test_a_password_that_is_not_escaped_is_not_told(scheme: str, mark: str) -> None:
    with pytest.raises(ValueError, match="in user, password, path and options, escape") as raised:
        open_store(f"{scheme}://gate:secret{mark}secret@one:6379/0", None)
    assert "secret" not in str(raised.value)
