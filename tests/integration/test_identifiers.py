"""Identifiers: whatever characters they have, two of them are two subjects, and their keys are well formed."""

from __future__ import annotations

import re
import unicodedata
from hashlib import blake2b

import pytest

from headgate import Limiter, Rule
from tests.integration.limiters import ALGORITHMS, Open, calm
from tests.kinds import each_kind
from tests.servers import Server, binaries, free_port

LONG = "x" * 1_000_000
AWKWARD = (
    *("", " ", "  ", "a", "A", "a ", " a", "a:b", "a:b:c", "a:", ":a", ":", "::"),
    *("{", "}", "{}", "{a}", "a}b", "{a", "a}", "}{", "{a}{b}", "{{a}}"),
    *("_", "__", "a_b", "a__b", "/", "a/b", "//", "../a", "a\\b", "\\", "'", '"', "`", "$a", "*", "?", "[a]", "a*"),
    *("\n", "a\n", "a\nb", "a\r\nb", "\r\n", "\t", "\0", "a\0", "a\0b", "\0a", "\x7f", "\x80", "\xff"),
    *("%", "%25", "%2525", "%3A", "a%3Ab", "%00", "#", "##", "+", "a+b", "~", "-", ".", "@", "a@b.c", "a@b,c"),
    *("é", unicodedata.normalize("NFD", "é"), "ß", "ss", "İ", "i̇", "ﬁ", "fi", "日本", "日", "本"),
    *("🙂", "🙂🙂", "👩‍👩‍👧", "👩", "\u200b", "a\u200b", "\u202e", "\ufeff", "\ufffd", "\U0010ffff"),
    *("\ud800", "\udfff", "\ud800\udc00", "\U00010000", "a\ud800", "\udc80", "?"),
    *("0", "1", "01", "1.0", "1e3", "-1", "+1", "None", "null", "true", "NaN", "\u0661"),
    *("192.0.2.7", "2001:db8::1", "2001:db8:0::1", "[::1]", "::1"),
    *("y" * 127, "y" * 128, "y" * 129, "y" * 130, "é" * 21, "é" * 22, "é" * 64, "é" * 128, "\0" * 42, "\0" * 43),
    *(LONG, LONG + "x", LONG[:-1] + "y", "y" + LONG[1:], LONG + "\0", "🙂" * 250_000),
    *("#" + blake2b(LONG.encode(), digest_size=32).hexdigest(), blake2b(LONG.encode(), digest_size=32).hexdigest()),
    *("rl:user:{a}:default:gcra", "a}:default:gcra", "default", "user", "global", "idempotency"),
)
IDENTIFIERS = tuple(dict.fromkeys(AWKWARD))
LIMIT = 100_000
KEY = re.compile(r"rl:[^:{}]+:\{[^:{}]+\}:[^:{}]+:[a-z_]+")
MAX_KEY = 512


def keys(server: Server) -> list[str]:
    with server.client() as client:
        return [name.decode("ascii") for name in client.keys("*")]


@pytest.mark.parametrize("algorithm", ["fixed_window", "sliding_window_log"])
def test_each_identifier_has_a_count_of_its_own(
    redis_server: Server, redis_url: str, open_limiter: Open, algorithm: str
) -> None:
    limiter = open_limiter(calm(LIMIT, algorithm), store=redis_url)
    for cost, identifier in enumerate(IDENTIFIERS, 1):
        assert limiter.check(identifier, cost=cost).remaining == LIMIT - cost
    for cost, identifier in enumerate(IDENTIFIERS, 1):
        assert limiter.peek(identifier).remaining == LIMIT - cost
    names = keys(redis_server)
    assert len(names) == len(IDENTIFIERS)
    assert all(KEY.fullmatch(name) for name in names)
    assert max(map(len, names)) <= MAX_KEY


