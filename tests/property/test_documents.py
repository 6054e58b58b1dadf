"""Whatever a rules file holds, it makes a snapshot or a list of problems: never another error, never a hang."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headgate import InvalidRule
from headgate.rules import Snapshot
from headgate.rules.sources.document import snapshot_of
from tests.unit.rules.sources.test_document import CONTRACT

SAMPLE = tomllib.loads(CONTRACT)
KEYS = sorted({key for part in ("rules", "tiers", "users", "exemptions") for key in SAMPLE[part][0]} | set(SAMPLE))
SCALARS = (
    st.none().map(lambda _: "")
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["search-free", "free", "ip", "1h", "/a/*", "user+ip", "leased", "sliding_window_log", "gcra"])
    | st.datetimes()
    | st.dates()
    | st.times()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), inner),
    max_leaves=8,
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """The contract's sample with a few things changed, removed or added, anywhere in it."""
    data = copy.deepcopy(SAMPLE)
    for _ in range(draw(st.integers(1, 4))):
        holder: Any = data
        while True:
            if isinstance(holder, list):
                if not holder:
                    holder.append(draw(VALUES))
                    break
                key: Any = draw(st.integers(0, len(holder) - 1))
            else:
                key = draw(st.sampled_from([*holder, *KEYS]))
            inside = holder[key] if isinstance(holder, list) else holder.get(key)
            if isinstance(inside, list | dict) and inside and draw(st.integers(0, 3)):
                holder = inside
                continue
            change = draw(st.sampled_from(["set", "set", "remove", "repeat"]))
            if change == "remove" and isinstance(holder, dict):
                holder.pop(key, None)
            elif change == "repeat" and isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            else:
                holder[key] = draw(VALUES)
            break
    return data


@given(documents() | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=4), VALUES, max_size=4))
def test_a_file_makes_a_snapshot_or_a_list_of_problems(data: dict[str, Any]) -> None:
    again = copy.deepcopy(data)
    outcome: Snapshot | InvalidRule
    try:
        outcome = snapshot_of(data, version="1", file="f")
    except InvalidRule as error:
        outcome = error
    if isinstance(outcome, InvalidRule):
        assert outcome.problems
        assert all(problem.message and problem.file == "f" for problem in outcome.problems)
    else:
        assert len(outcome.rules) == len(again.get("rules", []))
