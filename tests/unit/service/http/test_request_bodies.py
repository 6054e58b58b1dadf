"""JSON into facts: what is taken, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.errors import InvalidCheck
from headgate.rules.facts import FactNames
from headgate.service.data_plane import MAX_BATCH, BatchedRequest
from headgate.service.http.request_bodies import ask_of, asks_of, decode

NAMES = FactNames()


def test_facts_cost_and_key_are_told_apart() -> None:
    body = b'{"user": "alice", "cost": 5, "idempotency_key": "k-1", "country": "DE", "n": 7, "tier": null}'
    assert ask_of(decode(body), FactNames(["n"])) == BatchedRequest(
        {"user": "alice", "country": "DE", "n": "7"}, 5, "k-1"
    )


def test_what_is_null_is_as_good_as_absent() -> None:
    assert ask_of({"endpoint": None, "cost": None, "idempotency_key": None}, NAMES) == BatchedRequest({}, 1, None)


@pytest.mark.parametrize("fact", ["user", "ip", "api_key", "tenant"])
def test_nobody_is_nobody_to_count(fact: str) -> None:
    with pytest.raises(InvalidCheck, match=f"^{fact}: must not be null"):
        ask_of({fact: None}, NAMES)


def test_a_mistyped_name_is_refused_also_of_what_is_null() -> None:
    with pytest.raises(InvalidCheck, match=r"^unknown fact 'usr'; did you mean 'user'"):
        ask_of({"usr": None}, NAMES)
    with pytest.raises(InvalidCheck, match=r"^checks\[1\]: unknown fact 'usr'"):
        asks_of({"checks": [{"user": "a"}, {"usr": None}]}, NAMES)
    assert ask_of({"plan": None}, FactNames(["plan"])).facts == {}


@pytest.mark.parametrize(
    ("ip", "facts"),
    [
        ("203.0.113.9", {"ip": "203.0.113.9"}),
        ("203.0.113.9:4711", {"ip": "203.0.113.9"}),
        ("::ffff:203.0.113.9", {"ip": "203.0.113.9"}),
        ("2001:DB8::0:7", {"ip": "2001:db8::/64", "address": "2001:db8::7"}),
        ("[2001:db8::7]:443", {"ip": "2001:db8::/64", "address": "2001:db8::7"}),
        ("2001:db8::/64", {"ip": "2001:db8::/64"}),
        ("unix", {"ip": "unix"}),
    ],
)
def test_addresses_are_those_of_the_middleware(ip: str, facts: dict[str, str]) -> None:
    assert ask_of({"ip": ip}, NAMES).facts == facts


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], 'the body must be an object with the request\'s facts, such as {"user": "alice"}, got []'),
        ({"cost": True}, "cost: must be a whole number from 0 to 2^53-1, got true"),
        ({"cost": -1}, "cost: must be a whole number from 0 to 2^53-1, got -1"),
        ({"cost": 2**53}, f"cost: must be a whole number from 0 to 2^53-1, got {2**53}"),
        ({"cost": 1.0}, "cost: must be a whole number from 0 to 2^53-1, got 1.0"),
        ({"cost": "1"}, 'cost: must be a whole number from 0 to 2^53-1, got "1"'),
        ({"idempotency_key": ""}, 'idempotency_key: must be a non-empty string, got ""'),
        ({"idempotency_key": 7}, "idempotency_key: must be a non-empty string, got 7"),
        ({"user": ["alice"]}, 'user: must be a string or an integer, got ["alice"]'),
        ({"user": False}, "user: must be a string or an integer, got false"),
        ({"api_key": ["hunter2"]}, "api_key: must be a string or an integer, got list"),
        ({"": "x"}, 'the name of a fact must not be empty: it has the value "x"'),
        ({"ip": "localhost"}, 'ip: must be an address of IPv4 or IPv6, got "localhost"'),
        ({"ip": ""}, 'ip: must be an address of IPv4 or IPv6, got ""'),
        ({"ip": "10.0.0.0/8"}, 'ip: must be an address of IPv4 or IPv6, got "10.0.0.0/8"'),
        ({"ip": "2001:db8::/48"}, 'ip: must be an address of IPv4 or IPv6, got "2001:db8::/48"'),
        ({"ip": "1" * 500}, f'ip: must be an address of IPv4 or IPv6, got "{"1" * 79}…'),
    ],
)
def test_what_makes_no_sense_is_told_with_its_field_and_value(value: Any, said: str) -> None:
    with pytest.raises(InvalidCheck) as raised:
        ask_of(value, NAMES)
    assert str(raised.value) == said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is empty"),
        (b"{", "the body must be JSON: Expecting property name enclosed in double quotes (line 1, column 2)"),
        (b'{"a": 1} {}', "the body must be JSON: Extra data (line 1, column 10)"),
        (b'{"user": "\xff"}', "the body must be JSON in UTF-8: byte 10 is not"),
        (b'{"user": "\\ud800"}', 'the body holds "\\ud800", half of a pair that stands for one character'),
        (b'{"user": "a", "cost": 1, "user": "b"}', "user: given twice"),
        (b'{"cost": NaN}', "the body must be JSON, which has no NaN"),
        (b'{"cost": -Infinity}', "the body must be JSON, which has no -Infinity"),
        (b'{"cost": ' + b"9" * 5000 + b"}", "the body holds a number with too many digits"),
        (b"[" * 100_000, "the body is nested too deeply"),
        ('{"user": "a"}'.encode("utf-16"), "the body must be JSON in UTF-8: byte 0 is not"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_no_json_is_told_with_its_place(body: bytes, said: str) -> None:
    with pytest.raises(InvalidCheck) as raised:
        decode(body)
    assert str(raised.value) == said


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert decode(b'{"user": "\\ud83d\\ude00"}') == {"user": "😀"}


def test_a_batch_is_a_list_of_checks() -> None:
    assert asks_of({"checks": []}, NAMES) == []
    assert asks_of({"checks": [{"user": "a"}, {"user": "b", "cost": 2}]}, NAMES) == [
        BatchedRequest({"user": "a"}),
        BatchedRequest({"user": "b"}, 2),
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], 'the body must be an object like {"checks": [{"user": "alice"}]}, got []'),
        ({}, "checks: must be a list of checks, got null"),
        ({"checks": {}}, "checks: must be a list of checks, got {}"),
        ({"checks": [], "cheques": []}, 'unknown field "cheques"; expected only "checks"'),
        ({"checks": [{}] * (MAX_BATCH + 1)}, "checks: must be at most 1,000, got 1,001"),
        ({"checks": [{}, {"cost": -1}]}, "checks[1]: cost: must be a whole number from 0 to 2^53-1, got -1"),
        (
            {"checks": [{}, "alice"]},
            'checks[1]: must be an object with the request\'s facts, such as {"user": "alice"}, got "alice"',
        ),
    ],
)
def test_what_is_wrong_with_a_batch_is_told_with_its_place(value: Any, said: str) -> None:
    with pytest.raises(InvalidCheck) as raised:
        asks_of(value, NAMES)
    assert str(raised.value) == said
