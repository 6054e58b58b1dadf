"""The interceptor holds slots until a call is over, in real servers of every kind, whichever way it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from queue import Queue

import pytest

from headgate import Rule
from tests.acceptance.apps.grpc_echo import KINDS, SERVICE
from tests.acceptance.test_grpc import EXHAUSTED, OK, STUCK, Client, client_of, quiet

RULES = [Rule(id="slots", quota="1 concurrent ttl 1h", dimension="ip")]

__all__ = ["quiet"]


def admitted(client: Client) -> bool:
    """Whether a call is admitted by and by: a server may release a slot right after its client has the answer."""
    deadline = time.monotonic() + STUCK
    while time.monotonic() < deadline:
        if client("unary").code is OK:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_holds_its_slot_until_it_is_over(kind: str) -> None:
    with client_of(kind, RULES) as client:
        messages: Queue[bytes | None] = Queue()
        requests: Iterator[bytes | None] = iter(messages.get, None)
        call = client.channel.stream_stream(f"/{SERVICE}/chat")(requests, timeout=STUCK)
        messages.put(b"a")
        assert next(call) == b"A"
        refused = client("unary")
        assert refused.code is EXHAUSTED
        assert refused.trailing["ratelimit-policy"] == '"slots";q=1;qu="concurrent-requests"'
        messages.put(None)
        assert list(call) == []
        assert call.code() is OK
        assert admitted(client)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_its_client_breaks_off_holds_nothing(kind: str) -> None:
    with client_of(kind, RULES) as client:
        messages: Queue[bytes | None] = Queue()
        call = client.channel.stream_stream(f"/{SERVICE}/chat")(iter(messages.get, None), timeout=STUCK)
        messages.put(b"a")
        assert next(call) == b"A"
        assert client("unary").code is EXHAUSTED
        call.cancel()
        assert admitted(client)
        messages.put(None)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_calls_that_are_broken_off_behind_another_interceptor_hold_nothing(kind: str) -> None:
    with client_of(kind, RULES, outer=[Rule(id="rate", quota="1000/minute", dimension="ip")]) as client:
        for _ in range(20):  # at different times
            call = client.channel.unary_stream(f"/{SERVICE}/endless")(b"a", timeout=STUCK)
            assert next(call) == b"a"
            call.cancel()
            assert admitted(client)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["abort", "abort_in_stream", "fail", "fail_in_stream", "fan", "join"])
def test_calls_that_end_otherwise_hold_nothing(kind: str, method: str) -> None:
    with client_of(kind, RULES) as client:
        assert client(method).code is not EXHAUSTED
        assert admitted(client)
