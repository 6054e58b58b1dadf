"""The matcher: finds the rules that match a request, in a time that does not depend on the number of rules.

Patterns are in a trie, with one node per segment. Where a pattern ends, a shelf holds its rules in tables: one table
for each set of facts that rules require. Rules that require a tier, a country, both or neither are in four tables, each
indexed by the required values. So a request costs one look-up per segment and one per table, not one per rule.

A matcher with nearly the same rules as the previous one is derived from it: it copies the nodes and shelves of rules
that were added or removed, and shares all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Final, NamedTuple

from headgate.rules.path import EVERYWHERE, Pattern, segments_of
from headgate.rules.rule import Rule

Shape = tuple[int, ...]

SHARED: Final = 10  # at most one in this many rules may differ to derive a matcher from the previous one


class Shelf:
    """The rules that share one pattern. The pattern None is for rules without endpoints."""

    __slots__ = ("_names", "_rules", "shape", "text")

    def __init__(self, pattern: Pattern | None) -> None:
        self.text = None if pattern is None else str(pattern)
        self.shape: Shape = (EVERYWHERE,) if pattern is None else pattern.shape
        self._names: dict[tuple[str, ...], None] = {}  # sets of facts that rules here require: one per table
        self._rules: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Rule]] = {}  # by names and values

    def add(self, rule: Rule) -> None:
        names = tuple(sorted(rule.match))
        wanted = tuple(rule.match[name] for name in names)
        if not rule.tiers:
            self._put(names, wanted, rule)
        for tier in rule.tiers:
            self._put(("tier", *names), (tier, *wanted), rule)

    def without(self, gone: set[int]) -> Shelf:
        """Return a copy without some rules, given by identity."""
        copied = copy(self)
        copied._names = dict(self._names)
        copied._rules = {key: [rule for rule in rules if id(rule) not in gone] for key, rules in self._rules.items()}
        return copied

    def find(self, facts: Mapping[str, str]) -> Iterator[Rule]:
        """Yield the rules whose tiers and `match` fit."""
        for names in self._names:
            values = tuple(facts[name] for name in names if name in facts)
            yield from self._rules.get((names, values), ())

    def _put(self, names: tuple[str, ...], values: tuple[str, ...], rule: Rule) -> None:
        self._names[names] = None
        self._rules.setdefault((names, values), []).append(rule)


class _Node:
    __slots__ = ("here", "literals", "parameter", "rest")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.here: Shelf | None = None  # for patterns that end here
        self.rest: Shelf | None = None  # for patterns that continue with /*

    def copy(self) -> _Node:
        copied = copy(self)
        copied.literals = dict(self.literals)
        return copied


class Matcher:
    """All enabled rules of a snapshot. `previous` is the matcher of the snapshot before, if there is one."""

    def __init__(self, rules: Iterable[Rule], previous: Matcher | None = None) -> None:
        self._rules = {id(rule): rule for rule in rules}  # keeps the rules alive, so that their identities stay unique
        self._root = _Node()
        self._everywhere = Shelf(None)
        self._own: set[int] = set()  # identities of nodes and shelves that are not shared with the previous matcher
        new: Iterable[Rule] = self._rules.values()
        if previous is not None:
            gone = previous._rules.keys() - self._rules.keys()
            came = self._rules.keys() - previous._rules.keys()
            if (len(gone) + len(came)) * SHARED <= len(self._rules):
                self._root, self._everywhere = previous._root, previous._everywhere
                self._shares = True
                self._remove([previous._rules[one] for one in gone])
                new = [self._rules[one] for one in came]
        for rule in new:
            if not rule.patterns:
                self._everywhere = self._owned_shelf(self._everywhere, set())
                self._everywhere.add(rule)
            for pattern in rule.patterns:
                self._shelf(pattern).add(rule)
        self._own.clear()

    _shares = False  # whether nodes may be shared with the previous matcher

    def _remove(self, rules: Sequence[Rule]) -> None:
        gone = {id(rule) for rule in rules}
        if any(not rule.patterns for rule in rules):
            self._everywhere = self._owned_shelf(self._everywhere, gone)
        for pattern in {pattern for rule in rules for pattern in rule.patterns}:
            self._shelf(pattern, gone)

    def _owned_node(self, node: _Node) -> _Node:
        """Return a node that may be changed: a copy if it is shared."""
        if not self._shares or id(node) in self._own:
            return node
        copied = node.copy()
        self._own.add(id(copied))
        return copied

    def _owned_shelf(self, shelf: Shelf, gone: set[int]) -> Shelf:
        """Return a shelf that may be changed: if it is shared, a copy without the rules that are gone."""
        if not self._shares or id(shelf) in self._own:
            return shelf
        copied = shelf.without(gone)
        self._own.add(id(copied))
        return copied

    def shelves(self, path: str | None) -> tuple[Shelf, ...]:
        """Return the shelves whose patterns match a normal path; None: a request without a path."""
        found = [self._everywhere]
        if path is None:
            return tuple(found)
        nodes = [self._root]
        for segment in segments_of(path):
            following = []
            for node in nodes:
                if node.rest is not None:
                    found.append(node.rest)
                literal = node.literals.get(segment)
                if literal is not None:
                    following.append(literal)
                if node.parameter is not None:
                    following.append(node.parameter)
            nodes = following
            if not nodes:
                break
        for node in nodes:
            found += [shelf for shelf in (node.here, node.rest) if shelf is not None]
        return tuple(found)

    def _shelf(self, pattern: Pattern, gone: set[int] | None = None) -> Shelf:
        """Return the shelf of a pattern, to be changed: without the rules that are gone."""
        node = self._root = self._owned_node(self._root)
        for segment in pattern.segments:
            if segment is None:
                node.parameter = following = self._owned_node(node.parameter or _Node())
            else:
                node.literals[segment] = following = self._owned_node(node.literals.get(segment) or _Node())
            node = following
        shelf = self._owned_shelf((node.rest if pattern.rest else node.here) or Shelf(pattern), gone or set())
        if pattern.rest:
            node.rest = shelf
        else:
            node.here = shelf
        return shelf


def applying(shelves: Iterable[Shelf], facts: Mapping[str, str], method: str | None) -> list[tuple[Rule, Shelf]]:
    """Return the rules on these shelves that apply to a request, each with its most specific matching pattern.

    Only the first rule of each group applies. The order is `(priority, specificity, id)`: the more specific pattern is
    first, and for equal patterns the rule with more conditions. The result has the same order.
    """
    best: dict[str, tuple[Rule, Shelf]] = {}
    for shelf in shelves:
        for rule in shelf.find(facts):
            if fits_method(rule, method) and all(fact in facts for fact in rule.facts):
                known = best.get(rule.id)
                if known is None or shelf.shape < known[1].shape:
                    best[rule.id] = (rule, shelf)
    applied = []
    groups: set[str] = set()
    for rule, shelf in sorted(best.values(), key=_rank):
        if rule.group is None:
            applied.append((rule, shelf))
        elif rule.group not in groups:
            groups.add(rule.group)
            applied.append((rule, shelf))
    return applied


class Unmet(NamedTuple):
    """A condition of a rule that a request does not meet."""

    field: str  # the rule's field: enabled, endpoints, methods, tiers, match, dimension, unit
    wanted: str
    found: str | None  # None: the request does not have it

    def __str__(self) -> str:
        if self.field == "enabled":
            return "the rule is switched off"
        if self.field == "dimension":
            return f"it counts by {self.wanted}, which the request does not have"
        if self.field == "unit":
            return f"it counts {self.wanted}, which the cost does not name"
        if self.field == "match":
            name, _, value = self.wanted.partition("=")
            return f"{name} must be {value}, but is {self.found or 'unknown'}"
        if self.found is None:
            return f"{self.field}: it is for {self.wanted}, but the request has no {self.field.removesuffix('s')}"
        return f"{self.field}: {self.found} is not one of {self.wanted}"


_ENABLED, _ENDPOINTS, _METHODS, _TIERS = ((field, "") for field in ("enabled", "endpoints", "methods", "tiers"))


class RequestFacts(NamedTuple):
    """A request as conditions see it."""

    path: str | None  # normalized; None: the request has none
    segments: Sequence[str] | None  # of the path
    method: str | None  # in upper case
    facts: Mapping[str, str]  # including the tier


def unmet_fields(rule: Rule, request: RequestFacts) -> list[tuple[str, str]]:
    """Return the fields of a rule that a request does not match, each with the required fact, if any.

    If there are none, either the rule applies or another rule of its group does. `applying` finds rules with look-ups;
    this function checks conditions one by one. It runs for thousands of rules, so it builds no text.
    """
    facts = request.facts
    unmet = []
    if not rule.enabled:
        unmet.append(_ENABLED)
    if rule.patterns and not _fits_path(rule.patterns, request.segments):
        unmet.append(_ENDPOINTS)
    if rule.methods and not fits_method(rule, request.method):
        unmet.append(_METHODS)
    if rule.tiers and facts.get("tier") not in rule.tiers:
        unmet.append(_TIERS)
    for fact, value in rule.match.items():
        if facts.get(fact) != value:
            unmet.append(("match", fact))
    for fact in rule.facts:
        if fact not in facts:
            unmet.append(("dimension", fact))
    return unmet


def _fits_path(patterns: tuple[Pattern, ...], segments: Sequence[str] | None) -> bool:
    if segments is None:
        return False
    for pattern in patterns:  # noqa: SIM110 - a generator would take twice as long
        if pattern.fits(segments):
            return True
    return False


def unmet_conditions(rule: Rule, request: RequestFacts) -> tuple[Unmet, ...]:
    """Return the conditions of a rule that a request does not meet, with the required and the actual value."""
    return tuple(_condition(rule, request, field, fact) for field, fact in unmet_fields(rule, request))


def _condition(rule: Rule, request: RequestFacts, field: str, fact: str) -> Unmet:
    match field:
        case "enabled":
            return Unmet(field, "true", "false")
        case "endpoints":
            return Unmet(field, ", ".join(rule.endpoints), request.path)
        case "methods":
            return Unmet(field, ", ".join(rule.methods), request.method)
        case "tiers":
            return Unmet(field, ", ".join(rule.tiers), request.facts.get("tier"))
        case "match":
            return Unmet(field, f"{fact}={rule.match[fact]}", request.facts.get(fact))
        case _:
            return Unmet(field, fact, None)


def rank_reason(winner: Rule, loser: Rule, request: RequestFacts) -> str:
    """Return why `winner` comes before `loser` in their group, for a request that matches both."""
    if winner.priority != loser.priority:
        return f"priority {winner.priority} comes before {loser.priority}"
    ours, theirs = _fitting(winner, request), _fitting(loser, request)
    if _shape(ours) != _shape(theirs):
        return f"{ours or 'no pattern'} is more specific than {theirs or 'every path'}"
    if winner.conditions != loser.conditions:
        return f"it has more conditions: {winner.conditions} against {loser.conditions}"
    return "they are equal but for their ids, and its id comes first"


def _fitting(rule: Rule, request: RequestFacts) -> Pattern | None:
    """Return the most specific pattern of a rule that matches a request's path."""
    fitting = [pattern for pattern in rule.patterns if request.segments is not None and pattern.fits(request.segments)]
    return min(fitting, key=lambda pattern: pattern.shape, default=None)


def _shape(pattern: Pattern | None) -> Shape:
    return (EVERYWHERE,) if pattern is None else pattern.shape


def fits_method(rule: Rule, method: str | None) -> bool:
    """Return whether the rule applies to an upper-case method. GET includes HEAD: servers handle both alike."""
    return not rule.methods or method in rule.methods or (method == "HEAD" and "GET" in rule.methods)


def _rank(found: tuple[Rule, Shelf]) -> tuple[int, Shape, int, str]:
    rule, shelf = found
    return rule.priority, shelf.shape, -rule.conditions, rule.id
