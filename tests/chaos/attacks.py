"""Attacks on a node's ports by strangers: floods of every kind of frame, a crowd of attackers, and noise."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.attacks import fuzz
from tests.attacks.crowd import Crowd
from tests.attacks.floods import REPEATED, REQUESTS, STATES, repeated
from tests.attacks.victim import LONGEST_DELAY, MOST_CPU, Cost, Watched, flood
from tests.chaos.case import Case, Figures
from tests.service import Service, running_service

TOKEN = "secret" * 8
SEED = 15
CROWD = 200  # connections
CROWD_SECONDS = 10.0
MOST_OF_A_CORE = 0.75  # that a crowd of strangers may cost, and answers to others
NOISE_SECONDS = 60.0  # on each port


@contextmanager
def attacked() -> Iterator[Service]:
    """A node whose data plane asks for a token, which attackers have not."""
    with tempfile.TemporaryDirectory() as directory, running_service(Path(directory), data_token=TOKEN) as service:
        yield service
        assert "Traceback" not in service.log


def floods(figures: Figures, quick: bool) -> None:
    with attacked() as service:
        costs: dict[str, Cost] = {}
        for state, begin in STATES.items():
            for kind, unit in REPEATED.items():
                costs[f"{kind}, {state}"] = flood(service, begin, repeated(unit))
        for kind, make in REQUESTS.items():
            begin, *requests = make()
            costs[kind] = flood(service, begin, b"".join(requests))
    figures.note("floods of 1 MB", len(costs))
    dearest = max(costs, key=lambda kind: costs[kind].cpu)
    figures.at_most("CPU of the node", costs[dearest].cpu, MOST_CPU, "s")
    figures.note("… for", dearest)
    slowest = max(costs, key=lambda kind: costs[kind].longest)
    figures.within("another client's delay", 1_000 * costs[slowest].longest, 1_000 * LONGEST_DELAY, "ms")
    figures.note("… for", slowest)


def crowd(figures: Figures, quick: bool) -> None:
    seconds = 3.0 if quick else CROWD_SECONDS
    window = STATES["blocked by itself"] + repeated(REPEATED["WINDOW_UPDATE, the connection"])
    fields = b"".join(REQUESTS["as many fields as fit"]())
    for name, sent in (("windows", window), ("header fields", fields)):
        with (
            attacked() as service,
            Watched(service, TOKEN) as cost,
            Crowd(service.grpc_address, CROWD, sent) as attackers,
        ):
            attackers.run(seconds)
        figures.note(f"{name}: connections", CROWD + attackers.came_again)
        figures.at_most(f"{name}: cores of the node", cost.cpu / seconds, MOST_OF_A_CORE)
        figures.within(f"{name}: another client's delay", 1_000 * cost.longest, 1_000 * LONGEST_DELAY, "ms")


def noise(figures: Figures, quick: bool) -> None:
    for port in fuzz.PORTS:
        with attacked() as service:
            outcome = fuzz.fuzz(service, port, seed=SEED, inputs=100_000, seconds=5.0 if quick else NOISE_SECONDS)
        figures.note(f"{port}: inputs", f"{outcome.inputs:,}")
        figures.at_most(f"{port}: CPU of the dearest", 1_000 * outcome.cpu, 1_000 * fuzz.MOST_CPU, "ms")
        figures.within(f"{port}: another client's delay", 1_000 * outcome.delay, 1_000 * fuzz.LONGEST_DELAY, "ms")
        figures.exactly(f"{port}: bytes of other connections", outcome.leaks)


CASES = (
    Case("floods", "a megabyte of each frame, in each state of a stream, without a token", floods),
    Case("strangers", f"{CROWD} strangers who attack at once", crowd),
    Case("noise", "noise on both ports", noise),
)
