"""Region: what it refuses, and the stores that it opens."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import Limiter, Rule
from headgate.regions import Member, Region
from headgate.stores.memory import MemoryStore

EU, US = Member("eu", weight=2), Member("us", "redis://us.example:6379/0")


@pytest.mark.parametrize(
    ("name", "members", "options", "message"),
    [
        ("ap", [EU, US], {}, r"name: 'ap' is not one of the members \('eu', 'us'\)"),
        ("eu", [], {}, r"name: 'eu' is not one of the members \(there are none\)"),
        ("eu", [EU, US, Member("us", "redis://x")], {}, "members: 'us' is listed twice"),
        ("eu", [EU, Member("us")], {}, "members: 'us': store: is missing"),
        ("eu", [EU, Member("us", "http://x")], {}, "members: 'us': store: must be a URL with memory://"),
        ("eu", [EU, Member("us", "redis://x", 0)], {}, "members: 'us': weight: must be a whole number from 1"),
        ("eu", [Member("eu"), Member("", "redis://x")], {}, "members: name: must be a non-empty string, got ''"),
        ("eu", [EU, US], {"central": "ap"}, r"central: 'ap' is not one of the members"),
        ("eu", [EU, US], {"interval": 0}, r"interval: must be from 0.1 to 60 seconds, got 0"),
        ("eu", [EU, US], {"term": 1.5}, r"term: must be at least twice the interval \(1 s\), got 1.5"),
        ("eu", [EU, US], {"floor": 0.6}, r"floor: must be from 0 to 0.5, got 0.6"),
    ],
)
def test_what_makes_no_sense_is_refused(name: str, members: list[Member], options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Region(name, members, **options)


def test_far_stores_have_more_time_unless_their_url_says_otherwise() -> None:
    region = Region("eu", [EU, US, Member("ap", "redis://ap/0?timeout=0.2")])
    assert region.others == {"us": "redis://us.example:6379/0?timeout=1.0", "ap": "redis://ap/0?timeout=0.2"}


def test_the_central_region_is_the_first_by_name_in_whatever_order() -> None:
    assert Region("eu", [US, EU]).central == Region("us", [Member("eu", "redis://eu"), US]).central == "eu"


def test_a_store_that_others_cannot_read_is_refused() -> None:
    class Own:
        def check(self) -> None: ...

        refund = reset = close = check

    region = Region("eu", [EU, Member("us", MemoryStore())])
    with pytest.raises(ValueError, match="region 'eu': store: Own cannot be read by other regions"):
        Limiter([Rule(id="a", quota="1/s")], store=Own(), region=region)  # type: ignore[arg-type]
