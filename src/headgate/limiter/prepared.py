"""A request before it is decided: what it says, what is known of it, and what its program is called with."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from headgate.core.check import Block, Extras, Group, Penalty
from headgate.errors import InvalidCheck
from headgate.rules.directory import Unknown
from headgate.rules.plan import RulePlan
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import User
from headgate.stores.program import group_of

Subject = str | int
Request = Subject | Mapping[str, Any]
Planned = tuple[Snapshot, RulePlan]  # the rules that apply to a request, behind the snapshot that they are of


class PreparedCheck(NamedTuple):
    """A request whose plan is known, ready for a program or for a store's `check`."""

    plan: RulePlan
    subjects: tuple[str, ...]
    costs: tuple[int, ...]
    peek: bool = False
    extras: Extras | None = None
    at_us: int = 0  # when it was prepared, of one with a penalty
    block: Block | None = None  # that is remembered of its client: the store is not asked

    @property
    def sent(self) -> bool:
        """Whether the store is asked."""
        return bool(self.plan.limits) and self.block is None

    @property
    def penalty(self) -> Penalty | None:
        """Whom a refusal counts against; None: nobody."""
        return None if self.extras is None else self.extras.penalty

    @property
    def group(self) -> Group:
        """The request as a store's `check` takes it."""
        return group_of(self.plan, self.subjects, self.costs, self.peek, self.extras)


class Known(NamedTuple):
    """Rules, and what is known of a request's user: looked up beforehand by those who must not wait."""

    snapshot: Snapshot
    user: User | Unknown | None


def facts_of(subject: Subject | None, facts: dict[str, Any]) -> dict[str, str]:
    """Facts as text. One that is None is unknown. The subject is the user. May return `facts` itself."""
    texts: dict[str, str] = facts
    for value in facts.values():
        if value.__class__ is not str:
            texts = {name: _text_of(name, value) for name, value in facts.items() if value is not None}
            break
    if subject is not None:
        if "user" in texts:
            raise InvalidCheck("user: given twice, as the subject and by name")
        texts["user"] = _text_of("subject", subject)
    return texts


def _text_of(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise InvalidCheck(f"{name}: must be a text or a whole number, got {value!r}")


def fingerprint(facts: Mapping[str, str], cost: int, plan: RulePlan, penalties: bool) -> str:
    """Stands for a request's facts and cost, and for the rules that apply: an answer of others cannot be read.

    What overrides make of a rule is left out: one may begin or expire before a request is repeated.
    """
    text = repr((cost, sorted(facts.items()), [one.rule.space for one in plan.applied], penalties))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
