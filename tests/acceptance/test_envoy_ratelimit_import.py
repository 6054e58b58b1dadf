"""Rules that were imported from envoyproxy/ratelimit decide descriptors, over gRPC, as its documentation says."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from headgate.cli.envoy_ratelimit import import_envoy
from headgate.service.protos import rls_pb2 as rls
from tests.acceptance.test_cli import Cli
from tests.service import Service, warm_service

METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
OK, OVER_LIMIT = rls.RateLimitResponse.OK, rls.RateLimitResponse.OVER_LIMIT
Entry = tuple[str, str]

CONFIG = """
domain: shop
descriptors:
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit: {unit: day, requests_per_unit: 2}
  - key: to_number
    rate_limit: {unit: week, requests_per_unit: 4}
  - key: remote_address
    rate_limit: {unit: month, requests_per_unit: 3}
  - key: remote_address
    value: 50.0.0.5
    rate_limit: {unit: second, requests_per_unit: 0}
  - key: remote_address
    value: 50.0.0.6
    rate_limit: {unlimited: true}
  - key: remote_address
    value: 50.0.0.7
  - key: a
    value: "1"
    descriptors:
      - key: b
        value: "1"
        rate_limit: {unit: year, requests_per_unit: 1}
  - key: a
    descriptors:
      - key: b
        rate_limit: {unit: year, requests_per_unit: 2}
      - key: b
        value: "2"
        rate_limit: {unit: year, requests_per_unit: 3}
      - key: b
        value: "3"
        rate_limit: {unit: year, requests_per_unit: 1}
        shadow_mode: true
  - key: generic_key
    value: login
    rate_limit: {unit: day, requests_per_unit: 2}
    descriptors:
      - key: generic_key
        rate_limit: {unit: day, requests_per_unit: 1}
  - key: path
    value: /login
    descriptors:
      - key: method
        value: POST
        rate_limit: {unit: day, requests_per_unit: 1}
  - key: path
    rate_limit: {unit: day, requests_per_unit: 3}
  - key: api_key
    value: secret
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: user_id
    rate_limit: {unit: day, requests_per_unit: 2}
---
domain: other
descriptors:
  - key: to_number
    rate_limit: {unit: day, requests_per_unit: 1}
