"""The matcher: finds the rules that fit a request, in a time that does not depend on how many there are.

Patterns are kept in a trie, one node per segment. Where a pattern ends, a shelf holds the rules that have it,
in tables: those that ask for a tier, for a country, for both and for nothing are in four tables, each by the
values that they ask for. So a request costs one look-up per segment and one per table, and not one per rule.

A matcher whose rules are nearly those of the one before is made from it: nodes and shelves of rules that came or went
are copied, and all others shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import Final, NamedTuple

from headgate.rules.path import EVERYWHERE, Pattern, segments_of
from headgate.rules.rule import Rule

Shape = tuple[int, ...]

SHARED: Final = 10  # at most one of so many rules may differ for the matcher before to be of use


class Shelf:
    """The rules that share one pattern. None is that of rules without endpoints."""

    __slots__ = ("_names", "_rules", "shape", "text")

    def __init__(self, pattern: Pattern | None) -> None:
        self.text = None if pattern is None else str(pattern)
        self.shape: Shape = (EVERYWHERE,) if pattern is None else pattern.shape
        self._names: dict[tuple[str, ...], None] = {}  # of the facts that rules here ask for: one for each table
        self._rules: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Rule]] = {}  # by names and values

    def add(self, rule: Rule) -> None:
        names = tuple(sorted(rule.match))
        wanted = tuple(rule.match[name] for name in names)
        if not rule.tiers:
            self._put(names, wanted, rule)
        for tier in rule.tiers:
            self._put(("tier", *names), (tier, *wanted), rule)

    def without(self, gone: set[int]) -> Shelf:
        """A copy that lacks rules, by their identity."""
        copied = copy(self)
        copied._names = dict(self._names)
        copied._rules = {key: [rule for rule in rules if id(rule) not in gone] for key, rules in self._rules.items()}
        return copied

    def find(self, facts: Mapping[str, str]) -> Iterator[Rule]:
        """The rules whose tiers and `match` fit."""
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
        self.here: Shelf | None = None  # of patterns that end here
        self.rest: Shelf | None = None  # of patterns that go on with /*

    def copy(self) -> _Node:
        copied = copy(self)
        copied.literals = dict(self.literals)
        return copied


class Matcher:
    """All rules of a snapshot that are enabled. `previous` is that of the snapshot before, if there is one."""

    def __init__(self, rules: Iterable[Rule], previous: Matcher | None = None) -> None:
        self._rules = {id(rule): rule for rule in rules}  # which are kept, so that no other takes their identity
        self._root = _Node()
        self._everywhere = Shelf(None)
        self._own: set[int] = set()  # nodes and shelves that are not shared with the matcher before, by identity
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

    _shares = False  # whether nodes may be those of the matcher before

    def _remove(self, rules: Sequence[Rule]) -> None:
        gone = {id(rule) for rule in rules}
        if any(not rule.patterns for rule in rules):
            self._everywhere = self._owned_shelf(self._everywhere, gone)
        for pattern in {pattern for rule in rules for pattern in rule.patterns}:
            self._shelf(pattern, gone)

    def _owned_node(self, node: _Node) -> _Node:
        """A node that may be changed: a copy, if it is shared."""
        if not self._shares or id(node) in self._own:
            return node
        copied = node.copy()
        self._own.add(id(copied))
        return copied

    def _owned_shelf(self, shelf: Shelf, gone: set[int]) -> Shelf:
        """A shelf that may be changed: a copy without rules that are gone, if it is shared."""
        if not self._shares or id(shelf) in self._own:
            return shelf
        copied = shelf.without(gone)
        self._own.add(id(copied))
        return copied

    def shelves(self, path: str | None) -> tuple[Shelf, ...]:
        """The shelves whose rules fit a normal path; None: a request without one."""
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
        """The shelf of a pattern, to be changed: without rules that are gone."""
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
    """The rules on these shelves that apply to a request, each with the most specific of its patterns that fit.

    Of the rules that share a group, only the first applies, by `(priority, specificity, id)`: the more specific
    pattern is first, and of equal patterns the rule with more conditions. In that order they are returned.
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
    """A condition of a rule that a request does not fit."""

    field: str  # of the rule: enabled, endpoints, methods, tiers, match, dimension, unit
    wanted: str
    found: str | None  # None: the request does not say

    def __str__(self) -> str:
        if self.field == "enabled":
            return "the rule is switched off"
        if self.field == "dimension":
            return f"it counts by {self.wanted}, which the request does not have"
        if self.field == "unit":
            return f"it counts {self.wanted}, of which the cost names none"
        if self.field == "match":
            name, _, value = self.wanted.partition("=")
            return f"{name} must be {value}, and is {self.found or 'not known'}"
        if self.found is None:
            return f"{self.field}: it is for {self.wanted}, and the request has no {self.field.removesuffix('s')}"
        return f"{self.field}: {self.found} is not one of {self.wanted}"


_ENABLED, _ENDPOINTS, _METHODS, _TIERS = ((field, "") for field in ("enabled", "endpoints", "methods", "tiers"))


class RequestFacts(NamedTuple):
    """A request as conditions look at it."""

    path: str | None  # normal; None: the request has none
    segments: Sequence[str] | None  # of the path
    method: str | None  # in capitals
    facts: Mapping[str, str]  # the tier among them


def unmet_fields(rule: Rule, request: RequestFacts) -> list[tuple[str, str]]:
    """Return the fields of a rule that a request does not fit, each with the fact that it asks for, if any.

    Without any, the rule applies, or another of its group. What `applying` finds in one look, by tables, this asks
    one by one: of thousands of rules, so that it makes no texts.
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
    for pattern in patterns:  # noqa: SIM110 - a loop: a generator would take twice the time
        if pattern.fits(segments):
            return True
    return False


def unmet_conditions(rule: Rule, request: RequestFacts) -> tuple[Unmet, ...]:
    """Return the conditions of a rule that a request does not fit, with what it asks for and what the request has."""
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
    """Return why a rule comes before another of its group, for a request that both fit."""
    if winner.priority != loser.priority:
        return f"priority {winner.priority} comes before {loser.priority}"
    ours, theirs = _fitting(winner, request), _fitting(loser, request)
    if _shape(ours) != _shape(theirs):
        return f"{ours or 'no pattern'} is more specific than {theirs or 'every path'}"
    if winner.conditions != loser.conditions:
        return f"it has more conditions: {winner.conditions} against {loser.conditions}"
    return "they are equal but for their ids, and its id comes first"


def _fitting(rule: Rule, request: RequestFacts) -> Pattern | None:
    """Return the most specific pattern of a rule that fits a request's path."""
    fitting = [pattern for pattern in rule.patterns if request.segments is not None and pattern.fits(request.segments)]
    return min(fitting, key=lambda pattern: pattern.shape, default=None)


def _shape(pattern: Pattern | None) -> Shape:
    return (EVERYWHERE,) if pattern is None else pattern.shape


def fits_method(rule: Rule, method: str | None) -> bool:
    """Whether a method, in capitals, is one of the rule's. GET means HEAD too: servers answer it the same way."""
    return not rule.methods or method in rule.methods or (method == "HEAD" and "GET" in rule.methods)


def _rank(found: tuple[Rule, Shelf]) -> tuple[int, Shape, int, str]:
    rule, shelf = found
    return rule.priority, shelf.shape, -rule.conditions, rule.id
