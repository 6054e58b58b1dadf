"""The image and the compose file, read by tools that need no container engine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml

from headgate.settings import load
from tests.deploy.settings import unknown
from tests.webserver import ROOT

DOCKERFILE = ROOT / "deploy/docker/Dockerfile"
COMPOSE = ROOT / "deploy/compose/compose.yaml"
REGIONS = COMPOSE.with_name("regions.yaml")


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load(COMPOSE.read_text())


def test_dockerfile_has_no_smells() -> None:
    linted = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), DOCKERFILE], capture_output=True, text=True, check=False
    )
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")


def test_image_is_not_run_as_root() -> None:
    last_stage = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last_stage, re.MULTILINE)


def test_image_is_made_of_files_that_exist() -> None:
    sources = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE.read_text(), re.MULTILINE)
    assert sources
    for source in " ".join(sources).split():
        assert (ROOT / source).exists(), source
    ignored = (DOCKERFILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    assert {f"!{source}" for source in " ".join(sources).split()} <= set(ignored)


@pytest.mark.extended
def test_wheel_has_everything(tmp_path: Path) -> None:
    """What the image installs: a wheel in which a file is missing would only be noticed in a container."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path, ROOT], check=True
    )
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "--", "src/headgate"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert {file.removeprefix("src/") for file in tracked} <= packed
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target, wheel], check=True
    )
    shown = subprocess.run(
        [sys.executable, "-P", target / "bin/headgate", "version"],
        env={**os.environ, "PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.search(r"\d+\.\d+\.\d+", shown.stdout)


def test_compose_file_is_valid() -> None:
    for file in (COMPOSE, REGIONS):
        compose_spec.PyCompose.from_yaml(file.read_text()).validate()


def test_compose_file_refers_to_what_exists(compose: Any) -> None:
    folder = COMPOSE.parent
    build = compose["services"]["headgate"]["build"]
    context = folder / build["context"]
    assert context.resolve() == ROOT.resolve()
    assert (context / build["dockerfile"]).samefile(DOCKERFILE)
    for name, service in compose["services"].items():
        for mounted in service.get("volumes", ()):
            source = mounted.split(":")[0]
            assert (folder / source).exists() if source.startswith(".") else source in compose["volumes"], name
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        assert set(service.get("secrets", ())) <= set(compose["secrets"])


def test_one_of_several_regions_has_settings_that_the_service_takes(compose: Any) -> None:
    regions = yaml.safe_load(REGIONS.read_text())
    assert set(regions["services"]) == {"headgate"}
    ours, base = regions["services"]["headgate"], compose["services"]["headgate"]
    (mounted,) = ours["volumes"]
    source, target, _ = mounted.split(":")
    assert ours["command"] == [*base["command"], "--config", target]
    assert unknown(ours["environment"]) == []
    for name in ("eu", "us"):
        environ = {"HEADGATE_REGION": name, "HEADGATE_STORE": base["environment"]["HEADGATE_STORE"]}
        settings = load({"insecure": True}, config=COMPOSE.parent / source, environ=environ).settings.region
        assert settings is not None
        assert settings.region().name == name


def test_compose_file_publishes_on_loopback_only(compose: Any) -> None:
    for service in compose["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))


def test_settings_exist(compose: Any) -> None:
    in_image = re.findall(r"(HEADGATE_[A-Z_]+)=", DOCKERFILE.read_text())
    assert unknown([*compose["services"]["headgate"]["environment"], *in_image]) == []
