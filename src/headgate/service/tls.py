"""TLS certificates of a port, from files that are reloaded when they change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Literal

from headgate.core.file_fingerprint import FileFingerprint, fingerprint_of
from headgate.errors import InvalidSettings
from headgate.settings import names_of

log = logging.getLogger("headgate")


class Certificates:
    """A certificate with its key, and optionally the CA of client certificates, which clients then need.

    `protocol` is the port's protocol, by its ALPN name.

    Raises `InvalidSettings` if the files are invalid at first; later, the last valid ones stay in use.
    """

    def __init__(
        self, certificate: Path, key: Path, client_ca: Path | None = None, *, protocol: Literal["http/1.1", "h2"]
    ) -> None:
        self._paths = (certificate, key, client_ca)
        self._protocol = protocol
        self._fingerprint = self._look()
        try:
            self.context = self._context()
        except (OSError, ValueError) as error:
            raise InvalidSettings(f"{names_of('tls_certificate')}: {self._what(error)}") from error

    def refresh(self) -> bool:
        """Reload `context` if the files have changed, and return whether it did. Logs invalid files once."""
        fingerprint = self._look()
        if fingerprint == self._fingerprint:
            return False
        self._fingerprint = fingerprint
        try:
            self.context = self._context()
        except (OSError, ValueError) as error:  # perhaps only half are replaced so far: the next change is tried again
            log.warning("TLS: keeping the current certificate: %s", self._what(error))
            return False
        log.info("TLS: loaded a new certificate from %s", self._paths[0])
        return True

    def _context(self) -> ssl.SSLContext:
        certificate, key, client_ca = self._paths
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([self._protocol])
        context.load_cert_chain(certificate, key, password="")  # one that needs a password is an error, not a prompt
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _look(self) -> list[FileFingerprint | None]:
        return [None if path is None else fingerprint_of(path) for path in self._paths]

    def _what(self, error: Exception) -> str:
        paths = ", ".join(str(path) for path in self._paths if path is not None)
        what = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        return f"{paths}: not a valid certificate and key: {what}"
