"""Rules: which requests are limited, and by how much.

`Rule`, `User` and the other types are in separate modules. A `Snapshot` holds all of them at one version, and plans
requests. `sources` supply snapshots. Only `sources` needs more than the standard library.
"""

from typing import TYPE_CHECKING, Final

from headgate.lazy_names import lazy_names

if TYPE_CHECKING:
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

_MODULES: Final = {
    "Exemption": "headgate.rules.exemptions",
    "Holder": "headgate.rules.holder",
    "Override": "headgate.rules.users",
    "Penalties": "headgate.rules.penalties",
    "Plan": "headgate.core.plan",
    "Rule": "headgate.rules.rule",
    "Snapshot": "headgate.rules.snapshot",
    "Source": "headgate.rules.holder",
    "Tier": "headgate.rules.users",
    "User": "headgate.rules.users",
    "normal_path": "headgate.rules.path",
}

if not TYPE_CHECKING:  # type checkers know all names
    __getattr__ = lazy_names(__name__, _MODULES)
