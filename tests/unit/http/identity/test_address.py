"""Where a request came from: which address is the client's, and how it becomes a fact."""

from __future__ import annotations

import logging
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.http.identity import Identity
from headgate.rules import Exemption, Rule, Snapshot
from headgate.testing import FakeClock
from tests.unit.http.identity.requests import FakeRequest

PROXIES = ["10.0.0.0/8", "2001:db8:ffff::/48"]


@pytest.mark.parametrize(
    ("peer", "facts"),
    [
        ("203.0.113.9", {"ip": "203.0.113.9"}),
        ("::ffff:203.0.113.9", {"ip": "203.0.113.9"}),
        ("::FFFF:CB00:7109", {"ip": "203.0.113.9"}),
        ("2001:DB8:0:0:0:0:0:1", {"ip": "2001:db8::/64", "address": "2001:db8::1"}),
        ("2001:db8:1:2:3:4:5:6", {"ip": "2001:db8:1:2::/64", "address": "2001:db8:1:2:3:4:5:6"}),
        ("fe80::1%eth0", {"ip": "fe80::/64", "address": "fe80::1"}),
        ("64:ff9b::203.0.113.9", {"ip": "64:ff9b::/64", "address": "64:ff9b::cb00:7109"}),
        ("::1", {"ip": "::/64", "address": "::1"}),
        ("testclient", {"ip": "testclient"}),  # what test clients of frameworks call themselves
        (None, {"ip": "unix"}),
        ("", {"ip": "unix"}),
    ],
)
def test_a_peer_as_facts(peer: str | None, facts: dict[str, str]) -> None:
    assert Identity().facts(FakeRequest(peer)) == facts


@pytest.mark.parametrize(
    ("prefix", "facts"),
    [
        (128, {"ip": "2001:db8:1:2::3"}),
        (56, {"ip": "2001:db8:1::/56", "address": "2001:db8:1:2::3"}),
        (48, {"ip": "2001:db8:1::/48", "address": "2001:db8:1:2::3"}),
    ],
)
def test_how_many_bits_make_a_group(prefix: int, facts: dict[str, str]) -> None:
    assert Identity(ipv6_prefix=prefix).facts(FakeRequest("2001:db8:1:2::3")) == facts


def found(header: str, depth: int = 1, *, by: str = "x-forwarded-for", peer: str | None = "10.0.0.1") -> str:
    """The client's address, through a proxy."""
    identity = Identity(
        trusted_proxies=[*PROXIES, "unix"],
        trusted_proxy_depth=depth,
        proxy_header=by,  # type: ignore[arg-type]
        ipv6_prefix=128,
    )
    return identity.facts(FakeRequest(peer, **{by: header}))["ip"]


