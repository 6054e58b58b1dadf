"""Lease: what this node holds of one key's quota, and how much more it should fetch. Pure: callers pass the time.

A lease consists of slices. Each slice was charged to the store by a check of its own, so spending it charges nothing
again. A slice ends with its time bucket, if the algorithm has any, and after a second at the latest. The end is counted
on the local clock from before the call to the store, so it is never later than the store's.
"""

from __future__ import annotations

from typing import Final

from headgate.core.check import NEVER, Charge, Check, Outcome, Result
from headgate.core.quota import WINDOWS, Quota

LIFE_US: Final = 1_000_000  # how long a slice can be spent, at most
HORIZON_US: Final = 250_000  # a slice is what will probably be spent in this time,
WINDOW_SHARE: Final = 20  # or in this part of a window, if that is shorter,
SHARE: Final = 8  # but at most this part of what is left,
GROWTH: Final = 4  # and at most this many times what was spent since the last look
LEAST: Final = 4  # a smaller slice is not worth fetching
LOOK_US: Final = 2_000  # the shortest time between looks at the demand
REMEMBER_US: Final = 50_000  # how long a refusal is repeated, at most: other nodes may return tokens
PACE_US: Final = 5_000  # how long a refusal lasts, at least: tokens that arrive in the meantime are not lost,
PACE_SHARE: Final = 200  # because this is at most this part of a window, or an eighth of the time that fills a bucket
PAUSE_US: Final = 100_000  # after a failed fetch, before the next attempt
DRIFT: Final = 10  # a slice ends early by 1/2^DRIFT of its time: clocks run at different rates


class Slice:
    """Tokens that the store has charged. `offset_us` added to the local time is the store's time, or later."""

    __slots__ = ("at_us", "left", "mark", "offset_us", "over_us", "remaining", "reset_us", "until_us")

    def __init__(self, size: int, result: Result, quota: Quota, sent_us: int) -> None:
        now_us, (outcome,), _ = result
        lives_us = LIFE_US
        self.over_us: int | None = None  # when its window ends, on the local clock
        if quota.algorithm in WINDOWS:
            lives_us = quota.window_us - now_us % quota.window_us
            self.over_us = sent_us + lives_us
        lives_us = min(LIFE_US, lives_us)
        self.left = size
        self.mark = size // 3  # when less than this is left, it is time to fetch another
        self.until_us = sent_us + lives_us - (lives_us >> DRIFT)
        self.at_us = now_us  # when it was charged, by the store's clock; followed by the store's figures
        self.remaining = outcome.remaining
        self.reset_us = outcome.reset_us
        self.offset_us = now_us - sent_us


Taken = list[tuple[Slice, int]]
Late = tuple[int, int, Slice]  # the data for figures: what remains, what is left of the slice, the slice


class StoreRefusal:
    """A refusal by the store. Its wait counts from the call, not the answer, so it ends no later than in the store."""

    __slots__ = ("cost", "offset_us", "outcome", "sent_us", "until_us")

    def __init__(self, cost: int, outcome: Outcome, now_us: int, sent_us: int) -> None:
        self.cost = cost
        self.outcome = outcome
        self.sent_us = sent_us
        self.offset_us = now_us - sent_us
        wait_us = outcome.wait_us
        self.until_us = sent_us + (REMEMBER_US if wait_us == NEVER else min(wait_us, REMEMBER_US))

    def is_valid_for(self, cost: int, at_us: int) -> bool:
        return cost >= self.cost and self.sent_us <= at_us < self.until_us

    def at(self, at_us: int) -> Outcome:
        """Return the outcome that the store would return now."""
        wait_us, remaining, reset_us = self.outcome
        passed = at_us - self.sent_us
        return Outcome(wait_us if wait_us == NEVER else wait_us - passed, remaining, max(0, reset_us - passed))


