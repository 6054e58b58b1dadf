"""For tests, yours and ours: a clock that a test moves by hand, and the contracts that stores have to pass.

Nothing in the engine imports this, and nothing in here imports a test framework.
"""

from headgate.testing.clock import FakeClock
from headgate.testing.reservations import ReservingContract
from headgate.testing.slots import SlotContract
from headgate.testing.store import StoreContract

__all__ = ["FakeClock", "ReservingContract", "SlotContract", "StoreContract"]
