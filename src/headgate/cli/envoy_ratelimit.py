"""Converts a configuration of envoyproxy/ratelimit to rules that make the same decisions.

There, a descriptor finds at most one limit: its entries lead down a tree, at each level to the entry with its value,
else to the one without a value, and never back up. Here, the rules for one form of descriptor are a group, the most
specific first. Where the tree would lead to no limit, a rule that refuses nothing comes before those that follow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from itertools import groupby
from typing import Any, Final, NamedTuple

import yaml

from headgate.errors import InvalidRule, Problem
from headgate.http.identity.api_key import hashed_api_key
from headgate.rules.facts import ENVOY, WELL_KNOWN
from headgate.rules.sources.document import snapshot_of
from headgate.rules.sources.export import text_of
from headgate.service.rpc.fact_names import DOMAIN, KEYS, fact_names, form_of

Table = dict[str, Any]

WINDOWS: Final = {
    **{"second": "1s", "minute": "1m", "hour": "1h", "day": "1d"},
    **{"week": "7d", "month": "30d", "year": "365d"},
}
UNLIMITED: Final = {"limit": 2**53 - 1, "window": "1s", "action": "log_only"}  # refuses nothing
_NONE: Final = {"limit": 1, "cost": 2}  # refuses everything: each request costs more than the limit
_METRICS: Final = ("detailed_metric", "value_to_metric")  # they put values into the names of metrics
_DESCRIPTOR: Final = ("key", "value", "rate_limit", "descriptors", "shadow_mode", "quota_mode", *_METRICS)
_LIMIT: Final = ("unit", "requests_per_unit", "unlimited", "name", "replaces")
_FIELDS: Final = {
    "endpoint": "endpoints",
    "method": "methods",
    "tier": "tiers",
}  # fields of a rule, in place of `match`
_WITHOUT: Final = 9  # rank of entries that are not looked at, after all others


class DescriptorEntry(NamedTuple):
    """An entry on the path to a limit; without a value, it matches any value."""

    key: str
    value: str

    @property
    def rank(self) -> int:
        return 0 if self.value else 1


class Found(NamedTuple):
    """A limit in the tree, or a place without one."""

    path: tuple[DescriptorEntry, ...]
    rank: tuple[int, ...]  # the lowest wins
    fields: Table  # of the rule


class Imported(NamedTuple):
    rules: list[Table]  # tables of a rules file
    report: list[str]  # what has no equivalent, a line each


def import_envoy(contents: Mapping[str, bytes]) -> tuple[str, list[str]]:
    """Convert envoyproxy/ratelimit's files to a rules file; return what has no equivalent. Raises `InvalidRule`."""
    documents = []
    for file, content in contents.items():
        try:
            # Keep every scalar as text: a value of 007 or yes is meant literally.
            documents += [one for one in yaml.load_all(content, yaml.BaseLoader) if one is not None]
        except yaml.YAMLError as error:
            raise InvalidRule(Problem("", "", f"is not YAML: {' '.join(str(error).split())}", file)) from None
    rules, report = rules_of(documents)
    named = {fact for rule in rules for fact in (*rule["dimension"].split("+"), *rule["match"])}
    declared = sorted(named - {*WELL_KNOWN, *ENVOY})
    return text_of(snapshot_of({"headgate": {"facts": declared}, "rules": rules}, version="")), report


def rules_of(documents: Iterable[Any]) -> Imported:
    """Convert parsed YAML configurations to rules. Raises `InvalidRule` with every problem."""
    reader = _ConfigReader()
    rules = [rule for document in documents for rule in reader.domain(document)]
    if reader.problems:
        raise InvalidRule(*reader.problems)
    return Imported(rules, list(dict.fromkeys(reader.report)))


