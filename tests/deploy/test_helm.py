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
from headgate.regions import Member, Region
from headgate.settings import load
from tests.deploy.settings import unknown
from tests.webserver import ROOT

HELM = Path(sys.executable).with_name("helm")
CHART = ROOT / "deploy/helm/headgate"
TOKENS = {"secret.adminToken": "a", "secret.dataToken": "b", "secret.databaseUrl": "postgresql://postgres/headgate"}
PLAIN = {**TOKENS, "insecure": "true"}
REGION = {
    "region.name": "eu",
    "region.members[0].name": "eu",
    "region.members[0].weight": "5",
    "region.members[1].name": "us",
    "region.members[1].store": "rediss://:pass<word@counters.us.example:6379/0",
}
VARIANTS = {
    "plain": PLAIN,
    "tls": {"secret.existing": "kept", "tls.secret": "certificate"},
    "mutual": {"secret.existing": "kept", "tls.secret": "certificate", "tls.mutual": "true", "store": ""},
    "everything": {
        **PLAIN,
        "replicas": "3",
        "rules": "[headgate]",
        "storePrefix": "prod:shop-a",
        "serviceMonitor.enabled": "true",
        "settings.HEADGATE_LOG_LEVEL": "debug",
        "podAnnotations.team": "api",
        "nodeSelector.disk": "ssd",
        "service.annotations.a": "b",
    },
    "region": {**PLAIN, **REGION},
    "region of a secret": {**PLAIN, "region.name": "eu", "region.existing": "regions"},
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


def test_releases_can_share_a_redis() -> None:
    def prefixes(values: dict[str, str]) -> list[str]:
        (container,) = deployment(values)["containers"]
        return [one["value"] for one in container["env"] if one["name"] == "HEADGATE_STORE_PREFIX"]

    assert prefixes(PLAIN) == []
    assert prefixes({**PLAIN, "storePrefix": "shop-a"}) == ["shop-a"]
    assert "storePrefix" in helm("template", "try", values={**PLAIN, "storePrefix": "a b"}).stderr


def test_an_update_gives_proxies_the_time_to_notice() -> None:
    spec = next(one for one in rendered(PLAIN) if one["kind"] == "Deployment")["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    environ = {one["name"]: one["value"] for one in container["env"] if one["name"].startswith("HEADGATE_DRAIN")}
    drain = load({}, environ=environ).settings.drain_delay
    probe = container["readinessProbe"]
    assert drain > probe["periodSeconds"] * probe["failureThreshold"] + probe.get("timeoutSeconds", 1)
    assert drain > 2  # nginx' fail_timeout; 0.5 and 1 second are Envoy's interval and timeout
    assert spec["minReadySeconds"] >= drain
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert pod["terminationGracePeriodSeconds"] >= drain + load({}, environ={}).settings.drain_timeout + 5


def test_a_region_is_one_that_the_service_takes(tmp_path: Path) -> None:
    more = {"region.central": "us", "region.interval": "500ms", "region.term": "2", "region.floor": "0"}
    values = {**PLAIN, **REGION, **more}
    (container,) = deployment(values)["containers"]
    assert container["args"] == ["serve", "--insecure", "--config=/etc/headgate/region/settings.toml"]
    secret = next(one for one in rendered(values) if one["metadata"]["name"] == "try-headgate-region")
    file = tmp_path / "settings.toml"
    file.write_text(secret["stringData"]["settings.toml"])
    named = {
        one["name"]: one["value"] for one in container["env"] if one["name"] in ("HEADGATE_REGION", "HEADGATE_STORE")
    }
    settings = load({"insecure": True}, config=file, environ=named).settings.region
    assert settings is not None
    assert settings.region() == Region(
        "eu",
        [Member("eu", weight=5), Member("us", REGION["region.members[1].store"])],
        central="us",
        interval=0.5,
        term=2.0,
        floor=0.0,
    )


def test_pods_start_anew_with_other_regions() -> None:
    def annotations(values: dict[str, str]) -> Any:
        found = next(one for one in rendered(values) if one["kind"] == "Deployment")
        return found["spec"]["template"]["metadata"]["annotations"]

    other = {**PLAIN, **REGION, "region.members[0].weight": "4"}
    assert annotations({**PLAIN, **REGION}) != annotations(other)


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
        ({**PLAIN, "region.name": "eu"}, "region.members: list all regions"),
        ({**PLAIN, **REGION, "region.existing": "regions"}, "members and existing say the same"),
        ({**PLAIN, **REGION, "region.name": ""}, "region.name: say which"),
        ({**PLAIN, **REGION, "region.name": "ap"}, "region.name: ap is not one of the members (eu, us)"),
        ({**PLAIN, **REGION, "region.members[2].name": "ap"}, "region.members: ap: store is missing"),
        ({**PLAIN, **REGION, "region.members[0].weight": "0"}, "weight"),
        ({**PLAIN, **REGION, "store": "memory://"}, "other regions cannot reach a store in memory"),
        ({**PLAIN, "settings.LOG_LEVEL": "debug"}, "LOG_LEVEL"),
    ],
)
def test_what_would_not_start_is_refused(values: dict[str, str], message: str) -> None:
    result = helm("template", "try", values=values)
    assert result.returncode != 0
    assert message in result.stderr
