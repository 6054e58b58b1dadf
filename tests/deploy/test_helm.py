"""The Helm chart: rendered by Helm itself, and held against Kubernetes' own schemas."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from headgate import __version__
from headgate.regions import Member, Region
from headgate.settings import load
from tests.certificates import Authority
from tests.deploy.settings import unknown
from tests.service import warm_service
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
    "sentinels by TLS": {**PLAIN, "store": "rediss+sentinel://s1:26379\\,s2:26379/counters/0"},
    "a cluster by TLS": {**PLAIN, "store": "rediss+cluster://c1:7000\\,c2:7001"},
    "rules without a database": {
        **{"insecure": "true", "secret.adminToken": "a", "secret.dataToken": "b"},
        **{"database": "false", "rules": "[headgate]"},
    },
    "an admin port": {
        **PLAIN,
        **{"service.adminPort": "9000", "serviceMonitor.enabled": "true", "networkPolicy.enabled": "true"},
        "networkPolicy.monitoring[0].namespaceSelector.matchLabels.team": "metrics",
        "networkPolicy.admins[0].podSelector.matchLabels.app": "console-proxy",
    },
    "certificates of clients": {
        **{"secret.existing": "kept", "tls.secret": "certificate", "tls.mutual": "true", "tls.clientSecret": "client"},
        "serviceMonitor.enabled": "true",
    },
    "a large cluster": {
        **PLAIN,
        **{"autoscaling.enabled": "true", "autoscaling.maxReplicas": "20", "imagePullSecrets[0].name": "registry"},
        **{
            "topologySpread": "DoNotSchedule",
            "networkPolicy.enabled": "true",
            "probes.readiness.failureThreshold": "3",
        },
        "networkPolicy.clients[0].podSelector.matchLabels.app": "gateway",
        "networkPolicy.monitoring[0].namespaceSelector.matchLabels.team": "metrics",
    },
}


def helm(*arguments: str, values: dict[str, str]) -> subprocess.CompletedProcess[str]:
    sets = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    return subprocess.run([HELM, *arguments, str(CHART), *sets], capture_output=True, text=True, check=False)


def rendered(values: dict[str, str]) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(rendered_text(tuple(values.items()))) if document]


@cache
def rendered_text(values: tuple[tuple[str, str], ...]) -> str:
    result = helm("template", "try", values=dict(values))
    assert result.returncode == 0, result.stderr
    return result.stdout


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


def environment_of(values: dict[str, str]) -> dict[str, str]:
    (container,) = deployment(values)["containers"]
    return {one["name"]: one["value"] for one in container["env"]}


def test_stores_behind_sentinels_and_clusters_by_tls_are_ones_that_the_service_takes() -> None:
    for name in ("sentinels by TLS", "a cluster by TLS"):
        url = environment_of(VARIANTS[name])["HEADGATE_STORE"]
        assert url.startswith("rediss+")
        assert load({"store": url}, environ={}).settings.store_url == url


def test_rules_do_without_a_database() -> None:
    values = VARIANTS["rules without a database"]
    environ = environment_of(values)
    assert environ["HEADGATE_RULES"] == "/etc/headgate/rules/rules.toml"
    assert "HEADGATE_DATABASE_URL_FILE" not in environ
    secret = next(one for one in rendered(values) if one["kind"] == "Secret")
    assert sorted(secret["stringData"]) == ["admin-token", "data-token"]


def test_where_clients_need_certificates_probes_and_prometheus_show_one(tmp_path: Path) -> None:
    values = VARIANTS["certificates of clients"]
    (container,) = deployment(values)["containers"]
    for name, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        python, option, program = container[name]["exec"]["command"]
        assert (python, option) == ("python", "-c")
        assert f'"{path}"' in program
        compile(program, str(tmp_path), "exec")
    monitor = next(one for one in rendered(values) if one["kind"] == "ServiceMonitor")
    tls = monitor["spec"]["endpoints"][0]["tlsConfig"]
    assert tls["cert"] == {"secret": {"name": "client", "key": "tls.crt"}}
    assert tls["keySecret"] == {"name": "client", "key": "tls.key"}
    (container,) = deployment(VARIANTS["mutual"])["containers"]
    assert "tcpSocket" in container["readinessProbe"]


def test_the_probe_tells_a_node_that_is_ready_from_one_that_is_not(tmp_path: Path) -> None:
    """The program that probes run, against a real service that asks for certificates."""
    authority = Authority(tmp_path)
    certificate, key = authority.certified("server")
    client, client_key = authority.certified("prober")
    (container,) = deployment(VARIANTS["certificates of clients"])["containers"]
    program = container["readinessProbe"]["exec"]["command"][2]
    files = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.file}
    with warm_service(tmp_path, **files) as service:
        port = service.url.rpartition(":")[2]
        for there, here in (
            ("/etc/headgate/tls/ca.crt", str(authority.file)),
            ("/etc/headgate/client/tls.crt", str(client)),
            ("/etc/headgate/client/tls.key", str(client_key)),
            ("8080", port),
        ):
            assert there in program
            program = program.replace(there, here)
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
        missing = program.replace("/readyz", "/nowhere")
        assert subprocess.run([sys.executable, "-c", missing], check=False).returncode == 1
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 1


def test_pods_by_their_load_spread_and_guarded() -> None:
    documents = {one["kind"]: one.get("spec", {}) for one in rendered(VARIANTS["a large cluster"])}
    assert "replicas" not in documents["Deployment"]
    assert documents["HorizontalPodAutoscaler"]["maxReplicas"] == 20
    pod = documents["Deployment"]["template"]["spec"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert {one["whenUnsatisfiable"] for one in pod["topologySpreadConstraints"]} == {"DoNotSchedule"}
    assert pod["containers"][0]["readinessProbe"]["failureThreshold"] == 3
    clients, monitoring = documents["NetworkPolicy"]["ingress"]
    assert clients["from"] == [{"podSelector": {"matchLabels": {"app": "gateway"}}}]
    assert clients["ports"] == [{"port": "http"}, {"port": "grpc"}]
    assert monitoring["ports"] == [{"port": "http"}]
    plain = {one["kind"] for one in rendered(PLAIN)}
    assert not plain & {"HorizontalPodAutoscaler", "NetworkPolicy"}


def test_an_admin_port_has_all_but_checks_and_health() -> None:
    def ports(values: dict[str, str]) -> dict[str, int]:
        service = next(one for one in rendered(values) if one["kind"] == "Service")
        return {port["targetPort"]: port["port"] for port in service["spec"]["ports"]}

    values = VARIANTS["an admin port"]
    assert ports(values) == {"http": 8080, "grpc": 8081, "admin": 9000}
    assert ports(PLAIN) == {"http": 8080, "grpc": 8081}
    assert "HEADGATE_ADMIN_ADDRESS" not in environment_of(PLAIN)
    (container,) = deployment(values)["containers"]
    address = environment_of(values)["HEADGATE_ADMIN_ADDRESS"]
    assert {port["name"]: port["containerPort"] for port in container["ports"]}["admin"] == int(
        address.partition(":")[2]
    )
    assert container["readinessProbe"]["httpGet"]["port"] == "http"
    documents = {one["kind"]: one.get("spec", {}) for one in rendered(values)}
    assert documents["ServiceMonitor"]["endpoints"][0]["port"] == "admin"
    clients, admins = documents["NetworkPolicy"]["ingress"]
    assert clients == {"ports": [{"port": "http"}, {"port": "grpc"}]}
    assert admins["ports"] == [{"port": "admin"}]
    assert len(admins["from"]) == 2


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
        ({**PLAIN, "service.adminPort": "8080"}, "service.adminPort: must differ"),
        ({**PLAIN, "networkPolicy.admins[0].podSelector.matchLabels.app": "x"}, "networkPolicy.admins: is of no use"),
        ({**PLAIN, "database": "false"}, "rules: must be set without a database"),
        ({**PLAIN, "tls.clientSecret": "client"}, "tls.clientSecret: is of no use"),
        ({**VARIANTS["mutual"], "serviceMonitor.enabled": "true"}, "serviceMonitor: Prometheus needs a certificate"),
    ],
)
def test_what_would_not_start_is_refused(values: dict[str, str], message: str) -> None:
    result = helm("template", "try", values=values)
    assert result.returncode != 0
    assert message in result.stderr
