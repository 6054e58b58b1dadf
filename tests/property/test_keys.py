"""No two subjects ever share a key: shown by reading back from each key what it was made of."""

from __future__ import annotations

import re
from urllib.parse import unquote

from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.core.check import Idempotency
from headgate.core.key import checked_prefix, escape, join_facts, key, key_template, penalty_keys
from headgate.stores.redis.encoding import Encoder
from headgate.stores.redis.reservation_slots import KEYS as REGISTER
from headgate.stores.redis.reservation_slots import tag_of_slot
from headgate.stores.redis.reservations import keys_of
from headgate.testing.contract import HOSTILE
from tests.property.strategies import SIX, examples

SAFE = re.compile(r"[A-Za-z0-9_.~@%-]{1,128}")
PREFIXES = st.lists(st.text("ab-_.", min_size=1, max_size=2), min_size=1, max_size=3).map(":".join)
HASHED = re.compile(r"#[0-9a-f]{64}")
KEY = re.compile(r"([^:{}*]+):\{([^:{}*]+)\}:([^:{}*]+):([a-z_]+)")


def texts() -> st.SearchStrategy[str]:
    """Any text that Python can hold, lone surrogates as well; often one that was made to confuse."""
    anything = st.text(st.characters(exclude_categories=()), max_size=40)
    confusing = st.text("ab:{}%#*_/. \n\0", max_size=12)
    return st.one_of(anything, confusing, st.sampled_from([text for text in HOSTILE if len(text) < 1_000]))


def unescape(escaped: str) -> str:
    return "" if escaped == "%" else unquote(escaped, errors="surrogatepass")


@examples(300)
@given(text=texts())
def test_escape_is_injective(text: str) -> None:
    """What can be read back was made of one text only."""
    escaped = escape(text)
    if HASHED.fullmatch(escaped):
        assert len(text.encode("utf-8", "surrogatepass")) * 3 > 128  # else there was no need for it
    else:
        assert SAFE.fullmatch(escaped)
        assert unescape(escaped) == text


@examples(100)
@given(one=texts(), other=texts(), length=st.integers(40, 200))
def test_escape_is_injective_for_long_texts(one: str, other: str, length: int) -> None:
    """Of two that differ at one end only, wherever the border to what is hashed lies between them."""
    assume(one != other)
    long = "x" * length
    assert escape(long + one) != escape(long + other)
    assert escape(one + long) != escape(other + long)


@examples(300)
@given(parts=st.lists(texts() | st.text("0123456789:", max_size=6), max_size=4))
def test_joined_is_injective(parts: list[str]) -> None:
    text, read = join_facts(tuple(parts)), []
    while text:
        length, _, rest = text.partition(":")
        read.append(rest[: int(length)])
        text = rest[int(length) :]
    assert read == parts


@examples(200)
@given(dimension=texts(), subject=texts(), rule=texts(), algorithm=st.sampled_from(SIX))
def test_a_key_tells_dimension_subject_rule_and_algorithm(
    dimension: str, subject: str, rule: str, algorithm: str
) -> None:
    """And its hash tag is the subject's alone, so that all of a subject's keys share a slot."""
    found = KEY.fullmatch(key(key_template(dimension, rule, algorithm), subject))
    assert found is not None
    assert found.groups() == (escape(dimension), escape(subject), escape(rule), algorithm)


@examples(200)
@given(prefixes=st.tuples(PREFIXES, PREFIXES), names=st.lists(texts(), min_size=4, max_size=4))
def test_keys_of_two_prefixes_are_never_the_same(prefixes: tuple[str, str], names: list[str]) -> None:
    """Not even if one prefix begins with the other, and dimensions are called what prefixes end with."""
    one, other = prefixes
    assume(one != other)

    def keys(prefix: str, last: str) -> set[str]:
        dimensions = [*names, *prefixes, last.rpartition(":")[2], "penalty", "nodes", "idempotency"]
        counts = {
            key(key_template(name, rule, "gcra"), "reservations") for name in dimensions for rule in (*names, "open")
        }
        others = {*penalty_keys(names[0], names[1]), *REGISTER, *keys_of("reservations"), *keys_of(tag_of_slot(7))}
        receipt = Encoder(prefix).receipt_key(Idempotency(names[2], ""))
        return {f"{prefix}:{name}" for name in counts | others} | {receipt}

    assert checked_prefix(one) == one
    assert not keys(one, other) & keys(other, one)


@examples(200)
@given(limiters=st.tuples(texts(), texts()), limits=st.tuples(texts(), texts()))
def test_limits_of_limiters_own_never_share_a_key(limiters: tuple[str, str], limits: tuple[str, str]) -> None:
    made = [
        key_template("user", limit, "gcra", limiter=limiter) for limiter, limit in zip(limiters, limits, strict=True)
    ]
    assert (made[0] == made[1]) == (limiters[0] == limiters[1] and limits[0] == limits[1])
    assert not {key_template("user", text, "gcra") for text in (*limiters, *limits)} & set(made)
