"""Every record in docs/adr says what the problem was, what was decided, and what that costs."""

import re
from pathlib import Path

import pytest

RECORDS = sorted((Path(__file__).parents[2] / "docs/adr").glob("*.md"))


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.stem)
def test_a_record_has_its_number_and_its_three_parts(record: Path) -> None:
    text = record.read_text()
    assert text.startswith(f"# {int(record.name[:4])}. ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]


def test_numbers_have_no_gap() -> None:
    assert [int(record.name[:4]) for record in RECORDS] == list(range(1, len(RECORDS) + 1))
