"""Rules: which requests are limited, and by how much.

`Rule`, `User` and the other types are in separate modules. A `Snapshot` holds all of them at one version, and plans
requests. `sources` supply snapshots. Only `sources` needs more than the standard library.
"""

from headgate.core.plan import Plan
from headgate.rules.exemptions import Exemption
from headgate.rules.holder import Holder, Source
from headgate.rules.path import normal_path
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import Override, Tier, User

__all__ = [
    "Exemption",
    "Holder",
    "Override",
    "Penalties",
    "Plan",
    "Rule",
    "Snapshot",
    "Source",
    "Tier",
    "User",
    "normal_path",
]
