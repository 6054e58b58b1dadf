"""TLS, with user and password, from one URL: a server, a master behind Sentinel, a cluster. TLS ends in a proxy."""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headgate.stores.redis.connection import STALE
from tests.certificates import Authority
from tests.integration.limiters import Open, calm
from tests.servers import Server, default_binary
from tests.tls import TlsProxy
from tests.topologies import SERVICE, Cluster, Sentinel
from tests.waiting import until

MANY = 1_000_000
USER, PASSWORD = "gate", "p@ss/word"
WRITTEN = "gate:p%40ss%2Fword@"  # in a URL


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def context(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certified("server"))
    return context


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(default_binary()) as server:
        admit_user(server)
        yield server


def admit_user(server: Server, user: str = USER, password: str = PASSWORD) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", user, "on", f">{password}", "~rl:*", "&*", "+@all")


def users(server: Server) -> set[str]:
    """As whom Headgate is connected."""
    with server.client() as client:
        return {entry["user"] for entry in client.client_list() if entry["name"] == "headgate"}


def test_a_server_over_tls(server: Server, context: ssl.SSLContext, authority: Authority, open_limiter: Open) -> None:
    with TlsProxy(server.port, context) as proxy:
        url = f"rediss://{WRITTEN}127.0.0.1:{proxy.port}/0?ssl_ca_certs={authority.file}&timeout=10"
        limiter = open_limiter(calm(MANY), store=url, failure_mode="closed")
        assert [limiter.check("alice").remaining for _ in range(3)] == [MANY - 1, MANY - 2, MANY - 3]
        assert users(server) == {USER}
        time.sleep(2 * STALE)  # from then on, an idle connection is looked at before it is used
        assert limiter.check("alice").remaining == MANY - 4
        assert (proxy.over_tls, proxy.in_the_clear) == (1, 0)


@pytest.mark.parametrize("fault", ["another authority", "another password", "no TLS"])
def test_whoever_is_not_trusted_is_not_asked(
    server: Server, context: ssl.SSLContext, authority: Authority, open_limiter: Open, tmp_path: Path, fault: str
) -> None:
    trusted = Authority(tmp_path, "other").file if fault == "another authority" else authority.file
    user = "gate:wrong@" if fault == "another password" else WRITTEN
    with TlsProxy(server.port, context) as proxy:
        port = server.port if fault == "no TLS" else proxy.port
        url = f"rediss://{user}127.0.0.1:{port}/0?ssl_ca_certs={trusted}&timeout=1"
        limiter = open_limiter(calm(MANY), store=url, failure_mode="closed")
        assert limiter.check("alice").reason == "fail_closed"
    with server.client() as client:
        assert client.dbsize() == 0


def test_an_authority_without_key_usage_works_or_the_log_says_how_to_mend_it(
    server: Server, open_limiter: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path, key_usage=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.certified("server"))
    with TlsProxy(server.port, context) as proxy:
        url = f"rediss://{WRITTEN}127.0.0.1:{proxy.port}/0?ssl_ca_certs={authority.file}&timeout=10"
        limiter = open_limiter(calm(MANY), store=url, failure_mode="closed")
        reason = limiter.check("alice").reason
    if sys.version_info < (3, 13):
        assert reason == "within_limit"
    else:
        assert reason == "fail_closed"
        assert "issue the certificate of the authority (CA) again" in caplog.text
        assert "keyUsage = critical, keyCertSign, cRLSign" in caplog.text


