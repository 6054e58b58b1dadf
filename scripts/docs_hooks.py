"""Hooks of mkdocs: navigation, links that leave docs/, diagrams without a network, and llms.txt for language models."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+(?:[A-Z_]+\.md|(?:benchmarks|deploy|examples|proto|src|tests)[^)]*)\)")
MERMAID = ROOT / ".cache/mermaid.min.js"  # scripts/mermaid puts it there


def on_config(config: Any) -> Any:
    """List the pages of docs/adr in the navigation, and show the menu of versions only where mike builds the site."""
    records = sorted(file.relative_to(ROOT / "docs").as_posix() for file in (ROOT / "docs/adr").glob("*.md"))
    for entry in config["nav"]:
        if "Decisions" in entry:
            entry["Decisions"] = records
        if "Benchmarks" in entry and (ROOT / "docs/benchmark-results.md").exists():
            entry["Benchmarks"].append("benchmark-results.md")
    if "MIKE_DOCS_VERSION" not in os.environ:
        config["extra"].pop("version", None)
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace links that leave docs/ by their text: the website holds the pages alone."""
    return OUTSIDE.sub(r"\1", markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Load our own copy of mermaid on pages with diagrams. Without one, the theme loads it from a CDN."""
    if 'class="mermaid"' not in output or not MERMAID.exists():
        return output
    depth = "../" * page.url.count("/")
    return output.replace("</body>", f'<script src="{depth}assets/mermaid.min.js"></script></body>')


def on_post_build(config: Any) -> None:
    """Copy mermaid, and write llms.txt: what Headgate is, and one line for each page."""
    if MERMAID.exists():
        shutil.copy(MERMAID, Path(config["site_dir"], "assets"))
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
