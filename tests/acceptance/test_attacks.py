"""Attacks on the gRPC port by somebody who has no token: what they cost the node, and other clients.

The law: work per byte received is bounded, whatever the frames and the state that they come in. A megabyte of each kind
of frame, in each state of a stream, costs less than half a second of the node's processor time, and delays another
client's call by less than 100 ms, but for what the machine itself was late by.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.crowd import Crowd
from tests.attacks.floods import REPEATED, REQUESTS, STATES, repeated
from tests.attacks.fuzz import PORTS, fuzz
from tests.attacks.victim import ATTEMPTS, LONGEST_DELAY, Attacker, Caller, Watched, flood
from tests.service import Service, warm_service

TOKEN = "secret" * 8


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path: Path = tmp_path_factory.mktemp("attacks")
    with warm_service(path, data_token=TOKEN) as started:
        with Caller(started, TOKEN) as caller:
            caller.call()  # a token that was good before stays so while its address tries bad ones
        yield started


@pytest.mark.parametrize("state", STATES)
def test_a_megabyte_of_each_frame_is_cheap(service: Service, state: str) -> None:
    begin = STATES[state]
    costs = {kind: flood(service, begin, repeated(unit)) for kind, unit in REPEATED.items()}
    assert {kind: str(cost) for kind, cost in costs.items() if not cost.held} == {}


@pytest.mark.parametrize("kind", REQUESTS)
def test_a_megabyte_of_requests_is_cheap(service: Service, kind: str) -> None:
    begin, *requests = REQUESTS[kind]()
    cost = flood(service, begin, b"".join(requests))
    assert cost.held, str(cost)


@pytest.mark.parametrize("port", PORTS)
def test_noise_costs_nobody_anything(service: Service, port: str) -> None:
    """The first inputs of those that `make chaos` has."""
    outcome = fuzz(service, port, seed=15, inputs=150, seconds=60)
    assert outcome.broken == []
    assert outcome.inputs >= 10


@pytest.mark.parametrize("token", [TOKEN, None])
def test_a_crowd_of_strangers_holds_up_nobody_else(service: Service, token: str | None) -> None:
    """Neither a client with a token, nor a stranger who makes a call now and then."""
    sent = b"".join(REQUESTS["as many fields as fit"]())
    for _ in range(ATTEMPTS):
        with (
            Watched(service, token, pause=0.01 if token else 0.3) as cost,
            Crowd(service.grpc_address, 50, sent) as attackers,
        ):
            attackers.run(1.5)
        if cost.longest < LONGEST_DELAY:
            break
    assert cost.longest < LONGEST_DELAY, str(cost)


def test_nothing_went_wrong(service: Service) -> None:
    assert "Traceback" not in service.log


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/openapi.json", "/docs", "/nothing", "/api/v1/rules"])
def test_requests_that_anybody_may_make_are_held_back(service: Service, path: str) -> None:
    """As many as a megabyte has, one behind the other: their client waits, and nobody else does."""
    request = f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode()
    for _ in range(ATTEMPTS):
        with Watched(service) as cost, Attacker(service.url) as attacker:
            attacker.send(repeated(request), seconds=1.0)
            attacker.wait_for(b"HTTP/1.1 ")
            attacker.closed.wait(1.0)
        if cost.held:
            break
    assert cost.held, str(cost)
