"""TLS to a server: a context that is created once, and again when its files have changed.

redis-py creates one for each connection and reads all certificates that the system trusts, which takes as long as a
check may.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from time import monotonic
from typing import Any, Final

from redis.asyncio.connection import RedisSSLContext
from redis.connection import SSLConnection
from redis.exceptions import RedisError

from headgate.core.file_fingerprint import FileFingerprint, fingerprint_of
from headgate.errors import InvalidStore

FILES: Final = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
SHORTEST: Final = 0.001  # seconds for a handshake

log = logging.getLogger("headgate")


class Tls:
    """The TLS settings from the options of redis-py's connections.

    Raises `InvalidStore` if they are invalid at first. If they become invalid later, the last valid ones stay in use.
    """

    def __init__(self, arguments: dict[str, Any]) -> None:
        options = {name.removeprefix("ssl_"): value for name, value in arguments.items() if name.startswith("ssl_")}
        # The defaults of redis-py's connections:
        self._options: dict[str, Any] = {"cert_reqs": "required", "check_hostname": True} | options
        self._paths = [Path(arguments[name]) for name in FILES if arguments.get(name)]
        self._fingerprint = self._look()
        try:
            self._context = self._make()
        except (OSError, ValueError, TypeError, RedisError) as error:
            raise InvalidStore(f"store URL: TLS: {self._what(error)}") from error

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection."""
        fingerprint = self._look()
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            try:
                self._context = self._make()
            except (OSError, ValueError) as error:  # perhaps files are still being replaced
                log.warning("TLS to Redis: keeping the current certificates: %s", self._what(error))
        return self._context

    def _make(self) -> ssl.SSLContext:
        return RedisSSLContext(**self._options).get()

    def _look(self) -> list[FileFingerprint | None]:
        return [fingerprint_of(path) for path in self._paths]

    def _what(self, error: Exception) -> str:
        missing = [str(path) for path in self._paths if not path.exists()]
        if missing:
            return f"there is no {' and no '.join(missing)}"
        return f"{error} ({', '.join(map(str, self._paths))})" if self._paths else str(error)


class TlsConnection(SSLConnection):
    """A connection for threads whose handshake also has a deadline."""

    def __init__(self, tls: Tls, deadline: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._tls = tls
        self._deadline = deadline

    def _wrap_socket_with_ssl(self, sock: Any) -> ssl.SSLSocket:
        context = self._tls.context()
        sock.settimeout(max(SHORTEST, self._deadline - monotonic()))  # for the handshake as a whole
        return context.wrap_socket(sock, server_hostname=self.host)
