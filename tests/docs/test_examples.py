"""The Python blocks of README and docs run, each page from top to bottom, on a real server.

A TOML block is a rules file: it has to be a good one, and is `rules.toml` to the Python blocks after it. On the page
about settings, it is a settings file.
"""

from __future__ import annotations

import gc
import re
from pathlib import Path

import pytest

from headgate import settings
from headgate.rules.sources.file import load
from tests.conftest import TIMEOUT
from tests.servers import Server, default_binary

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    page for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if BLOCK.search(page.read_text())
]


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # pages are short: they leave limiters open
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Server(default_binary()) as server:
        text = page.read_text()
        namespace: dict[str, object] = {"__name__": "__main__"}
        for block in BLOCK.finditer(text):
            if block[1] == "toml" and page.name == "settings.md":
                Path("headgate.toml").write_text(block[2])
                settings.load(config=Path("headgate.toml"), environ={})
                continue
            if block[1] == "toml":
                Path("rules.toml").write_text(block[2])
                load("rules.toml")
                continue
            line = text.count("\n", 0, block.start(2))
            own = f"{server.url}?{TIMEOUT}"
            source = block[2].replace("redis://localhost:6379/0?", f"{own}&").replace("redis://localhost:6379/0", own)
            # Empty lines in front, so that a traceback shows the line of the page.
            exec(compile("\n" * line + source, str(page), "exec"), namespace)
        namespace.clear()
        gc.collect()  # what a page leaves open is not to be found in another test


def test_readme_is_short_and_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 120
    assert "make serve" in text
    assert "make test" in text


def test_links_lead_somewhere() -> None:
    broken = []
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            if not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken
