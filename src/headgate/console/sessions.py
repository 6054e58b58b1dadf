"""Sessions of signed-in operators, in cookies that only this service can create.

A session holds the hash of its token, never the token. Each request looks the token up again, so a session ends when
its token is revoked or expires, and after an hour without a request.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from hashlib import sha256
from typing import Final, NamedTuple, Protocol

from headgate.core.clock import Clock
from headgate.core.quota import MICROSECONDS
from headgate.operations import Caller

COOKIE: Final = "headgate_session"
IDLE_SECONDS: Final = 3_600
RENEW_SECONDS: Final = 60  # after which a request renews the cookie
MAX_COOKIE: Final = 1_000  # characters of a cookie


class Gatekeeper(Protocol):
    """Verifies tokens: `headgate.service.console`."""

    async def sign_in(self, token: str, address: str | None) -> str:
        """Return the hash of a valid token. Raises `Unauthenticated`, `RateLimited`, `DatabaseError`."""

    async def caller(self, digest: str) -> Caller:
        """Return the caller whose token has this hash. Raises `Unauthenticated`, `DatabaseError`."""

    def redeem(self, code: str) -> str | None:
        """Redeem the code of a link for a token's hash, once; None if it is invalid or expired."""


class Session(NamedTuple):
    """The session of a signed-in operator."""

    digest: str  # of the token
    nonce: str
    at: int  # Unix time of the last renewal


class Sessions:
    """Creates and reads cookies. `secret` is known only to the service's processes."""

    def __init__(self, secret: str, clock: Clock, *, secure: bool) -> None:
        self._key = hmac.digest(secret.encode(), b"headgate console", "sha256")
        self._clock = clock
        self._secure = secure

    def begin(self, digest: str) -> Session:
        return Session(digest, secrets.token_urlsafe(16), self._now())

    def read(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie; None if it is missing, not ours, or idle for too long."""
        if cookie is None or len(cookie) > MAX_COOKIE:
            return None
        content, _, signature = cookie.rpartition(".")
        if not hmac.compare_digest(self._sign(content), signature):
            return None
        try:
            session = Session(*json.loads(base64.urlsafe_b64decode(content)))
        except (ValueError, TypeError, binascii.Error):
            return None
        return session if 0 <= self._now() - session.at < IDLE_SECONDS else None

    def renew(self, session: Session) -> Session | None:
        """Return the session with the current time; None if it is recent enough."""
        now = self._now()
        return session._replace(at=now) if now - session.at >= RENEW_SECONDS else None

    def header(self, session: Session | None, path: str) -> str:
        """Return the field `Set-Cookie` that begins or renews a session, or with None ends it."""
        value, age = ("", 0) if session is None else (self._encode(session), IDLE_SECONDS)
        secure = "; Secure" if self._secure else ""
        return f"{COOKIE}={value}; Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"

    def csrf(self, session: Session) -> str:
        """Return the token that every form of a session must send back."""
        return self._sign(f"csrf {session.nonce}")

    def is_csrf(self, session: Session, token: str) -> bool:
        return hmac.compare_digest(self.csrf(session).encode(), token.encode())

    def _encode(self, session: Session) -> str:
        content = base64.urlsafe_b64encode(json.dumps(session).encode()).decode()
        return f"{content}.{self._sign(content)}"

    def _sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), sha256).hexdigest()

    def _now(self) -> int:
        return self._clock.now_us() // MICROSECONDS
