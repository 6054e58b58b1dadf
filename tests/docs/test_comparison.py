"""The table of features beside other limiters: each ✓ of Headgate leads to a page, and each limiter has its guide."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "other-limiters.md"
LINK = re.compile(r"\[✓\]\(([^)#]+)(?:#([^)]+))?\)")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def test_each_tick_of_headgate_leads_to_a_page_and_a_heading() -> None:
    head, _, *rows = [cells(line) for line in PAGE.read_text().splitlines() if line.startswith("|")]
    ticks = [row[1] for row in rows if row[1]]
    assert len(ticks) > 40
    for tick in ticks:
        found = LINK.fullmatch(tick)
        assert found, tick
        text = (PAGE.parent / found[1]).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not found[2] or found[2] in anchors, tick
    assert {len(row) for row in [head, *rows]} == {len(head)}


def test_each_limiter_has_a_guide() -> None:
    head = next(cells(line) for line in PAGE.read_text().splitlines() if line.startswith("|"))
    linked = {Path(target).name for target in re.findall(r"\]\(([^)]+)\)", " ".join(head))}
    assert linked == {guide.name for guide in (PAGE.parents[1] / "how-to").glob("migrate-from-*.md")}
