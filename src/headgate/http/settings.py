"""The options of a limiter and of the middleware, read from a framework's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from headgate.http.middleware_options import MiddlewareArguments

LIMITER: Final = (
    "RULES",
    "STORE",
    "NAME",
    "FAILURE_MODE",
    "WATCH",
    "WARNING_AT",
    "WARNING_UNTIL",
    "CLOCK",
    "FACTS",
    "REQUIRE_STORE",
    "ON_REFUSED",
)
MIDDLEWARE: Final = tuple(name.upper() for name in MiddlewareArguments.__annotations__)
FAULTS: Final = (ValueError, TypeError, ImportError, OSError)  # raised by an invalid limiter, store or option


class FrameworkSettings(NamedTuple):
    """The arguments of a `Limiter` and of `MiddlewareOptions`. Rules default to none."""

    limiter: dict[str, Any]
    middleware: MiddlewareArguments

    @classmethod
    def read(cls, values: Mapping[str, Any], *, others: tuple[str, ...] = ()) -> FrameworkSettings:
        """Read settings by name. Raises `KeyError`, with a message, for a name that is neither ours nor in `others`."""
        known = (*LIMITER, *MIDDLEWARE, *others)
        for name in values:
            if name not in known:
                raise KeyError(name, f"is not a setting; expected one of {', '.join(known)}")
        limiter = {name.lower(): values[name] for name in LIMITER if name in values}
        middleware = {name.lower(): values[name] for name in MIDDLEWARE if name in values}
        return cls({"rules": [], **limiter}, cast("MiddlewareArguments", middleware))


def describe_fault(error: Exception) -> tuple[str, str]:
    """Return the setting that caused a fault, and what is wrong with it."""
    field, _, message = str(error).partition(": ")
    name = field.partition(" ")[0].upper()  # "store URL" is one, too
    if name in (*LIMITER, *MIDDLEWARE):
        return name, message
    return "RULES", str(error)
