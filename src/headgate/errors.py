"""Every exception that Headgate raises on purpose.

HeadgateError
├── InvalidQuota          (ValueError)   a notation or a figure that makes no quota
├── InvalidRule           (ValueError)   rules that cannot be applied; lists every problem with them
├── InvalidSettings       (ValueError)   settings that the service cannot run with; lists every problem
├── InvalidCheck          (ValueError)   a check whose subject, cost or key makes no sense
│   └── IdempotencyConflict              one idempotency key, two different requests
├── RateLimited                          a decorated function was refused; carries the decision
├── StoreError                           the store could not decide; the failure policy takes over
│   ├── StoreTimeout                     no answer within the deadline: it may or may not have been charged
│   ├── StoreUnavailable                 not reached, broken off, or answered with an error
│   └── StoreFull                        a store with no key that it may forget, or no memory
├── DatabaseError                        the rules' database answered with an error; the driver's is its cause
│   └── DatabaseUnavailable              it was not reached, or the connection broke
├── ChangeConflict                       what was to be changed is no longer what the caller has seen
├── NotFound              (LookupError)  there is no rule, tier, user … of that name in the database
└── AccessError                          a caller of the service may not do what they asked for
    ├── Unauthenticated                  no token, or one that is unknown, expired or revoked
    └── Forbidden                        the token is good, but not for this

A refusal is a value (`Decision`), not an exception: only faults raise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from headgate.core.decision import Decision


class HeadgateError(Exception):
    """The root: catch this to catch everything that Headgate raises on purpose."""


class InvalidQuota(HeadgateError, ValueError):
    """A notation string or a figure that makes no quota."""


class Problem(NamedTuple):
    """One thing that is wrong with rules. As text: `rules.toml: rule 'search': limit: must be …`."""

    where: str  # "rule 'search'", "user 'alice'", "[headgate]"; empty when it concerns all of them
    field: str  # empty when it concerns no single field
    message: str  # what is wrong, and with which value
    file: str = ""  # empty when the rules did not come from a file

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.where, self.field, self.message) if part)


class InvalidRule(HeadgateError, ValueError):
    """A rule, or a set of rules, that cannot be applied.

    `problems` lists everything that is wrong, not only what was found first; as text, one line for each.
    """

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(Problem("", "", problem) if isinstance(problem, str) else problem for problem in problems)
        super().__init__("\n".join(map(str, self.problems)))


class InvalidSettings(HeadgateError, ValueError):
    """Settings that the service cannot run with. `problems` lists them all; as text, one line for each."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class InvalidCheck(HeadgateError, ValueError):
    """A check whose subject, cost or idempotency key makes no sense. Nothing was charged."""


class IdempotencyConflict(InvalidCheck):
    """The idempotency key was used for another request within the last five minutes, or other rules applied to it then.
    Nothing was charged."""

    @classmethod
    def of(cls, key: str) -> IdempotencyConflict:
        return cls(
            f"idempotency key {key!r} was used for another request within the last five minutes, or other rules "
            "applied to it then; use a new key for a new request"
        )


class RateLimited(HeadgateError):
    """A function decorated with `limit` was not called, because a limit refused it.

    `decision` says which limit, and when to try again.
    """

    def __init__(self, decision: Decision) -> None:
        super().__init__(decision)
        self.decision = decision
        self.add_note(
            "To answer it with 429 in a web app: headgate.http.fastapi.install(app, limiter=…), Headgate(app) of "
            "headgate.http.flask, or Django's middleware; else catch RateLimited and answer by its `decision`."
        )

    def __str__(self) -> str:
        decision = self.decision
        after = "never fits" if decision.retry_after is None else f"retry after {decision.retry_after:g} s"
        return f"rate limited by rule {decision.rule!r} ({decision.reason}); {after}"


class StoreError(HeadgateError):
    """The store could not decide. The limiter turns this into a decision by the rules' failure modes."""


class StoreTimeout(StoreError):
    """The store did not answer within the deadline. The check may or may not have been charged.

    `charge_later` is there when it was not even sent: calling it makes the store charge the check later, if it
    fits, as soon as the store answers. For callers that admit the request without the store.
    """

    charge_later: Callable[[], None] | None = None


class StoreUnavailable(StoreError):
    """The store was not reached, or answered with an error: nothing was charged. Or the connection broke off while a
    check was under way: then it may or may not have been.

    `sent` is False when it is sure that nothing was executed.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class StoreFull(StoreError):
    """A store has no room: every key of a bounded store is limiting a client right now, or a server is out of
    memory.
    """


class DatabaseError(HeadgateError):
    """The rules' database could not do what it was asked. The driver's error is the cause."""


class DatabaseUnavailable(DatabaseError):
    """The rules' database was not reached, or the connection broke."""


class ChangeConflict(HeadgateError):
    """Another change came first: read the current state and try again. Nothing was changed."""


class NotFound(HeadgateError, LookupError):
    """There is no rule, tier, user, override or exemption of that name. Nothing was changed."""


class AccessError(HeadgateError):
    """A caller of the service may not do what they asked for. Nothing was done."""


class Unauthenticated(AccessError):
    """The caller has no token, or one that is unknown, expired or revoked.

    `reason` is which of these: `missing`, `unknown`, `expired` or `revoked`. `token` is the name of the token, if it
    has one.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: Literal["missing", "unknown", "expired", "revoked"] = "unknown",
        token: str | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.token = token


class Forbidden(AccessError):
    """The caller's token is good, but its role or its scopes do not cover what they asked for."""