def test_certificates_are_read_once_for_all_connections(
    server: Server,
    context: ssl.SSLContext,
    authority: Authority,
    open_limiter: Open,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that the system trusts: that takes as long as a check may."""
    with TlsProxy(server.port, context) as proxy:
        url = f"rediss://{WRITTEN}127.0.0.1:{proxy.port}/0?ssl_ca_certs={authority.file}&timeout=10"
        limiter = open_limiter(calm(MANY), store=url, failure_mode="closed")
        made = []
        monkeypatch.setattr(ssl, "create_default_context", lambda: made.append(1))
        for connections in range(1, 4):
            assert limiter.check("alice").reason == "within_limit"
            until(lambda: proxy.over_tls == connections, "a connection of its own")  # noqa: B023
            proxy.cut()
            time.sleep(2 * STALE)
    assert not made


def test_certificates_that_are_replaced_are_read_again(
    server: Server, context: ssl.SSLContext, authority: Authority, open_limiter: Open, tmp_path: Path
) -> None:
    trusted = Authority(tmp_path, "other").file
    with TlsProxy(server.port, context) as proxy:
        url = f"rediss://{WRITTEN}127.0.0.1:{proxy.port}/0?ssl_ca_certs={trusted}&timeout=1&probe_every=0.1"
        limiter = open_limiter(calm(MANY), store=url, failure_mode="closed")
        assert limiter.check("alice").reason == "fail_closed"
        trusted.write_text("half of a certificate")
        time.sleep(0.2)
        assert limiter.check("alice").reason == "fail_closed"
        trusted.write_bytes(authority.file.read_bytes())
        until(lambda: limiter.check("alice").reason == "within_limit", "whom it trusts now")


@pytest.mark.parametrize("of_sentinels", ["over TLS, with a user", "in the clear"])
def test_sentinel_over_tls(
    server: Server, context: ssl.SSLContext, authority: Authority, open_limiter: Open, of_sentinels: str
) -> None:
    with (
        TlsProxy(server.port, context) as proxy,
        Sentinel(default_binary(), master_port=proxy.port) as sentinel,
        TlsProxy(sentinel.port, context) as before_sentinel,
    ):
        if of_sentinels == "in the clear":
            asked, options = sentinel.port, "sentinel_ssl=false"
        else:
            admit_user(sentinel, "watch", "word")
            asked, options = before_sentinel.port, "sentinel_username=watch&sentinel_password=word"
        url = (
            f"rediss+sentinel://{WRITTEN}127.0.0.1:{asked}/{SERVICE}/0"
            f"?ssl_ca_certs={authority.file}&timeout=10&{options}"
        )
        limiter = open_limiter(calm(MANY), store=url, failure_mode="closed")
        until(lambda: limiter.check("alice").reason == "within_limit", "a decision by the store")
        assert users(server) == {USER}
        assert proxy.over_tls > 0
        assert (before_sentinel.over_tls > 0) == (of_sentinels != "in the clear")
        assert before_sentinel.in_the_clear == 0


def test_a_cluster_over_tls(context: ssl.SSLContext, authority: Authority, open_limiter: Open) -> None:
    with Cluster() as cluster, ExitStack() as stack:
        proxies = []
        for server in cluster.masters:
            admit_user(server)
            proxies.append(stack.enter_context(TlsProxy(server.port, context)))
            with server.client() as client:
                client.config_set("cluster-announce-port", proxies[-1].port)
        ports = {proxy.port for proxy in proxies}

        def announced() -> bool:
            with cluster.masters[0].client() as client:
                return {port for _, _, (_, port, *_), *_ in client.execute_command("CLUSTER", "SLOTS")} == ports

        until(announced, "all servers are known by the ports of their proxies")
        hosts = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies[:2])
        url = f"rediss+cluster://{WRITTEN}{hosts}?ssl_ca_certs={authority.file}&timeout=10"
        limiter = open_limiter(calm(MANY), store=url, failure_mode="closed")
        until(lambda: limiter.check("alice").reason == "within_limit", "a decision by the store")
        for left in (MANY - 1, MANY - 2):
            decisions = limiter.check_many([f"user-{number}" for number in range(60)])
            assert {decision.remaining for decision in decisions} == {left}
        assert [users(server) for server in cluster.masters] == [{USER}] * 3
        assert all(proxy.over_tls > 0 and proxy.in_the_clear == 0 for proxy in proxies)
