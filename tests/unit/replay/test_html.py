"""The report as a page: whole, well formed, without a network, and safe from what a log says."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from headgate import Rule
from headgate.replay.charts import bars, timeline
from headgate.replay.html import html_report
from headgate.replay.log import Log
from headgate.replay.replay import replay
from headgate.replay.report import Report
from headgate.rules.snapshot import Snapshot

LOG = Path(__file__).parents[2] / "data" / "apache-access.log.gz"
VOID = ("meta",)


class Balanced(HTMLParser):
    """Fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """It opens nothing."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def report(path: Path = LOG) -> Report:
    new = Snapshot([Rule(id="per-ip", quota="30/minute burst 10 gcra", dimension="ip")])
    old = Snapshot([Rule(id="per-ip", quota="60/minute burst 20 gcra", dimension="ip")])
    return replay(Log([str(path)]), new, against=old)


def test_the_page_is_whole_and_needs_no_network() -> None:
    page = html_report(report(), rules="new.toml", against="old.toml")
    parser = Balanced()
    parser.feed(page)
    assert parser.open == []
    links = re.findall(r"(?:src|href|url\()[=\"'(]*([^\"')\s>]+)", page)
    assert links == []
    assert "<script" not in page
    for text in ("What new.toml would have done", "259", "75.97.9.59", "Newly refused", "prefers-color-scheme:dark"):
        assert text in page


def test_pictures_are_xml() -> None:
    found = report()
    picture = ElementTree.fromstring(timeline(found))
    bars = picture.findall("{http://www.w3.org/2000/svg}rect[@class='base']")
    assert len(bars) == len(found.timeline)


def test_what_a_log_says_is_text_and_no_markup(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    line = '<script>alert(1)</script> - - [17/May/2015:10:05:0{} +0000] "GET / HTTP/1.1" 200 1\n'
    path.write_text("".join(line.format(at) for at in range(9)) * 6)
    page = html_report(report(path), rules="<new>.toml")
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "&lt;new&gt;.toml" in page


def test_a_row_has_the_names_of_its_columns_for_phones() -> None:
    page = html_report(report(), rules="new.toml", against="old.toml")
    assert '<td class="number" data-name="refused">259</td>' in page
    assert "<td>ip 75.97.9.59</td>" in page


@pytest.mark.parametrize(
    ("most", "text"),
    [(0, "1"), (99_999, "99,999"), (125_000, "125k"), (999_499, "999k"), (999_600, "1M"), (12_345_678, "12.3M")],
)
def test_numbers_at_the_side_are_short(most: int, text: str) -> None:
    assert f">{text}</text>" in bars([most], [0], ["2015-05-17T10:05"], label="x")
