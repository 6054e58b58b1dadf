"""From a rules file's data to a snapshot, or to everything that is wrong with it.

So that one mistake does not hide another, what is wrong is left out, a harmless value stands in for it where one is
needed, and the rest is looked at as if it were right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from headgate.core.quota import DEFAULT_ALGORITHM, Quota
from headgate.errors import InvalidQuota, InvalidRule, Problem
from headgate.rules.exemptions import Exemption
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.schema import SECTIONS, Location, entry_name, mistakes, override_name
from headgate.rules.users import Override, Tier, User

T = TypeVar("T")
Table = dict[str, Any]

_LAST: Final = 2**31  # after all entries of a section
_QUOTA: Final[Table] = {"algorithm": DEFAULT_ALGORITHM, "limit": 1, "window": 1, "burst": None}


def snapshot_of(data: Table, *, version: str, file: str = "") -> Snapshot:
    """The snapshot that a file's data means; `data` is used up. Raises `InvalidRule` with all problems at once."""
    reader = _Reader()
    for location, problem in mistakes(data):
        reader.note(location, problem)
        _leave_out(data, location)
    snapshot = reader.snapshot(data, version)
    if snapshot is None:
        raise InvalidRule(*(problem._replace(file=file) for problem in reader.sorted()))
    return snapshot


def _leave_out(data: Table, location: Location) -> None:
    """Remove a value; in a list, put None in its place, which TOML does not have."""
    holder: Any = data
    *path, last = location
    for step in path:
        holder = holder[step]
    if isinstance(last, int):
        holder[last] = None
    else:
        holder.pop(last, None)


class _Reader:
    """Reads data whose keys and types are right, and takes note of what else is wrong."""

    def __init__(self) -> None:
        self._problems: list[tuple[int, int, Problem]] = []
        self._nameless: dict[str, str] = {}  # rules without a good id: what the stand-in makes them, and should

    def note(self, location: Location, problem: Problem) -> None:
        section, place = location[0], location[1] if len(location) > 1 else 0
        order = SECTIONS.index(str(section)) if section in SECTIONS else -1
        self._problems.append((order, place if isinstance(place, int) else 0, problem))

    def sorted(self) -> list[Problem]:
        """The problems in the order of the sections, and of the entries in each."""
        return [problem for _, _, problem in sorted(self._problems, key=lambda noted: noted[:2])]

    def snapshot(self, data: Table, version: str) -> Snapshot | None:
        """The snapshot; None when anything was noted."""
        rules = [self._rule(entry, place) for place, entry in _entries(data, "rules")]
        tiers = [self._tier(entry, place) for place, entry in _entries(data, "tiers")]
        ids = {rule.id for rule in rules}
        users = [self._user(entry, place, ids) for place, entry in _entries(data, "users")]
        exemptions = [self._exemption(entry, place) for place, entry in _entries(data, "exemptions")]
        penalties = self._made(Penalties, data.get("penalties", {}), ("penalties",))
        settings = {name: _without_none(value) for name, value in data.get("headgate", {}).items()}
        try:
            snapshot = Snapshot(
                rules,
                tiers=[] if None in tiers else [tier for tier in tiers if tier is not None],
                users=users,
                exemptions=exemptions,
                penalties=penalties,
                version=version,
                **settings,
            )
        except InvalidRule as error:
            for problem in error.problems:
                where = self._nameless.get(problem.where, problem.where)
                self.note(_section_of(problem), problem._replace(where=where))
            return None
        return None if self._problems else snapshot

    def _rule(self, entry: Table, place: int) -> Rule:
        where = entry_name("rules", place, entry)
        quota, problems = _quota({name: entry.pop(name) for name in _QUOTA if name in entry})
        for field, message in problems:
            self.note(("rules", place), Problem(where, field, message))
        rule = self._made(Rule, {**entry, "quota": quota}, ("rules", place), where, id=where)
        if rule.id != entry.get("id"):
            self._nameless[f"rule {rule.id!r}"] = where
        return rule

    def _tier(self, entry: Table, place: int) -> Tier | None:
        where = entry_name("tiers", place, entry)
        tier = self._made(Tier, entry, ("tiers", place), where, name="?")
        return tier if tier.name == entry.get("name") else None

    def _user(self, entry: Table, place: int, rules: set[str]) -> User:
        """`rules` are the ids that an override may name, as far as they are known."""
        all_known = not self._nameless
        where = entry_name("users", place, entry)
        overrides = []
        for number, fields in enumerate(entry.pop("overrides", ())):
            if fields is None:
                continue
            name = f"{where}: {override_name(number, fields)}"
            override = self._made(Override, fields, ("users", place), name, rule="?", limit=1)
            if override.rule == fields.get("rule") and (all_known or override.rule in rules):
                overrides.append(override)
        return self._made(User, {**entry, "overrides": overrides}, ("users", place), where, id=where)

    def _exemption(self, entry: Table, place: int) -> Exemption:
        where = entry_name("exemptions", place, entry)
        return self._made(Exemption, entry, ("exemptions", place), where, type="user", value="?")

    def _made(self, kind: Callable[..., T], fields: Table, location: Location, where: str = "", **stand_ins: Any) -> T:
        """One of a kind. Fields that are not good are noted; a stand-in, or the default, takes their place."""
        fields = {name: _without_none(value) for name, value in fields.items()}
        try:
            return kind(**{**stand_ins, **fields})
        except InvalidRule as error:
            for problem in error.problems:
                self.note(location, problem._replace(where=where or problem.where))
            bad = {problem.field for problem in error.problems}
        return kind(**{**stand_ins, **{name: value for name, value in fields.items() if name not in bad}})


def _entries(data: Table, section: str) -> list[tuple[int, Table]]:
    """The entries of a section that are tables, with their places."""
    return [(place, entry) for place, entry in enumerate(data.get(section, ())) if entry is not None]


def _without_none(value: Any) -> Any:
    return [member for member in value if member is not None] if isinstance(value, list) else value


def _quota(given: Mapping[str, Any]) -> tuple[Quota, list[tuple[str, str]]]:
    """A rule's quota, and what is wrong in which field."""
    fields = {**_QUOTA, **given}
    try:
        return Quota(**fields), []
    except InvalidQuota as error:
        together = error
    problems = []
    for name, value in given.items():
        try:
            Quota(**{**_QUOTA, name: value})
        except InvalidQuota as error:
            problems.append(_split(error))
            fields[name] = _QUOTA[name]
    return Quota(1, 1, algorithm=fields["algorithm"]), problems or [_split(together)]


def _split(error: InvalidQuota) -> tuple[str, str]:
    field, _, message = str(error).partition(": ")
    return field, message


def _section_of(problem: Problem) -> Location:
    """Where to list a problem that several entries have with one another."""
    sections = {"rule": "rules", "tier": "tiers", "user": "users", "[headgate]": "headgate"}
    return (sections[problem.where.split(" ")[0]], _LAST)
