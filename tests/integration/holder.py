"""A process that holds a limiter. Run by test_embedded.py as `python -m`, never collected.

It says "ready", and then answers each line of its input, a subject, with the reason of a check.
"""

from __future__ import annotations

import sys

from headgate import Limiter

if __name__ == "__main__":
    with Limiter("3/hour", store=sys.argv[1]) as limiter:
        print("ready", flush=True)
        for line in sys.stdin:
            print(limiter.check(line.strip()).reason, flush=True)
