"""Operators' actions: read and change rules, users, exemptions and the change log, for every interface.

The admin API and the console call this package. It contains neither HTTP nor SQL. Every operation takes a `Caller`, and
raises `Forbidden` if the caller lacks the permission.
"""

from headgate.operations.caller import Caller, Role, Scope
from headgate.operations.operations import Operations

__all__ = ["Caller", "Operations", "Role", "Scope"]
