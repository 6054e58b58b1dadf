"""`headgate version`."""

from __future__ import annotations

import platform

import typer

from headgate._version import __version__
from headgate.cli.options import AsJson
from headgate.cli.output import emit, say


def print_version(wanted: bool) -> None:
    """Print the version and exit, for `headgate --version`."""
    if wanted:
        version()
        raise typer.Exit


def version(as_json: AsJson = False) -> None:
    """Print the versions of Headgate and Python."""
    if as_json:
        emit({"headgate": __version__, "python": platform.python_version()})
    else:
        say(f"headgate {__version__} (Python {platform.python_version()})")