def test_together_in_one_call_they_are_as_independent(redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter(calm(LIMIT), store=redis_url)
    decisions = limiter.check_many({"user": identifier, "cost": cost} for cost, identifier in enumerate(IDENTIFIERS, 1))
    assert [decision.remaining for decision in decisions] == [LIMIT - cost for cost in range(1, len(IDENTIFIERS) + 1)]


def test_a_number_is_its_text(redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter(calm(10), store=redis_url)
    limiter.check(42)
    limiter.check("42")
    limiter.check(user=42)
    assert limiter.peek(42).remaining == 7
    limiter.check(-1)
    limiter.check(10**30)
    assert (limiter.peek("-1").remaining, limiter.peek(str(10**30)).remaining, limiter.peek(1).remaining) == (9, 9, 10)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_key_reads_dimension_identifier_rule_algorithm(
    redis_server: Server, redis_url: str, open_limiter: Open, algorithm: str
) -> None:
    limiter = open_limiter([Rule(id="search-free", dimension="api_key", quota=calm(10, algorithm))], store=redis_url)
    limiter.check(api_key="k-123")
    assert keys(redis_server) == [f"rl:api_key:{{k-123}}:search-free:{algorithm}"]


def test_rules_and_dimensions_may_be_awkward_too(redis_server: Server, redis_url: str, open_limiter: Open) -> None:
    names = [name for name in IDENTIFIERS if name.isprintable() and name]
    limiter = open_limiter(
        [Rule(id=name, dimension="user", quota=calm(LIMIT + place)) for place, name in enumerate(names)],
        store=redis_url,
    )
    limiter.check(user="alice")
    assert {status.rule: status.remaining for status in limiter.peek(user="alice").limits} == {
        name: LIMIT + place - 1 for place, name in enumerate(names)
    }
    assert all(KEY.fullmatch(name) and len(name) <= MAX_KEY for name in keys(redis_server))
    assert len(keys(redis_server)) == len(names)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        (("a", ""), ("", "a")),
        (("1:a", "b"), ("a", "1:b")),
        (("a1:", "b"), ("a", "1:b")),
        (("a", "b"), ("b", "a")),
        (("a+b", "c"), ("a", "b+c")),
        (("12:a", "b"), ("1", "2:ab")),
    ],
)
def test_joined_dimensions_do_not_blur(
    redis_url: str, open_limiter: Open, one: tuple[str, str], other: tuple[str, str]
) -> None:
    limiter = open_limiter([Rule(id="r", dimension="user+endpoint", quota=calm(10))], store=redis_url)
    limiter.check(user=one[0], endpoint=one[1], cost=3)
    assert limiter.peek(user=other[0], endpoint=other[1]).remaining == 10
    assert limiter.peek(user=one[0], endpoint=one[1]).remaining == 7


def test_one_value_in_two_dimensions_is_two_subjects(redis_url: str, open_limiter: Open) -> None:
    limiter = open_limiter(
        [Rule(id=dimension, dimension=dimension, quota=calm(10)) for dimension in ("user", "ip", "tenant", "global")],
        store=redis_url,
    )
    limiter.check(user="x", cost=3)
    after = {status.rule: status.remaining for status in limiter.peek(user="x", ip="x", tenant="x").limits}
    assert after == {"user": 7, "ip": 10, "tenant": 10, "global": 7}


@pytest.mark.parametrize("name", ["k", "a:b", "{a}", "", "k\n", "\0", "🙂", "\ud800", "x" * 100_000, "k}:r:gcra"])
def test_idempotency_keys_may_be_awkward_too(redis_url: str, name: str) -> None:
    with Limiter(calm(10), store=redis_url) as limiter:
        for _ in range(2):
            limiter.check("alice", idempotency_key=name + "!")
            limiter.check("bob", idempotency_key=name + "?")
        assert (limiter.peek("alice").remaining, limiter.peek("bob").remaining) == (9, 9)


@pytest.mark.parametrize("kind", each_kind())
def test_the_limits_of_one_subject_share_a_slot(kind: str) -> None:
    """As a cluster's own server reckons it; so they can be decided in one atomic step there."""
    rules = [Rule(id=f"{name}}}{{", quota=calm(10, name)) for name in ALGORITHMS]
    port = free_port()
    with Server(binaries()[kind], ("--cluster-enabled", "yes"), port) as server, server.client() as client:
        slots = {}
        for identifier in IDENTIFIERS:
            found = {client.execute_command("CLUSTER KEYSLOT", name) for name in keys_of(rules, identifier)}
            assert len(found) == 1
            slots[identifier] = found.pop()
        assert len(set(slots.values())) > len(IDENTIFIERS) * 0.9


def keys_of(rules: list[Rule], identifier: str) -> list[str]:
    from headgate.core.clock import SystemClock
    from headgate.rules.snapshot import Snapshot

    facts = {"user": identifier}
    return [check.key for check in Snapshot(rules).plan(facts, SystemClock()).checks(facts, 1)]
