"""Decision: what the caller gets. It combines the outcomes of all checks of one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, Protocol, Self

from headgate.core.check import NEVER, REFUSAL, Block, Check, Outcome, Refusal
from headgate.core.quota import MICROSECONDS, Quota

State = Literal["normal", "warning", "throttled"]
Reason = Literal[
    "within_limit",
    "over_limit",
    "shadow",
    "exempt",
    "no_rule",
    "penalty",
    "fail_open",
    "fail_closed",
    "local_fallback",
]

WARNING_PERCENT = 80


class States(Protocol):
    """A memory of which limits are in warning: what makes them stay in it for a while."""

    def warns(self, space: str, subject: str, used: int, limit: int, now_us: int, reset_us: int) -> bool:
        """Whether the subject's limit, of which `used` is used, is in warning."""
        ...


class Basis(NamedTuple):
    """What a decision was made from."""

    now_us: int
    checks: tuple[Check, ...] = ()  # a check's cost is that of a request of cost 1
    outcomes: tuple[Outcome, ...] = ()  # what the store answered, one per check
    cost: int = 1
    reason: Reason | None = None
    states: States | None = None
    subjects: str | tuple[Check, ...] = ""  # of the checks: their only one, or the checks as the store was asked them


# The basis of a decision on a single check, enforced, whose figures nobody has asked for yet: now, the check, wait, the
# request's cost, the algorithm's state, the memory of states, subject, and what tells the figures. What a `Basis` has
# too is at the same place.
Late = tuple[int, tuple[Check], int, int, Any, States | None, str, Callable[[Any, int, Quota], tuple[int, int]]]


class LimitStatus(NamedTuple):
    """One rule's part in a decision. The figures mean what they mean in `Decision`."""

    rule: str
    quota: Quota
    enforced: bool
    allowed: bool
    limit: int
    remaining: int
    reset_after: float
    retry_after: float | None
    delay: float


