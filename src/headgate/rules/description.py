"""The one description of a rule's fields, as they appear in rules files.

`Rule` declares its own fields; the fields of its quota are declared here. `FIELDS` defines the keys of a rules file
(`rules/sources/schema.py`), the database's records (`db/records.py`), the admin API's model and its OpenAPI
(`service/admin/models.py`), exports, and the table in docs/reference/rules.md.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headgate.core.quota import ALIASES, CONCURRENCY, DEFAULT_ALGORITHM, KNOWN, Quota
from headgate.rules import fields
from headgate.rules.fields import Kind
from headgate.rules.rule import Rule

Table = dict[str, Any]

_LINK: Final = re.compile(r"\[([^]]+)\]\([^)]+\)")
_NOT_IN_A_FILE: Final = "quota"  # a field of Rule; a file has the quota's own fields instead


class RuleField(NamedTuple):
    """A field of a rule, as it appears in rules files."""

    name: str
    kind: Kind
    meaning: str  # in Markdown, with links relative to docs/reference
    default: Any  # None: no default, or one that depends on other fields
    default_text: str  # as the docs show it
    is_required: bool

    @property
    def plain_meaning(self) -> str:
        """The meaning without links."""
        return _LINK.sub(r"\1", self.meaning)


def _field(name: str, kind: Kind, meaning: str, shown: str = "", *, default: Any = dataclasses.MISSING) -> RuleField:
    required = default is dataclasses.MISSING
    return RuleField(name, kind, meaning, None if required else default, shown or _shown(default), required)


def _shown(default: Any) -> str:
    """Return a default as TOML writes it."""
    if default is dataclasses.MISSING:
        return "required"
    if default is None:
        return "none"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    return str(default) if isinstance(default, int) else f'`"{default}"`'


QUOTA_FIELDS: Final = (
    _field("limit", fields.whole(1), "how much is allowed per window"),
    _field(
        "window",
        fields.optional(fields.window),
        'length of the window: seconds, or a string (`"15m"`), 1 ms to 366 days; `concurrency` has a `ttl` instead',
        "required",
        default=None,
    ),
    _field(
        "algorithm",
        fields.choice(*KNOWN, **ALIASES),
        "[one of seven](quotas.md); `token_bucket` when there is a `burst` and no algorithm",
        default=DEFAULT_ALGORITHM,
    ),
    _field(
        "burst",
        fields.optional(fields.whole(1)),
        "capacity of the bucket algorithms; the others do not use it",
        "the limit",
        default=None,
    ),
    _field(
        "ttl",
        fields.optional(fields.window),
        "for `concurrency`: when a slot expires that is neither released nor renewed; a duration like `window`",
        "60 s",
        default=None,
    ),
    _field(
        "calendar",
        fields.flag,
        "whether the window is a `day`, `week`, `month` or `year` of the [calendar](quotas.md#calendars); only for "
        "`fixed_window`",
        default=False,
    ),
    _field(
        "tz",
        fields.optional(fields.name),
        "for a calendar: the time zone, such as `Europe/Berlin`",
        '`"UTC"`',
        default=None,
    ),
    _field(
        "anchor",
        Kind("anchor", lambda value: value),
        "for a calendar: where its windows begin. The day of the month (31 means the last day of a shorter month), "
        "the weekday, or the hour of the day",
        "its beginning",
        default=None,
    ),
)
_CALENDAR_FIELDS: Final = ("calendar", "tz", "anchor")
_RULE_FIELDS: Final = tuple(
    _field(one.name, *one.metadata["description"], default=one.default)
    for one in dataclasses.fields(Rule)
    if one.metadata and one.name != _NOT_IN_A_FILE
)
FIELDS: Final = (*_RULE_FIELDS[:1], *QUOTA_FIELDS, *_RULE_FIELDS[1:])  # the id comes first


def rule_table(rule: Rule) -> Table:
    """Return a rule as a table of a rules file, with every field that has a value. Durations are in seconds."""
    table = quota_table(rule.quota)
    for field in _RULE_FIELDS:
        table[field.name] = _plain(getattr(rule, field.name))
    return {field.name: table[field.name] for field in FIELDS if table.get(field.name) is not None}


def quota_table(quota: Quota) -> Table:
    """Return the fields of a quota as a rule in a rules file has them."""
    calendar = quota.calendar
    table = {field.name: getattr(quota, field.name) for field in QUOTA_FIELDS if field.name not in _CALENDAR_FIELDS}
    if calendar is not None:
        zone = None if calendar.tz == "UTC" else calendar.tz
        table.update(window=calendar.period, algorithm="fixed_window", calendar=True, tz=zone)
        table["anchor"] = calendar.anchor_text
    if quota.burst == quota.limit:
        table["burst"] = None
    if quota.algorithm == CONCURRENCY:
        table["window"] = None  # the ttl says it
    return table


def docs_table() -> str:
    """Return the table of docs/reference/rules.md."""
    rows = [f"| `{field.name}` | {field.default_text} | {field.meaning} |" for field in FIELDS]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows])


def _plain(value: Any) -> Any:
    """Return a field's value as TOML and JSON represent it."""
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
