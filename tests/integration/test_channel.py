"""The channel by which nodes hear of changes, wherever it is: at one server, behind Sentinel, on a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from headgate.stores.redis.channel import Channel
from tests.servers import Server
from tests.topologies import Cluster, SentinelTrio, is_master, kill
from tests.waiting import until

NAME = "test"


class Node:
    """One who says and hears. It hears once when it has begun to listen."""

    def __init__(self, url: str) -> None:
        self.times = 0
        self._channel = Channel(url, NAME, self._heard)
        self.say, self.close = self._channel.say, self._channel.close
        until(lambda: self.times > 0, "it listens")

    def _heard(self) -> None:
        self.times += 1


@contextmanager
def two_nodes(url: str) -> Iterator[list[Node]]:
    with closing(Node(url)) as one, closing(Node(url)) as other:
        yield [one, other]


def hear(nodes: list[Node]) -> None:
    """Each says something, and all hear all of it."""
    before = [node.times for node in nodes]
    for node in nodes:
        node.say("hello")
    until(lambda: all(node.times >= times + len(nodes) for node, times in zip(nodes, before, strict=True)), "a word")


def heard_again(nodes: list[Node]) -> bool:
    """Whether all hear, by now, of what the first says."""
    before = [node.times for node in nodes]
    nodes[0].say("hello?")
    try:
        until(lambda: all(node.times > times for node, times in zip(nodes, before, strict=True)), "a word", seconds=0.5)
    except AssertionError:
        return False
    return True


def test_a_word_is_heard_by_all(redis_url: str) -> None:
    with two_nodes(redis_url) as nodes:
        hear(nodes)


def test_on_a_cluster_any_server_will_do(cluster: Cluster) -> None:
    """They need not be at the same one."""
    urls = [f"redis+cluster://127.0.0.1:{server.port}" for server in cluster.masters]
    with two_nodes(urls[0]) as some, two_nodes(urls[2]) as others:
        hear([*some, *others])


def test_it_follows_the_master() -> None:
    with SentinelTrio() as trio, two_nodes(trio.url) as nodes:
        hear(nodes)
        kill(trio.master())
        until(lambda: heard_again(nodes), "a word by way of the new master")


def test_it_follows_a_planned_failover() -> None:
    """Whoever comes later is at the new master at once; the old one goes on for some ten seconds."""
    with SentinelTrio() as trio, closing(Node(trio.url)) as early:
        old, new = trio.servers
        trio.fail_over()
        until(lambda: trio.master() is new, "a new master")
        with closing(Node(trio.url)) as late:
            until(lambda: not has_listeners(old), "the old one is left", seconds=5)
            hear([early, late])
            assert is_master(old), "it was demoted meanwhile: the test has shown nothing"


def test_it_goes_on_when_a_server_of_several_dies(caplog: pytest.LogCaptureFixture) -> None:
    with Cluster() as cluster, two_nodes(cluster.url) as nodes:
        hear(nodes)
        kill(next(server for server in cluster.masters if has_listeners(server)))
        until(lambda: heard_again(nodes), "a word by way of another")
    assert "no notifications until Redis is back" in caplog.text
    assert "receiving notifications again" in caplog.text


def has_listeners(server: Server) -> bool:
    with server.client() as client:
        ((_, count),) = client.pubsub_numsub(f"rl:{NAME}")
        return bool(count)
