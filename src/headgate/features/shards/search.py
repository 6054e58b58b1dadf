"""A node's view of shards, and the search for a shard with room for a request of one sharded limit. No I/O."""

from __future__ import annotations

from secrets import randbits

from headgate.core.check import Check
from headgate.core.decision import Decision
from headgate.core.decision_factory import decide as decide_all
from headgate.core.fork import renew_in_children
from headgate.core.plan import Plan
from headgate.core.reading import WarningStates
from headgate.core.shards import ShardSearch, checks_of
from headgate.errors import StoreUnavailable
from headgate.features.shards.groups import Shards, home_of
from headgate.rules.holder import Holder


class Home:
    """The rules that have shards, and the shard with which this node starts."""

    def __init__(self) -> None:
        self.holder: Holder | None = None  # of the rules in force; set as soon as the limiter has it
        self.reset_after_fork()
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Choose another start in a forked child, which is another node."""
        self.start = randbits(16)

    @property
    def shards(self) -> Shards:
        return {} if self.holder is None else self.holder.current.sharded


def parts_of(plan: Plan, shards: int) -> list[Check]:
    """Return the limits of a plan's only rule, one per shard, with an id that has no shards."""
    return [part._replace(rule="") for part in checks_of(plan.limits[0], shards)]


def search_of(plan: Plan, subjects: tuple[str, ...], shards: int, home: Home) -> ShardSearch:
    """Return the search for a shard with room for a request of cost 1, which fits into any single shard."""
    (subject,) = subjects
    return ShardSearch(plan.limits[0]._replace(subject=subject, cost=1), shards, home_of(subject, home.start))


def skip_shard(search: ShardSearch, error: StoreUnavailable) -> StoreUnavailable:
    """Continue after a shard could not be reached. Raises the error if it was sent, or no shard is left."""
    if error.sent or not search.skip_part():
        raise error
    return error


def is_last(search: ShardSearch, decision: Decision, away: StoreUnavailable | None) -> bool:
    """Return whether a shard's refusal is final. Raises the error of an unreachable shard, which may have had room."""
    search.record_answers(decision.outcomes, decision.at_us)
    if search.advance():
        return False
    if away is not None:
        raise away
    return True


def conclude(plan: Plan, states: WarningStates | None, search: ShardSearch, decision: Decision) -> Decision:
    """Return a shard's decision as a decision on the whole limit."""
    if decision.allowed:
        search.record_answers(decision.outcomes, decision.at_us)
    whole = (search.outcome(charged=decision.allowed),)
    return decide_all(plan, whole, decision.at_us, costs=decision.costs, subjects=decision.subjects, states=states)
