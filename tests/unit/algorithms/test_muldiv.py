"""The Lua twins' exact multiplication and division, against Python's integers, on real servers."""

from __future__ import annotations

from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.algorithms import lua
from headgate.core.quota import MAX_INT, MAX_WINDOW_US
from tests.servers import Server

# ARGV: a, b, c of one triple after the other. Reply: quotient and remainder of each, as text, to be seen in full.
SCRIPT = f"""{lua("prelude")}
local reply = {{}}
for i = 1, #ARGV, 3 do
  local quotient, remainder = muldiv(tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]))
  reply[#reply + 1] = string.format('%.0f', quotient)
  reply[#reply + 1] = string.format('%.0f', remainder)
end
return reply
"""
BATCH = 1_000

Triple = tuple[int, int, int]


def exact(triple: Triple) -> bool:
    """Whether muldiv promises anything for it: the quotient has to be a whole number that Lua can hold."""
    a, b, c = triple
    return a * b // c <= MAX_INT


def assert_muldiv(server: Server, triples: list[Triple]) -> None:
    with server.client() as client:
        for start in range(0, len(triples), BATCH):
            batch = triples[start : start + BATCH]
            reply = client.eval(SCRIPT, 0, *(str(number) for triple in batch for number in triple))
            assert isinstance(reply, list)
            found = list(zip(map(int, reply[::2]), map(int, reply[1::2]), strict=True))
            wrong = [
                f"muldiv{triple} is {divmod(triple[0] * triple[1], triple[2])}, got {pair}"
                for triple, pair in zip(batch, found, strict=True)
                if pair != divmod(triple[0] * triple[1], triple[2])
            ]
            assert not wrong, "\n".join(wrong[:10])


def test_extremes(redis_server: Server) -> None:
    """Around every power of two and of ten that might matter, multiplied and divided by one another."""
    centres = [0, 1, 2, 3, 7, 10**3, 10**6, 2**26, 94_906_265, 2**27, 10**9, 2**32, 36 * 10**8, MAX_WINDOW_US]
    centres += [2**50, 2**51, 2**52, MAX_INT]
    edges = sorted({c + d for c in centres for d in (-1, 0, 1) if 0 <= c + d <= MAX_INT})
    triples = [triple for triple in product(edges, edges, edges[1:]) if exact(triple)]
    assert len(triples) > 20_000
    assert_muldiv(redis_server, triples)


def test_products_next_to_a_multiple(redis_server: Server) -> None:
    """Where a rounded quotient would be one too many: a * b just below, at and just above a multiple of c."""
    triples = []
    for c in (3, 7, 999_983, 2**31 - 1, 10**12 + 39, 2**52 - 47, MAX_INT - 110, MAX_INT - 1, MAX_INT):
        for k in (1, 2, 3, 1_000_003, 2**40 + 15, MAX_INT // 3, MAX_INT - 1, MAX_INT):
            for a in (1, 2, 3, k, c - 1):
                for b in ((c * k + shift) // a for shift in (-a, -1, 0, 1, a)):
                    triples.append((a, b, c))
    usable = [triple for triple in triples if min(triple) >= 0 and max(triple) <= MAX_INT and exact(triple)]
    assert len(usable) > 400
    assert_muldiv(redis_server, usable)


numbers = st.one_of(st.integers(0, MAX_INT), st.integers(0, 10_000), st.integers(MAX_INT - 1_000, MAX_INT))
triples = st.tuples(numbers, numbers, numbers.filter(bool)).filter(exact)


@settings(max_examples=20, deadline=None)
@given(triples=st.lists(triples, min_size=20, max_size=100))
def test_random(redis_server: Server, triples: list[Triple]) -> None:
    assert_muldiv(redis_server, triples)


def test_the_prelude_stands_by_itself(redis_server: Server) -> None:
    """It runs in front of any set of twins, so it needs none of them."""
    with redis_server.client() as client:
        assert client.eval(f"{lua('prelude')}\nreturn NEVER", 0) == -1
