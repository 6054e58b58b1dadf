"""Plans for a cluster, whatever fails and however they interleave: never too many admitted, never too little charged.

The steps of several plans are taken in an arbitrary order, each by a real server. Some are not taken at all, and of
some the answer is lost. One server stands for all slots: what is proved here is the order of steps, not the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.check import Check, Group, Idempotency, Result
from headgate.core.key import DEFAULT_PREFIX, key_template
from headgate.core.quota import BUCKETS, WINDOWS, Quota
from headgate.errors import StoreError, StoreTimeout, StoreUnavailable
from headgate.stores.process_clock import PROCESS
from headgate.stores.redis.encoding import Encoder
from headgate.stores.redis.node import ServerNode
from headgate.stores.redis.options import read_url
from headgate.stores.redis.script import EncodedCommand
from headgate.stores.redis.slot_planner import SlotPlanner
from headgate.stores.redis.steps import SlotStep, Steps, by_request, step_of
from tests.conftest import TIMEOUT
from tests.property.strategies import examples
from tests.servers import Server

NOW_US = 1_700_000_040_000_000
SUBJECTS = ("alice", "bob", "carol")
LIMIT = 4
PATIENCE = 30  # steps after which the deadline of a plan is over

Fate = Literal["done", "unsent", "lost"]
_runs = count()


class Request(NamedTuple):
    subjects: tuple[str, ...]
    cost: int
    key: str | None = None


class OneServer:
    """Takes steps, as fate has it."""

    def __init__(self, url: str) -> None:
        target = read_url(url)
        self.node = ServerNode(target.params, target.options, None)
        self.planner = SlotPlanner(target.options, Encoder(DEFAULT_PREFIX), lambda: NOW_US, slotted=True)

    def take(self, step: SlotStep, fate: Fate) -> Any:
        if fate == "unsent":
            return StoreUnavailable("refused", sent=False)
        command = step.command
        if step.template is not None:
            command = step.template.command(step.requests, NOW_US)
        assert command is not None
        reply = self.node.ask(EncodedCommand(command), PROCESS.read() + 10)
        assert not isinstance(reply, Exception), reply
        if fate == "lost":
            return StoreTimeout("late")
        return reply if step.template is None else by_request(step, reply[0], reply[1:])


@pytest.fixture(scope="module")
def server(one_server: Server) -> Iterator[OneServer]:
    found = OneServer(f"{one_server.url}?{TIMEOUT}")
    yield found
    found.node.close()


requests = st.builds(
    Request,
    st.lists(st.sampled_from(SUBJECTS), min_size=1, max_size=3, unique=True).map(tuple),
    st.integers(1, 3),
    st.none(),
)
# What has an idempotency key is always the same request.
repeated = st.sampled_from(["k1", "k2"]).map(lambda key: Request(SUBJECTS if key == "k1" else ("bob", "alice"), 2, key))
fates = st.lists(st.sampled_from(["done"] * 6 + ["unsent", "lost"]), max_size=60)
turns = st.lists(st.integers(0, 9), max_size=60)


def group_of(request: Request, algorithm: str, run: int) -> Group:
    quota = Quota(LIMIT, 86_400 * 300, algorithm=algorithm)  # type: ignore[arg-type]
    place = key_template("user", f"plans-{run}", algorithm)
    checks = tuple(Check("rule", place, subject, quota, request.cost) for subject in request.subjects)
    idempotency = None
    if request.key is not None:
        idempotency = Idempotency(request.key, f"of-{request.key}", f"plans-{run}")
    return Group(checks, idempotency=idempotency)


def follow_all(server: OneServer, groups: Sequence[Group], order: list[int], fortune: list[Fate]) -> list[Any]:
    """What comes of each group: its result, or the error. Each plan takes the steps it has, when it is its turn."""
    plans: list[Steps[Any]] = [server.planner.decide([group]) for group in groups]
    steps: dict[int, list[SlotStep]] = {place: next(plan) for place, plan in enumerate(plans)}
    taken = dict.fromkeys(steps, 0)
    results: list[Any] = [None] * len(groups)
    turn, chance = iter(order), iter(fortune)
    while steps:
        waiting = list(steps)
        place = waiting[next(turn, 0) % len(waiting)]
        taken[place] += 1
        late = taken[place] > PATIENCE
        answers = [StoreTimeout("over") if late else server.take(step, next(chance, "done")) for step in steps[place]]
        try:
            steps[place] = plans[place].send(answers)
        except StopIteration as end:
            (results[place],) = end.value
            del steps[place]
        except StoreError as error:
            results[place] = error
            del steps[place]
        else:
            if any(step.pause for step in steps[place]):  # others go on meanwhile
                steps[place] = steps.pop(place)
    return results


@pytest.mark.parametrize("algorithm", WINDOWS + BUCKETS)
@examples(40)
@given(asked=st.lists(requests | repeated, min_size=1, max_size=8), order=turns, fortune=fates)
def test_nothing_is_admitted_that_was_not_charged(
    server: OneServer, algorithm: str, asked: list[Request], order: list[int], fortune: list[Fate]
) -> None:
    run = next(_runs)
    groups = [group_of(request, algorithm, run) for request in asked]
    results = follow_all(server, groups, order, fortune)
    admitted = dict.fromkeys(SUBJECTS, 0)
    answers: dict[str, bool] = {}
    for request, result in zip(asked, results, strict=True):
        if not isinstance(result, Result):
            assert isinstance(result, StoreError)
            assert fortune
            continue
        assert len(result.outcomes) == len(request.subjects)
        allowed = not any(outcome.wait_us for outcome in result.outcomes)
        if request.key in answers:
            assert answers[request.key] == allowed, "one idempotency key, two answers"
            continue
        if request.key is not None:
            answers[request.key] = allowed
        if allowed:
            for subject in request.subjects:
                admitted[subject] += request.cost
    used = {}
    for subject in SUBJECTS:
        looked = Encoder(DEFAULT_PREFIX).group(group_of(Request((subject,), 0), algorithm, run))
        (figures,) = server.take(step_of(0, looked), "done")
        result = looked.template.read(*figures)
        assert result is not None
        used[subject] = LIMIT - result.outcomes[0].remaining
        assert admitted[subject] <= used[subject] <= LIMIT
    if all(fate == "done" for fate in fortune):
        assert used == admitted
