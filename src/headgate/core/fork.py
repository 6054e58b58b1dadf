"""Keep objects that threads share usable after a fork.

The child has neither its parent's threads nor any use for its connections, so some objects reset there. Others
halt while the process forks, so that the child gets them in a consistent state, with no lock held by a missing thread.
"""

from __future__ import annotations

import os
import sys
from typing import Final, Protocol
from weakref import WeakKeyDictionary


class Forked(Protocol):
    def forked(self) -> None:
        """Reset: called in the child, before anything else runs there."""
        ...


class Halted(Forked, Protocol):
    def halt(self) -> None:
        """Wait for changes under way to end, and block new ones: called before a fork. Must not wait for ever."""
        ...

    def resume(self) -> None:
        """Go on: called in the parent, after the fork."""
        ...


_halted: Final[WeakKeyDictionary[Halted, None]] = WeakKeyDictionary()  # the oldest first: the order of halting
_things: Final[WeakKeyDictionary[Forked, None]] = WeakKeyDictionary()  # the oldest first


def renew_in_children(thing: Forked) -> None:
    """Have `thing.forked` called in every child that is forked off from now on, as long as there is the thing."""
    _things[thing] = None


def halt_for_forks(thing: Halted) -> None:
    """Have `thing` halted whenever the process forks, and renewed in the children."""
    _halted[thing] = None
    renew_in_children(thing)


def _halt() -> None:
    for reference in _halted.keyrefs():  # a list, made in one step: there are other threads
        thing = reference()
        if thing is not None:
            thing.halt()


def _resume() -> None:
    for reference in _halted.keyrefs():
        thing = reference()
        if thing is not None:
            thing.resume()


def _renew() -> None:
    for thing in list(_things):
        thing.forked()


if sys.platform != "win32":
    os.register_at_fork(before=_halt, after_in_parent=_resume, after_in_child=_renew)
