"""Operations: everything that operators do, by what they do it to."""

from __future__ import annotations

from headgate.db import Changes
from headgate.limiter.async_limiter import AsyncLimiter
from headgate.operations.change_log import ChangeLog
from headgate.operations.exemptions import Exemptions
from headgate.operations.rules import Rules
from headgate.operations.storage import Storage
from headgate.operations.subjects import Subjects
from headgate.operations.trials import Trials
from headgate.operations.users import Users
from headgate.rules.holder import Source


class Operations:
    """Safe to share between threads, but for what is async: that belongs to the event loop of `limiter`.

    `changes` is what changes the rules of `source` (`source.changes()`, so that they are in force here at once), or
    None where they are in a file: then they can only be read. `log` reads the change log; without one, `changes` does.
    """

    def __init__(
        self, *, source: Source, limiter: AsyncLimiter, changes: Changes | None = None, log: Changes | None = None
    ) -> None:
        storage = Storage(source=source, changes=changes, log=log or changes)
        self.source = source
        self.limiter = limiter  # of the data plane
        self.rules = Rules(storage)
        self.users = Users(storage, limiter)
        self.exemptions = Exemptions(storage)
        self.subjects = Subjects(storage, self.users, limiter)
        self.changes = ChangeLog(storage)
        self.place = None if changes is not None else storage.place  # where rules are that cannot be changed here
        self.trials = Trials(storage, limiter)