@pytest.mark.parametrize(
    ("header", "depth", "client"),
    [
        ("198.51.100.1", 1, "198.51.100.1"),
        ("6.6.6.6, 198.51.100.1", 1, "198.51.100.1"),
        ("6.6.6.6, 198.51.100.1", 5, "198.51.100.1"),
        ("198.51.100.1, 10.0.0.2", 1, "10.0.0.2"),  # one proxy, and this is whom it has seen
        ("198.51.100.1, 10.0.0.2", 2, "198.51.100.1"),
        ("6.6.6.6, 198.51.100.1, 10.0.0.3, 10.0.0.2", 3, "198.51.100.1"),
        ("6.6.6.6, 198.51.100.1, 10.0.0.3, 10.0.0.2", 2, "10.0.0.3"),
        ("10.0.0.3, 10.0.0.2", 9, "10.0.0.3"),  # trusted as far as it goes
        ("198.51.100.1,2001:db8:ffff::1", 2, "198.51.100.1"),
        ("198.51.100.1:4711", 1, "198.51.100.1"),
        ("[2001:db8::7]", 1, "2001:db8::7"),
        ("[2001:db8::7]:443", 1, "2001:db8::7"),
        ("2001:DB8:0::7", 1, "2001:db8::7"),
        ("fe80::7%eth0", 1, "fe80::7"),
        ("[fe80::7%25eth0]:1", 1, "fe80::7"),
        ("::ffff:198.51.100.1", 1, "198.51.100.1"),
        ("  198.51.100.1\t", 1, "198.51.100.1"),
        # What is no address ends the walk at the last one that was.
        ("", 1, "10.0.0.1"),
        (" ", 1, "10.0.0.1"),
        ("198.51.100.1, ", 1, "10.0.0.1"),
        ("198.51.100.1,, 10.0.0.2", 3, "10.0.0.2"),
        ("unknown", 1, "10.0.0.1"),
        ("198.51.100.1, unknown, 10.0.0.2", 3, "10.0.0.2"),
        ("_hidden", 1, "10.0.0.1"),
        ("unix:", 1, "10.0.0.1"),
        ("198.51.100.1:port", 1, "10.0.0.1"),
        ("198.51.100.1:", 1, "10.0.0.1"),
        ("198.51.100", 1, "10.0.0.1"),
        ("0198.51.100.1", 1, "10.0.0.1"),
        ("3325256705", 1, "10.0.0.1"),
        ("198.51.100.1/32", 1, "10.0.0.1"),
        ("[198.51.100.1]", 1, "10.0.0.1"),
        ("[2001:db8::7", 1, "10.0.0.1"),
        ("[2001:db8::7]443", 1, "10.0.0.1"),
        ("2001:db8::7::1", 1, "10.0.0.1"),
        ("198.51.100.1 198.51.100.2", 1, "10.0.0.1"),
        ("\xb2\xb3.0.0.1", 1, "10.0.0.1"),
        ("198.51.100.1\x00", 1, "10.0.0.1"),
        ("1" * 70_000, 1, "10.0.0.1"),
        ("6.6.6.6, " * 9_000 + "198.51.100.1", 1, "198.51.100.1"),
    ],
)
def test_x_forwarded_for(header: str, depth: int, client: str) -> None:
    assert found(header, depth) == client


@pytest.mark.parametrize(
    ("header", "depth", "client"),
    [
        ("for=198.51.100.1", 1, "198.51.100.1"),
        ("For=198.51.100.1;proto=https;by=10.0.0.1", 1, "198.51.100.1"),
        ('by="_x";FOR="198.51.100.1:4711"', 1, "198.51.100.1"),
        ("for=198.51.100.1:4711", 1, "198.51.100.1"),  # a port needs quotes, and some leave them out
        ('for="198.51.100.1:_hidden"', 1, "198.51.100.1"),
        ('for="[2001:db8::7]:443"', 1, "2001:db8::7"),
        ('for="[2001:db8::7]"', 1, "2001:db8::7"),
        ('for="\\[2001:db8::7\\]"', 1, "2001:db8::7"),
        ('for=6.6.6.6, for="198.51.100.1";host="a,b;for=6.6.6.6"', 1, "198.51.100.1"),
        ('for=6.6.6.6, for=198.51.100.1;host="\\", for=6.6.6.6;x=\\""', 1, "198.51.100.1"),
        ("for=6.6.6.6, for=198.51.100.1, for=10.0.0.2", 2, "198.51.100.1"),
        ("for=6.6.6.6, for=198.51.100.1, for=10.0.0.2", 1, "10.0.0.2"),
        ("for=6.6.6.6 , for=198.51.100.1 ; proto=http , for=10.0.0.2;", 9, "198.51.100.1"),
        # A client that leaves a quote open does not reach what the proxy has added.
        ('for=6.6.6.6;x=", for=198.51.100.1', 1, "198.51.100.1"),
        ('for=6.6.6.6;x=", for="198.51.100.1"', 1, "198.51.100.1"),
        ('x="\\, for="198.51.100.1"', 1, "198.51.100.1"),
        # What is no address ends the walk.
        ("", 1, "10.0.0.1"),
        ("for=unknown", 1, "10.0.0.1"),
        ("for=198.51.100.1, for=_hidden, for=10.0.0.2", 3, "10.0.0.2"),
        ("for=198.51.100.1, for=10.0.0.2,", 3, "10.0.0.1"),
        ("198.51.100.1", 1, "10.0.0.1"),
        ("proto=https", 1, "10.0.0.1"),
        ("for=198.51.100.1;for=198.51.100.2", 1, "10.0.0.1"),
        ('for="198.51.100.1', 1, "10.0.0.1"),
        ('for="198.51.100.1"x', 1, "10.0.0.1"),
        ("for=198.51.100.1 x", 1, "10.0.0.1"),
        ("for=", 1, "10.0.0.1"),
        (",", 1, "10.0.0.1"),
        (",", 2, "10.0.0.1"),
        ("for=198.51.100.1;x=" + "y" * 2_000, 1, "10.0.0.1"),
        ('"' * 70_000, 1, "10.0.0.1"),
        ("for=6.6.6.6, " * 5_000 + "for=198.51.100.1", 1, "198.51.100.1"),
    ],
)
def test_forwarded(header: str, depth: int, client: str) -> None:
    assert found(header, depth, by="forwarded") == client


