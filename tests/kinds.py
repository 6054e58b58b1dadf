"""Parameters of tests that run on several kinds of Redis or Valkey server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.servers import binaries, default_kind


def each_kind() -> list[Any]:
    """One parameter per kind at hand. All but the default one run only with `--all`."""
    return [
        pytest.param(kind, marks=() if kind == default_kind() else pytest.mark.extended) for kind in sorted(binaries())
    ]
