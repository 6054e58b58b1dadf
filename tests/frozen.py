"""Imported last by the process that tests fork programs from: keep the garbage collector from what it has imported.

Otherwise each program would look at all of that, and copy the memory that it is in.
"""

from __future__ import annotations

import gc

gc.collect()
gc.freeze()
