"""No two subjects ever share a key: shown by reading back from each key what it was made of."""

from __future__ import annotations

import re
from urllib.parse import unquote

from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.core.key import escape, joined, key, space
from headgate.testing.contract import HOSTILE
from tests.property.strategies import SIX, examples

SAFE = re.compile(r"[A-Za-z0-9_.~@%-]{1,128}")
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
    text, read = joined(tuple(parts)), []
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
    found = KEY.fullmatch(key(space(dimension, rule, algorithm), subject))
    assert found is not None
    assert found.groups() == (escape(dimension), escape(subject), escape(rule), algorithm)
