"""Options by name, as frameworks keep them in their configuration: for a limiter, and for the middleware."""

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
FAULTS: Final = (ValueError, TypeError, ImportError, OSError)  # of a limiter, a store or options that cannot be made


class FrameworkSettings(NamedTuple):
    """The arguments of a `Limiter` and of a `MiddlewareOptions`. Without rules, there are none."""

    limiter: dict[str, Any]
    middleware: MiddlewareArguments

    @classmethod
    def read(cls, values: Mapping[str, Any], *, others: tuple[str, ...] = ()) -> FrameworkSettings:
        """Raises `KeyError`, with what is wrong, on a name that is neither ours nor one of `others`."""
        known = (*LIMITER, *MIDDLEWARE, *others)
        for name in values:
            if name not in known:
                raise KeyError(name, f"is not a setting; there are {', '.join(known)}")
        limiter = {name.lower(): values[name] for name in LIMITER if name in values}
        middleware = {name.lower(): values[name] for name in MIDDLEWARE if name in values}
        return cls({"rules": [], **limiter}, cast("MiddlewareArguments", middleware))


def describe_fault(error: Exception) -> tuple[str, str]:
    """The setting that is to blame for a fault, and what is wrong with it."""
    field, _, message = str(error).partition(": ")
    name = field.partition(" ")[0].upper()  # "store URL" is one, too
    if name in (*LIMITER, *MIDDLEWARE):
        return name, message
    return "RULES", str(error)
