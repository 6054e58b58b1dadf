"""A process whose tasks wait for the only slot. Run by test_slot_queue.py as `python -m tests.integration.slot_waiter`,
never collected.

It writes a line when the store has refused a task for the first time (`waits`, and when), and one when a task holds the
slot (`held`, when it came, and when the store gave it the slot).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from typing import Any

from headgate import AsyncLimiter, RateLimited, Rule
from headgate.core.decision import Decision
from headgate.limiter.slot_queue import SlotWaiter

_arrived: dict[str, int] = {}
_note_refusal = SlotWaiter.note_refusal


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def note_refusal(waiter: SlotWaiter, decision: Decision, is_for_slot: bool) -> None:
    """Record when a task came, by the store's clock."""
    _note_refusal(waiter, decision, is_for_slot)
    if waiter.entry not in _arrived:
        _arrived[waiter.entry] = waiter.arrived_us
        say("waits", waiter.arrived_us)


async def work(limiter: AsyncLimiter, job: dict[str, Any]) -> None:
    for _ in range(job["times"]):
        await asyncio.sleep(random.random() * job["pause"])
        try:
            async with limiter.acquire(user="alice", wait=random.choice(job["waits"])) as slot:
                at_us = slot.decision.at_us
                say("held", _arrived.get(slot.entry, at_us), at_us)
                await asyncio.sleep(random.uniform(0.5, 1.0) * job["hold"])
        except RateLimited:
            say("refused")


async def main(job: dict[str, Any]) -> None:
    random.seed(job["seed"])
    async with AsyncLimiter([Rule(id="slots", quota=job["quota"])], store=job["url"], failure_mode="closed") as limiter:
        await limiter.peek(user="alice")  # connecting takes a while
        say("ready")
        await asyncio.gather(*(work(limiter, job) for _ in range(job["tasks"])))


if __name__ == "__main__":
    setattr(SlotWaiter, "note_refusal", note_refusal)  # noqa: B010 - mypy takes no assignment to a method
    asyncio.run(main(json.loads(sys.argv[1])))
