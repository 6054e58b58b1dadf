"""The reference names everything that exists: commands and their flags, and the public names of the library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import headgate
from headgate.cli.app import app

REFERENCE = Path(__file__).parents[2] / "docs/reference"


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_the_command_line_page_names_every_command_and_flag() -> None:
    text = (REFERENCE / "command-line.md").read_text() + (REFERENCE / "settings.md").read_text()
    missing = []
    for path, command in commands(typer.main.get_command(app)):
        if not re.search(rf"\b{path[-1]}\b", text):
            missing.append(" ".join(path))
        for parameter in command.params:
            flags = [flag for flag in parameter.opts if flag.startswith("--") and flag != "--help"]
            if flags and not any(re.search(rf"{flag}(?![\w-])", text) for flag in flags) and path != ("serve",):
                missing.append(f"{' '.join(path)} {flags[0]}")
    assert missing == []


def test_the_api_page_documents_every_public_name() -> None:
    text = (REFERENCE / "api.md").read_text()
    documented = set(re.findall(r"^::: headgate\.(\w+)$", text, re.MULTILINE))
    assert documented == {name for name in headgate.__all__ if not name.startswith("_")}
