"""The forms in which a limiter accepts rules: a notation, quotas, rules, a file, a database, or another source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple, cast

from headgate.core.clock import Clock
from headgate.core.quota import CONCURRENCY, Quota, duration_text
from headgate.errors import InvalidRule
from headgate.rules import fields
from headgate.rules.holder import Holder, Source
from headgate.rules.rule import Rule, made_by
from headgate.rules.snapshot import Snapshot


class OwnLimits(NamedTuple):
    """Limits that a limiter creates itself: for a route, a decorated function, a notation. Their keys have its name."""

    rules: list[Rule]
    by_subject: bool  # whether every check must have a subject and is counted by it alone


Rules = str | Quota | Iterable[Rule] | Path | Snapshot | Source | OwnLimits
DATABASES: Final = ("sqlite://", "postgresql://", "postgres://")
_FILE_OR_URL: Final = re.compile(r"://|^\.{0,2}/.*/|^\.{1,2}/|^~|\.[a-z]\w*$")


def is_elsewhere(rules: Rules) -> bool:
    """Return whether this names a file or a database with rules."""
    return _is_file(rules) or _is_database(rules)


class HeldRules(NamedTuple):
    """The holder of a limiter's rules, and their source."""

    holder: Holder
    source: Source | None  # None: they do not change
    by_subject: bool  # whether every check must have a subject and is counted by it alone


def checked_name(name: object) -> str:
    """Return the name of a limiter, or of a sibling. Raises `InvalidRule`."""
    try:
        return cast("str", fields.name(name))
    except ValueError as error:
        raise InvalidRule(f"name: {error}") from None


def hold(rules: Rules, *, name: str, watch: bool, clock: Clock, facts: tuple[str, ...]) -> HeldRules:
    """Return the rules of the named limiter, in any form, in a holder. Opens a source. Raises `InvalidRule`."""
    name = checked_name(name)
    if facts and isinstance(rules, Snapshot | Source):
        raise InvalidRule("facts: declare them with the rules, as in Snapshot(rules, facts=[…])")
    source: Source | None = None
    if isinstance(rules, str | Path) and is_elsewhere(rules):
        source = open_source(rules, watch=watch, clock=clock, facts=facts)
    elif watch:
        raise InvalidRule(f"watch: only rules from a file can be watched, got {rules!r}")
    elif isinstance(rules, Source):
        source = rules
    if source is not None:
        return HeldRules(source.holder, source, by_subject=False)
    if isinstance(rules, Snapshot):
        return HeldRules(Holder(rules), None, by_subject=False)
    listed, by_subject = rules_of(rules, name)
    return HeldRules(Holder(Snapshot(listed, facts=facts)), None, by_subject)


def open_source(rules: str | Path, *, watch: bool, clock: Clock, facts: tuple[str, ...] = ()) -> Source:
    """Open the source of a path or a URL. Imports it here, because it needs more than the standard library."""
    source: Source
    if _is_database(rules):
        if facts:
            raise InvalidRule("facts: for rules in a database, declare facts in its settings: `headgate rules apply`")
        try:
            sources = import_module("headgate.rules.sources.database")
        except ImportError as error:
            raise ImportError("rules in a database need SQLAlchemy: pip install 'headgate[database]'") from error
        source = sources.DatabaseSource(rules)  # it is always watched
    else:
        source = import_module("headgate.rules.sources.file").FileSource(rules, watch=watch, clock=clock, facts=facts)
    return source


def rules_of(rules: Rules, name: str) -> tuple[list[Rule], bool]:
    """Return the rules of the named limiter, and whether it counts by a subject that every check must have."""
    if isinstance(rules, OwnLimits):
        return rules
    if isinstance(rules, str) and _FILE_OR_URL.search(rules):
        scheme, url, _ = rules.partition("://")
        shown = f"{scheme}://…" if url else rules  # the rest of a URL may contain a password
        raise InvalidRule(
            f"rules: a file's name must end in .toml, and a URL begin with one of {', '.join(DATABASES)}, got {shown!r}"
        )
    if isinstance(rules, str | Quota):
        return OwnLimits([made_by(name, rule) for rule in rules_of_notation(rules, name)], by_subject=True)
    return _list_rules(rules), False


def own_limits(rules: Rules, limiter: str, name: str) -> Rules:
    """Return the rules of a limiter's sibling `name`: its own limits, with the limiter's name in their keys.

    The rules of a snapshot, a source, a file or a database keep their usual keys. Raises `InvalidRule`.
    """
    name = checked_name(name)
    if isinstance(rules, Snapshot | Source | OwnLimits) or is_elsewhere(rules):
        return rules
    by_subject = isinstance(rules, str | Quota)
    listed = rules_of_notation(rules, name) if isinstance(rules, str | Quota) else _list_rules(rules)
    return OwnLimits([made_by(limiter, rule) for rule in listed], by_subject)


def rules_of_notation(quota: str | Quota, name: str) -> list[Rule]:
    """Return the rules of a notation or a quota, under a name."""
    quotas = [quota] if isinstance(quota, Quota) else Quota.parse_all(quota)
    if len(quotas) == 1:
        return [Rule(id=name, quota=quotas[0])]
    return [Rule(id=rule_id, quota=one) for rule_id, one in _name_quotas(name, quotas)]


def named_by_window(quota: str | Quota, name: str) -> list[Rule]:
    """Return rules for quotas that differ by request, named by their windows, so that each window has its own count."""
    quotas = [quota] if isinstance(quota, Quota) else Quota.parse_all(quota)
    return [Rule(id=rule_id, quota=one) for rule_id, one in _name_quotas(name, quotas)]


def _list_rules(rules: object) -> list[Rule]:
    shown, hint = repr(rules), ""
    if isinstance(rules, Rule):
        shown, hint = f"the rule {rules.id!r}", "; put it into a list"
    elif isinstance(rules, Iterable):
        elements = list(rules)
        listed = [rule for rule in elements if isinstance(rule, Rule)]
        if len(listed) == len(elements):
            return listed
        if any(isinstance(rule, str) for rule in elements):
            hint = "; join notations with ';', as in '10/second; 100/minute'"
    raise InvalidRule(
        f"rules: must be a notation like '100/minute', a Quota, a list of Rule or a file, got {shown}{hint}"
    )


def _name_quotas(name: str, quotas: list[Quota]) -> Iterator[tuple[str, Quota]]:
    """Yield an id for each of several quotas: its window, plus algorithm and number if necessary."""
    taken: set[str] = set()
    for quota in quotas:
        what = "concurrent" if quota.algorithm == CONCURRENCY else duration_text(quota.window_us)
        if quota.calendar is not None:
            what = quota.calendar.period
        base = candidate = f"{name}/{what}"
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
