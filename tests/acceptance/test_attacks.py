"""Attacks on the gRPC port by somebody who has no token: what they cost the node, and other clients.

The law: work per byte received is bounded, whatever the frames and the state that they come in. A megabyte of each kind
of frame, in each state of a stream, costs less than half a second of the node's processor time, and delays another
client's call by less than 100 ms, but for what the machine itself was late by.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.floods import REPEATED, REQUESTS, STATES, repeated
from tests.attacks.victim import flood
from tests.service import Service, warm_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path: Path = tmp_path_factory.mktemp("attacks")
    with warm_service(path, data_token="secret" * 8) as started:
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