class _ConfigReader:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.report: list[str] = []

    def domain(self, document: Any) -> Iterator[Table]:
        if not isinstance(document, Mapping) or not document.get("domain"):
            self.problems.append(Problem("", "domain", "is missing: each file is the configuration of one domain"))
            return
        domain = str(document["domain"])
        for name in document:
            if name not in ("domain", "descriptors"):
                self.problems.append(Problem(f"domain {domain!r}", str(name), "unknown key"))
        found = list(self._level(domain, (), document.get("descriptors")))
        for form, members in groupby(sorted(found, key=_form), _form):
            yield from _group(domain, form, sorted(members, key=lambda one: one.rank))

    def _level(self, where: str, path: tuple[DescriptorEntry, ...], descriptors: Any) -> Iterator[Found]:
        """Yield the limits of one level of the tree, and of those below it."""
        if descriptors is not None and not isinstance(descriptors, list):
            self.problems.append(Problem(where, "descriptors", "must be a list"))
            return
        children: dict[DescriptorEntry, list[Found]] = {}
        for number, descriptor in enumerate(descriptors or (), start=1):
            if not isinstance(descriptor, Mapping) or not descriptor.get("key"):
                self.problems.append(Problem(where, "key", f"is missing in descriptor {number}"))
                continue
            step = DescriptorEntry(str(descriptor["key"]), str(descriptor.get("value") or ""))
            below = f"{where}.{step.key}{'_' + step.value if step.value else ''}"
            if step in children:
                self.problems.append(Problem(below, "key", "this descriptor exists already"))
            elif self._fits(below, step):
                children[step] = list(self._descriptor(below, (*path, step), descriptor))
        for step, found in children.items():
            yield from found
            if step.value and DescriptorEntry(step.key, "") in children:
                yield from _dead_ends(len(path), step, children[DescriptorEntry(step.key, "")], found)

    def _descriptor(
        self, where: str, path: tuple[DescriptorEntry, ...], descriptor: Mapping[str, Any]
    ) -> Iterator[Found]:
        for name in descriptor:
            if name not in _DESCRIPTOR:
                self.report.append(f"{where}: {name}: is not imported")
        self.report += [
            f"{where}: {name}: metrics name no values that rules do not name; `headgate top` and events do"
            for name in _METRICS
            if _flag(descriptor, name)
        ]
        limit = descriptor.get("rate_limit")
        if limit is not None:
            fields = self._limit(where, limit)
            if _flag(descriptor, "shadow_mode"):
                fields["action"] = "log_only"
            elif _flag(descriptor, "quota_mode") and fields.get("action") is None:
                fields["action"] = "annotate"
                self.report.append(
                    f'{where}: quota_mode: is action = "annotate", which passes always; Envoy\'s metadata has '
                    "`annotated`, with the rules' ids, in place of quotaModeViolations"
                )
            yield Found(path, tuple(step.rank for step in path), {"id": where, **fields})
        elif descriptor.get("shadow_mode"):
            self.report.append(f"{where}: shadow_mode: means nothing without a rate_limit")
        yield from self._level(where, path, descriptor.get("descriptors"))

    def _limit(self, where: str, limit: Any) -> Table:
        if not isinstance(limit, Mapping):
            self.problems.append(Problem(where, "rate_limit", "must be a table"))
            return {}
        self.report += [f"{where}: rate_limit.{name}: is not imported" for name in limit if name not in _LIMIT]
        named: Table = {"name": str(limit["name"])} if limit.get("name") else {}
        if limit.get("replaces"):
            self.report.append(
                f"{where}: replaces {_names(limit['replaces'])}: has no equivalent, so a request whose descriptors "
                "lead to both limits is checked by both; a group chooses only among the rules of one descriptor: have "
                "Envoy send one descriptor with all entries, and put both rules into one group"
            )
        if _flag(limit, "unlimited"):
            return {**named, **UNLIMITED}
        unit, figure = str(limit.get("unit", "")).lower(), str(limit.get("requests_per_unit", "0"))
        if unit not in WINDOWS:
            self.problems.append(Problem(where, "unit", f"must be one of {', '.join(WINDOWS)}, got {unit!r}"))
        if not figure.isdecimal():
            self.problems.append(Problem(where, "requests_per_unit", f"must be a whole number, got {figure!r}"))
            return {}
        quota = {"limit": int(figure)} if int(figure) else _NONE
        return {**named, **quota, "window": WINDOWS.get(unit, "1s")}

    def _fits(self, where: str, step: DescriptorEntry) -> bool:
        """Return whether a rule can match a value. If not, report it; all entries below it are dropped."""
        (fact,) = fact_names([step.key])
        if step.value.endswith("*") and not (fact == "endpoint" and step.value.endswith("/*")):
            self.report.append(
                f"{where}: value {step.value!r}: rules match whole values, and prefixes only of paths (/api/*); write "
                "a descriptor for each value, or let Envoy send the prefix as its own entry"
            )
            return False
        if fact == "endpoint" and step.value and (not step.value.startswith("/") or set(step.value) & set("{}")):
            self.report.append(f"{where}: value {step.value!r}: is not a path, or has braces: rules cannot match it")
            return False
        if fact == "ip" and ":" in step.value:
            self.report.append(f"{where}: value {step.value!r}: IPv6 addresses count by /64: rules cannot match one")
            return False
        return True


def _flag(table: Mapping[str, Any], name: str) -> bool:
    return str(table.get(name, "")).lower() in ("true", "yes", "on")


def _names(replaced: Any) -> str:
    """Return the names in a list like `[{name: x}]`."""
    entries = replaced if isinstance(replaced, list) else [replaced]
    return ", ".join(repr(str(one.get("name", "") if isinstance(one, Mapping) else one)) for one in entries)


def _form(found: Found) -> tuple[str, ...]:
    return tuple(step.key for step in found.path)


def _dead_ends(depth: int, step: DescriptorEntry, others: Iterable[Found], own: list[Found]) -> Iterator[Found]:
    """Yield the paths below an entry with a value that lead to a limit only through the entry without a value."""
    known = {found.path for found in own}
    for found in others:
        path = (*found.path[:depth], step, *found.path[depth + 1 :])
        if path not in known:
            rank = (*found.rank[:depth], step.rank, *(_WITHOUT for _ in path[depth + 1 :]))
            yield Found(path, rank, {"id": "", **UNLIMITED})


def _group(domain: str, form: tuple[str, ...], found: list[Found]) -> Iterator[Table]:
    """Yield the rules for one form of descriptor; several are alternatives in this order."""
    names = list(fact_names(form))
    for index, (path, _, fields) in enumerate(found):
        rule: Table = {"id": fields["id"] or _dead_end_id(domain, path), "dimension": "+".join(names)}
        match: Table = {DOMAIN: domain, KEYS: form_of(form)}
        for name, step in zip(names, path, strict=True):
            if step.value and name in _FIELDS:
                rule[_FIELDS[name]] = [step.value]
            elif step.value:
                match[name] = _value(name, step.value)
        rule |= {"match": match, "algorithm": "fixed_window"}
        rule |= {name: value for name, value in fields.items() if name != "id"}
        if len(found) > 1:
            rule |= {"group": f"{domain}: {form_of(form)}", "priority": index + 1}
        yield rule


def _dead_end_id(domain: str, path: Iterable[DescriptorEntry]) -> str:
    return ".".join([f"no limit: {domain}", *(f"{one.key}_{one.value}" if one.value else one.key for one in path)])


def _value(fact: str, value: str) -> str:
    """Return a value in the form of a request's fact."""
    if fact == "api_key":
        return hashed_api_key(value)
    if fact == "ip":
        try:
            return str(ip_address(value))
        except ValueError:
            return value
    return value