"""


class Documented:
    """envoyproxy/ratelimit by its README: the most specific match at each level, of the same depth; fixed windows."""

    def __init__(self, config: str) -> None:
        self._domains = {one["domain"]: one["descriptors"] for one in yaml.load_all(config, yaml.BaseLoader)}
        self._counts: Counter[tuple[str, tuple[Entry, ...]]] = Counter()

    def limit(self, domain: str, entries: tuple[Entry, ...]) -> tuple[dict[str, Any] | None, bool]:
        """The limit that a descriptor finds, and whether it is in shadow mode."""
        level, node = self._domains.get(domain, []), None
        for key, value in entries:
            by_value = [one for one in level if one["key"] == key and one.get("value") == value]
            by_key = [one for one in level if one["key"] == key and "value" not in one]
            node = next(iter(by_value + by_key), None)
            if node is None:
                return None, False
            level = node.get("descriptors", [])
        assert node is not None
        return node.get("rate_limit"), node.get("shadow_mode") == "true"

    def decide(self, domain: str, entries: tuple[Entry, ...]) -> int:
        limit, shadow = self.limit(domain, entries)
        if limit is None or "unlimited" in limit:
            return OK
        self._counts[domain, entries] += 1
        over = self._counts[domain, entries] > int(limit["requests_per_unit"])
        return OVER_LIMIT if over and not shadow else OK


class Envoy:
    """A client of a service."""

    def __init__(self, service: Service) -> None:
        self.channel = grpc.insecure_channel(service.grpc_address)
        self._call = self.channel.unary_unary(
            METHOD,
            request_serializer=rls.RateLimitRequest.SerializeToString,
            response_deserializer=rls.RateLimitResponse.FromString,
        )

    def ask(self, domain: str, *descriptors: tuple[Entry, ...]) -> rls.RateLimitResponse:
        made = [
            rls.RateLimitDescriptor(entries=[rls.RateLimitDescriptor.Entry(key=key, value=value) for key, value in one])
            for one in descriptors
        ]
        response: rls.RateLimitResponse = self._call(rls.RateLimitRequest(domain=domain, descriptors=made), timeout=30)
        return response


def descriptors(seed: int, count: int) -> list[tuple[str, tuple[Entry, ...]]]:
    """Descriptors of all forms of the configuration, and of forms that it does not have."""
    chosen = random.Random(seed)
    values = {
        "message_type": ["marketing", "service"],
        "to_number": ["1", "2"],
        "remote_address": ["50.0.0.4", "50.0.0.5", "50.0.0.6", "50.0.0.7"],
        "a": ["1", "2"],
        "b": ["1", "2", "3", "4"],
        "generic_key": ["login", "logout"],
        "path": ["/login", "/cart"],
        "method": ["POST", "PUT"],
        "api_key": ["secret", "other"],
        "user_id": ["u1", "u2"],
    }
    forms = [
        *(("message_type", "to_number"), ("to_number",), ("remote_address",), ("a", "b"), ("a",), ("b",), ("b", "a")),
        *(("generic_key",), ("generic_key", "generic_key"), ("path", "method"), ("path",), ("api_key",), ("user_id",)),
        *(("message_type",), ("to_number", "message_type"), ("remote_address", "to_number"), ("user_id", "path")),
    ]
    made = []
    for _ in range(count):
        entries = tuple((key, chosen.choice(values[key])) for key in chosen.choice(forms))
        made.append((chosen.choice(["shop", "shop", "shop", "other", "unknown"]), entries))
    return made


def test_imported_rules_decide_as_documented(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG)
    file = tmp_path / "rules.toml"
    Cli()("rules", "import", "--from", "envoy-ratelimit", str(tmp_path / "config.yaml"), "-o", str(file))
    documented = Documented(CONFIG)
    decided: Counter[int] = Counter()
    with warm_service(tmp_path, rules=file) as service:
        envoy = Envoy(service)
        with envoy.channel:
            for domain, entries in descriptors(seed=7, count=600):
                response = envoy.ask(domain, entries)
                expected = documented.decide(domain, entries)
                assert response.overall_code == expected, (domain, entries)
                (status,) = response.statuses
                limit, shadow = documented.limit(domain, entries)
                limited = limit is not None and "unlimited" not in limit and not shadow
                assert status.HasField("current_limit") == limited, (domain, entries)
                if limited and limit is not None and limit["requests_per_unit"] != "0":
                    assert status.current_limit.requests_per_unit == int(limit["requests_per_unit"])
                    unit = rls.RateLimitResponse.RateLimit.Unit.Name(status.current_limit.unit)
                    assert unit.lower() == limit["unit"]
                decided[expected] += 1
    assert min(decided[OK], decided[OVER_LIMIT]) > 50, decided


def test_several_descriptors_are_one_request(tmp_path: Path) -> None:
    """The README's example 2: a logical OR of the individual decisions."""
    (tmp_path / "rules.toml").write_text(import_envoy({"config.yaml": CONFIG.encode()})[0])
    marketing, number = (("message_type", "marketing"), ("to_number", "9")), (("to_number", "9"),)
    with warm_service(tmp_path, rules=tmp_path / "rules.toml") as service:
        envoy = Envoy(service)
        with envoy.channel:
            codes = [[one.code for one in envoy.ask("shop", marketing, number).statuses] for _ in range(3)]
            assert codes == [[OK, OK], [OK, OK], [OVER_LIMIT, OK]]
            # There, the refused request would have used up one of the four. Here, it is charged to none of its limits.
            assert [envoy.ask("shop", number).overall_code for _ in range(3)] == [OK, OK, OVER_LIMIT]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("domain: d\ndescriptors:\n- key: k\n  value: v*\n  rate_limit: {unlimited: true}", "value 'v*'"),
        (
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: x}]}",
            "replaces 'x': has no equivalent, so a request whose descriptors lead to both limits is checked by both",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  detailed_metric: true\n  rate_limit: {unlimited: true}",
            "detailed_metric",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  quota_mode: true\n  rate_limit: {unit: day, requests_per_unit: 1}",
            "quota_mode",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  value_to_metric: true\n  rate_limit: {unlimited: true}",
            "value_to_metric",
        ),
        (
            "domain: d\ndescriptors:\n- key: k\n  share_threshold: true\n  rate_limit: {unlimited: true}",
            "share_threshold: is not imported",
        ),
        ("domain: d\ndescriptors:\n- key: remote_address\n  value: '2001:db8::1'", "IPv6"),
    ],
)
def test_what_has_no_equivalent_is_reported(config: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    ended = Cli().run("rules", "import", "--from", "envoy-ratelimit", str(file))
    assert ended.returncode == 0
    (line,) = ended.stderr.splitlines()
    assert line.startswith("no equivalent: d.")
    assert told in line
    data = json.loads(Cli()("rules", "import", "--from", "envoy-ratelimit", str(file), "--json"))
    assert [told in one for one in data["report"]] == [True]


def test_a_soft_limit_annotates_what_is_over_it_and_lets_it_pass(tmp_path: Path) -> None:
    config = "domain: d\ndescriptors:\n- key: k\n  quota_mode: true\n  rate_limit: {unit: day, requests_per_unit: 1}"
    (tmp_path / "rules.toml").write_text(import_envoy({"config.yaml": config.encode()})[0])
    with warm_service(tmp_path, rules=tmp_path / "rules.toml") as service:
        envoy = Envoy(service)
        with envoy.channel:
            answers = [envoy.ask("d", (("k", "v"),)) for _ in range(2)]
    assert [answer.overall_code for answer in answers] == [OK, OK]
    assert [dict(answer.dynamic_metadata) for answer in answers] == [{}, {"annotated": "d.k"}]


def test_a_prefix_of_paths_is_a_pattern() -> None:
    config = "domain: d\ndescriptors:\n- key: path\n  value: /api/*\n  rate_limit: {unit: hour, requests_per_unit: 5}"
    text, report = import_envoy({"config.yaml": config.encode()})
    assert 'endpoints = [\n    "/api/*",\n]' in text
    assert report == []


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("- [", "is not YAML"),
        ("descriptors: []", "domain: is missing"),
        ("domain: d\ndescriptors:\n- value: v", "key: is missing"),
        (
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: fortnight, requests_per_unit: 1}",
            "must be one of second",
        ),
        ("domain: d\ndescriptors:\n- key: k\n- key: k", "this descriptor exists already"),
        (
            "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: -1}",
            "must be a whole number",
        ),
    ],
)
def test_a_configuration_that_is_none_is_refused(config: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    assert told in Cli().fault("rules", "import", "--from", "envoy-ratelimit", str(file), code=1)
    assert Cli().fault("rules", "import", "--from", "envoy-ratelimit", "/nope").startswith("/nope: cannot be read")


def test_each_descriptor_has_its_stats(tmp_path: Path) -> None:
    """`near_limit`, `over_limit`, `total_hits`, `shadow_mode` and `within_limit`, under the descriptor's name there."""
    config = """
domain: shop
descriptors:
  - key: to_number
    rate_limit: {unit: day, requests_per_unit: 10}
  - key: kind
    value: marketing
    rate_limit: {unit: day, requests_per_unit: 100}
  - key: tried
    rate_limit: {unit: day, requests_per_unit: 1}
    shadow_mode: true
"""
    (tmp_path / "rules.toml").write_text(import_envoy({"config.yaml": config.encode()})[0])
    with warm_service(tmp_path, rules=tmp_path / "rules.toml") as service:
        envoy = Envoy(service)
        with envoy.channel:
            for _ in range(12):
                envoy.ask("shop", (("to_number", "1"),), (("kind", "marketing"),))
            for _ in range(3):
                envoy.ask("shop", (("tried", "1"),))
        page = httpx.get(f"{service.url}/metrics", headers=service.headers).text

    def total(name: str, **labels: str) -> float:
        samples = [one for family in text_string_to_metric_families(page) for one in family.samples]
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())

    number, kind, tried = {"rule": "shop.to_number"}, {"rule": "shop.kind_marketing"}, {"rule": "shop.tried"}
    checks, near = "headgate_checks_total", "headgate_near_limit_total"
    assert total(checks, **number) == 12
    assert total(checks, **number, reason="within_limit") == 10
    assert total(checks, **number, reason="over_limit") == 2
    assert total(near, **number) == 3  # with the eighth, 80 % are used
    assert total(checks, **kind) == 12  # each descriptor of a request counts
    assert total(checks, **tried, decision="shadow") == 2
