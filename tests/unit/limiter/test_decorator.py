"""@limiter.limit: a function that is called only when a limit allows it."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from functools import partial
from typing import Any, cast

import pytest

from headgate import AsyncLimiter, InvalidCheck, InvalidQuota, Limiter, Quota, RateLimited
from headgate.testing import FakeClock


@pytest.fixture
def limiter(clock: FakeClock) -> Limiter:
    return Limiter("1000/minute", clock=clock)


@pytest.fixture
def async_limiter(clock: FakeClock) -> AsyncLimiter:
    return AsyncLimiter("1000/minute", clock=clock)


def allowed(call: Callable[[], object]) -> bool:
    try:
        call()
    except RateLimited:
        return False
    return True


def test_a_function_is_called_as_often_as_it_may(limiter: Limiter, clock: FakeClock) -> None:
    calls = []

    @limiter.limit("2/minute fixed_window")
    def greet(name: str, *, twice: bool = False) -> str:
        """Says hello."""
        calls.append(name)
        return f"hello {name}" * (1 + twice)

    assert greet("alice") == "hello alice"
    assert greet("bob", twice=True) == "hello bobhello bob"
    with pytest.raises(RateLimited):
        greet("carol")
    assert calls == ["alice", "bob"]
    clock.advance(60)
    assert greet("dave") == "hello dave"
    assert (greet.__name__, greet.__doc__) == ("greet", "Says hello.")


def test_the_error_says_which_limit_and_when(limiter: Limiter) -> None:
    @limiter.limit("1/minute fixed_window", name="greetings")
    def greet() -> None: ...

    greet()
    with pytest.raises(RateLimited) as caught:
        greet()
    decision = caught.value.decision
    assert (decision.allowed, decision.rule, decision.retry_after) == (False, "greetings", 60.0)
    assert str(caught.value) == "rate limited by rule 'greetings' (over_limit); retry after 60 s"
    assert pickle.loads(pickle.dumps(caught.value)).decision == decision


def test_the_error_of_what_never_fits(limiter: Limiter) -> None:
    @limiter.limit("1/minute", cost=2, name="heavy")
    def heavy() -> None: ...

    with pytest.raises(RateLimited, match=r"rule 'heavy' .*never fits"):
        heavy()


def test_a_key_is_made_of_the_arguments(limiter: Limiter) -> None:
    @limiter.limit("1/minute", key=lambda name, *, city="x": f"{name}/{city}")
    def greet(name: str, *, city: str = "x") -> None: ...

    assert allowed(lambda: greet("alice"))
    assert allowed(lambda: greet("alice", city="y"))
    assert allowed(lambda: greet("bob"))
    assert not allowed(lambda: greet("alice", city="x"))


def test_a_key_may_be_a_number_and_may_use_self(limiter: Limiter) -> None:
    class Account:
        def __init__(self, number: int) -> None:
            self.number = number

        @limiter.limit("1/minute", key=lambda self: self.number)
        def withdraw(self) -> int:
            return self.number

    one, two = Account(1), Account(2)
    assert (one.withdraw(), two.withdraw()) == (1, 2)
    assert not allowed(one.withdraw)


def test_a_constant_key_and_no_key_count_everybody_together(limiter: Limiter) -> None:
    @limiter.limit("1/minute", key="all")
    def constant(name: str) -> None: ...

    @limiter.limit("1/minute")
    def keyless(name: str) -> None: ...

    for function in (constant, keyless):
        assert allowed(lambda function=function: function("alice"))  # type: ignore[misc]
        assert not allowed(lambda function=function: function("bob"))  # type: ignore[misc]


def test_functions_count_apart_unless_they_share_a_name(limiter: Limiter) -> None:
    @limiter.limit("1/minute")
    def one() -> None: ...

    @limiter.limit("1/minute")
    def two() -> None: ...

    @limiter.limit("1/minute", name="shared")
    def three() -> None: ...

    @limiter.limit("1/minute", name="shared")
    def four() -> None: ...

    assert [allowed(each) for each in (one, two, three, four)] == [True, True, True, False]


def test_a_cost_and_several_quotas(limiter: Limiter) -> None:
    @limiter.limit("10/second; 5/minute", cost=2)
    def function() -> None: ...

    @limiter.limit(Quota(3, 60))
    def other() -> None: ...

    assert [allowed(function) for _ in range(3)] == [True, True, False]
    assert [allowed(other) for _ in range(4)] == [True, True, True, False]


def test_an_error_of_the_function_is_its_own_and_was_charged(limiter: Limiter) -> None:
    @limiter.limit("1/minute")
    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        fail()
    with pytest.raises(RateLimited):
        fail()


def test_an_async_function_under_either_limiter(limiter: Limiter, async_limiter: AsyncLimiter) -> None:
    async def double(number: int) -> int:
        """Doubles."""
        await asyncio.sleep(0)
        return 2 * number

    async def main(decorated: Callable[[int], Any]) -> list[Any]:
        return await asyncio.gather(*(decorated(n) for n in (1, 2, 3, 1)), return_exceptions=True)

    for each in (limiter, async_limiter):
        decorated = each.limit("1/minute", key=lambda number: number)(double)
        assert inspect.iscoroutinefunction(decorated)
        assert (decorated.__name__, decorated.__doc__) == ("double", "Doubles.")
        *answers, refused = asyncio.run(main(decorated))
        assert answers == [2, 4, 6]
        assert isinstance(refused, RateLimited)
        assert refused.decision.limit == 1


def test_an_async_limiter_does_not_take_a_function_that_cannot_await(async_limiter: AsyncLimiter) -> None:
    def plain() -> None: ...

    with pytest.raises(InvalidCheck, match=r"plain is not async: decorate it with the limit of a Limiter"):
        async_limiter.limit("1/minute")(cast("Any", plain))


def test_what_is_not_a_quota_is_said_so_when_decorating(limiter: Limiter, async_limiter: AsyncLimiter) -> None:
    async def function() -> None: ...

    for each in (limiter, async_limiter):
        with pytest.raises(InvalidCheck, match=r"write @limiter\.limit\('5/minute'\)"):
            each.limit(cast("Any", function))  # decorated without parentheses
        with pytest.raises(InvalidQuota, match="lots"):
            each.limit("lots")(function)


def test_a_key_that_makes_no_subject_is_said_so(limiter: Limiter) -> None:
    @limiter.limit("1/minute", key=cast("Any", lambda: 1.5))
    def function() -> None: ...

    with pytest.raises(InvalidCheck, match=r"subject: .*1\.5"):
        function()


@pytest.mark.parametrize("cost", [-1, 1.5, "1", True])
def test_a_cost_that_is_none_is_said_so_when_decorating(
    limiter: Limiter, async_limiter: AsyncLimiter, cost: Any
) -> None:
    for each in (limiter, async_limiter):
        with pytest.raises(InvalidCheck, match=f"cost: must be a whole number .* got {cost!r}"):
            each.limit("5/minute", cost=cost)


def test_a_partial_counts_with_its_function(limiter: Limiter, async_limiter: AsyncLimiter) -> None:
    def add(one: int, other: int) -> int:
        return one + other

    async def add_async(one: int, other: int) -> int:
        return one + other

    limited = [limiter.limit("2/minute")(function) for function in (partial(add, 1), partial(partial(add), 2), add)]
    assert [limited[0](1), limited[1](1)] == [2, 3]
    with pytest.raises(RateLimited, match=r"rule '.*\.add'"):
        limited[2](1, 1)
    assert asyncio.run(async_limiter.limit("1/minute")(partial(add_async, 1))(2)) == 3


def test_what_has_no_name_is_given_one(limiter: Limiter, async_limiter: AsyncLimiter) -> None:
    class Called:
        def __call__(self) -> int:
            return 1

    with pytest.raises(InvalidCheck, match=r"Called.* has no name to count by; pass one"):
        limiter.limit("1/minute")(Called())
    called = limiter.limit("1/minute", name="called")(Called())
    assert called() == 1
    with pytest.raises(RateLimited, match="rule 'called'"):
        called()
    with pytest.raises(InvalidCheck, match="called is not async"):
        async_limiter.limit("1/minute", name="called")(cast("Any", Called()))


def test_an_async_function_is_checked_on_the_event_loop_if_counts_are_in_memory(limiter: Limiter) -> None:
    threads = []

    def key() -> str:
        threads.append(threading.current_thread())
        return "all"

    @limiter.limit("2/minute", key=key)
    async def work() -> None: ...

    asyncio.run(work())
    assert threads == [threading.current_thread()]


def test_a_generator_is_checked_at_its_first_item_and_delegates(limiter: Limiter) -> None:
    @limiter.limit("1/minute fixed_window")
    def echo() -> Generator[str, str, str]:
        sent = yield "ready"
        return sent

    unused = echo()
    unused.close()  # never began: it costs nothing
    first = echo()
    assert next(first) == "ready"
    with pytest.raises(StopIteration, match="hello"):
        first.send("hello")
    with pytest.raises(RateLimited):
        next(echo())


def test_a_generator_holds_its_slot_until_it_ends_or_is_closed() -> None:
    limiter = Limiter("1000/minute")

    @limiter.limit("1 concurrent")
    def count() -> Iterator[int]:
        yield from range(2)

    def fails() -> bool:
        return not allowed(lambda: next(count()))

    items = count()
    assert next(items) == 0
    assert fails()
    assert list(items) == [1]
    closed = count()
    assert next(closed) == 0
    assert fails()
    cast("Generator[int, None, None]", closed).close()
    assert not fails()


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_an_async_generator_holds_its_slot_until_it_ends_or_is_closed(kind: type[Limiter] | type[AsyncLimiter]) -> None:
    ended = []

    async def count() -> AsyncGenerator[int, None]:
        try:
            for number in range(2):
                yield number
        finally:
            ended.append(True)

    async def main() -> None:
        limited = kind("1000/minute").limit("1 concurrent")(count)
        assert inspect.isasyncgenfunction(limited)
        items = limited()
        assert await anext(items) == 0
        with pytest.raises(RateLimited):
            await anext(limited())
        assert [item async for item in items] == [1]
        closed = limited()
        assert await anext(closed) == 0
        await closed.aclose()
        assert ended == [True, True]
        assert [item async for item in limited()] == [0, 1]

    asyncio.run(main())


def test_an_async_generator_counts_once(limiter: Limiter, async_limiter: AsyncLimiter) -> None:
    async def main(each: Limiter | AsyncLimiter) -> None:
        async def pair() -> AsyncGenerator[str, None]:
            yield "a"
            yield "b"

        letters = each.limit("1/minute fixed_window", name="letters")(pair)
        assert [letter async for letter in letters()] == ["a", "b"]
        with pytest.raises(RateLimited):
            await anext(letters())

    asyncio.run(main(limiter))
    asyncio.run(main(async_limiter))


def test_an_async_generator_gets_what_its_caller_sends_and_throws() -> None:
    limiter = AsyncLimiter("1000/minute")
    seen: list[object] = []

    @limiter.limit("1 concurrent")
    async def session() -> AsyncGenerator[str, str]:
        try:
            seen.append((yield "ready"))
            yield "again"
        except LookupError as error:
            seen.append(error)
            raise

    async def main() -> None:
        items = session()
        assert await anext(items) == "ready"
        assert await items.asend("hello") == "again"
        error = LookupError("no such row")
        with pytest.raises(LookupError, match="no such row"):
            await items.athrow(error)
        assert seen == ["hello", error]
        assert [item async for item in session()] == ["ready", "again"], "the slot was not released"

    asyncio.run(main())
