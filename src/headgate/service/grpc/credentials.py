"""TLS of the gRPC port: certificates that are read again when their files change."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from threading import Lock

import grpc

log = logging.getLogger("headgate")


class Certificates:
    """The certificate that the server shows, and the authority that clients' certificates must be of, if any.

    Files are looked at whenever a client connects. What is wrong with them is logged, and the last good ones stay.
    Raises `ValueError` if there were never good ones.
    """

    def __init__(self, certificate: str | Path, key: str | Path, client_ca: str | Path | None = None) -> None:
        self._certificate, self._key = Path(certificate), Path(key)
        self._client_ca = None if client_ca is None else Path(client_ca)
        self._lock = Lock()  # grpcio asks from threads of its own
        self._seen = self._stamps()
        try:
            self._first = self._read()
        except OSError as error:  # ssl.SSLError is one
            raise ValueError(f"TLS: {self._named()}: cannot be used: {error}") from error

    def credentials(self) -> grpc.ServerCredentials:
        """For `GrpcServer.start`. With a `client_ca`, clients must show a certificate."""
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._changed,  # type: ignore[arg-type]  # the stub does not know that it may return None
            require_client_authentication=self._client_ca is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What to use from now on; None: what was used before."""
        with self._lock:
            stamps = self._stamps()
            if stamps == self._seen:
                return None
            self._seen = stamps
            try:
                changed = self._read()
            except OSError as error:
                log.error("TLS: %s: cannot be used, so the last ones stay: %s", self._named(), error)  # noqa: TRY400
                return None
            log.info("TLS: %s: in use as they are now", self._named())
            return changed

    def _read(self) -> grpc.ServerCertificateConfiguration:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._certificate, self._key)  # raises if unfit
        root = None
        if self._client_ca is not None:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(self._client_ca)
            root = self._client_ca.read_bytes()
        pair = (self._key.read_bytes(), self._certificate.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root)

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        """What changes when a file does, of each: Kubernetes swaps links, others write in place."""
        return [_stamp(path) for path in (self._certificate, self._key, self._client_ca) if path is not None]

    def _named(self) -> str:
        return ", ".join(str(path) for path in (self._certificate, self._key, self._client_ca) if path is not None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
