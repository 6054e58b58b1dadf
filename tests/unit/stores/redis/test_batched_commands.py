"""Loads: which checks go to a server in one command."""

from __future__ import annotations

from headgate import Quota
from headgate.stores.redis.batcher import NO_SLOT, CallerBatch, Waiting, WaitingStep, commands_of
from headgate.stores.redis.encoding import CommandTemplate, EncodedRequest

QUOTA = Quota(9, 60, algorithm="gcra")
TEMPLATE = CommandTemplate(((QUOTA, True),))
PEEK = CommandTemplate(((QUOTA, True),), peek=True)


def check(slot: int, *names: str, template: CommandTemplate = TEMPLATE, ordered: bool = False) -> Waiting:
    requests = [EncodedRequest((f"rl:user:{{{name}}}:r:gcra",), (1,)) for name in names]
    return WaitingStep(template, requests, slot, ordered=ordered)


def test_on_a_cluster_a_command_has_keys_of_one_slot_only() -> None:
    waiting = [check(slot, f"{slot}-{number}") for number in range(3) for slot in (1, 2, 3)]
    waiting += [check(slot, f"peek-{slot}", template=PEEK) for slot in (1, 2, 3)]
    commands = commands_of(CallerBatch(waiting, len(waiting), None))
    assert [{one.slot for one in command.waiting} for command in commands] == [{1}, {2}, {3}] * 2
    for one in commands:
        command = one.encode(None).command
        count = int(command[2])
        assert count == len(one.waiting)
        assert all(str(name).startswith("rl:user:{") for name in command[3 : 3 + count])
        assert not any("user:{" in str(argument) for argument in command[3 + count :])  # keys are declared, all of them


def test_where_slots_do_not_matter_requests_with_one_template_are_one_command() -> None:
    waiting = [check(NO_SLOT, str(number), f"more-{number}") for number in range(5)]
    (command,) = commands_of(CallerBatch(waiting, 10, TEMPLATE))
    assert command.encode(None).command[2] == 10


def test_requests_are_not_merged_across_a_command_between_them() -> None:
    command = WaitingStep(None, (), 1, ("DEL", "rl:x"))
    waiting = [check(1, "a"), command, check(1, "b")]
    assert [len(one.waiting) for one in commands_of(CallerBatch(waiting, 3, None))] == [1, 1, 1]


def test_ordered_requests_stay_behind_those_before_them() -> None:
    waiting = [check(1, "a"), check(1, "a", template=PEEK), check(1, "a", ordered=True)]
    commands = commands_of(CallerBatch(waiting, 3, None))
    assert [command.template for command in commands] == [TEMPLATE, PEEK, TEMPLATE]


def test_costs_that_all_requests_share_are_sent_once() -> None:
    requests = [EncodedRequest((f"rl:user:{{{number}}}:r:gcra",), (2,)) for number in range(3)]
    assert TEMPLATE.command(requests, None)[6:] == ("", 0, 1, "gcra", 9, 60_000_000, 9, 1, 2)
    requests.append(EncodedRequest(("rl:user:{x}:r:gcra",), (5,)))
    assert TEMPLATE.command(requests, None)[-4:] == (2, 2, 2, 5)
