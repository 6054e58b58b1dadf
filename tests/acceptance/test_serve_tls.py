"""TLS of both ports: certificates of clients, and certificates that are replaced while it serves."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import grpc
import httpx
import pytest

from headgate.service.protos import rate_limiter_pb2 as messages
from tests.acceptance.test_serve import ALICE, LATEST, check_method, refused
from tests.certificates import Authority
from tests.service import Service, warm_service
from tests.waiting import until


def by_http(service: Service, context: ssl.SSLContext) -> int:
    return httpx.post(f"{service.url}/v1/check", json=ALICE, verify=context).status_code


def by_grpc(service: Service, authority: Authority, certificate: tuple[Path, Path] | None = None) -> bool:
    """Whether a check was decided."""
    shown = () if certificate is None else (certificate[1].read_bytes(), certificate[0].read_bytes())
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes(), *shown)
    with grpc.secure_channel(service.grpc_address, credentials) as channel:
        request = messages.CheckRequest(identifier="alice", dimension=messages.USER)
        try:
            return bool(check_method(channel)(request, timeout=LATEST).rule)
        except grpc.RpcError as error:
            if error.code() != grpc.StatusCode.UNAVAILABLE:
                raise
            return False


def fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except httpx.TransportError:
        return True
    return False


def test_both_ports_and_new_certificates(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    certificate, key = first.certified("server")
    with warm_service(tmp_path, tls_certificate=certificate, tls_key=key) as service:
        assert service.url.startswith("https://")
        assert by_http(service, first.client_context()) == 200
        assert by_grpc(service, first)
        assert fails(lambda: by_http(service, second.client_context()))
        assert not by_grpc(service, second)
        with httpx.Client(verify=first.client_context()) as connected:
            assert connected.get(f"{service.url}/healthz").status_code == 200
            good = certificate.read_bytes()
            certificate.write_text("nonsense")
            until(lambda: "keeping the current certificate" in service.log)
            assert by_http(service, first.client_context()) == 200
            certificate.write_bytes(good)
            second.certified("server")
            until(lambda: not fails(lambda: by_http(service, second.client_context())))
            until(lambda: by_grpc(service, second))
            assert fails(lambda: by_http(service, first.client_context()))
            assert not by_grpc(service, first)
            assert connected.get(f"{service.url}/healthz").status_code == 200, "who was connected still is"
        assert service.stop() == 0


def test_clients_need_certificates_of_their_authority(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    certificate, key = ours.certified("server")
    good, bad = ours.certified("client"), theirs.certified("stranger")
    settings = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": ours.file}
    # Others than this machine may be served: certificates tell who they are.
    with warm_service(tmp_path, http_address="0.0.0.0:0", **settings) as service:
        service.url = service.url.replace("0.0.0.0", "127.0.0.1")
        assert by_http(service, ours.client_context(good)) == 200
        assert by_grpc(service, ours, good)
        assert fails(lambda: by_http(service, ours.client_context()))
        assert fails(lambda: by_http(service, ours.client_context(bad)))
        assert not by_grpc(service, ours)
        assert not by_grpc(service, ours, bad)


@pytest.mark.parametrize("broken", ["tls_certificate", "tls_key"])
def test_certificates_that_are_no_good_are_named(tmp_path: Path, broken: str) -> None:
    certificate, key = Authority(tmp_path).certified("server")
    files = {"tls_certificate": certificate, "tls_key": key}
    files[broken].write_text("nonsense")
    code, said = refused(cwd=tmp_path, http_address="127.0.0.1:0", grpc_address="127.0.0.1:0", **files)
    assert code == 2
    assert str(certificate) in said
    assert len(said.splitlines()) == 1
