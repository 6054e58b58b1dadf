"""Loads: which checks go to a server in one command."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from headgate import Quota
from headgate.core.check import Check, Group
from headgate.stores.redis.loads import NO_SLOT, Batch, Waiting, loads_of
from headgate.stores.redis.template import CommandTemplate

QUOTA = Quota(9, 60, algorithm="gcra")
TEMPLATE = CommandTemplate(((QUOTA, True),))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def check(loop: asyncio.AbstractEventLoop, slot: int, name: str) -> Waiting:
    keys = (f"user:{{{name}}}:r:gcra",)
    return Waiting((), None, loop.create_future(), 1.0, 0.0, slot, 1, TEMPLATE, keys, (1,))


def group(loop: asyncio.AbstractEventLoop, slot: int, name: str) -> Waiting:
    groups = (Group((Check("r", "user:{*}:r:gcra", name, QUOTA),)),)
    return Waiting(groups, None, loop.create_future(), 1.0, 0.0, slot)


def test_on_a_cluster_a_command_has_keys_of_one_slot_only(loop: asyncio.AbstractEventLoop) -> None:
    waiting = [check(loop, slot, f"{slot}-{number}") for number in range(3) for slot in (1, 2, 3)]
    waiting += [group(loop, slot, f"group-{slot}") for slot in (1, 2, 3)]
    loads = loads_of(Batch(waiting, len(waiting), None))
    assert [{one.slot for one in load.waiting} for load in loads] == [{1}, {2}, {3}] * 2
    for load in loads:
        command = load.parcel(None, "rl").command
        count = int(command[2])
        assert count == len(load.waiting)
        assert all(str(name).startswith("rl:user:{") for name in command[3 : 3 + count])
        assert not any("user:{" in str(argument) for argument in command[3 + count :])  # keys are declared, all of them


def test_where_slots_do_not_matter_requests_with_one_template_are_one_command(loop: asyncio.AbstractEventLoop) -> None:
    waiting = [check(loop, NO_SLOT, str(number)) for number in range(5)]
    (load,) = loads_of(Batch(waiting, 5, TEMPLATE))
    assert load.parcel(None, "rl").command[2] == 5


def test_checks_are_not_merged_across_a_command_between_them(loop: asyncio.AbstractEventLoop) -> None:
    command = Waiting((), ("DEL", "rl:x"), loop.create_future(), 1.0, 0.0, 1)
    waiting = [check(loop, 1, "a"), command, check(loop, 1, "b")]
    assert [len(load.waiting) for load in loads_of(Batch(waiting, 3, None))] == [1, 1, 1]
