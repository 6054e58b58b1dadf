"""The command line: `headgate --help`. One file per command or group of commands, registered in `app`.

Exit codes: 0 fine, 1 refused or invalid, 2 wrong usage or a fault, 130 ended by Ctrl-C. Each error is one
line on stderr; a traceback is a bug.
"""

from __future__ import annotations

import sys
from typing import Final

from headgate.rules.sources.collection import collection_paused

REFUSED: Final = 1
FAULT: Final = 2
INTERRUPTED: Final = 130


def main() -> None:
    """Run the command line and exit."""
    try:
        with collection_paused():
            from headgate.cli.app import app  # noqa: PLC0415 - what it needs may not be installed
    except ImportError as error:
        if error.name is None or error.name.startswith("headgate"):
            raise
        complain(f"the command line needs {error.name}: pip install 'headgate[service]'")
        sys.exit(FAULT)
    app()


def complain(text: str) -> None:
    """Print an error on stderr."""
    for line in text.splitlines():
        print(f"headgate: {line}", file=sys.stderr)
