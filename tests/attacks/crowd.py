"""Many strangers at once: each attacks, and comes again when it is cut off."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tests.attacks.victim import address_of


@dataclass
class Crowd:
    """So many connections at a time, each of which sends the same. Use as a context manager; `run` attacks."""

    address: str
    size: int
    sent: bytes
    came_again: int = 0

    def __enter__(self) -> Self:
        self._selector = selectors.DefaultSelector()
        self._at: dict[socket.socket, int] = {}
        for _ in range(self.size):
            self._connect()
        return self

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for key, events in self._selector.select(0.05):
                attacker = key.fileobj
                assert isinstance(attacker, socket.socket)
                if not self._go_on(attacker, events):
                    self._leave(attacker)
                    self._connect()
                    self.came_again += 1
            time.sleep(0.001)  # for the node, and for whoever watches it, on a machine with few processors

    def __exit__(self, *_: object) -> None:
        for attacker in list(self._at):
            self._leave(attacker)
        self._selector.close()

    def _connect(self) -> None:
        attacker = socket.create_connection(address_of(self.address), timeout=60)
        attacker.setblocking(False)
        self._selector.register(attacker, selectors.EVENT_READ | selectors.EVENT_WRITE)
        self._at[attacker] = 0

    def _go_on(self, attacker: socket.socket, events: int) -> bool:
        """Whether the connection is still there."""
        try:
            if events & selectors.EVENT_READ and not attacker.recv(262_144):
                return False
            at = self._at[attacker]
            with suppress(BlockingIOError):
                at += attacker.send(self.sent[at : at + 16_384])
            self._at[attacker] = at
            if at >= len(self.sent):
                self._selector.modify(attacker, selectors.EVENT_READ)
        except OSError:
            return False
        return True

    def _leave(self, attacker: socket.socket) -> None:
        self._selector.unregister(attacker)
        del self._at[attacker]
        attacker.close()
