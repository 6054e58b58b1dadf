"""Hooks of mkdocs: the list of decisions, links to files of the repository, and llms.txt for language models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[A-Z_]+\.md|(?:benchmarks|deploy|examples|proto|src|tests)[^)]*)\)")


def on_config(config: Any) -> Any:
    """Fill the navigation's list of decisions with the pages of docs/adr."""
    records = sorted(file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs/adr").glob("*.md"))
    for entry in config["nav"]:
        if "Decisions" in entry:
            entry["Decisions"] = records
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links that leave docs/ by their text: the website holds the pages alone."""
    return OUTSIDE.sub(r"\1", markdown)


def on_post_build(config: Any) -> None:
    """Write llms.txt: what Headgate is, and one line for each page."""
    pages = []
    for file in sorted((ROOT / "docs").rglob("*.md")):
        text = file.read_text()
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        paragraphs = [part for part in text.split("\n\n")[1:] if part and part[0].isalpha()]
        summary = " ".join(paragraphs[0].split()) if paragraphs else ""
        first = re.split(r"(?<=[.!?]) ", summary)[0]
        pages.append(f"- [{title[1] if title else file.stem}]({file.relative_to(ROOT / 'docs')}): {first}")
    head = f"# {config['site_name']}\n\n> {config['site_description']}\n\n"
    Path(config["site_dir"], "llms.txt").write_text(head + "\n".join(pages) + "\n")
