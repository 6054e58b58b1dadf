"""Which settings there are."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.settings import Settings


def unknown(names: Iterable[str]) -> list[str]:
    """Those environment variables that are none of Headgate's."""
    known = {f"HEADGATE_{field}".upper() for field in Settings.model_fields}
    return [name for name in names if name not in known and name.removesuffix("_FILE") not in known]
