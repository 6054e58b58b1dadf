"""The base of the stores' contracts: the store under test, its clock, and helpers for tests."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Final
from uuid import uuid4

from headgate.core.check import Answer, Charge, Check, Group, Outcome, Result
from headgate.core.key import escape, key_template
from headgate.core.quota import BUCKETS, WINDOWS, Quota
from headgate.stores.protocol import AsyncStore, Store
from headgate.testing.blocking import blocking
from headgate.testing.clock import FakeClock

START: Final = 1_700_000_040  # seconds: a realistic time, and the first moment of a minute
WINDOW: Final = 60  # seconds
LIMIT: Final = 5  # per WINDOW, by default
SECOND: Final = 1_000_000
DAY: Final = 86_400 * SECOND
THREADS: Final = 8

# Texts that a careless store confuses, truncates or cannot encode.
HOSTILE: Final = (
    *("", " ", "\0", "\n", "'", '"', "\\", "\\n", "\ufeff", "x" * 127, "x" * 128, "x" * 129, escape("x" * 129)),
    *("alice", "Alice", "alice ", " alice", "alice\n", "alice\0", "alice\0bob", "alice\nbob", "alice\r\nbob"),
    *("%", "%%", "%25", "*", "?", "#", "-", "_", ".", "..", "/", ":", "::", "{", "}", "{}", "}{", "1:a1:b", "2:a1"),
    *("a:b", "a:{b}", "{a}:b", "{a:b}", "a}:{b", "a%3Ab", "a_b", "a__b", "a/b", "a//b", "a+b", "a%20b"),
    *("é", "e\u0301", "🚰", "🚰🚰"),
    *("a b", "\ud83d", "\udeb0", "\udfff", "\ud800\udc00", "\U00010000", "x" * 2**20, "x" * 2**20 + "y"),
)


class Contract:
    """The base class of test suites for the store that `make_store` returns."""

    def make_store(self, clock: FakeClock) -> Store | AsyncStore:
        """Return a store that reads `clock`. Called once per test; the store is closed at the test's end."""
        raise NotImplementedError("override make_store(clock) and return the store to test")

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run a test that takes an `algorithm` once for each of the six."""
        if "algorithm" in metafunc.fixturenames:
            metafunc.parametrize("algorithm", WINDOWS + BUCKETS)

    def teardown_method(self) -> None:
        if "store" in self.__dict__:
            self.store.close()

    @cached_property
    def clock(self) -> FakeClock:
        return FakeClock(START)

    @cached_property
    def store(self) -> Store:
        return blocking(self.make_store(self.clock))

    @cached_property
    def _run(self) -> str:
        """A unique name, so that this test shares no rules with others in a store that outlives it."""
        return uuid4().hex

    def _quota(self, algorithm: str, limit: int) -> Quota:
        return Quota(limit, WINDOW, algorithm=algorithm)  # type: ignore[arg-type]

    def _check(
        self, algorithm: str, *, subject: str = "alice", rule: str = "rule", limit: int = LIMIT, cost: int = 1
    ) -> Check:
        template = key_template("user", f"{self._run}/{rule}", algorithm)
        return Check(rule, template, subject, self._quota(algorithm, limit), cost)

    def _decide(self, group: Group) -> Result:
        (result,) = self.store.check([group])
        return result_of(result)

    def _ask_all(self, *checks: Check) -> tuple[Outcome, ...]:
        return self._decide(Group(checks)).outcomes

    def _ask(self, check: Check) -> Outcome:
        return self._decide(Group((check,))).outcomes[0]

    def _look(self, check: Check) -> Outcome:
        return self._decide(Group((check,), peek=True)).outcomes[0]

    def _advance(self, us: int) -> None:
        self.clock.advance(us / SECOND)

    def _exhaust(self, check: Check) -> None:
        """Charge at different times until nothing is left."""
        one = check._replace(cost=1)
        for _ in range(3 * check.quota.limit):
            if self._ask(one).wait_us:
                return
            self._advance(1_234_567)
        raise AssertionError(f"{3 * check.quota.limit} checks passed a limit of {check.quota.limit}")

    def _charge(self, check: Check) -> Charge:
        outcome = self._ask(check)
        same(outcome.wait_us, 0, f"wait of a check of cost {check.cost}")
        return Charge(check, self.clock.now_us(), outcome.reset_us)


def same(actual: object, expected: object, what: str) -> None:
    """Assert that two values are equal, and show both: pytest does not explain asserts of an installed package."""
    assert actual == expected, f"{what}: expected {expected!r}, got {actual!r}"


def result_of(result: Answer) -> Result:
    assert isinstance(result, Result), f"expected a Result, got {result!r}"
    return result
