"""The admin API, the console and metrics on an address of their own: nothing of them is where the data plane is."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.acceptance.test_cli import Cli
from tests.certificates import Authority
from tests.service import warm_service

OF_ADMINS = ("/api/v1/rules", "/metrics", "/docs", "/openapi.json", "/console", "/")


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.extended)])
def test_each_address_serves_its_own_part(tmp_path: Path, workers: int) -> None:
    with warm_service(tmp_path, admin_address="127.0.0.1:0", workers=workers) as service:
        assert service.admin_url != service.url
        for path in OF_ADMINS:
            there = httpx.get(f"{service.admin_url}{path}", headers=service.headers)
            assert there.status_code < 400, path
            assert httpx.get(f"{service.url}{path}", headers=service.headers).status_code == 404, path
        check = {"user": "alice", "endpoint": "/search"}
        assert httpx.post(f"{service.url}/v1/check", json=check).status_code == 200
        assert httpx.post(f"{service.admin_url}/v1/check", json=check).status_code == 404
        for url in (service.url, service.admin_url):
            assert httpx.get(f"{url}/healthz").status_code == 200
            assert httpx.get(f"{url}/readyz").status_code == 200
        cli = Cli(server=service.admin_url, data_dir=service.data_dir)
        assert cli.json("rules", "list")
        assert 'protocol="admin"' in httpx.get(f"{service.admin_url}/metrics").text
    assert service.process.poll() == 0


def test_it_has_tls_too_and_needs_tokens_in_the_open(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certified("server")
    with (
        warm_service(tmp_path, admin_address="127.0.0.1:0", tls_certificate=certificate, tls_key=key) as service,
        httpx.Client(verify=authority.client_context(), headers=service.headers) as client,
    ):
        assert service.admin_url.startswith("https://")
        assert client.get(f"{service.admin_url}/api/v1/rules").status_code == 200
    complaint = Cli(admin_address="0.0.0.0:0").run("serve").stderr
    assert "HEADGATE_ADMIN_ADDRESS" in complaint
    assert "which other machines can reach" in complaint


def test_without_one_everything_is_together(tmp_path: Path) -> None:
    with warm_service(tmp_path) as service:
        assert service.admin_url == service.url
        assert httpx.get(f"{service.url}/metrics").status_code == 200
