"""Calls in flight, for threads: several threads' calls to a server share one connection.

The thread that reads the replies passes them to all waiting threads. It can stop, and another thread can continue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import Any

from redis.exceptions import NoScriptError

from headgate.errors import StoreError
from headgate.stores.redis.connection import ThreadConnection
from headgate.stores.redis.script import EncodedCommand, pack


class ThreadCall:
    """Commands that one thread sends to a server. It waits for the lock `notification`, which `wake` releases."""

    __slots__ = (
        "began",
        "commands",
        "deadline",
        "error",
        "groups",
        "in_flight",
        "is_notified",
        "is_waited_for",
        "missing",
        "notification",
        "queued",
        "replies",
    )

    def __init__(self, commands: Sequence[EncodedCommand], deadline: float, groups: int) -> None:
        self.commands = commands
        self.groups = groups
        self.began = monotonic()
        self.deadline = deadline  # by the process clock
        self.queued = 0.0  # time of queueing, by the same clock
        self.replies: list[Any] = [None] * len(commands)
        self.missing = len(commands)  # replies
        self.error: StoreError | None = None  # why there are none
        self.in_flight: InFlight | None = None  # whose replies this thread must read
        self.notification = Lock()
        self.notification.acquire()
        self.is_notified = False  # whether `notification` was released
        self.is_waited_for = True

    @property
    def is_done(self) -> bool:
        return not self.missing or self.error is not None

    def wake(self) -> None:
        """Wake the thread: something has happened."""
        if not self.is_notified:
            self.is_notified = True
            self.notification.release()

    def reset_notification(self) -> None:
        """Reset, so that the next `wake` wakes the thread again."""
        if self.is_notified:
            self.notification.acquire(blocking=False)
            self.is_notified = False

    def fail(self, error: StoreError) -> None:
        if not self.is_done:
            self.error = error
            self.wake()


class InFlight:
    """Calls that share a connection until all their replies are read."""

    __slots__ = ("_expected", "_has_read_asking", "_may_be_unknown", "_unknown", "began", "calls", "connection")

    def __init__(self, connection: ThreadConnection, calls: Sequence[ThreadCall], began: float) -> None:
        self.connection = connection
        self.calls = calls
        self.began = began  # by the process clock
        self._expected = deque((call, index) for call in calls for index in range(len(call.commands)))
        self._unknown: list[tuple[ThreadCall, int]] = []  # commands whose scripts the server does not know
        self._may_be_unknown = len(self._expected)  # upper bound of their number; falls each time
        self._has_read_asking = False  # whether the reply to ASKING was read

    def send(self, deadline: float) -> None:
        commands = [command for call in self.calls for command in call.commands]
        self.connection.send(pack(commands, self.connection.scripts), deadline)

    def send_again(self) -> None:
        """Make `read` send everything again, because the server does not know the script."""
        self._unknown = list(self._expected)
        self._expected.clear()

    def read(self, now: float, deadline: float) -> None:
        """Read replies and pass them on. After a RedisTimeout, it can be called again.

        Commands whose script the server does not know were not executed, and are sent again, repeatedly if the server
        loses the script again. Their callers get the same time again. `now` is the time by the process clock.
        """
        longer = max(0.0, deadline - now)
        while True:
            while self._expected:
                call, index = self._expected[0]
                command = call.commands[index]
                if command.asking and not self._has_read_asking:
                    self.connection.receive(deadline)
                    self._has_read_asking = True
                reply = self.connection.receive(deadline)
                self._expected.popleft()
                self._has_read_asking = False
                if isinstance(reply, NoScriptError) and len(self._unknown) < self._may_be_unknown:
                    self._unknown.append((call, index))
                    continue
                call.replies[index] = reply
                call.missing -= 1
                if not call.missing:
                    call.wake()
            if not self._unknown:
                return
            again, self._unknown = self._unknown, []
            self._may_be_unknown = len(again) - 1
            deadline += longer
            for call, _ in again:
                call.deadline += longer
            self.connection.send(pack((call.commands[index] for call, index in again), set()), deadline)
            self._expected.extend(again)

    def fail(self, error: StoreError) -> None:
        """Tell the waiting threads that there will be no replies."""
        for call in self.calls:
            call.fail(error)
