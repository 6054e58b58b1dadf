"""A request before it is decided: its facts, its plan, and the arguments for its program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from headgate.core.check import Block, Extras, Group, Penalty
from headgate.core.cost import Cost
from headgate.errors import InvalidCheck
from headgate.rules.directory import Unknown
from headgate.rules.facts import FactNames
from headgate.rules.penalties import IDENTITIES
from headgate.rules.plan import RulePlan
from headgate.rules.snapshot import Snapshot
from headgate.stores.program import group_of

if TYPE_CHECKING:
    from headgate.rules.users import User

Subject = str | int | UUID
NO_SUBJECT: Final[Any] = object()  # for a request without a subject, because None is a mistake
Request = Subject | Mapping[str, Any]
Planned = tuple[Snapshot, RulePlan]  # the rules that apply to a request, after their snapshot


class PreparedCheck(NamedTuple):
    """A request with its plan, ready for a program or for a store's `check`."""

    plan: RulePlan
    subjects: tuple[str, ...]
    costs: tuple[int, ...]
    peek: bool = False
    extras: Extras | None = None
    at_us: int = 0  # when it was prepared, if it has a penalty
    block: Block | None = None  # the cached block of its client: the store is not called

    @property
    def sent(self) -> bool:
        """Whether it is sent to the store."""
        return bool(self.plan.limits) and self.block is None

    @property
    def penalty(self) -> Penalty | None:
        """The penalty that a refusal counts towards, if any."""
        return None if self.extras is None else self.extras.penalty

    @property
    def group(self) -> Group:
        """The request as a store's `check` takes it."""
        return group_of(self.plan, self.subjects, self.costs, self.peek, self.extras)


class KnownUser(NamedTuple):
    """Rules, and the record of a request's user: looked up beforehand by callers that must not wait."""

    snapshot: Snapshot
    user: User | Unknown | None


def facts_of(subject: Subject, facts: dict[str, Any], names: FactNames) -> dict[str, str]:
    """Return the facts as text, the subject as the user. May return `facts` itself.

    A fact that is None is unknown; its name must still be among `names`. A fact that identifies the client must not be
    None: leave it out if it is unknown.
    """
    texts: dict[str, str] = facts
    for value in facts.values():
        if value.__class__ is not str:
            names.require(facts)
            texts = {name: text_of(name, value) for name, value in facts.items() if not _is_unknown(name, value)}
            break
    if subject is not NO_SUBJECT:
        if "user" in texts:
            raise InvalidCheck("user: given twice, as the subject and by name")
        if subject is None:
            raise InvalidCheck(
                "subject: must not be None: it identifies no client; pass the client's id, such as a user id"
            )
        texts["user"] = text_of("subject", subject)
    return texts


def list_requests(requests: Iterable[Request]) -> list[Request]:
    """Return the requests of `check_many` as a list. Raises `InvalidCheck` for a single request, such as `"alice"`."""
    if isinstance(requests, Iterable) and not isinstance(requests, str | bytes | Mapping):
        return list(requests)
    raise InvalidCheck(f"requests: must be a list, such as check_many(['alice', {{'user': 'bob'}}]), got {requests!r}")


def text_of(name: str, value: Any) -> str:
    """Return a subject or the value of a fact as text. Raises `InvalidCheck`."""
    if isinstance(value, str):
        return value
    if isinstance(value, int | UUID) and not isinstance(value, bool):
        return str(value)
    raise InvalidCheck(f"{name}: must be a string, an integer or a UUID, got {value!r}")


def _is_unknown(name: str, value: Any) -> bool:
    if value is None and name in IDENTITIES:
        raise InvalidCheck(f"{name}: must not be None: it identifies no client; leave {name} out if it is not known")
    return value is None


def fingerprint(facts: Mapping[str, str], cost: Cost, plan: RulePlan, penalties: bool) -> str:
    """Return a hash of a request's facts and cost, and of the rules that apply to it.

    A repeated request gets the stored answer only if its fingerprint is equal. Overrides are left out: one may begin
    or expire before a request is repeated.
    """
    amounts = cost if isinstance(cost, int) else sorted(cost.items())
    text = repr((amounts, sorted(facts.items()), [one.rule.key_template for one in plan.applied], penalties))
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
