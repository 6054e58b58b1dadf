"""The Helm chart: rendered by Helm itself, and held against Kubernetes' own schemas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headgate import __version__
from tests.deploy.settings import unknown
from tests.webserver import ROOT

HELM = Path(sys.executable).with_name("helm")
CHART = ROOT / "deploy/helm/headgate"
TOKENS = {"secret.adminToken": "a", "secret.dataToken": "b", "secret.databaseUrl": "postgresql://postgres/headgate"}
PLAIN = {**TOKENS, "insecure": "true"}
VARIANTS = {
    "plain": PLAIN,
    "tls": {"secret.existing": "kept", "tls.secret": "certificate"},
    "mutual": {"secret.existing": "kept", "tls.secret": "certificate", "tls.mutual": "true", "store": ""},
    "everything": {
        **PLAIN,
        "replicas": "3",
        "rules": "[headgate]",
        "serviceMonitor.enabled": "true",
        "settings.HEADGATE_LOG_LEVEL": "debug",
        "podAnnotations.team": "api",
        "nodeSelector.disk": "ssd",
        "service.annotations.a": "b",
    },
    "alone": {**PLAIN, "replicas": "1", "store": "memory://"},
}


def helm(*arguments: str, values: dict[str, str]) -> subprocess.CompletedProcess[str]:
    sets = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    return subprocess.run([HELM, *arguments, str(CHART), *sets], capture_output=True, text=True, check=False)


def rendered(values: dict[str, str]) -> list[dict[str, Any]]:
    result = helm("template", "try", values=values)
    assert result.returncode == 0, result.stderr
    return [document for document in yaml.safe_load_all(result.stdout) if document]


def deployment(values: dict[str, str]) -> Any:
    return next(one for one in rendered(values) if one["kind"] == "Deployment")["spec"]["template"]["spec"]


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_chart_is_valid(values: dict[str, str]) -> None:
    linted = helm("lint", "--strict", values=values)
    assert linted.returncode == 0, linted.stdout + linted.stderr
    for document in rendered(values):
        if document["kind"] != "ServiceMonitor":  # which Kubernetes itself does not know
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_pods_get_settings_that_exist_and_files_that_are_mounted(values: dict[str, str]) -> None:
    (container,) = deployment(values)["containers"]
    settings = {one["name"]: one["value"] for one in container["env"]}
    assert unknown(settings) == []
    folders = [mount["mountPath"] for mount in container["volumeMounts"]]
    for name, value in settings.items():
        if value.startswith("/"):
            assert any(value.startswith(f"{folder}/") for folder in folders), name


def test_version_is_ours() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (TOKENS, "tls.secret: name a secret"),
        ({"insecure": "true"}, "secret: name an existing one"),
        ({"insecure": "true", "secret.adminToken": "a", "secret.dataToken": "b"}, "secret.databaseUrl: name"),
        ({**PLAIN, "tls.mutual": "true"}, "tls.mutual: needs tls.secret"),
        ({**PLAIN, "replica": "2"}, "replica"),
        ({**PLAIN, "store": "mysql://somewhere"}, "store"),
        ({**PLAIN, "settings.LOG_LEVEL": "debug"}, "LOG_LEVEL"),
    ],
)
def test_what_would_not_start_is_refused(values: dict[str, str], message: str) -> None:
    result = helm("template", "try", values=values)
    assert result.returncode != 0
    assert message in result.stderr
