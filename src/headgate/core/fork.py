"""What has to begin anew in a forked child, which has neither its parent's threads nor any use for its connections."""

from __future__ import annotations

import os
import sys
from typing import Final, Protocol
from weakref import WeakKeyDictionary


class Forked(Protocol):
    def forked(self) -> None:
        """Begin anew: called in the child, before anything else runs there."""
        ...


_things: Final[WeakKeyDictionary[Forked, None]] = WeakKeyDictionary()  # the oldest first


def renew_in_children(thing: Forked) -> None:
    """Have `thing.forked` called in every child that is forked off from now on, as long as there is the thing."""
    _things[thing] = None


def _renew() -> None:
    for thing in list(_things):
        thing.forked()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_renew)
