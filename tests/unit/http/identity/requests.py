"""Requests as a server would hand them over, and tokens as an issuer would sign them."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

NOW = 1_700_000_000
SECRET = "0123456789abcdef0123456789abcdef"


class FakeRequest:
    """A request that never was."""

    def __init__(self, peer: str | None = "203.0.113.9", **headers: str) -> None:
        self.method = "GET"
        self.path = "/"
        self.peer = peer
        self._headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def header(self, name: str) -> str | None:
        return self._headers.get(name)


def bearer(token: str, **headers: str) -> FakeRequest:
    return FakeRequest(authorization=f"Bearer {token}", **headers)


@cache
def rsa_key(number: int = 0, bits: int = 2_048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65_537, key_size=bits)


@cache
def ec_key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def private_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def claims(**changes: Any) -> dict[str, Any]:
    """Those of a good token, with changes; one that is None is left out."""
    made = {"sub": "alice", "exp": NOW + 60, **changes}
    return {name: value for name, value in made.items() if value is not None}


def signed(key: Any = SECRET, algorithm: str = "HS256", headers: dict[str, Any] | None = None, **changes: Any) -> str:
    return jwt.encode(claims(**changes), key, algorithm, headers=headers)


def part(value: Any) -> str:
    """One part of a token, of anything."""
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def jwk(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, **fields: Any) -> dict[str, Any]:
    """A public key as an issuer publishes it."""
    algorithm = jwt.get_algorithm_by_name("RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256")
    made: dict[str, Any] = algorithm.to_jwk(key.public_key(), as_dict=True)
    made.pop("key_ops", None)
    return {**made, **fields}