def test_a_proxy_on_a_unix_socket() -> None:
    assert found("6.6.6.6, 198.51.100.1", peer=None) == "198.51.100.1"
    assert found("unknown", peer=None) == "unix"


def test_a_peer_without_address_that_is_not_trusted_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    identity = Identity(trusted_proxies=["10.0.0.0/8"])
    with caplog.at_level(logging.WARNING, "headgate"):
        facts = [identity.facts(FakeRequest(None, x_forwarded_for=f"198.51.100.{n}")) for n in range(3)]
    assert facts == [{"ip": "unix"}] * 3
    assert ["add 'unix' to trusted_proxies" in message for message in caplog.messages] == [True]


def test_only_the_header_that_was_chosen_is_read() -> None:
    request = FakeRequest("10.0.0.1", x_forwarded_for="198.51.100.1", forwarded="for=198.51.100.2")
    by_forwarded = Identity(trusted_proxies=PROXIES, proxy_header="forwarded")
    assert by_forwarded.facts(request) == {"ip": "198.51.100.2"}
    assert Identity(trusted_proxies=PROXIES).facts(request) == {"ip": "198.51.100.1"}


def test_10_000_spoofed_addresses_of_one_peer_are_one_client() -> None:
    identity = Identity(trusted_proxies=PROXIES, trusted_proxy_depth=3)
    spoofed = (f"{n >> 8}.0.{n & 255}.1" for n in range(10_000))
    seen = {identity.facts(FakeRequest("203.0.113.9", x_forwarded_for=hop))["ip"] for hop in spoofed}
    assert seen == {"203.0.113.9"}


def test_proxies_are_those_of_the_snapshot_in_force() -> None:
    identity = Identity()
    request = FakeRequest("10.0.0.1", x_forwarded_for="198.51.100.1, 10.0.0.2")
    none = Snapshot([])
    one = Snapshot([], trusted_proxies=["10.0.0.0/8"])  # type: ignore[list-item]
    two = Snapshot([], trusted_proxies=["10.0.0.0/8"], trusted_proxy_depth=2)  # type: ignore[list-item]
    answers = [identity.facts(request, snapshot)["ip"] for snapshot in (none, one, two, one, none)]
    assert answers == ["10.0.0.1", "10.0.0.2", "198.51.100.1", "10.0.0.2", "10.0.0.1"]
    assert identity.facts(request) == {"ip": "10.0.0.1"}


def test_what_was_said_here_counts_more_than_the_snapshot() -> None:
    request = FakeRequest("10.0.0.1", x_forwarded_for="198.51.100.1, 10.0.0.2")
    snapshot = Snapshot([], trusted_proxies=["10.0.0.0/8"], trusted_proxy_depth=2)  # type: ignore[list-item]
    assert Identity(trusted_proxies=[]).facts(request, snapshot) == {"ip": "10.0.0.1"}
    assert Identity(trusted_proxy_depth=1).facts(request, snapshot) == {"ip": "10.0.0.2"}


