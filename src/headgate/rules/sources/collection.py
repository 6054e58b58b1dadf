"""The garbage collector, and when sources do without it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Without the garbage collector, which would go through all that is being loaded again and again and find nothing.

    All that is made of it either stays or goes when its last reference does.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
