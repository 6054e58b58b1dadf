"""What of a gRPC call stands for which part of a request."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.http.grpc.call import GrpcRequest, address_of


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:5000", "127.0.0.1"),
        ("ipv6:%5B::1%5D:5000", "::1"),
        ("ipv6:[2001:db8::7]:5000", "2001:db8::7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:5000", "fe80::1%eth0"),
        ("unix:", None),
        ("unix:/run/app.sock", None),
        ("unix-abstract:%00app", None),
        ("ipv4:", None),
        ("unknown", None),
        ("", None),
    ],
)
def test_addresses_of_peers(peer: str, address: str | None) -> None:
    assert address_of(peer) == address


class Context:
    """What a request is made from."""

    def __init__(self, *metadata: tuple[str, str | bytes]) -> None:
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata or None


def test_metadata_are_headers() -> None:
    request = GrpcRequest("/s/m", Context(("a", "1"), ("b", "é"), ("a", "2"), ("c-bin", b"\xff")))
    assert request.header("a") == "1, 2"
    assert request.header("b") == "Ã©"  # its bytes as Latin-1, as headers are of other servers
    assert request.header("c-bin") == "ÿ"
    assert request.header("d") is None
    assert GrpcRequest("/s/m", Context()).header("a") is None
