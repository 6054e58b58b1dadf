"""What operators do: read and change rules, users, exemptions and the change log, for every interface.

The admin API, the console and whatever comes next call this. Nothing of HTTP is in here, and no SQL. Every operation
says who asks for it, a `Caller`, and raises `Forbidden` when they may not.
"""

from headgate.operations.caller import Caller, Role, Scope
from headgate.operations.operations import Operations

__all__ = ["Caller", "Operations", "Role", "Scope"]
