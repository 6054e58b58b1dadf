"""Operations: all operators' actions, grouped by what they act on."""

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
    """All operations. Safe to share between threads, except async methods, which belong to the event loop of `limiter`.

    `changes` changes the rules of `source` (pass `source.changes()`, so that changes apply here at once); None if they
    are in a file, and can only be read. `log` reads the change log; by default `changes` does.
    """

    def __init__(
        self, *, source: Source, limiter: AsyncLimiter, changes: Changes | None = None, log: Changes | None = None
    ) -> None:
        storage = Storage(source=source, changes=changes, log=log or changes)
        self.source = source
        self.limiter = limiter  # the data plane's
        self.rules = Rules(storage)
        self.users = Users(storage, limiter)
        self.exemptions = Exemptions(storage)
        self.subjects = Subjects(storage, self.users, limiter)
        self.changes = ChangeLog(storage)
        self.place = None if changes is not None else storage.place  # the place of rules that cannot be changed here
        self.trials = Trials(storage, limiter)
