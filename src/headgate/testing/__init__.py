"""For tests, yours and ours: a clock that a test moves by hand, and the contract that every store has to pass.

Nothing in the engine imports this, and nothing in here imports a test framework.
"""

from headgate.testing.clock import FakeClock
from headgate.testing.contract import StoreContract

__all__ = ["FakeClock", "StoreContract"]
