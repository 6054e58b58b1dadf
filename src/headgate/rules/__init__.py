"""Rules: who is limited, and by how much.

`Rule`, `User` and the other words are in modules of their own; `Snapshot` is all of them at one version, and plans
requests; `sources` are where snapshots come from. Standard library only, but for `sources`.
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
