"""The command line: `headgate --help`."""

from __future__ import annotations


def main() -> None:
    """Run it."""
    raise SystemExit("headgate: not here yet")