def test_unix_may_be_trusted_in_a_snapshot() -> None:
    snapshot = Snapshot([], trusted_proxies=["unix"])
    assert Identity().facts(FakeRequest(None, x_forwarded_for="198.51.100.1"), snapshot) == {"ip": "198.51.100.1"}


def test_facts_are_the_callers_own() -> None:
    identity = Identity()
    identity.facts(FakeRequest("203.0.113.9"))["user"] = "mallory"
    assert identity.facts(FakeRequest("203.0.113.9")) == {"ip": "203.0.113.9"}


def test_one_host_of_a_group_can_be_exempt() -> None:
    snapshot = Snapshot(
        [Rule(id="all", quota="1/minute", dimension="ip")],
        exemptions=[Exemption(type="ip", value="2001:db8::7"), Exemption(type="ip", value="2001:db8:2::/48")],
    )
    reasons = {}
    for peer in ("2001:db8::7", "2001:db8::8", "2001:db8:2:3::4", "203.0.113.9"):
        facts = Identity().facts(FakeRequest(peer), snapshot)
        reasons[peer] = snapshot.plan(facts, FakeClock()).reason
    assert reasons == {"2001:db8::7": "exempt", "2001:db8::8": None, "2001:db8:2:3::4": "exempt", "203.0.113.9": None}


texts = st.text(st.characters(max_codepoint=255), max_size=60)
hops = st.one_of(
    texts,
    st.ip_addresses().map(str),
    st.ip_addresses(network="10.0.0.0/8").map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]:443"),
    st.sampled_from(["unknown", "_x", "", 'for="', '"', "\\", "for=10.0.0.1", 'for=1.2.3.4;x="']),
)
headers = st.lists(hops, max_size=6).map(", ".join)
peers = st.one_of(st.ip_addresses().map(str), st.none(), texts)


@settings(deadline=None)
@given(peers, st.fixed_dictionaries({}, optional=dict.fromkeys(("x_forwarded_for", "forwarded", "who"), headers)))
def test_nothing_that_an_untrusted_peer_sends_matters(peer: str | None, sent: dict[str, str]) -> None:
    for by in ("x-forwarded-for", "forwarded"):
        identity = Identity(
            trusted_proxies=["192.0.2.0/31"],
            trusted_proxy_depth=5,
            proxy_header=by,
            user_header="who",
            tenant_header="who",
            tier_header="who",
        )
        if peer is None or not peer.startswith("192.0.2."):
            assert identity.facts(FakeRequest(peer, **sent)) == identity.facts(FakeRequest(peer))


@settings(deadline=None)
@given(texts, st.sampled_from(["x-forwarded-for", "forwarded"]), st.ip_addresses())
def test_nothing_that_a_client_sends_changes_what_the_proxy_adds(sent: str, by: str, client: Any) -> None:
    added = f"{client}" if by == "x-forwarded-for" else f'for="[{client}]";proto=https'
    if by == "forwarded" and client.version == 4:
        added = f"for={client}"
    assert found(f"{sent}, {added}", by=by) == found(added, by=by)


@settings(deadline=None)
@given(st.lists(st.ip_addresses(v=4), max_size=8), st.integers(1, 5), st.sampled_from(["x-forwarded-for", "forwarded"]))
def test_the_walk_goes_past_trusted_hops_and_never_beyond_the_depth(hops: list[Any], depth: int, by: str) -> None:
    trusted = ip_network("0.0.0.0/1")
    identity = Identity(trusted_proxies=[trusted], trusted_proxy_depth=depth, proxy_header=by)  # type: ignore[arg-type]
    header = ", ".join(str(hop) if by == "x-forwarded-for" else f"for={hop}" for hop in hops)
    expected = ip_address("10.0.0.1")
    for hop in hops[::-1][:depth]:
        if expected not in trusted:
            break
        expected = hop
    assert identity.facts(FakeRequest("10.0.0.1", **{by: header})) == {"ip": str(expected)}
