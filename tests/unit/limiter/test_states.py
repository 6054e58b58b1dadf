"""States: normal, warning with hysteresis, throttled."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import InvalidRule, Limiter, Rule
from headgate.limiter.warning_hysteresis import WarningHysteresis
from headgate.rules import Holder, Snapshot
from headgate.testing import FakeClock

START = 1_700_000_040


def limiter(warning_at: int | None = None, warning_until: int | None = None) -> tuple[Limiter, FakeClock]:
    """Ten per ten seconds, of which one comes back each second."""
    clock = FakeClock(START)
    return Limiter("10/10s token_bucket", clock=clock, warning_at=warning_at, warning_until=warning_until), clock


def test_normal_warning_throttled_and_back() -> None:
    limited, clock = limiter()
    states = [limited.check("alice").state for _ in range(11)]
    assert states == ["normal"] * 7 + ["warning"] * 3 + ["throttled"]
    seen = []
    for _ in range(5):
        clock.advance(1)
        seen.append(limited.peek("alice").state)
    # 90, 80, 70, 60 and 50 % are used: below 70 it is over, and must reach 80 again.
    assert seen == ["warning"] * 3 + ["normal"] * 2
    assert limited.check("alice", cost=2).state == "normal"  # 70 %
    assert limited.check("alice").state == "warning"
    assert limited.check("bob").state == "normal"


def test_it_is_worked_out_when_it_is_first_asked_for() -> None:
    limited, clock = limiter()
    unseen = limited.check("alice", cost=8)
    clock.advance(1)
    between = limited.peek("alice")
    assert between.state == "normal"  # 70 %, and nobody has looked at the 80
    assert unseen.state == "warning"
    assert between.state == "normal"  # what was said stays said
    assert limited.peek("alice").state == "warning"  # and now it is known
    clock.advance(1)
    assert limited.peek("alice").state == "normal"
    assert unseen.state == "warning"


def test_a_refusal_is_remembered_as_well() -> None:
    limited, clock = limiter()
    limited.check("alice", cost=10)
    assert limited.check("alice").state == "throttled"
    clock.advance(3)
    assert limited.peek("alice").state == "warning"  # 70 %


def test_a_warning_is_forgotten_when_the_limit_would_be_whole_again() -> None:
    limited, clock = limiter()
    assert limited.check("alice", cost=8).state == "warning"
    clock.advance(7.999_999)
    assert limited.check("alice", cost=7).state == "warning"  # 70 %, and never seen below
    limited.reset("alice")
    clock.advance(8)
    assert limited.check("alice", cost=7).state == "normal"  # seen by nobody, but it must have been


def test_thresholds_of_the_limiter() -> None:
    limited, _ = limiter(warning_at=50, warning_until=40)
    assert [limited.check("alice").state for _ in range(5)] == ["normal"] * 4 + ["warning"]
    limited, clock = limiter(warning_at=50)  # then it ends there too, as 70 would be above it
    assert limited.check("alice", cost=5).state == "warning"
    clock.advance(0.000_001)
    assert limited.check("alice").state == "warning"
    clock.advance(1)
    assert limited.peek("alice").state == "warning"
    clock.advance(1)
    assert limited.peek("alice").state == "normal"


def test_thresholds_of_a_file_come_before_those_of_the_limiter(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    text = '[[rules]]\nid = "r"\nlimit = 10\nwindow = "1m"\nalgorithm = "fixed_window"\n'
    file.write_text(f"[headgate]\nwarning_at = 30\nwarning_until = 20\n{text}")
    with Limiter(file, warning_at=90, clock=FakeClock(START)) as limited:
        assert [limited.check(user="alice").state for _ in range(3)] == ["normal", "normal", "warning"]
        file.write_text(text)
        limited.reload()
        assert limited.check(user="bob", cost=8).state == "normal"
        assert limited.check(user="bob").state == "warning"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"warning_at": 0}, "warning_at: must be a whole number from 1 to 100, got 0"),
        ({"warning_at": 101}, "warning_at: must be a whole number from 1 to 100, got 101"),
        ({"warning_until": 1.5}, "warning_until: must be a whole number from 1 to 100, got 1.5"),
        ({"warning_at": 60, "warning_until": 61}, "warning_until: must not be above warning_at (60), got 61"),
    ],
)
def test_bad_thresholds(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidRule) as caught:
        Limiter("1/s", **arguments)  # type: ignore[arg-type]
    assert str(caught.value) == message
    with pytest.raises(InvalidRule) as caught:
        Snapshot([], **arguments)  # type: ignore[arg-type]
    assert str(caught.value) == f"[headgate]: {message}"


def test_bad_thresholds_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[headgate]\nwarning_at = "80"\nwarning_until = 0\n')
    with pytest.raises(InvalidRule) as caught:
        Limiter(file)
    assert [(p.where, p.field) for p in caught.value.problems] == [
        ("[headgate]", "warning_at"),
        ("[headgate]", "warning_until"),
    ]


def test_the_memory_is_bounded() -> None:
    warnings = WarningHysteresis(Holder(Snapshot([])), None, None, size=10)
    for number in range(1_000):
        assert warnings.warns("space", str(number), 9, 10, 0, 100)
    assert 10 <= sum(warnings.warns("space", str(number), 75, 100, 1, 100) for number in range(1_000)) <= 20


def test_shadows_do_not_warn() -> None:
    rules = [Rule(id="real", quota="100/minute"), Rule(id="shadow", quota="1/minute", action="log_only")]
    limited = Limiter(rules, clock=FakeClock(START))
    assert limited.check(user="alice").state == "normal"
    assert limited.check(user="alice").state == "normal"


@settings(max_examples=200, deadline=None)
@given(
    thresholds=st.tuples(st.integers(1, 100), st.integers(1, 100)).map(lambda pair: (max(pair), min(pair))),
    several=st.booleans(),
    steps=st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(0, 3_000), st.booleans()), max_size=40
    ),
)
def test_states_are_those_of_a_plain_model(
    thresholds: tuple[int, int], several: bool, steps: list[tuple[str, int, int, bool]]
) -> None:
    at, until = thresholds
    clock = FakeClock(START)
    rules = [Rule(id="r", quota="10/10s token_bucket"), Rule(id="s", quota="7/5s fixed_window")][: 1 + several]
    limited = Limiter(rules, clock=clock, warning_at=at, warning_until=until)
    warned: dict[tuple[str, str], float] = {}  # when the limit would be whole again
    for who, cost, ms, asked in steps:
        clock.advance(ms / 1_000)
        decision = limited.check(user=who, cost=cost)
        if not asked:
            continue
        warning = False
        for status in decision.limits:
            used, key = (status.limit - status.remaining) * 100 / status.limit, (status.rule, who)
            known = key in warned and used >= until and clock.now_us() < warned[key]
            if used >= at or known:
                warned[key] = clock.now_us() + round(status.reset_after * 1_000_000)
                warning = True
            else:
                warned.pop(key, None)
        assert decision.state == ("throttled" if not decision else "warning" if warning else "normal")
