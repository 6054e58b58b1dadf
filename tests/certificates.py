"""Certificates for tests: an authority of our own, and what it signs."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates for loopback, and for clients. Keeps its own as `ca.pem` in `directory`.

    `key_usage=False` leaves out the extension that says what a key is for, as many home-made authorities do.
    """

    def __init__(self, directory: Path, name: str = "ca", *, key_usage: bool = True) -> None:
        self._directory = directory
        self._key_usage = key_usage
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Headgate's tests, {name}")])
        self._certificate = self._signed(self._name, self._key, ca=True)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def certified(self, name: str) -> tuple[Path, Path]:
        """The files of a new certificate and its key: `name.pem`, `name.key`. Each is replaced in one step."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key, ca=False)
        files = {
            f"{name}.pem": certificate.public_bytes(serialization.Encoding.PEM),
            f"{name}.key": key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        }
        for file, content in files.items():
            fresh = self._directory / f"{file}.new"
            fresh.write_bytes(content)
            fresh.replace(self._directory / file)
        return self._directory / f"{name}.pem", self._directory / f"{name}.key"

    def client_context(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """What trusts this authority, and shows a certificate."""
        context = ssl.create_default_context(cafile=str(self.file))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context

    def _signed(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, *, ca: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        usage = x509.KeyUsage(  # which Python 3.13 and later ask of an authority
            digital_signature=not ca,
            key_cert_sign=ca,
            crl_sign=ca,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(authority_key, critical=False)
        )
        if self._key_usage:
            builder = builder.add_extension(usage, critical=True)
        return builder.sign(self._key, hashes.SHA256())
