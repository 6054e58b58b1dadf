"""Convert the data of a rules file to a snapshot, or to a list of everything that is wrong with it.

So that one mistake does not hide another, invalid values are left out. Where a value is required, a harmless one takes
its place, and the rest is checked as if it were valid.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from headgate.core.quota import CONCURRENCY, Quota
from headgate.errors import InvalidQuota, InvalidRule, Problem
from headgate.rules.description import QUOTA_FIELDS
from headgate.rules.exemptions import Exemption
from headgate.rules.penalties import Penalties
from headgate.rules.rule import Rule
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.schema import SECTIONS, Location, entry_name, mistakes, override_name
from headgate.rules.users import Override, Tier, User

T = TypeVar("T")
Table = dict[str, Any]

BURST_ALGORITHM: Final = "token_bucket"
_LAST: Final = 2**31  # sorts after all entries of a section
_STAND_INS: Final[Table] = {"limit": 1, "window": 1}
_QUOTA: Final[Table] = {field.name: _STAND_INS.get(field.name, field.default) for field in QUOTA_FIELDS}


def parse_toml(content: bytes, file: str = "") -> Table:
    """Parse a file's data. Raises `InvalidRule`."""
    try:
        data = tomllib.loads(content.decode())
    except UnicodeDecodeError as error:
        raise InvalidRule(Problem("", "", f"is not UTF-8 at byte {error.start}", file)) from None
    except (ValueError, RecursionError) as error:  # includes numbers of 5,000 digits and deeply nested lists
        raise InvalidRule(Problem("", "", f"is not TOML: {error}", file)) from None
    if not data:
        raise InvalidRule(
            Problem("", "", "is empty, or only half written; without any rule, it needs a [headgate] table", file)
        )
    return data


def snapshot_of(data: Table, *, version: str, file: str = "", facts: Sequence[str] = ()) -> Snapshot:
    """Return the snapshot for a file's data, and consume `data`. Raises `InvalidRule` with all problems at once.

    `facts` are declared in addition to those in the data.
    """
    reader = _DocumentReader()
    reader.leave_out_mistakes(data)
    if facts:
        settings = data.setdefault("headgate", {})
        settings["facts"] = [*settings.get("facts", ()), *facts]
    snapshot = reader.snapshot(data, version)
    if snapshot is None:
        raise InvalidRule(*(problem._replace(file=file) for problem in reader.sorted_problems()))
    return snapshot


def rule_from(entry: Table) -> Rule:
    """Return the rule for one table of `[[rules]]`, and consume `entry`. Raises `InvalidRule` with all problems.

    The snapshot that the rule becomes part of checks whether its facts and tiers are known.
    """
    return _only(_DocumentReader(), {"rules": [entry]}, lambda reader, data: reader.rules(data)[0])


def users_from(entries: list[Any]) -> list[User]:
    """Return the users for tables of `[[users]]`, and consume `entries`. Raises `InvalidRule` with all problems.

    This does not check whether their tiers and rules exist.
    """
    return _only(_DocumentReader(), {"users": entries}, lambda reader, data: reader.users(data, set()))


def _only(reader: _DocumentReader, data: Table, read: Callable[[_DocumentReader, Table], T]) -> T:
    """Return the result of `read` on data. Raises `InvalidRule` with all problems."""
    reader.leave_out_mistakes(data)
    made = read(reader, data)
    problems = reader.sorted_problems()
    if problems:
        raise InvalidRule(*problems)
    return made


def _leave_out(data: Table, location: Location) -> None:
    """Remove a value; in a list, replace it with None, which TOML does not have."""
    holder: Any = data
    *path, last = location
    for step in path:
        holder = holder[step]
    if isinstance(last, int):
        holder[last] = None
    else:
        holder.pop(last, None)


def _close_up(data: Table, location: Location) -> None:
    """Remove the None that `_leave_out` may have put into a list of values. Entries keep their indexes."""
    match location:
        case (str(), int(), "overrides", int(), *_):
            return
        case (str(section), int(index), str(field), int()) if data[section][index] is not None:
            holder = data[section][index]
        case (str(section), str(field), int()):
            holder = data[section]
        case _:
            return
    if isinstance(holder.get(field), list):
        holder[field] = [value for value in holder[field] if value is not None]


