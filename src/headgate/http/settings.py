"""Options by name, as frameworks keep them in their configuration: for a limiter, and for the middleware."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

from headgate.http.gate import Options

LIMITER: Final = ("RULES", "STORE", "NAME", "FAILURE_MODE", "WATCH", "WARNING_AT", "WARNING_UNTIL", "CLOCK")
MIDDLEWARE: Final = tuple(name.upper() for name in Options.__annotations__)
FAULTS: Final = (ValueError, TypeError, ImportError, OSError)  # of a limiter, a store or a gate that cannot be made


class Settings(NamedTuple):
    """The arguments of a `Limiter` and of a `Gate`. Without rules, there are none."""

    limiter: dict[str, Any]
    middleware: Options

    @classmethod
    def read(cls, values: Mapping[str, Any], *, others: tuple[str, ...] = ()) -> Settings:
        """Raises `KeyError`, with what is wrong, on a name that is none of ours and not one of `others`."""
        known = (*LIMITER, *MIDDLEWARE, *others)
        for name in values:
            if name not in known:
                raise KeyError(name, f"is not a setting; there are {', '.join(known)}")
        limiter = {name.lower(): values[name] for name in LIMITER if name in values}
        middleware = {name.lower(): values[name] for name in MIDDLEWARE if name in values}
        return cls({"rules": [], **limiter}, cast("Options", middleware))


def told(error: Exception) -> tuple[str, str]:
    """The setting that is to blame for a fault, and what is wrong with it."""
    field, _, message = str(error).partition(": ")
    name = field.partition(" ")[0].upper()  # "store URL" is one, too
    if name in (*LIMITER, *MIDDLEWARE):
        return name, message
    return "RULES", str(error)
