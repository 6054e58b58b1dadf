"""Which node serves what, by what discovery has found."""

from __future__ import annotations

from headgate.errors import StoreUnavailable
from headgate.stores.breaker import Breaker
from headgate.stores.redis.faults import Address
from headgate.stores.redis.sentinel import NoMaster
from headgate.stores.redis.topology import RECENT_SECONDS, ClusterOutage, Topology

OLD, NEW = ("192.0.2.1", 6379), ("192.0.2.2", 6379)
AWAY = StoreUnavailable("no Sentinel answers", sent=False)


class Node:
    def __init__(self, address: Address) -> None:
        self.host, self.name = address[0], f"{address[0]}:{address[1]}"
        self.breaker = Breaker(lambda *_: None)
        self.is_retired = False

    def retire(self) -> None:
        self.is_retired = True


def topology() -> Topology[Node]:
    made: Topology[Node] = Topology(Node, lambda _: None)
    made.set_owners([(1, OLD)])
    return made


def name_of(made: Topology[Node]) -> str | None:
    node = made.serving(0)
    return None if node is None else node.host


def test_a_master_is_kept_while_nobody_knows_better() -> None:
    made = topology()
    made.note_failure(AWAY)
    assert name_of(made) == OLD[0]
    made.note_failure(NoMaster("it does not answer", [OLD]))
    assert name_of(made) == OLD[0]
    assert not any(node.is_retired for node in made.nodes)


def test_a_master_that_is_no_longer_named_is_not_used() -> None:
    """Even if the one that is named instead is no master yet: what the old one admits is forgotten."""
    made = topology()
    made.note_failure(NoMaster("192.0.2.2:6379 is not a master: slave", [NEW]))
    assert name_of(made) is None
    assert [node.is_retired for node in made.nodes] == [True]
    made.note_failure(AWAY)
    assert name_of(made) is None
    made.set_owners([(1, NEW)])
    assert name_of(made) == NEW[0]
    assert [node.is_retired for node in made.nodes] == [True, False]


def test_a_forked_child_looks_for_itself_first() -> None:
    made = topology()
    made.reset_after_fork()
    assert name_of(made) is None
    made.set_owners([(1, NEW)])
    made.note_failure(AWAY)
    assert name_of(made) == NEW[0]


def test_a_forked_child_goes_by_what_its_parent_knew_if_nobody_answers() -> None:
    made = topology()
    made.reset_after_fork()
    made.reset_after_fork()  # a child of the child
    made.note_failure(AWAY)
    assert name_of(made) == OLD[0]


def test_a_forked_child_does_not_use_a_master_that_is_no_longer_named() -> None:
    made = topology()
    made.reset_after_fork()
    made.note_failure(NoMaster("192.0.2.2:6379 is not a master: slave", [NEW]))
    assert name_of(made) is None


def test_the_end_of_an_outage_is_waited_for_while_it_is_recent() -> None:
    outage = ClusterOutage()
    moments = [100 + 0.1 * n for n in range(30)]
    told = [outage.is_recent(moment) for moment in moments]
    recent = round(RECENT_SECONDS / 0.1)
    assert told[: recent - 1] == [True] * (recent - 1)
    assert told[recent + 1 :] == [False] * (len(told) - recent - 1)


def test_an_outage_after_a_while_without_one_is_another() -> None:
    outage = ClusterOutage()
    assert outage.is_recent(100.0)
    assert outage.is_recent(100.0 + 2 * RECENT_SECONDS)