class Decision:
    """Whether a request may pass, and the figures of the limit that binds it. Truthy when allowed.

    The binding limit is, of a refused request, the one that makes it wait longest; of an allowed one, the one
    with the least remaining. For `100/minute`, after 30 of 100 requests at one moment:
    `limit=100, remaining=70, retry_after=0.0`; after 100: the next has `allowed=False, remaining=0` and
    `retry_after` the seconds until it would pass, exact to the microsecond.

    Everything but `allowed` is worked out when it is asked for. Decisions come from a limiter; `of` makes one by hand.
    """

    __slots__ = ("_basis", "_binding", "_state", "allowed")

    allowed: bool
    _basis: Basis | Late
    _binding: tuple[Check | None, Outcome] | None  # None: nobody has asked for it yet
    _state: State

    @classmethod
    def of(
        cls,
        allowed: bool,
        now_us: int,
        checks: tuple[Check, ...] = (),
        outcomes: tuple[Outcome, ...] = (),
        cost: int = 1,
        reason: Reason | None = None,
        states: States | None = None,
        subjects: str | tuple[Check, ...] = "",
    ) -> Self:
        """A decision. It is no `__init__`, because the fast paths set the same three attributes by themselves."""
        decision = cls()
        decision.allowed = allowed
        decision._basis = Basis(now_us, checks, outcomes, cost, reason, states, subjects)
        decision._binding = None
        return decision

    @property
    def basis(self) -> Basis:
        """What the store was asked and answered."""
        basis = self._basis
        if not isinstance(basis, Basis):
            now_us, checks, _, cost, _, states, subject, _ = basis
            _, outcome = self._binding or self._bind()
            basis = self._basis = Basis(now_us, checks, (outcome,), cost, None, states, subject)
        return basis

    def _bind(self) -> tuple[Check | None, Outcome]:
        """Find the check of the binding limit, and what the store answered to it; without rules, there is none."""
        basis = self._basis
        if not isinstance(basis, Basis):
            now_us, (check,), wait_us, _, state, _, _, figures = basis
            remaining, reset_us = figures(state, now_us, check.quota)
            self._binding = check, Outcome(wait_us, remaining, reset_us)
        elif len(basis.checks) == 1:
            self._binding = basis.checks[0], basis.outcomes[0]
        elif basis.checks:
            self._binding = min(_pairs(basis), key=restrictiveness)
        else:
            self._binding = None, _NOTHING
        return self._binding

    @property
    def enforced(self) -> list[tuple[Check, Outcome]]:
        """The checks that can refuse, the most restrictive first, and what the store answered to them."""
        if len(self._basis[1]) == 1:  # nearly always
            check, outcome = self._binding or self._bind()
            return [(check, outcome)] if check is not None and check.enforced else []
        return sorted((pair for pair in _pairs(self.basis) if pair[0].enforced), key=restrictiveness)

    def usual(self) -> tuple[int, Check, int, int] | None:
        """Of the usual decision, on one check, enforced, allowed and not in warning: when it was made, the check, what
        remains and the reset, in microseconds. None for every other. It is all that most responses tell, in one step.
        """
        basis: Any = self._basis
        if type(basis) is not tuple or not self.allowed:  # a Basis, or a refusal
            return None
        now_us, checks, _, _, state, states, subject, figures = basis
        check = checks[0]
        quota = check.quota
        capacity = quota.capacity
        remaining, reset_us = figures(state, now_us, quota)
        if states is not None:
            warns = states.warns(check.space, subject, capacity - remaining, capacity, now_us, reset_us)
        else:
            warns = (capacity - remaining) * 100 >= capacity * WARNING_PERCENT
        self._state = "warning" if warns else "normal"
        return None if warns else (now_us, check, remaining, reset_us)

    @property
    def at_us(self) -> int:
        """When it was made: the store's time, in microseconds since the epoch."""
        return self._basis[0]

    @property
    def limit(self) -> int:
        """What `remaining` counts down from; 0 when no limit applied."""
        check, _ = self._binding or self._bind()
        return 0 if check is None else check.quota.capacity

    @property
    def remaining(self) -> int:
        """How much still fits right now."""
        return (self._binding or self._bind())[1].remaining

    @property
    def reset_after(self) -> float:
        """Seconds until the whole limit is available again."""
        return (self._binding or self._bind())[1].reset_us / MICROSECONDS

    @property
    def reset_at(self) -> float:
        """The same as a Unix time, on the store's clock."""
        return self.basis.now_us / MICROSECONDS + self.reset_after

    @property
    def retry_after(self) -> float | None:
        """Seconds until the same request would pass, if nobody else came: 0 when allowed, None for never."""
        if self.allowed:
            return 0.0
        wait_us = (self._binding or self._bind())[1].wait_us
        return None if wait_us == NEVER else wait_us / MICROSECONDS

    @property
    def delay(self) -> float:
        """Seconds until this request's turn, of a leaky bucket; 0 for all others and for refusals."""
        if not self.allowed:
            return 0.0
        basis = self.basis
        delays = (_delay_us(check, outcome, basis.cost) for check, outcome in _pairs(basis))
        return max(delays, default=0) / MICROSECONDS

    @property
    def hold(self) -> float:
        """Seconds to hold an allowed request back: its `delay`, as far as rules of action `throttle` cause it."""
        for check in self._basis[1]:
            if check.refusal.max_delay_us and self.allowed:
                basis = self.basis
                return max(_hold_us(one, outcome, basis.cost) for one, outcome in _pairs(basis)) / MICROSECONDS
        return 0.0

    @property
    def rule(self) -> str | None:
        """The id of the binding rule; None when no rule applied."""
        check, _ = self._binding or self._bind()
        return None if check is None else check.rule

    @property
    def status(self) -> int:
        """The HTTP status to answer with: 200, the refusing rule's own, or 503 when the store could not decide."""
        if self.allowed:
            return 200
        return 503 if self.basis.reason == "fail_closed" else self._refusal.status

    @property
    def message(self) -> str:
        """What the refusing rule has to say to the client; empty when it says nothing of its own."""
        return self._refusal.message

    @property
    def max_delay(self) -> float:
        """Seconds that a refused request may be held back and tried again (action `throttle`); 0 for all others."""
        return self._refusal.max_delay_us / MICROSECONDS

    @property
    def state(self) -> State:
        """`throttled` when refused, `warning` from 80 % used until below 70 %, else `normal`.

        The percentages are the limiter's. A limit that is in warning is remembered by the limiter when this is
        first asked for, and only then; the answer is that of this decision from then on.
        """
        known: State | None = getattr(self, "_state", None)
        if known is not None:
            return known
        basis = self._basis
        if len(basis[1]) == 1:  # nearly always
            check, outcome = self._binding or self._bind()
            warning = check is not None and check.enforced and self._warns(check, outcome, 0)
        else:
            warning = False
            for place, (check, outcome) in enumerate(_pairs(self.basis)):  # all: every limit is to be remembered
                if check.enforced and self._warns(check, outcome, place):
                    warning = True
        self._state = "throttled" if not self.allowed else "warning" if warning else "normal"
        return self._state

    @property
    def reason(self) -> Reason:
        """Why: `over_limit`, `within_limit`, `shadow` (only a shadow rule would have refused), or a special case."""
        basis = self._basis
        if not isinstance(basis, Basis):  # one check, enforced
            return "within_limit" if self.allowed else "over_limit"
        if basis.reason is not None:
            return basis.reason
        if not self.allowed:
            return "over_limit"
        if not basis.checks:
            return "no_rule"
        for outcome in basis.outcomes:
            if outcome[0] != 0:
                return "shadow"
        return "within_limit"

    def cause(self) -> tuple[str | None, Reason]:
        """The rule that decided and the `reason`, for those who count: works out no figures where it can do without.

        The rule is the binding one; of reason `shadow`, the shadow that would have refused.
        """
        basis = self._basis
        if basis.__class__ is tuple:
            return basis[1][0].rule, "within_limit" if self.allowed else "over_limit"
        checks, reason = basis[1], self.reason
        if len(checks) == 1:
            return checks[0].rule, reason
        if reason == "shadow":  # the enforced come first, and none of them refuses
            return next(status.rule for status in self.limits if not status.allowed), reason
        return self.rule, reason

    @property
    def limits(self) -> tuple[LimitStatus, ...]:
        """One status per applied rule, the most restrictive first."""
        basis = self.basis
        pairs = sorted(_pairs(basis), key=restrictiveness)
        return tuple(_status(check, outcome, basis.cost) for check, outcome in pairs)

    def _warns(self, check: Check, outcome: Outcome, place: int) -> bool:
        now_us, states, subjects = self._basis[0], self._basis[5], self._basis[6]
        limit = check.quota.capacity
        used = limit - outcome.remaining
        if states is None:
            return used * 100 >= limit * WARNING_PERCENT
        subject = subjects if isinstance(subjects, str) else subjects[place].subject
        return states.warns(check.space, subject, used, limit, now_us, outcome.reset_us)

    @property
    def _refusal(self) -> Refusal:
        check, _ = self._binding or self._bind()
        return REFUSAL if self.allowed or check is None else check.refusal

    def as_dict(self) -> dict[str, Any]:
        """The figures as plain data, ready for JSON."""
        figures: dict[str, Any] = {name: getattr(self, name) for name in _FIGURES}
        figures["limits"] = [
            status._replace(quota=str(status.quota))._asdict()  # type: ignore[arg-type]
            for status in self.limits
        ]
        return figures

    def __bool__(self) -> bool:
        return self.allowed

    def __eq__(self, other: object) -> bool:
        return self.as_dict() == other.as_dict() if isinstance(other, Decision) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.allowed, self.basis.now_us, self.basis.outcomes))

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={getattr(self, name)!r}" for name in _FIGURES)
        return f"Decision({figures})"


