"""The files that the project's host reads have the shape that it expects."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def check(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_workflows_are_valid(file: Path) -> None:
    check("--builtin-schema", "vendor.github-workflows", file)


def test_workflows_run_make_targets_alone() -> None:
    targets = {
        line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if ": " in line and " ## " in line
    }
    for file in WORKFLOWS:
        for line in file.read_text().splitlines():
            command = line.partition("- run: ")[2]
            if "make " in command:
                assert command.split()[-1] in targets, f"{file.name}: {command}"


def test_every_file_that_names_the_version_names_this_one() -> None:
    from headgate import __version__

    chart = (ROOT / "deploy/helm/headgate/Chart.yaml").read_text().splitlines()
    assert f"version: {__version__}" in (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"version: {__version__}" in chart
    assert f'appVersion: "{__version__}"' in chart
    assert f"## [{__version__}]" in (ROOT / "CHANGELOG.md").read_text()
    assert f"Headgate {__version__} is serving." in (ROOT / "docs/quickstart.md").read_text()
    minor = __version__.rpartition(".")[0]
    assert f"| {minor}.x | yes |" in (ROOT / "SECURITY.md").read_text()
