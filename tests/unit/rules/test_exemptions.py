"""Who is exempt, by address, network, user, api_key and tenant."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidRule
from headgate.rules import Exemption
from headgate.rules.exemptions import Exempt


def exempt(*values: tuple[str, str]) -> Exempt:
    return Exempt(Exemption(type=kind, value=value) for kind, value in values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "address", "covered"),
    [
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("192.0.2.7", "192.0.2.7", True),
        ("192.0.2.7", "192.0.2.8", False),
        ("0.0.0.0/0", "203.0.113.9", True),
        ("0.0.0.0/0", "2001:db8::1", False),
        ("2001:db8::/32", "2001:DB8:0:0::1", True),
        ("2001:db8::/32", "2001:db9::1", False),
        ("::/0", "2001:db8::1", True),
        ("::/0", "10.0.0.1", False),
        ("fe80::/10", "fe80::1%eth0", True),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("::ffff:10.0.0.0/104", "10.1.2.3", True),
        ("10.0.0.0/8", "10.1", False),
        ("10.0.0.0/8", "010.1.2.3", False),
        ("10.0.0.0/8", "10.1.2.3 ", False),
        ("10.0.0.0/8", "not an address", False),
        ("10.0.0.0/8", "", False),
        ("10.0.0.0/8", "10.0.0.1\x00", False),
        ("10.0.0.0/8", "\uff11\uff10.0.0.1", False),
        ("::1/128", "::1\x00", False),
    ],
)
def test_addresses(value: str, address: str, covered: bool) -> None:
    assert exempt(("ip", value)).covers({"ip": address}) is covered


@pytest.mark.parametrize(
    ("facts", "covered"),
    [
        ({"ip": "2001:db8::/64", "address": "2001:db8::7"}, True),
        ({"ip": "2001:db8::/64", "address": "2001:db8::8"}, False),
        ({"ip": "2001:db8::/64"}, False),  # nobody knows who of them it is
        ({"ip": "2001:db8::8", "address": "2001:db8::7"}, False),  # an address is one: this is another fact's business
        ({"ip": "2001:db8::7", "address": "12 High Street"}, True),
        ({"address": "2001:db8::7"}, False),
    ],
)
def test_one_of_a_group_is_known_by_its_address(facts: dict[str, str], covered: bool) -> None:
    assert exempt(("ip", "2001:db8::7")).covers(facts) is covered


@pytest.mark.parametrize("fact", ["user", "api_key", "tenant"])
def test_names_are_exempt_by_their_own_fact_only(fact: str) -> None:
    one = exempt((fact, "x"))
    assert one.covers({fact: "x"})
    assert not one.covers({fact: "y"})
    assert not one.covers({"other": "x", "ip": "10.0.0.1"})
    assert not one.covers({})


def test_overlapping_and_repeated_exemptions_are_redundant_and_fine() -> None:
    one = exempt(("ip", "10.0.0.0/8"), ("ip", "10.1.0.0/16"), ("ip", "10.0.0.0/8"), ("user", "a"), ("user", "a"))
    assert one.covers({"ip": "10.1.2.3"})
    assert one.covers({"ip": "10.2.2.3"})
    assert one.covers({"user": "a"})
    assert not one.covers({"ip": "11.2.2.3"})


@pytest.mark.parametrize(
    ("fields", "field", "complaint"),
    [
        ({"type": "email", "value": "x"}, "type", "must be one of ip, user, api_key, tenant, got 'email'"),
        ({"type": 5, "value": "x"}, "type", "got 5"),
        ({"type": ["ip"], "value": "x"}, "type", "got ['ip']"),
        ({"type": "user", "value": ""}, "value", "must be a non-empty string"),
        ({"type": "user", "value": 5}, "value", "got 5"),
        ({"type": "ip", "value": "10.0.0.5/8"}, "value", "write '10.0.0.0/8' or '10.0.0.5'"),
        ({"type": "ip", "value": "10.0.0.0/33"}, "value", "must be an address or a network"),
        ({"type": "ip", "value": "localhost"}, "value", "must be an address or a network"),
    ],
)
def test_a_wrong_field_is_named(fields: dict[str, Any], field: str, complaint: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        Exemption(**fields)
    (problem,) = caught.value.problems
    assert problem.field == field
    assert complaint in problem.message


@given(
    st.lists(
        st.tuples(st.ip_addresses(v=4), st.integers(0, 32)) | st.tuples(st.ip_addresses(v=6), st.integers(0, 128)),
        max_size=6,
    ),
    st.ip_addresses(),
)
def test_it_agrees_with_the_standard_library(networks: list[tuple[Any, int]], address: Any) -> None:
    covered = [ip_network(f"{base}/{bits}", strict=False) for base, bits in networks]
    meant = getattr(address, "ipv4_mapped", None) or address
    expected = any(meant in as_ipv4(one) for one in covered)
    assert exempt(*(("ip", str(one)) for one in covered)).covers({"ip": str(address)}) is expected


def as_ipv4(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """A network that was written as IPv6 and holds only IPv4 addresses."""
    mapped = IPv6Network("::ffff:0:0/96")
    if isinstance(network, IPv6Network) and network.subnet_of(mapped):
        return IPv4Network((int(network.network_address) & 0xFFFFFFFF, network.prefixlen - 96))
    return network