_FIGURES = (
    "allowed",
    "limit",
    "remaining",
    "reset_at",
    "reset_after",
    "retry_after",
    "delay",
    "rule",
    "state",
    "reason",
)


_NOTHING = Outcome(0, 0, 0)


def _pairs(basis: Basis) -> Iterator[tuple[Check, Outcome]]:
    return zip(basis.checks, basis.outcomes, strict=True)


def _status(check: Check, outcome: Outcome, cost: int) -> LimitStatus:
    wait_us, remaining, reset_us = outcome
    return LimitStatus(
        rule=check.rule,
        quota=check.quota,
        enforced=check.enforced,
        allowed=wait_us == 0,
        limit=check.quota.capacity,
        remaining=remaining,
        reset_after=reset_us / MICROSECONDS,
        retry_after=None if wait_us == NEVER else wait_us / MICROSECONDS,
        delay=_delay_us(check, outcome, cost) / MICROSECONDS,
    )


def _delay_us(check: Check, outcome: Outcome, cost: int) -> int:
    """The time until a request's turn in a leaky bucket."""
    quota = check.quota
    if quota.algorithm != "leaky_bucket" or outcome.wait_us != 0:
        return 0
    # It is empty reset_us from now; this request's own share of that is the last to leave.
    return max(0, outcome.reset_us - check.cost * cost * quota.window_us // quota.limit)


def _hold_us(check: Check, outcome: Outcome, cost: int) -> int:
    """The same, as far as the rule wants requests to be held back for it."""
    return _delay_us(check, outcome, cost) if check.refusal.max_delay_us and check.enforced else 0


def turn_us(decision: Decision) -> int:
    """The time until a request is forwarded at the soonest, where rules of action `throttle` hold it back.

    Not for refusals that no waiting helps.
    """
    basis = decision.basis
    return max((_turn_us(*pair, basis.cost) for pair in _pairs(basis) if pair[0].enforced), default=0)


def _turn_us(check: Check, outcome: Outcome, cost: int) -> int:
    if outcome.wait_us == 0:
        return _hold_us(check, outcome, cost)
    # Once a leaky bucket has room for it, its turn comes when all that is in the bucket now has left.
    leaks = check.quota.algorithm == "leaky_bucket" and check.refusal.max_delay_us > 0
    return max(outcome.wait_us, outcome.reset_us) if leaks else outcome.wait_us


def restrictiveness(pair: tuple[Check, Outcome]) -> tuple[bool, float, int, int]:
    """Sorts the enforced before the shadows, the longest wait first, then the least remaining."""
    check, (wait_us, remaining, reset_us) = pair
    return (not check.enforced, float("-inf") if wait_us == NEVER else -wait_us, remaining, -reset_us)


def combine(
    checks: tuple[Check, ...],
    outcomes: tuple[Outcome, ...],
    now_us: int,
    *,
    cost: int = 1,
    reason: Reason | None = None,
    states: States | None = None,
    subjects: str | tuple[Check, ...] = "",
) -> Decision:
    """The decision on a request whose checks had these outcomes: allowed unless an enforced one must wait."""
    allowed = True
    for check, outcome in zip(checks, outcomes, strict=True):
        if outcome.wait_us and check.enforced:
            allowed = False
    return Decision.of(allowed, now_us, checks, outcomes, cost, reason, states, subjects)


def single(
    checks: tuple[Check], outcome: Outcome, now_us: int, cost: int, states: States | None, subject: str
) -> Decision:
    """The same for a request with one check, which is enforced."""
    decision = Decision()
    decision.allowed = outcome[0] == 0
    decision._basis = (now_us, checks, outcome[0], cost, outcome, states, subject, told)
    decision._binding = None
    return decision


def told(outcome: Outcome, _now_us: int, _quota: Quota) -> tuple[int, int]:
    """The figures, when the store worked them out."""
    return outcome.remaining, outcome.reset_us


def blocked(check: Check, block: Block, now_us: int) -> Decision:
    """The decision on a request of a client that is blocked: `check` is that of the rule which it ran into."""
    return Decision.of(False, now_us, (check,), (Outcome(block.left_us, 0, block.left_us),), reason="penalty")


def turned_away(decision: Decision) -> Decision:
    """The refusal of a request that was to be held back, when there is no place for it to wait."""
    now_us, checks, outcomes, cost, *_ = decision.basis
    waiting = tuple(
        outcome._replace(wait_us=_hold_us(check, outcome, cost) or outcome.wait_us)
        for check, outcome in zip(checks, outcomes, strict=True)
    )
    return combine(checks, waiting, now_us, cost=cost)


def uncharged(decision: Decision) -> Decision:
    """An allowed decision as it is to be told once its charge was given back.

    What remains is exact; the reset may be that of the charge, which is late rather than early.
    """
    if decision.reason not in ("within_limit", "shadow"):
        return decision  # it charged nothing
    basis = decision.basis
    return Decision.of(True, *basis._replace(outcomes=tuple(_before(*pair, basis.cost) for pair in _pairs(basis))))


def _before(check: Check, outcome: Outcome, cost: int) -> Outcome:
    if outcome.wait_us != 0:  # a shadow that did not fit was not charged
        return outcome
    capacity = check.quota.capacity
    remaining = min(capacity, outcome.remaining + check.cost * cost)
    return Outcome(0, remaining, 0 if remaining == capacity else outcome.reset_us)


def delayed(checks: tuple[Check, ...], outcomes: tuple[Outcome, ...], block: Block) -> tuple[Outcome, ...]:
    """The outcomes of a refusal that began a block: the rule that began it has the client wait until its end."""
    return tuple(
        outcome._replace(wait_us=max(outcome.wait_us, block.left_us))
        if check.rule == block.rule and outcome.wait_us > 0
        else outcome
        for check, outcome in zip(checks, outcomes, strict=True)
    )
