"""docs/explanation/architecture.md names packages and modules that exist, and every package."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src/headgate"
PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
NAMED = sorted(set(re.findall(r"`([a-z0-9_/]+(?:\.py|\.lua|/))`", PAGE)))


@pytest.mark.parametrize("path", NAMED)
def test_a_named_file_exists(path: str) -> None:
    places = [SOURCE, ROOT, *(child for child in SOURCE.iterdir() if child.is_dir())]
    assert any((place / path).exists() for place in places)


def test_every_package_is_on_the_map() -> None:
    packages = {f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(NAMED)
