"""The matcher: finds the rules that fit a request, in a time that does not depend on how many there are.

Patterns are kept in a trie, one node per segment. Where a pattern ends, a shelf holds the rules that have it,
in tables: those that ask for a tier, for a country, for both and for nothing are in four tables, each by the
values that they ask for. So a request costs one look-up per segment and one per table, and not one per rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from headgate.rules.path import EVERYWHERE, Pattern, segments_of
from headgate.rules.rule import Rule

Shape = tuple[int, ...]


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


class Matcher:
    """All rules of a snapshot that are enabled."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._root = _Node()
        self._everywhere = Shelf(None)
        for rule in rules:
            if not rule.patterns:
                self._everywhere.add(rule)
            for pattern in rule.patterns:
                self._shelf(pattern).add(rule)

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

    def _shelf(self, pattern: Pattern) -> Shelf:
        node = self._root
        for segment in pattern.segments:
            if segment is None:
                if node.parameter is None:
                    node.parameter = _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        if pattern.rest:
            if node.rest is None:
                node.rest = Shelf(pattern)
            return node.rest
        if node.here is None:
            node.here = Shelf(pattern)
        return node.here


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


def fits_method(rule: Rule, method: str | None) -> bool:
    """Whether a method, in capitals, is one of the rule's. GET means HEAD too: servers answer it the same way."""
    return not rule.methods or method in rule.methods or (method == "HEAD" and "GET" in rule.methods)


def _rank(found: tuple[Rule, Shelf]) -> tuple[int, Shape, int, str]:
    rule, shelf = found
    return rule.priority, shelf.shape, -rule.conditions, rule.id
