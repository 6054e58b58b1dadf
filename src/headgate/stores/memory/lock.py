"""The lock of a memory store."""

from __future__ import annotations

from queue import SimpleQueue


class StoreLock:
    """A lock like `threading.Lock`, but faster to call: a queue of one token, which the holder takes out."""

    __slots__ = ("acquire", "is_held", "release")

    def __init__(self) -> None:
        token: SimpleQueue[None] = SimpleQueue()
        token.put(None)
        self.acquire = token.get
        self.release = token.put  # pass None, the token
        self.is_held = token.empty

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release(None)
