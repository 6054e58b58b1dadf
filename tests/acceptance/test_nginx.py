"""A real nginx that asks the service before it lets requests through, by the configuration that the docs give."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from tests.nginx import CONFIGURATION, nginx, replaced
from tests.servers import free_port
from tests.webserver import ROOT, serving

pytestmark = pytest.mark.extended  # needs Debian's nginx
SERVICE = ("tests.acceptance.apps.service_app:made", "--factory", "--no-proxy-headers", "--http", "httptools")
FAIL_OPEN = re.compile(r"^.*# fail open$\n", re.MULTILINE)


@pytest.fixture(scope="module")
def backend() -> Iterator[str]:
    with serving("uvicorn", "tests.acceptance.apps.backend_app:app") as url:
        yield url


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    with serving("uvicorn", *SERVICE) as url:
        yield url


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, service: str, backend: str) -> Iterator[str]:
    with nginx(tmp_path_factory.mktemp("nginx"), service=service, backend=backend) as url:
        yield url


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """An address of loopback that no other test has."""
    names = [item.name for item in request.session.items if item.path == request.node.path]
    return f"127.0.1.{names.index(request.node.name) + 1}"


@pytest.fixture
def client(url: str, address: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url, transport=httpx.HTTPTransport(local_address=address), timeout=30) as client:
        yield client


def test_requests_pass_until_the_limit_and_are_a_429_after_it(client: httpx.Client) -> None:
    for left in ("2", "1", "0"):
        passed = client.get("/ip")
        assert (passed.status_code, passed.text) == (200, "reached /ip")
        assert passed.headers["X-RateLimit-Limit"] == "3"
        assert passed.headers["X-RateLimit-Remaining"] == left
        assert passed.headers["RateLimit-Policy"].startswith('"by-ip";q=3;w=')
        assert passed.headers["RateLimit"].startswith(f'"by-ip";r={left};t=')
        assert "Retry-After" not in passed.headers
    refused = client.get("/ip")
    assert refused.status_code == 429
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["status"] == 429
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.headers["X-RateLimit-Remaining"] == "0"
    assert int(refused.headers["X-RateLimit-Reset"]) > 0
    assert "reached" not in refused.text


def test_a_warning_is_passed_on(client: httpx.Client) -> None:
    warnings = [client.get("/ip").headers.get("X-RateLimit-Warning") for _ in range(3)]
    assert warnings == [None, None, '"by-ip";r=0;q=3']


def test_paths_without_a_rule_pass_without_fields(client: httpx.Client) -> None:
    for _ in range(5):
        passed = client.get("/free")
        assert passed.status_code == 200
        assert not [name for name in passed.headers if "ratelimit" in name]


def test_the_method_is_that_of_the_client(client: httpx.Client) -> None:
    assert [client.post("/posts", content=b"x" * 100_000).status_code for _ in range(2)] == [200, 429]
    assert client.get("/posts").status_code == 200


def test_the_backends_own_403_is_its_own(client: httpx.Client) -> None:
    got = client.get("/own-403")
    assert (got.status_code, got.text) == (403, "reached /own-403")


@pytest.mark.parametrize(
    "header",
    [
        {"X-Forwarded-For": "198.51.100.{n}"},
        {"X-Real-IP": "198.51.100.{n}"},
        {"X-Original-URI": "/free/{n}"},
        {"X-Forwarded-Uri": "/free/{n}"},
        {"X-Forwarded-Method": "PUT"},
        {"Forwarded": "for=198.51.100.{n}"},
    ],
    ids=lambda header: next(iter(header)),
)
def test_nothing_that_a_client_says_gets_it_more(client: httpx.Client, header: dict[str, str]) -> None:
    def said(number: int) -> dict[str, str]:
        return {name: value.format(n=number) for name, value in header.items()}

    assert [client.get("/ip", headers=said(n)).status_code for n in range(5)] == [200, 200, 200, 429, 429]


def test_the_clients_query_says_nothing_to_the_service(client: httpx.Client) -> None:
    statuses = [client.get(f"/ip?cost=0&tier=x&deny_status=599&endpoint=/free&n={n}").status_code for n in range(4)]
    assert statuses == [200, 200, 200, 429]


@pytest.mark.parametrize("path", ["//ip", "/x/../ip", "/%69p", "/ip/", "/ip%2Fx", "/./ip", "/ip?/free"])
def test_no_spelling_of_a_path_gets_a_client_more(client: httpx.Client, address: str, url: str, path: str) -> None:
    for _ in range(3):
        assert client.get("/ip").status_code == 200
    connection = HTTPConnection(url.removeprefix("http://"), source_address=(address, 0))
    with closing(connection):
        connection.request("GET", path)  # as it is: httpx would tidy it up
        assert connection.getresponse().status == 429


def test_the_question_itself_cannot_be_asked_from_outside(client: httpx.Client) -> None:
    assert client.get("/_headgate").status_code == 404


def test_facts_that_the_operator_states_choose_a_rule(tmp_path: Path, service: str, backend: str) -> None:
    text = replaced(CONFIGURATION.read_text(), "deny_status=403", "deny_status=403&generic_key=login&cost=2")
    with nginx(tmp_path, service=service, backend=backend, configuration=text) as url:
        transport = httpx.HTTPTransport(local_address="127.0.2.1")
        with httpx.Client(base_url=url, transport=transport) as client:
            first, second = client.get("/free"), client.get("/free")
    assert (first.status_code, second.status_code) == (200, 429)
    assert first.headers["RateLimit-Policy"].startswith('"login";q=2;')


def test_a_token_in_the_configuration(tmp_path: Path, backend: str) -> None:
    text = replaced(
        CONFIGURATION.read_text(), '# proxy_set_header X-Headgate-Token "…"', 'proxy_set_header X-Headgate-Token "s3"'
    )
    with serving("uvicorn", *SERVICE, env={"TEST_DATA_TOKEN": "s3"}) as service:
        (tmp_path / "with").mkdir()
        with nginx(tmp_path / "with", service=service, backend=backend, configuration=text) as url:
            assert httpx.get(f"{url}/ip").status_code == 200
            theirs = {"X-Headgate-Token": "wrong", "Authorization": "Bearer theirs"}
            assert httpx.get(f"{url}/ip", headers=theirs).status_code == 200


@pytest.mark.parametrize("token", [None, "wrong"])
@pytest.mark.parametrize("fail_open", [True, False])
def test_clients_never_see_that_nginx_has_a_bad_token(
    tmp_path: Path, backend: str, token: str | None, fail_open: bool
) -> None:
    text = CONFIGURATION.read_text()
    if token is not None:
        text = replaced(text, '# proxy_set_header X-Headgate-Token "…"', f'proxy_set_header X-Headgate-Token "{token}"')
    if not fail_open:
        text = FAIL_OPEN.sub("", text)
    with (
        serving("uvicorn", *SERVICE, env={"TEST_DATA_TOKEN": "s3"}) as service,
        nginx(tmp_path, service=service, backend=backend, configuration=text) as url,
    ):
        for _ in range(40):  # beyond which the service does not even look at tokens
            got = httpx.get(f"{url}/ip")
            assert got.status_code == (200 if fail_open else 500)
            assert "www-authenticate" not in got.headers
            assert "oken" not in got.text.replace("X-Headgate-Token", "")


def test_a_rule_that_is_closed_is_a_503_when_the_store_is_away(tmp_path: Path, backend: str) -> None:
    env = {"TEST_STORE": f"redis://127.0.0.1:{free_port()}/0"}
    with serving("uvicorn", *SERVICE, env=env) as service, nginx(tmp_path, service=service, backend=backend) as url:
        assert httpx.get(f"{url}/ip").status_code == 200
        closed = httpx.get(f"{url}/closed")
        assert (closed.status_code, closed.json()["status"], closed.headers["Retry-After"]) == (503, 503, "1")


def test_requests_pass_when_the_service_is_away_if_the_configuration_says_so(tmp_path: Path, backend: str) -> None:
    with nginx(tmp_path, service=f"http://127.0.0.1:{free_port()}", backend=backend) as url:
        passed = httpx.get(f"{url}/ip")
        assert (passed.status_code, passed.text) == (200, "reached /ip")


def test_requests_fail_when_the_service_is_away_by_default(tmp_path: Path, backend: str) -> None:
    text, lines = FAIL_OPEN.subn("", CONFIGURATION.read_text())
    assert lines == 1
    with nginx(tmp_path, service=f"http://127.0.0.1:{free_port()}", backend=backend, configuration=text) as url:
        failed = httpx.get(f"{url}/ip")
        assert failed.status_code == 500
        assert "reached" not in failed.text


def test_the_docs_show_this_configuration() -> None:
    page = (ROOT / "docs" / "how-to" / "run-behind-nginx.md").read_text()
    shown = re.findall(r"^```nginx\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert CONFIGURATION.read_text() in shown