class _DocumentReader:
    """Reads data with valid keys and types, and records all other mistakes."""

    def __init__(self) -> None:
        self._problems: list[tuple[int, int, Problem]] = []
        self._quotas: dict[tuple[tuple[str, Any], ...], tuple[Quota, list[tuple[str, str]]]] = {}
        self._nameless: dict[str, str] = {}  # rules without a valid id: stand-in name, and proper name

    def leave_out_mistakes(self, data: Table) -> None:
        """Record mistakes in keys and types, and remove them."""
        found = mistakes(data)
        for location, problem in found:
            self.note(location, problem)
            _leave_out(data, location)
        for location, _ in found:
            _close_up(data, location)

    def note(self, location: Location, problem: Problem) -> None:
        section, index = location[0], location[1] if len(location) > 1 else 0
        order = SECTIONS.index(str(section)) if section in SECTIONS else -1
        self._problems.append((order, index if isinstance(index, int) else 0, problem))

    def sorted_problems(self) -> list[Problem]:
        """Return the problems in the order of the sections and of their entries."""
        return [problem for _, _, problem in sorted(self._problems, key=lambda noted: noted[:2])]

    def snapshot(self, data: Table, version: str) -> Snapshot | None:
        """Return the snapshot; None if there are any problems."""
        rules = self.rules(data)
        tiers = [self._tier(entry, index) for index, entry in _entries(data, "tiers")]
        ids = {rule.id for rule in rules}
        users = self.users(data, ids)
        exemptions = [self._exemption(entry, index) for index, entry in _entries(data, "exemptions")]
        penalties = self._make(Penalties, data.get("penalties", {}), ("penalties",))
        try:
            snapshot = Snapshot(
                rules,
                tiers=[] if None in tiers else [tier for tier in tiers if tier is not None],
                users=users,
                exemptions=exemptions,
                penalties=penalties,
                version=version,
                **data.get("headgate", {}),
            )
        except InvalidRule as error:
            for problem in error.problems:
                where = self._nameless.get(problem.where, problem.where)
                self.note(_section_of(problem), problem._replace(where=where))
            return None
        return None if self._problems else snapshot

    def rules(self, data: Table) -> list[Rule]:
        return [self._rule(entry, index) for index, entry in _entries(data, "rules")]

    def users(self, data: Table, rules: set[str]) -> list[User]:
        return [self._user(entry, index, rules) for index, entry in _entries(data, "users")]

    def _rule(self, entry: Table, index: int) -> Rule:
        where = entry_name("rules", index, entry)
        quota, problems = self._quota({name: entry.pop(name) for name in _QUOTA if name in entry})
        for field, message in problems:
            self.note(("rules", index), Problem(where, field, message))
        entry["quota"] = quota
        rule = self._make(Rule, entry, ("rules", index), where, id=where)
        if rule.id != entry.get("id"):
            self._nameless[f"rule {rule.id!r}"] = where
        return rule

    def _quota(self, table: Table) -> tuple[Quota, list[tuple[str, str]]]:
        """Return the quota of a rule; equal quotas share one object."""
        same = tuple(table.items())
        if same not in self._quotas:
            self._quotas[same] = _quota(table)
        return self._quotas[same]

    def _tier(self, entry: Table, index: int) -> Tier | None:
        where = entry_name("tiers", index, entry)
        tier = self._make(Tier, entry, ("tiers", index), where, name="?")
        return tier if tier.name == entry.get("name") else None

    def _user(self, entry: Table, index: int, rules: set[str]) -> User:
        """Return the user of an entry. `rules` are the ids that an override may name, as far as they are known."""
        all_known = not self._nameless
        where = entry_name("users", index, entry)
        overrides = []
        for number, fields in enumerate(entry.pop("overrides", ())):
            if fields is None:
                continue
            name = f"{where}: {override_name(number, fields)}"
            override = self._make(Override, fields, ("users", index), name, rule="?", limit=1)
            if override.rule == fields.get("rule") and (all_known or override.rule in rules):
                overrides.append(override)
        return self._make(User, {**entry, "overrides": overrides}, ("users", index), where, id=where)

    def _exemption(self, entry: Table, index: int) -> Exemption:
        where = entry_name("exemptions", index, entry)
        return self._make(Exemption, entry, ("exemptions", index), where, type="user", value="::1")

    def _make(self, kind: Callable[..., T], fields: Table, location: Location, where: str = "", **stand_ins: Any) -> T:
        """Build one object. Invalid fields are noted, and replaced by a stand-in or the default.

        Some fields are only checked once the others are valid, so this may take several attempts.
        """
        while True:
            try:
                return kind(**{**stand_ins, **fields})
            except InvalidRule as error:
                bad = {problem.field for problem in error.problems}
                if bad.isdisjoint(fields):  # nothing left to replace
                    raise
                for problem in error.problems:
                    self.note(location, problem._replace(where=where or problem.where))
            fields = {name: value for name, value in fields.items() if name not in bad}


def _entries(data: Table, section: str) -> list[tuple[int, Table]]:
    """Return the entries of a section that are tables, with their indexes."""
    return [(index, entry) for index, entry in enumerate(data.get(section, ())) if entry is not None]


def _quota(table: Mapping[str, Any]) -> tuple[Quota, list[tuple[str, str]]]:
    """Return a rule's quota, and its invalid fields with their problems. A burst alone means token_bucket."""
    fields = {**_QUOTA, **table}
    if "burst" in table and "algorithm" not in table:
        fields["algorithm"] = BURST_ALGORITHM
    if table.get("calendar") is True and "algorithm" not in table:
        fields["algorithm"] = "fixed_window"
    if fields["algorithm"] == CONCURRENCY:
        if "window" in table:
            return Quota(1, algorithm=CONCURRENCY), [("window", "not allowed for concurrency; set ttl instead")]
        fields["window"] = None
    try:
        return Quota(**fields), []
    except InvalidQuota as error:
        together = error
    if table.get("calendar") is True:  # these fields are only valid together
        return Quota(1, 1), [_split(together)]
    problems = []
    for name, value in table.items():
        try:
            Quota(**{**_QUOTA, **({"algorithm": CONCURRENCY} if name == "ttl" else {}), name: value})
        except InvalidQuota as error:
            problems.append(_split(error))
            fields[name] = _QUOTA[name]
    return Quota(1, 1, algorithm=fields["algorithm"]), problems or [_split(together)]


def _split(error: InvalidQuota) -> tuple[str, str]:
    field, _, message = str(error).partition(": ")
    return field, message


def _section_of(problem: Problem) -> Location:
    """Return where to list a problem between several entries."""
    sections = {"rule": "rules", "tier": "tiers", "user": "users", "[headgate]": "headgate"}
    return (sections[problem.where.split(" ")[0]], _LAST)