class Lease:
    """The slices of one key, oldest first, and the demand for it. Not thread-safe: `Leases` has the lock."""

    __slots__ = (
        "_asked",
        "_not_before_us",
        "_pace_us",
        "_rate",
        "_since_us",
        "_stock",
        "check",
        "due",
        "fetching",
        "gone",
        "leftover",
        "quota",
        "refusal",
        "remaining",
        "seen",
        "slice",
        "spares",
    )

    def __init__(self, check: Check, at_us: int) -> None:
        self.check = check._replace(enforced=True)
        self.quota = quota = check.quota
        self._pace_us = quota.window_us // PACE_SHARE if quota.algorithm in WINDOWS else quota.refill[0] // SHARE
        self.slice = NOTHING  # the one being spent
        self.spares: list[Slice] = []
        self.leftover: Taken = []  # of slices that have ended, to be returned
        self.remaining: int | None = None  # in the store, according to its last answer
        self.refusal: StoreRefusal | None = None
        self.due: int | None = None  # the size of a slice that is wanted and not fetched yet
        self.fetching = False
        self.gone = False  # whether it was replaced or removed
        self.seen: int | None = None  # the tokens held at the last tick
        self._rate = 0.0  # tokens per microsecond
        self._stock = 0  # the tokens that would be held if none had been spent since the last look
        self._asked = 0  # cost sent to the store directly since the last look
        self._since_us = at_us
        self._not_before_us = 0

    @property
    def held(self) -> int:
        """The tokens that can be spent, or could be a moment ago."""
        return self.slice.left + sum(spare.left for spare in self.spares)

    @property
    def available(self) -> int:
        """The tokens held, and those left in the store by its last answer; at most the quota's capacity."""
        return min(self.held + (self.remaining or 0), self.quota.capacity)

    def take(self, cost: int, at_us: int) -> Taken:
        """Spend up to `cost`."""
        taken: Taken = []
        while cost:
            piece = self.slice
            if piece.left > 0 and at_us < piece.until_us:
                count = min(cost, piece.left)
                piece.left -= count
                cost -= count
                taken.append((piece, count))
            elif not self._move_on():
                break
        return taken

    def put_back(self, taken: Taken) -> None:
        """Undo a `take`."""
        for piece, count in taken:
            if piece is self.slice or piece in self.spares:
                piece.left += count
            else:
                self._stock -= count
                self.leftover.append((piece, count))

    def add(self, piece: Slice) -> None:
        self._stock += piece.left
        self.refusal = None
        self.seen = None
        if self.slice.left > 0:
            self.spares.append(piece)
        else:
            self.slice = piece

    def take_answer(self, cost: int, outcome: Outcome, now_us: int, sent_us: int) -> Outcome:
        """Record the store's answer to a check of this key. Return it, with its wait raised to the minimum, if any."""
        self.refusal = None
        if outcome.wait_us:
            if outcome.wait_us != NEVER:
                outcome = outcome._replace(wait_us=max(outcome.wait_us, min(PACE_US, self._pace_us)))
            self.refusal = StoreRefusal(cost, outcome, now_us, sent_us)
        return outcome

    def count_direct(self, cost: int) -> None:
        """Count a cost that was sent to the store directly."""
        self._asked += cost

    def note_failure(self, at_us: int) -> None:
        """Record that fetching a slice failed."""
        self.fetching = False
        self._not_before_us = at_us + PAUSE_US

    def fetch_size(self, at_us: int) -> int:
        """Return how many tokens to fetch; 0 if there are enough, or a slice would not be worthwhile."""
        elapsed = at_us - self._since_us
        if elapsed < 0:
            self._since_us = at_us  # the clock went back
        if self.fetching or self.remaining is None or elapsed < LOOK_US or at_us < self._not_before_us:
            return 0
        held = self.held
        spent = self._stock - held + self._asked
        self._since_us, self._stock, self._asked = at_us, held, 0
        rate = spent / elapsed
        self._rate = rate if rate > self._rate or elapsed > LIFE_US else (rate + self._rate) / 2
        horizon_us = min(HORIZON_US, self.quota.window_us // WINDOW_SHARE)
        size = min(int(self._rate * horizon_us) - held, GROWTH * spent, self.remaining // SHARE)
        return size if size >= LEAST else 0

    def tick(self, at_us: int) -> None:
        """End slices that have expired; all of them, if none was used since the last tick."""
        held = self.held
        idle = self.seen == held
        while self.held and (idle or at_us >= self.slice.until_us or self.slice.left == 0):
            if not self._move_on():
                break
        self.seen = self.held

    def end(self) -> None:
        """End all slices."""
        while self._move_on():
            pass

    def take_leftovers(self, at_us: int) -> tuple[list[Charge], int]:
        """Take out the leftover tokens. Return charges to refund, and the number of tokens whose window is over."""
        charges, stranded = [], 0
        for piece, count in self.leftover:
            if piece.over_us is not None and at_us >= piece.over_us and self.quota.algorithm == "fixed_window":
                stranded += count
            else:
                charges.append(Charge(self.check._replace(cost=count), piece.at_us, piece.reset_us))
        self.leftover = []
        return charges, stranded

    def outcome(self, at_us: int) -> Outcome:
        """Return the outcome of a check that was paid from this lease."""
        piece = self.slice
        if piece is NOTHING:  # it has ended in the meantime
            return Outcome(0, self.available, 0)
        return Outcome(0, *figures((piece.remaining + piece.left, piece.left, piece), self.now_us(at_us), self.quota))

    def now_us(self, at_us: int) -> int:
        """Return the store's time, or a little later."""
        return at_us + self.slice.offset_us

    def _move_on(self) -> bool:
        """End the slice that is being spent. Return False if there was none and is none."""
        ended = self.slice
        if ended is NOTHING:
            return False
        if ended.left > 0:
            self.leftover.append((ended, ended.left))
            self._stock -= ended.left
            ended.left = 0
        if not self.spares:
            self.slice = NOTHING
            return False
        self.slice = self.spares.pop(0)
        return True


def figures(state: Late, now_us: int, quota: Quota) -> tuple[int, int]:
    """Return what remains, including the tokens held, and the store's reset minus the time that has passed.

    Requests of a leaky bucket leave in order, so the reset of a request comes before that of the rest of its slice.
    """
    remaining, left, piece = state
    reset_us = piece.at_us + piece.reset_us - now_us
    if quota.algorithm == "leaky_bucket":
        reset_us -= left * quota.window_us // quota.limit
    return remaining, max(0, reset_us)


NOTHING: Final = Slice(0, Result(0, (Outcome(0, 0, 0),)), Quota(1, 1, algorithm="gcra"), -LIFE_US)
