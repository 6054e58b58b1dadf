"""A process that records events, and says which are safe. A test kills it."""

from __future__ import annotations

from itertools import count
from multiprocessing.connection import Connection

from headgate import Limiter, Rule
from headgate.audit.auditor import Auditor
from headgate.audit.options import AuditOptions
from headgate.audit.usage import UsageCounter
from headgate.db import Database
from headgate.testing import FakeClock


def record(connection: Connection, url: str, directory: str, name: str) -> None:
    """Record events of users `name-0`, `name-1` …; send each number up to which `flush` has returned."""
    limiter = Limiter([Rule(id="all", quota="1/day", dimension="global")], clock=FakeClock(1_700_000_000))
    limiter.check()
    options = AuditOptions(flush_seconds=0.02, write_seconds=0.02, retention=None, usage_retention=None)
    usage = UsageCounter()
    auditor = Auditor(Database(url), directory, node=name, options=options, usage=usage)
    auditor.start()
    for number in count():
        user = f"{name}-{number}"
        decision = limiter.check(user=user)
        auditor.record({"user": user}, 1, decision)
        usage.add(1, decision)
        if number % 5 == 4:
            usage.rotate()
            auditor.flush()
            connection.send(number)
