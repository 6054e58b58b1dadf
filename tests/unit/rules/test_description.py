"""One description of a rule's fields: what rules files, the database, the admin API and the docs have from it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from headgate import InvalidRule, Rule
from headgate.db.records import rule_of, rule_row
from headgate.rules.description import FIELDS, rule_table
from headgate.rules.snapshot import Snapshot
from headgate.rules.sources.document import rule_from
from headgate.rules.sources.export import text_of
from headgate.service.admin import models

PAGE = Path(__file__).parents[3] / "docs/reference/rules.md"
TABLE = re.compile(r"^## `\[\[rules\]\]`\n.*?\n(\| key .*?)\n\n", re.DOTALL | re.MULTILINE)

# A value of every field that is not its default, and that a rule may have together with the others of its line.
EXAMPLES: list[dict[str, Any]] = [
    {"id": "a", "limit": 7, "window": 90, "algorithm": "gcra", "burst": 9, "name": "Nine", "dimension": "ip+endpoint"},
    {"endpoints": ["/a", "/b/*"], "methods": ["GET"], "tiers": ["free"], "match": {"country": "DE"}},
    {"action": "throttle", "max_delay": 1.5, "priority": -3, "group": "plan", "shards": 4},
    {"sync": "leased", "failure_mode": "local", "regions": "quota"},
    {"algorithm": "concurrency", "ttl": 90},
    {"window": "month", "calendar": True, "tz": "Europe/Berlin", "anchor": 15},
    {"window": "week", "calendar": True, "anchor": "sunday"},
    {"action": "annotate"},
    {"cost": 3, "unit": "tokens", "status": 503, "message": "No.", "enabled": False},
]
BASE = {"id": "x", "limit": 100, "window": 60}


def test_every_field_has_an_example_here() -> None:
    assert {name for example in EXAMPLES for name in example} == {field.name for field in FIELDS}


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_field_survives_files_the_database_and_the_admin_api(example: dict[str, Any]) -> None:
    entry = {name: value for name, value in {**BASE, **example}.items() if name != "window" or "ttl" not in example}
    rule = rule_from(dict(entry))
    assert {name: rule_table(rule)[name] for name in example} == example
    assert rule != rule_from(dict(BASE))
    exported = tomllib.loads(text_of(Snapshot([rule])))["rules"][0]
    assert rule_from(exported) == rule
    assert rule_of({**rule_row(rule), "version": 1, "position": 1}) == rule
    assert models.Rule.model_validate(entry).model_dump(exclude_unset=True) == entry


def test_an_export_leaves_out_defaults() -> None:
    rule = rule_from(dict(BASE))
    exported = tomllib.loads(text_of(Snapshot([rule])))["rules"][0]
    assert exported == {
        **{"id": "x", "limit": 100, "window": "1m"},
        **{"dimension": "user", "algorithm": "sliding_window_counter"},
    }


def test_the_docs_table_has_the_fields_with_their_defaults() -> None:
    found = TABLE.search(PAGE.read_text())
    assert found is not None
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in found[1].splitlines()[2:]]
    described = [[f"`{field.name}`", field.default_text, field.meaning] for field in FIELDS]
    assert rows == described, "run scripts/rule-fields, which writes the table anew"


def test_openapi_has_the_fields_with_their_types_and_bounds() -> None:
    schema = models.Rule.model_json_schema()
    types = {"text": "string", "whole": "integer", "flag": "boolean", "texts": "array", "table": "object"}
    several = {"duration": {"number", "string"}, "anchor": {"integer", "string"}}
    assert [*schema["properties"]] == [*(field.name for field in FIELDS), "version"]
    assert schema["required"] == [field.name for field in FIELDS if field.is_required and field.name != "id"]
    for field in FIELDS:
        said = schema["properties"][field.name]
        options = said.get("anyOf", [said])
        kinds = {option["type"] for option in options} - {"null"}
        assert kinds == (several.get(field.kind.type) or {types[field.kind.type]})
        assert {"type": "null"} in options or field.is_required
        assert options[0].get("minimum") == field.kind.low
        assert options[0].get("maximum") == field.kind.high
        assert set(options[0].get("enum", ())) == {*field.kind.choices, *field.kind.aliases}
        if field.name != "id":
            assert said["description"] == field.plain_meaning
            assert "](" not in said["description"]


def test_a_field_that_a_newer_version_wrote_into_the_database_is_a_mistake_that_says_so() -> None:
    row = {**rule_row(Rule(id="x", quota="1/s")), "version": 1, "position": 1}
    with pytest.raises(InvalidRule, match="rule 'x': colour: unknown field; a newer Headgate has written it"):
        rule_of({**row, "more": {"colour": "red"}})


def test_a_rule_without_a_quota_says_that_it_is_missing() -> None:
    with pytest.raises(InvalidRule, match="rule 'x': quota: is missing; give a Quota, or a notation like '100/minute'"):
        Rule(id="x")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"window": 60}, "window: not allowed for concurrency; set ttl instead"),
        ({"ttl": 0}, "ttl: must be from 1 ms"),
        ({"ttl": "soon"}, "cannot read 'soon'"),
        ({"burst": 9}, "burst: not allowed for concurrency"),
        ({"algorithm": "gcra", "window": 60, "ttl": 60}, "ttl: only allowed for concurrency, not gcra"),
        ({"algorithm": "gcra"}, "window: is missing"),
    ],
)
def test_a_rule_has_either_a_window_or_slots(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRule, match=message):
        rule_from({"id": "x", "limit": 5, "algorithm": "concurrency", **fields})
    assert rule_from({"id": "x", "limit": 5, "algorithm": "concurrency"}).quota.ttl == 60
