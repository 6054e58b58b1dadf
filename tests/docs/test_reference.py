"""The reference names everything that exists: commands and flags, settings, keys, routes, and names of the library."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import headgate
from headgate import AsyncLimiter, Limiter
from headgate.cli.app import app
from headgate.rules.sources.schema import OverrideTable, PenaltiesTable, SettingsTable, UserTable

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
DOTTED = re.compile(r"`(headgate\.\w+(?:\.\w+)+)[`.(:]")
OTHER_NAMES = {
    "headgate.v1.RateLimiter",  # a gRPC service
    *("headgate.http.drf.HeadgateThrottle", "headgate.http.drf.exception_handler"),  # need Django's settings
}


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


def test_the_library_page_has_the_arguments_of_a_limiter() -> None:
    (shown,) = re.findall(r"^`Limiter\((.*)\)`$", (REFERENCE / "library.md").read_text(), re.MULTILINE)
    names = [part.partition("=")[0] for part in re.sub(r"\(\)", "", shown).split(", ") if part != "*"]
    for limiter in (Limiter, AsyncLimiter):
        assert names == list(inspect.signature(limiter).parameters)


def test_the_library_page_names_every_method_of_a_limiter() -> None:
    text = (REFERENCE / "library.md").read_text()
    internal = {"by_subject", "clock", "failing", "store_answers", "tell_refused"}  # for middleware
    methods = {name for name in dir(Limiter) if not name.startswith("_")} - internal
    assert [name for name in sorted(methods) if not re.search(rf"`(?:limiter\.)?{name}\b", text)] == []


@pytest.mark.parametrize("table", [SettingsTable, UserTable, OverrideTable, PenaltiesTable])
def test_the_rules_page_names_every_key(table: Any) -> None:
    text = (REFERENCE / "rules.md").read_text()
    assert [key for key in table.model_fields if not re.search(rf"(`|[{{,] ){key}(`| =)", text)] == []


def test_the_grpc_page_names_every_method() -> None:
    text = (REFERENCE / "grpc.md").read_text()
    methods = re.findall(r"rpc (\w+)", (ROOT / "proto/headgate/v1/rate_limiter.proto").read_text())
    assert [name for name in methods if f"`{name}`" not in text] == []


def test_the_page_of_stores_names_every_command_that_an_acl_has_to_allow() -> None:
    text = (REFERENCE / "stores.md").read_text()
    scripts = "".join(path.read_text() for path in (ROOT / "src/headgate").rglob("*.lua"))
    called = set(re.findall(r"""call\(\s*["']([A-Z]+)["']""", scripts))
    assert len(called) > 20
    assert [command for command in sorted(called) if f"`{command}`" not in text] == []


def test_names_in_the_docs_exist() -> None:
    named = {name for page in (ROOT / "docs").rglob("*.md") for name in DOTTED.findall(page.read_text())}
    assert len(named) > 10
    assert [name for name in sorted(named - OTHER_NAMES) if not exists(name)] == []


def exists(name: str) -> bool:
    """Whether this is a module, or an attribute of one."""
    for at in range(name.count(".") + 1):
        module, *attributes = name.rsplit(".", at)
        try:
            found: Any = import_module(module)
        except ModuleNotFoundError:
            continue
        for attribute in attributes:
            found = getattr(found, attribute, None)
        return found is not None
    return False
