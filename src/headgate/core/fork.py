"""Keep objects that threads share usable after a fork.

The child has neither its parent's threads nor any use for its connections, so some objects reset in the child. Others
halt while the process forks, so that the child gets them in a consistent state, with no lock held by a missing thread.
"""

from __future__ import annotations

import os
import sys
from typing import Final, Protocol
from weakref import WeakKeyDictionary


class Forked(Protocol):
    def reset_after_fork(self) -> None:
        """Reset the object. Called in the child, before anything else runs there."""
        ...


class Halted(Forked, Protocol):
    def halt(self) -> None:
        """Wait for changes in progress and block new ones. Called before a fork; must not wait forever."""
        ...

    def resume(self) -> None:
        """Allow changes again. Called in the parent, after the fork."""
        ...


_halted: Final[WeakKeyDictionary[Halted, None]] = WeakKeyDictionary()  # oldest first, which is the order of halting
_things: Final[WeakKeyDictionary[Forked, None]] = WeakKeyDictionary()  # oldest first


def renew_in_children(thing: Forked) -> None:
    """Call `thing.reset_after_fork` in every child forked from now on. Does not keep `thing` alive."""
    _things[thing] = None


def halt_for_forks(thing: Halted) -> None:
    """Halt `thing` during every fork, and reset it in the children."""
    _halted[thing] = None
    renew_in_children(thing)


def _halt() -> None:
    for reference in _halted.keyrefs():  # a copy, made in one step: other threads may change the dictionary
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
        thing.reset_after_fork()


if sys.platform != "win32":
    os.register_at_fork(before=_halt, after_in_parent=_resume, after_in_child=_renew)
