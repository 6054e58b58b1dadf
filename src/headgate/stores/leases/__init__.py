"""Leases: slices of a key's quota that were charged to the store beforehand, and are spent here. Without I/O."""

from headgate.stores.leases.leases import TICK_US, Leases
from headgate.stores.leases.status import LeaseStatus
from headgate.stores.leases.trip import Decided

__all__ = ["TICK_US", "Decided", "LeaseStatus", "Leases"]
