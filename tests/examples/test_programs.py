"""The larger programs in examples/, started as their first lines say."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import compose_spec
import httpx
import pytest
import yaml

from examples.saas.token import token_for
from tests.envoy import envoy
from tests.service import warm_service
from tests.waiting import until
from tests.webserver import ROOT, serving

SAAS = ROOT / "examples/saas"


@pytest.fixture
def api(redis_url: str) -> Iterator[httpx.Client]:
    with (
        serving("uvicorn", "examples.saas.app:app", env={"SAAS_STORE": redis_url}) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        yield http


def customer(user: str, plan: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token_for(user, plan)}"}


def test_plans_decide_how_much_a_customer_may_ask(api: httpx.Client) -> None:
    free = [api.get("/search?q=canal", headers=customer("alice", "free")) for _ in range(12)]
    assert free[0].json()["results"] == ["canal of Panama", "canal du Midi"]
    refused = next(answer for answer in free if answer.status_code == 429)
    assert refused.json()["detail"].startswith("The free plan has 5 searches a minute.")
    assert refused.json()["violated-policies"] == ["free"]
    pro = [api.get("/search?q=canal", headers=customer("bob", "pro")).status_code for _ in range(40)]
    assert set(pro) == {200}


def test_exports_are_dear_whatever_the_plan(api: httpx.Client) -> None:
    statuses = [api.post("/exports", headers=customer("carol", "pro")).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429]


def test_visitors_are_counted_by_address(api: httpx.Client) -> None:
    statuses = [api.get("/search?q=canal", headers={"Authorization": "Bearer forged"}).status_code for _ in range(45)]
    assert statuses[0] == 401
    assert 429 in statuses


def test_compose_file_of_the_api_is_good() -> None:
    compose = yaml.safe_load((SAAS / "compose.yaml").read_text())
    compose_spec.PyCompose.from_yaml((SAAS / "compose.yaml").read_text()).validate()
    assert compose["services"]["api"]["environment"].keys() == {"SAAS_STORE", "SAAS_SECRET"}


def test_envoy_asks_the_service_before_the_application_is_reached(tmp_path: Path) -> None:
    rules = ROOT / "examples/behind_envoy/rules.toml"
    with (
        warm_service(tmp_path, rules=str(rules)) as service,
        serving("uvicorn", "examples.behind_envoy.upstream:app") as app,
        envoy(
            tmp_path, grpc_port=int(service.grpc_address.rpartition(":")[2]), app_port=int(app.rpartition(":")[2])
        ) as url,
        httpx.Client(base_url=url, timeout=60) as http,
    ):
        until(lambda: "x-ratelimit-limit" in http.get("/").headers, "Envoy to find the service")
        answers = [http.post("/login") for _ in range(4)]
        assert answers[0].text == "POST /login\n"
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert http.get("/").status_code == 200
