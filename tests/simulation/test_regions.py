"""Regions in virtual time: shares never let in more than the limit, and counts are never older than they may be.

`HEADGATE_SIMULATION_SEEDS=5000` runs as many seeds; `HEADGATE_SIMULATION_SEEDS=1234-1234` runs that one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.continents import Admission, Mode, World, faults_of_counts, faults_of_shares

SEEDS = os.environ.get("HEADGATE_SIMULATION_SEEDS")
FAULTS = {"quota_auto": faults_of_shares, "synced": faults_of_counts}


def seeds(thorough: bool) -> Iterator[int]:
    first, _, last = (SEEDS or ("40" if thorough else "8")).rpartition("-")
    return iter(range(int(first or 1), int(last) + 1))


@pytest.mark.parametrize("mode", ["quota_auto", "synced"])
def test_no_seed_lets_in_too_much(mode: Mode, thorough: bool) -> None:
    counted: Counter[str] = Counter()
    bad = {}
    for seed in seeds(thorough):
        world = World(seed, mode)
        world.run()
        counted += world.counted
        faults = list(FAULTS[mode](world))
        if faults:
            bad[seed] = (world.terms, faults)
    print(f"simulation of {mode}: {dict(counted)}")
    for seed, (terms, faults) in bad.items():
        print(f"HEADGATE_SIMULATION_SEEDS={seed}-{seed}: {terms}: {'; '.join(faults)}")
    assert not bad, f"seeds {sorted(bad)}"
    assert counted["admitted"] > 0


def test_the_judge_knows_too_much_when_it_sees_it() -> None:
    world = World(1, "quota_auto")
    limit, name = world.terms.quota.limit, next(iter(world.terms.weights))
    at_us = world.now_us
    number, past_us = divmod(world.clocks[name].at(at_us), world.terms.quota.window_us)
    left_us = world.terms.quota.window_us - past_us
    world.admitted["s0"] = [Admission(name, at_us, number, left_us, 1, fresh=False)] * limit
    assert not list(faults_of_shares(world))
    world.admitted["s0"].append(world.admitted["s0"][0])
    assert list(faults_of_shares(world))
    assert list(faults_of_counts(world))
