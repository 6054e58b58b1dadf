"""A real Envoy asks the service about every request."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.envoy import envoy
from tests.service import Service, warm_service
from tests.webserver import serving, stay_clear_of_the_hour

RULES = """
[[rules]]
id = "per-ip"
dimension = "ip"
limit = 1000
window = "1h"

[[rules]]
id = "login"
dimension = "ip"
endpoints = ["/login"]
methods = ["POST"]
limit = 3
window = "1h"
message = "Too many logins."

[[rules]]
id = "per-user"
dimension = "user"
limit = 2
window = "1h"

[[rules]]
id = "maintenance"
dimension = "global"
endpoints = ["/maintenance"]
limit = 1
window = "1h"
status = 503
message = "We are back soon."

[[rules]]
id = "guarded"
dimension = "global"
endpoints = ["/guarded"]
limit = 1
window = "1h"
failure_mode = "closed"
"""


@pytest.fixture(scope="module")
def application() -> Iterator[int]:
    with serving("uvicorn", "tests.acceptance.apps.bare:app") as url:
        yield int(url.rpartition(":")[2])


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    stay_clear_of_the_hour()
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)
    with warm_service(tmp_path, rules=str(rules)) as service:
        yield service


@pytest.fixture
def url(service: Service, application: int, tmp_path: Path) -> Iterator[str]:
    with envoy(tmp_path, grpc_port=_port(service), app_port=application) as found:
        _until_asked(found)
        yield found


def _port(service: Service) -> int:
    return int(service.grpc_address.rpartition(":")[2])


def _until_asked(url: str) -> None:
    """Envoy lets requests pass until it has found the service."""
    deadline = time.monotonic() + 20
    while "x-ratelimit-limit" not in httpx.get(f"{url}/other").headers:
        assert time.monotonic() < deadline, "Envoy never asked the service"
        time.sleep(0.1)


def test_limits_are_enforced_and_told(url: str) -> None:
    answers = [httpx.post(f"{url}/login") for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[0].headers["x-ratelimit-limit"] == "3"
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0", "0"]
    assert '"login";q=3;w=3600' in answers[0].headers["ratelimit-policy"]
    assert int(answers[3].headers["retry-after"]) > 0
    assert "retry-after" not in answers[0].headers


def test_a_path_cannot_dodge_its_rule(url: str) -> None:
    paths = ("/login?a=1", "/login?b=/other", "/%6cogin", "/./login", "//login")
    codes = [httpx.post(f"{url}{path}").status_code for path in paths]
    assert codes == [200, 200, 200, 429, 429]


def test_other_methods_are_not_concerned(url: str) -> None:
    assert [httpx.get(f"{url}/login").status_code for _ in range(5)] == [200] * 5


def test_users_are_counted_each_by_themselves(url: str) -> None:
    def ask(user: str) -> int:
        return httpx.get(f"{url}/", headers={"x-user": user}).status_code

    assert [ask("alice") for _ in range(3)] == [200, 200, 429]
    assert [ask("bob") for _ in range(3)] == [200, 200, 429]


def test_the_status_of_a_rule_arrives(url: str) -> None:
    first, second = (httpx.get(f"{url}/maintenance") for _ in range(2))
    assert (first.status_code, second.status_code) == (200, 503)
    assert second.headers["content-type"] == "application/problem+json"
    assert (second.json()["status"], second.json()["detail"]) == (503, "We are back soon.")
    assert int(second.headers["retry-after"]) > 0
    assert second.headers["x-ratelimit-remaining"] == "0"


def test_service_down_follows_envoys_failure_mode(service: Service, application: int, tmp_path: Path) -> None:
    def deny(config: dict[str, Any]) -> None:
        config["failure_mode_deny"] = True

    (tmp_path / "open").mkdir()
    (tmp_path / "closed").mkdir()
    port = _port(service)
    with (
        envoy(tmp_path / "open", grpc_port=port, app_port=application) as lenient,
        envoy(tmp_path / "closed", grpc_port=port, app_port=application, change=deny) as strict,
    ):
        _until_asked(lenient)
        _until_asked(strict)
        service.stop()
        assert httpx.get(f"{lenient}/other").status_code == 200
        assert httpx.get(f"{strict}/other").status_code == 500
