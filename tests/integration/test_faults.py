"""A store that fails: decisions by the failure modes, within the deadline, until it is back. Nothing raises."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest

from headgate import Decision, Rule, StoreError
from tests.integration.limiters import ALGORITHMS, AnyLimiter, Open, calm
from tests.servers import Server, free_port

TIMEOUT = 0.05  # seconds that a check may take
MARGIN = 0.5  # seconds in which it must have returned, on a machine that is busy with other things
LIMIT = 5
RECOVERY = 10.0  # seconds within which everything is well again

Outage = Callable[[Server], "Iterator[None]"]


def down(server: Server) -> Iterator[None]:
    server.stop()
    try:
        yield
    finally:
        server.start()


def halted(server: Server) -> Iterator[None]:
    """Connections are accepted, by its kernel; nothing is ever answered."""
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def out_of_memory(server: Server) -> Iterator[None]:
    with server.client() as client:
        client.config_set("maxmemory", 1)
        yield
        client.config_set("maxmemory", 0)


def read_only(server: Server) -> Iterator[None]:
    """Demoted: the replica of a primary that is not there."""
    with server.client() as client:
        client.replicaof("127.0.0.1", str(free_port()))
        yield
        client.replicaof("NO", "ONE")


OUTAGES = (down, halted, out_of_memory, read_only)
outages = pytest.mark.parametrize("outage", OUTAGES, ids=lambda outage: outage.__name__)


def during(outage: Outage, server: Server) -> AbstractContextManager[None]:
    return contextmanager(outage)(server)


def store_of(server: Server, *, timeout: float = TIMEOUT) -> str:
    return f"{server.url}?timeout={timeout}&probe_every=0.02"


def in_time(limiter: AnyLimiter, subject: str) -> Decision:
    """Check, and see that it did not take long."""
    started = time.monotonic()
    decision = limiter.check(subject)
    took = time.monotonic() - started
    assert took < MARGIN, f"a check with a deadline of {TIMEOUT} s took {took:.3f} s"
    return decision


def until_decided(limiter: AnyLimiter, subject: str) -> Decision:
    """Check until the store decides again."""
    deadline = time.monotonic() + RECOVERY
    while True:
        decision = limiter.check(subject)
        if decision.reason in ("within_limit", "over_limit"):
            return decision
        assert time.monotonic() < deadline, f"still {decision.reason} after {RECOVERY} s"
        time.sleep(0.02)


@outages
def test_open_allows_what_the_store_cannot_decide(own_server: Server, open_limiter: Open, outage: Outage) -> None:
    limiter = open_limiter(calm(LIMIT), store=store_of(own_server), failure_mode="open")
    until_decided(limiter, "alice")
    with during(outage, own_server):
        decisions = [in_time(limiter, "alice") for _ in range(2 * LIMIT)]
        assert {(each.allowed, each.reason, each.state) for each in decisions} == {(True, "fail_open", "normal")}
    assert until_decided(limiter, "bob").allowed


@outages
def test_closed_refuses_what_the_store_cannot_decide(own_server: Server, open_limiter: Open, outage: Outage) -> None:
    limiter = open_limiter(calm(LIMIT), store=store_of(own_server), failure_mode="closed")
    until_decided(limiter, "alice")
    with during(outage, own_server):
        decisions = [in_time(limiter, "alice") for _ in range(3)]
        assert {(each.allowed, each.reason, each.state) for each in decisions} == {(False, "fail_closed", "throttled")}
    assert until_decided(limiter, "bob").allowed


@outages
def test_local_counts_here_what_the_store_cannot(own_server: Server, open_limiter: Open, outage: Outage) -> None:
    limiter = open_limiter(calm(LIMIT), store=store_of(own_server), failure_mode="local")
    until_decided(limiter, "alice")
    with during(outage, own_server):
        decisions = [in_time(limiter, "alice") for _ in range(2 * LIMIT)]
        assert {each.reason for each in decisions} == {"local_fallback"}
        admitted = [each.allowed for each in decisions]
        assert 1 <= sum(admitted) <= LIMIT
        assert admitted == sorted(admitted, reverse=True)
        refused = decisions[-1]
        assert (refused.rule, refused.remaining, refused.state) == ("default", 0, "throttled")
        assert in_time(limiter, "carol").allowed
    assert until_decided(limiter, "bob").allowed


def test_a_wrong_password_is_a_fault_like_any_other(own_server: Server, open_limiter: Open) -> None:
    with own_server.client() as client:
        client.config_set("requirepass", "right")
    for mode, reason in (("open", "fail_open"), ("closed", "fail_closed"), ("local", "local_fallback")):
        wrong = open_limiter(calm(LIMIT), store=store_of(own_server).replace("//", "//:wrong@"), failure_mode=mode)
        assert [in_time(wrong, "alice").reason for _ in range(3)] == [reason] * 3
    right = open_limiter(calm(LIMIT), store=store_of(own_server, timeout=5).replace("//", "//:right@"))
    assert right.check("alice").reason == "within_limit"


@contextmanager
def web_server() -> Iterator[int]:
    """Something that listens where Redis is expected, and speaks another language; its port."""

    def serve() -> None:
        with suppress(OSError):  # the end: the listener was shut down
            while True:
                client, _ = listener.accept()
                with client, suppress(OSError):
                    client.settimeout(1)
                    client.recv(4_096)
                    client.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_a_server_of_another_trade_is_a_fault(open_limiter: Open) -> None:
    with web_server() as port:
        url = f"redis://127.0.0.1:{port}/0?timeout={TIMEOUT}"
        limiter = open_limiter(calm(LIMIT), store=url, failure_mode="closed")
        assert [in_time(limiter, "alice").reason for _ in range(3)] == ["fail_closed"] * 3


def test_a_server_killed_in_mid_call_ends_the_call(own_server: Server, open_limiter: Open) -> None:
    limiter = open_limiter(calm(LIMIT), store=store_of(own_server, timeout=10), failure_mode="closed")
    limiter.check("alice")
    os.kill(own_server.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(limiter.check, "alice")
        with pytest.raises(TimeoutError):
            call.result(0.1)
        os.kill(own_server.pid, signal.SIGKILL)
        assert call.result(MARGIN).reason == "fail_closed"
    own_server.stop()
    own_server.start()
    assert until_decided(limiter, "alice").remaining == LIMIT - 1


def test_each_rule_fails_in_its_own_mode(own_server: Server, open_limiter: Open) -> None:
    """The strictest of the rules that apply decides: closed, then local, then open; a shadow never refuses."""
    quota = calm(1)
    limiter = open_limiter(
        [
            Rule(id="open", quota=quota, dimension="user", failure_mode="open"),
            Rule(id="local", quota=quota, dimension="ip", failure_mode="local"),
            Rule(id="closed", quota=quota, dimension="tenant", failure_mode="closed"),
            Rule(id="shadow", quota=quota, dimension="api_key", failure_mode="closed", action="log_only"),
        ],
        store=store_of(own_server),
        failure_mode="closed",
    )
    own_server.stop()
    assert limiter.check(user="alice").reason == "fail_open"
    assert limiter.check(user="alice", api_key="k").reason == "fail_open"
    assert limiter.check(user="alice", ip="192.0.2.7", tenant="acme").reason == "fail_closed"
    twice = [limiter.check(user="alice", ip="192.0.2.7") for _ in range(2)]
    assert [(each.allowed, each.reason) for each in twice] == [
        (True, "local_fallback"),
        (False, "local_fallback"),
    ]
    assert twice[1].rule == "local"
    assert limiter.check(endpoint="/free").reason == "no_rule"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_that_makes_no_sense_fails_its_own_check_and_no_other(
    own_server: Server, open_limiter: Open, algorithm: str
) -> None:
    """Written by another program, or by another version of this one. The others of its call are decided."""
    store = store_of(own_server, timeout=10)
    limiter = open_limiter(calm(LIMIT, algorithm), store=store, failure_mode="closed")
    key = f"rl:user:{{alice}}:default/default:{algorithm}"
    with own_server.client() as client:
        for command in (("SET", key, "garbage"), ("HSET", key, "of", "another type")):
            client.flushall()
            client.execute_command(*command)
            bob, _, carol = limiter.check_many(["bob", "alice", {"user": "carol", "cost": 2}])
            assert (bob.reason, bob.remaining) == ("within_limit", LIMIT - 1)
            assert (carol.reason, carol.remaining) == ("within_limit", LIMIT - 2)
            limiter.reset("alice")
            assert limiter.check("alice").remaining == LIMIT - 1


def test_peeks_fail_like_checks_and_resets_raise(own_server: Server, open_limiter: Open) -> None:
    limiter = open_limiter(calm(LIMIT), store=store_of(own_server), failure_mode="closed")
    own_server.stop()
    assert limiter.peek("alice").reason == "fail_closed"
    assert [each.reason for each in limiter.check_many(["alice", "bob"])] == ["fail_closed"] * 2
    with pytest.raises(StoreError):
        limiter.reset("alice")


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if record.name == "headgate"]


@pytest.mark.parametrize("outage", [down, halted], ids=["down", "halted"])
def test_one_line_is_logged_at_each_turn(
    own_server: Server, open_limiter: Open, caplog: pytest.LogCaptureFixture, outage: Outage
) -> None:
    caplog.set_level(logging.INFO, logger="headgate")
    limiter = open_limiter(calm(LIMIT), store=store_of(own_server, timeout=0.2))  # no false alarms
    until_decided(limiter, "alice")
    caplog.clear()
    for _ in range(2):
        with during(outage, own_server):
            for _ in range(3):
                limiter.check("alice")
            limiter.check_many(["alice", "bob"])
            assert lines(caplog) == ["ERROR"]
        until_decided(limiter, "alice")
        for _ in range(10):
            limiter.check("alice")
        assert len(lines(caplog)) == 2
        caplog.clear()


def test_requests_that_no_rule_applies_to_say_nothing_of_the_store(
    own_server: Server, open_limiter: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """They never reach it: they must not be taken for a sign that it is back."""
    limiter = open_limiter([Rule(id="users", quota=calm(LIMIT))], store=store_of(own_server))
    own_server.stop()
    for _ in range(5):
        assert limiter.check(user="alice").reason == "fail_open"
        assert limiter.check(ip="192.0.2.7").reason == "no_rule"
    assert lines(caplog) == ["ERROR", "WARNING"]  # of the outage, and that no rule applies to some requests


@contextmanager
def babbler(reply: bytes) -> Iterator[str]:
    """A server that says this to every script, and OK to all else. The URL of a store."""

    def talk(client: socket.socket) -> None:
        with client, suppress(OSError):
            while asked := client.recv(65_536):
                client.sendall(reply if b"EVAL" in asked else b"+OK\r\n")

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=talk, args=listener.accept()[:1], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}?timeout=5"
        listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("rules", [1, 2])
@pytest.mark.parametrize("reply", [b"+OK\r\n", b"*-1\r\n", b"*2\r\n:1\r\n$-1\r\n", b":1\r\n"])
def test_a_reply_that_makes_no_sense_is_a_fault(reply: bytes, rules: int, open_limiter: Open) -> None:
    with babbler(reply) as url:
        limiter = open_limiter(
            [Rule(id=f"r{n}", quota=calm(LIMIT)) for n in range(rules)], store=url, failure_mode="closed"
        )
        assert limiter.check("alice").reason == "fail_closed"
