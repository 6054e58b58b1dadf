"""Connections to PostgreSQL that never wait forever: every call ends, whatever the server does.

No other timeout covers a server that is up but silent, as when its disk stalls. The server itself enforces a
statement's timeout, and TCP's timeouts never fire, because the server's kernel still acknowledges.
"""

from __future__ import annotations

from threading import Event
from time import monotonic
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen

ANSWER_SECONDS: Final = 4.0

T = TypeVar("T")


class BoundConnection(psycopg.Connection[Any]):
    """A connection whose calls raise `OperationalError`, and close it, when the server is silent for `seconds`.

    This does not limit a call's duration: while rows arrive or are sent, the server is not silent.
    """

    seconds = ANSWER_SECONDS
    given_up: Event | None = None  # if set, no call waits any longer

    def wait(self, gen: PQGen[T], *args: Any, **kwargs: Any) -> T:
        return super().wait(self._bound(gen), *args, **kwargs)

    def _bound(self, gen: PQGen[T]) -> PQGen[T]:
        """Run the steps of `gen` under the time limit. psycopg resumes it every tenth of a second, data or not."""
        try:
            wanted = next(gen)
            heard_at = monotonic()
            while True:
                ready = yield wanted
                if ready:
                    heard_at = monotonic()
                elif self.given_up is not None and self.given_up.is_set():
                    self.close()
                    raise psycopg.OperationalError("was closed")
                elif monotonic() - heard_at >= self.seconds:
                    self.close()
                    raise psycopg.OperationalError(f"no answer within {self.seconds:g} s")
                wanted = gen.send(ready)
        except StopIteration as end:
            found: T = end.value
            return found
