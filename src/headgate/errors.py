"""Every exception that Headgate raises on purpose.

HeadgateError
├── InvalidQuota          (ValueError)   a notation or a value that is not a valid quota
├── InvalidRule           (ValueError)   rules that cannot be applied; lists every problem with them
├── InvalidSettings       (ValueError)   settings that the service cannot run with; lists every problem
├── InvalidStore          (ValueError)   a store's URL that is invalid, or something that is not a store
├── InvalidCheck          (ValueError)   a check with an invalid subject, cost or key
│   └── IdempotencyConflict              one idempotency key, two different requests
├── RateLimited                          a decorated function was refused; carries the decision
├── StoreError                           the store failed; the failure mode decides
│   ├── StoreTimeout                     no answer within the deadline: it may or may not have been charged
│   ├── StoreUnavailable                 not reached, disconnected, or answered with an error
│   └── StoreFull                        a store that can evict no key, or has no memory
├── DatabaseError                        the rules' database failed; the driver's error is the cause
│   └── DatabaseUnavailable              it was not reached, or the connection broke
├── ChangeConflict                       another change came first, or the change is not possible here
├── NotFound              (LookupError)  the database has no rule, tier, user … with that name
└── AccessError                          a caller of the service may not do this
    ├── Unauthenticated                  no token, or one that is unknown, expired or revoked
    └── Forbidden                        the token is valid, but not for this

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
    """A notation string or a value that is not a valid quota."""


class Problem(NamedTuple):
    """One problem with rules. As text: `rules.toml: rule 'search': limit: must be …`."""

    where: str  # "rule 'search'", "user 'alice'", "[headgate]"; empty if it concerns all of them
    field: str  # empty if it concerns no single field
    message: str  # what is wrong, and with which value
    file: str = ""  # empty if the rules are not from a file

    def __str__(self) -> str:
        return ": ".join(part for part in (self.file, self.where, self.field, self.message) if part)


class InvalidRule(HeadgateError, ValueError):
    """A rule, or a set of rules, that cannot be applied.

    `problems` lists all problems, not only the first; as text, one line for each.
    """

    def __init__(self, *problems: Problem | str) -> None:
        self.problems = tuple(Problem("", "", problem) if isinstance(problem, str) else problem for problem in problems)
        super().__init__("\n".join(map(str, self.problems)))


class InvalidSettings(HeadgateError, ValueError):
    """Settings that the service cannot run with. `problems` lists them all; as text, one line for each."""

    def __init__(self, *problems: str) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


class InvalidStore(HeadgateError, ValueError):
    """A store's URL that is invalid, or something that is neither a URL nor a store."""


class InvalidCheck(HeadgateError, ValueError):
    """A check with an invalid subject, cost or idempotency key. Nothing was charged."""


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

    `decision` has the limit, and when to try again.
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
    """The store failed. The limiter then decides by the rules' failure modes."""


class StoreTimeout(StoreError):
    """The store did not answer within the deadline. The check may or may not have been charged.

    `charge_later` is set if the check was not even sent. Callers that allow the request without the store can call it:
    the store then charges the check, if it fits, as soon as it answers.
    """

    charge_later: Callable[[], None] | None = None


class StoreUnavailable(StoreError):
    """The store was not reached, or answered with an error: nothing was charged. Or the connection broke during a
    check: then it may or may not have been charged.

    `sent` is False if it is certain that nothing was executed.
    """

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class StoreFull(StoreError):
    """A store has no room: every key of a bounded store is limiting a client now, or a server is out of memory."""


class DatabaseError(HeadgateError):
    """The rules' database failed. The driver's error is the cause."""


class DatabaseUnavailable(DatabaseError):
    """The rules' database was not reached, or the connection broke."""


class ChangeConflict(HeadgateError):
    """Another change came first: read the current state and try again. Nothing was changed."""


class NotFound(HeadgateError, LookupError):
    """There is no rule, tier, user, override or exemption with that name. Nothing was changed."""


class AccessError(HeadgateError):
    """A caller of the service may not do this. Nothing was done."""


class Unauthenticated(AccessError):
    """The caller has no token, or one that is unknown, expired or revoked.

    `reason` is one of `missing`, `unknown`, `expired` and `revoked`. `token` is the token's name, if it has one.
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
    """The caller's token is valid, but its role or scopes do not cover the request."""
