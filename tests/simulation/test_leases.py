"""Leases in virtual time: whatever is lost, late, crashed or off, nobody lets in more than the limit.

`HEADGATE_SIMULATION_SEEDS=5000` runs as many seeds; `HEADGATE_SIMULATION_SEEDS=1234-1234` runs that one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from headgate.core.quota import Quota
from tests.simulation.world import Admission, World, excess

SEEDS = os.environ.get("HEADGATE_SIMULATION_SEEDS")


def seeds(thorough: bool) -> Iterator[int]:
    first, _, last = (SEEDS or ("200" if thorough else "40")).rpartition("-")
    return iter(range(int(first or 1), int(last) + 1))


def faults_of(world: World) -> list[str]:
    """What must not be."""
    faults = world.late[:3]
    for subject, admissions in world.admitted.items():
        over = excess(world.terms.quota, admissions)
        if over > 0:
            faults.append(f"{over} too many for {subject} by {world.terms.quota}")
    for subject, admissions in world.exact.items():
        assert world.terms.exact is not None
        over = excess(world.terms.exact, admissions)
        if over > 0:
            faults.append(f"{over} too many for {subject} by the exact {world.terms.exact}")
    for node in world.nodes:
        status = node.leases.status()
        if world.terms.faults == 0:
            pending = status.fetched - status.returned - status.stranded - status.outstanding - node.spent
            if not pending >= 0:
                faults.append(f"node {node.number}: {-pending} tokens from nowhere: {status}, spent {node.spent}")
    return faults


def test_no_seed_lets_in_too_much(thorough: bool) -> None:
    counted: Counter[str] = Counter()
    bad = {}
    for seed in seeds(thorough):
        world = World(seed)
        world.run()
        counted += world.counted
        faults = faults_of(world)
        if faults:
            bad[seed] = (world.terms, faults)
    print(f"simulation: {dict(counted)}")
    for seed, (terms, faults) in bad.items():
        print(f"HEADGATE_SIMULATION_SEEDS={seed}-{seed}: {terms}: {'; '.join(faults)}")
    assert not bad, f"seeds {sorted(bad)}"
    assert counted["admitted"] > 0


@pytest.mark.parametrize(
    ("quota", "admissions", "expected"),
    [
        (Quota(2, 1, algorithm="fixed_window"), [(0, 2), (1_000_000, 2)], 0),
        (Quota(2, 1, algorithm="fixed_window"), [(0, 1), (999_999, 2)], 1),
        (Quota(2, 1), [(0, 2), (1_500_000, 1)], 0),
        (Quota(2, 1), [(0, 2), (1_400_000, 2)], 1),
        (Quota(10, 1, burst=5, algorithm="gcra"), [(0, 15)], 0),
        (Quota(10, 1, burst=5, algorithm="gcra"), [(0, 16)], 1),
        (Quota(10, 1, burst=5, algorithm="gcra"), [(0, 15), (100_000, 2)], 1),
    ],
)
def test_the_judge_knows_too_much_when_it_sees_it(
    quota: Quota, admissions: list[tuple[int, int]], expected: int
) -> None:
    assert excess(quota, [Admission(*each) for each in admissions]) == expected
