"""A process that spends an hourly limit in bursts, by exact rules or with a peer. Run by leases.py as `python -m`.

It reads jobs from standard input: see tests/integration/workers.py.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import suppress
from typing import Any

from benchmarks.contenders import PEERS

SUBJECT = "everybody"


def work(job: dict[str, Any]) -> dict[str, int]:
    """Bursts of so many checks, and pauses of some length in between."""
    peer = next(peer for peer in PEERS if peer.name == job["peer"])
    contender, chance, admitted = peer.redis(job["algorithm"], job["limit"], job["url"]), random.Random(job["place"]), 0
    say("ready")
    sys.stdin.readline()
    for _ in range(job["bursts"]):
        time.sleep(chance.uniform(0, job["pause"]))
        admitted += sum(contender.allowed(contender.check(SUBJECT)) for _ in range(job["checks"]))
    contender.close()
    return {"checks": job["bursts"] * job["checks"], "admitted": admitted}


def say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        while line := sys.stdin.readline():
            say(work(json.loads(line)))
