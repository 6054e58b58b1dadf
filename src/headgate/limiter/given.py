"""What a limiter is given as its rules: a notation, quotas, rules, a file, a database, or a source of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final

from headgate.core.clock import Clock
from headgate.core.quota import Quota, duration_text
from headgate.errors import InvalidRule
from headgate.rules.holder import Source
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot

Rules = str | Quota | Iterable[Rule] | Path | Snapshot | Source
DATABASES: Final = ("sqlite://", "postgresql://", "postgres://")


def is_elsewhere(rules: Rules) -> bool:
    """Whether it says where rules are: in a file, or in a database."""
    return _is_file(rules) or _is_database(rules)


def opened(rules: str | Path, *, watch: bool, clock: Clock) -> Source:
    """The source that a path or a URL names. Imported here, as it needs more than the standard library."""
    source: Source
    if _is_database(rules):
        try:
            sources = import_module("headgate.rules.sources.database")
        except ImportError as error:
            raise ImportError("rules in a database need SQLAlchemy: pip install 'headgate[database]'") from error
        source = sources.DatabaseSource(rules)  # which is always watched
    else:
        source = import_module("headgate.rules.sources.file").FileSource(rules, watch=watch, clock=clock)
    return source


def rules_of(rules: Rules, name: str) -> tuple[list[Rule], bool]:
    """The rules that a limiter was given, and whether it counts by a subject that every check must have."""
    if isinstance(rules, Quota):
        return [Rule(id=name, quota=rules)], True
    if isinstance(rules, str):
        quotas = Quota.parse_all(rules)
        if len(quotas) == 1:
            return [Rule(id=name, quota=quotas[0])], True
        return [Rule(id=rule_id, quota=quota) for rule_id, quota in _named(name, quotas)], True
    if isinstance(rules, Iterable):
        listed = list(rules)
        if all(isinstance(rule, Rule) for rule in listed):
            return listed, False
    raise InvalidRule(f"rules: must be a notation like '100/minute', a Quota, a list of Rule or a file, got {rules!r}")


def _named(name: str, quotas: list[Quota]) -> Iterator[tuple[str, Quota]]:
    """An id for each of several quotas: by its window, and its algorithm and number where that is not enough."""
    taken: set[str] = set()
    for quota in quotas:
        base = candidate = f"{name}/{duration_text(quota.window_us)}"
        number = 1
        while candidate in taken:
            candidate = f"{base}/{quota.algorithm}" if number == 1 else f"{base}/{quota.algorithm}/{number}"
            number += 1
        taken.add(candidate)
        yield candidate, quota


def _is_file(rules: Rules) -> bool:
    return isinstance(rules, Path) or (isinstance(rules, str) and rules.endswith(".toml"))


def _is_database(rules: Rules) -> bool:
    return isinstance(rules, str) and rules.startswith(DATABASES)
