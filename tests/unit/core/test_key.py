"""Keys: readable, bounded, and never shared."""

from __future__ import annotations

import string

import pytest

from headgate.core.check import Check
from headgate.core.key import (
    MAX_ESCAPED,
    checked_prefix,
    dimension_of,
    escape,
    join_facts,
    key,
    key_template,
    qualified_name,
    split_facts,
)
from headgate.core.quota import Quota


def test_the_key_of_a_check() -> None:
    check = Check("search-free", key_template("user", "search-free", "gcra"), "alice", Quota(5, 1, algorithm="gcra"))
    assert check.key == "user:{alice}:search-free:gcra"


@pytest.mark.parametrize(
    ("subject", "escaped"),
    [
        ("alice", "alice"),
        ("alice@example.com", "alice@example.com"),
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8::1", "2001%3Adb8%3A%3A1"),
        ("a b", "a%20b"),
        ("100%", "100%25"),
        ("{tag}", "%7Btag%7D"),
        ("*", "%2A"),
        ("#", "%23"),
        ("\n\0", "%0A%00"),
        ("é", "%C3%A9"),
        ("", "%"),
        ("\ud800", "%ED%A0%80"),
    ],
)
def test_escaping(subject: str, escaped: str) -> None:
    assert escape(subject) == escaped


def test_long_subjects_are_hashed() -> None:
    longest = "x" * MAX_ESCAPED
    assert escape(longest) == longest
    for subject in (longest + "x", "é" * MAX_ESCAPED, "x" * 1_000_000):
        assert escape(subject).startswith("#")
        assert len(escape(subject)) == 65
    assert escape("x" * 1_000_000) != escape("x" * 999_999)


def test_everything_that_escape_writes_is_safe() -> None:
    safe = set(string.ascii_letters + string.digits + "_.-~@%#")
    for code in [*range(0x300), 0x1F600, 0xD800]:
        assert set(escape(chr(code))) <= safe


def test_dimension_and_rule_are_escaped_too() -> None:
    assert (
        key(key_template("user+endpoint", "a:b{*}", "gcra"), "alice") == "user%2Bendpoint:{alice}:a%3Ab%7B%2A%7D:gcra"
    )


def test_a_limit_of_a_limiters_own_has_its_name() -> None:
    assert key_template("user", "GET /", "gcra", limiter="shop-a") == "user:{*}:shop-a/GET%20%2F:gcra"
    assert qualified_name("a/b", "c") != qualified_name("a", "b/c")
    assert dimension_of(key_template("user+endpoint", "r", "gcra", limiter="a:b")) == "user+endpoint"


@pytest.mark.parametrize("prefix", ["rl", "shop-a", "prod:shop_a.2", "a:b:c", "-", "x" * 64])
def test_prefixes(prefix: str) -> None:
    assert checked_prefix(prefix) == prefix


@pytest.mark.parametrize(
    "prefix", ["", ":", "a:", ":a", "a::b", "{a}", "a{", "a*", "a b", "a%", "é", "a\n", "x" * 65, "a/b", "٣"]
)
def test_what_is_no_prefix(prefix: str) -> None:
    with pytest.raises(ValueError, match=r"must be 1 to 64 letters, digits, .* got "):
        checked_prefix(prefix)


def test_joined_subjects_do_not_blur() -> None:
    assert join_facts(("a", "bc")) != join_facts(("ab", "c"))
    assert join_facts(("1:a", "b")) != join_facts(("1", "a1:b"))
    assert join_facts(("", "")) != join_facts(("",))


@pytest.mark.parametrize("dimension", ["user", "user+endpoint", "größe", "a:b", "%", "*", "{x}"])
def test_the_dimension_of_a_space(dimension: str) -> None:
    assert dimension_of(key_template(dimension, "a:rule", "gcra")) == dimension


@pytest.mark.parametrize("parts", [("alice", "/x"), ("", ""), ("1:", ":1", "größe"), ("12:ab" * 5, "x")])
def test_joined_subjects_are_split_again(parts: tuple[str, ...]) -> None:
    assert split_facts(join_facts(parts)) == parts
