"""For tests, yours and ours: a clock that tests control, and the contracts that stores must pass.

The engine does not import this, and nothing here imports a test framework.
"""

from headgate.testing.clock import FakeClock
from headgate.testing.reservations import ReservingContract
from headgate.testing.slots import SlotContract
from headgate.testing.store import StoreContract

__all__ = ["FakeClock", "ReservingContract", "SlotContract", "StoreContract"]
