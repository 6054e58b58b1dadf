"""A request on its way to its decision: what it says, what is known of it, and what the store is asked."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from headgate.core.check import Block, Group
from headgate.core.quota import MAX_INT
from headgate.errors import InvalidCheck
from headgate.rules.directory import Unknown
from headgate.rules.plan import RulePlan as Plan
from headgate.rules.snapshot import Snapshot
from headgate.rules.users import User

Subject = str | int
Request = Subject | Mapping[str, Any]
Planned = tuple[Snapshot, Plan]  # the rules that apply to a request, behind the snapshot that they are of


class Asked(NamedTuple):
    """A request on its way: what the store is asked, and what is needed to read its answer."""

    plan: Plan
    group: Group
    cost: int
    at_us: int = 0  # when, of a group with a penalty
    block: Block | None = None  # that is remembered of its client: the store is not asked

    @property
    def sent(self) -> bool:
        """Whether the store is asked."""
        return bool(self.plan.applied) and self.block is None


class Known(NamedTuple):
    """Rules, and what is known of a request's user: looked up beforehand by those who must not wait."""

    snapshot: Snapshot
    user: User | Unknown | None


def is_plain(subject: Subject | None, cost: int, idempotency_key: str | None, facts: Mapping[str, Any]) -> bool:
    """Whether a check is a valid one of a subject and nothing else, and may take the short way."""
    return (
        subject.__class__ is str
        and not facts
        and idempotency_key is None
        and cost.__class__ is int
        and 0 <= cost <= MAX_INT
    )


def facts_of(subject: Subject | None, facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as text. One that is None is unknown. The subject is the user."""
    texts = {name: _text_of(name, value) for name, value in facts.items() if value is not None}
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


def fingerprint(facts: Mapping[str, str], cost: int, plan: Plan, penalties: bool) -> str:
    """Stands for a request's facts and cost, and for the rules that apply: an answer of others cannot be read."""
    text = repr((cost, sorted(facts.items()), [template.space for template in plan.limits], penalties))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
