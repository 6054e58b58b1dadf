"""The keys that verify tokens: each bound to one algorithm, from settings or fetched from a JWKS URL."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from http.client import HTTPException, HTTPResponse
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from headgate.core.clock import Clock
from headgate.core.fork import renew_in_children
from headgate.core.quota import MICROSECONDS
from headgate.http.identity.rejections import Rejected
from headgate.http.identity.steps import Settled, Steps

log = logging.getLogger("headgate")

Algorithm = Literal["HS256", "RS256", "ES256"]

MIN_SECRET: Final = 32  # bytes, by RFC 7518: as long as the hash
MIN_RSA: Final = 2_048  # bits
MAX_RSA: Final = 8_192  # bits: larger ones take long to verify
MAX_DOCUMENT: Final = 256 * 1_024  # bytes of a JWKS document
FETCH_EVERY_US: Final = 30 * MICROSECONDS  # at most one fetch in this time, successful or not

_ALGORITHM_OF: Final = {("RSA", None): "RS256", ("EC", "P-256"): "ES256"}  # by type and curve


class Key(NamedTuple):
    """A key, bound to its algorithm."""

    algorithm: str
    id: str | None
    key: Any


class KeySource(Protocol):
    """A source of keys that verify tokens."""

    def find(self, algorithm: str, key_id: str | None) -> Steps[Sequence[Key]]:
        """Return the keys that may verify a token with this header, at least one. Raises `Rejected`."""
        ...


class ListedKeys:
    """Keys from settings. They have no ids: any of them may verify a token."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = keys

    def find(self, algorithm: str, key_id: str | None) -> Steps[Sequence[Key]]:  # noqa: ARG002
        yield from ()  # makes this a generator; it never waits
        fitting = tuple(key for key in self._keys if key.algorithm == algorithm)
        if not fitting:
            raise Rejected("token_key")
        return fitting


class FetchedKeys:
    """Keys from a JWKS URL.

    The first token that needs them starts a fetch. Once they are older than half of `lifetime`, they are refreshed in
    the background; once older than `lifetime`, tokens wait for the refresh. A token with an unknown key id starts a
    fetch too. There is at most one fetch in 30 seconds, successful or not, and all tokens that need it share it. If
    fetching fails, old keys are used for up to `stale` more.

    Fetches run in their own threads, so a client that disconnects cancels nothing. Times are in seconds.
    """

    def __init__(
        self, url: str, algorithms: Collection[str], clock: Clock, *, lifetime: float, stale: float, timeout: float
    ) -> None:
        self._url = url
        self._algorithms = algorithms
        self._clock = clock
        self._lifetime_us = round(lifetime * MICROSECONDS)
        self._stale_us = round(stale * MICROSECONDS)
        self._timeout = timeout
        self._lock = threading.Lock()
        self._keys: tuple[int, tuple[Key, ...]] | None = None  # time of the fetch, and the keys; replaced atomically
        self._fetch: Future[None] | None = None
        self._tried_us: int | None = None
        self._failed = False
        renew_in_children(self)

    def reset_after_fork(self) -> None:
        """Reset the lock and the fetch in a forked child, which lacks the parent's thread."""
        self._lock, self._fetch, self._tried_us = threading.Lock(), None, None

    def find(self, algorithm: str, key_id: str | None) -> Steps[Sequence[Key]]:
        age_us, keys = self._usable()
        found = _fit(keys, algorithm, key_id)
        if not found or age_us >= self._lifetime_us // 2:
            fetch = self._fetch_if_due()
            good = found and (age_us < self._lifetime_us or self._failed)
            if not good:
                if fetch is not None:
                    yield Settled(fetch, self._timeout + 1)
                _, keys = self._usable()
                found = _fit(keys, algorithm, key_id)
        if not found:
            raise Rejected("token_keys_unavailable" if keys is None else "token_key")
        return found

    def _usable(self) -> tuple[int, tuple[Key, ...] | None]:
        """Return the age of the keys, and the keys; None for keys that are too old or were never fetched."""
        if self._keys is None:
            return 0, None
        fetched_us, keys = self._keys
        age_us = self._clock.now_us() - fetched_us
        if age_us < 0:  # the clock went back: the age is unknown
            age_us = self._lifetime_us // 2
        return age_us, keys if age_us < self._lifetime_us + self._stale_us else None

    def _fetch_if_due(self) -> Future[None] | None:
        """Return the running fetch, started now if one is due; None if there is none."""
        now_us = self._clock.now_us()
        with self._lock:
            if self._tried_us is not None:
                self._tried_us = min(self._tried_us, now_us)  # the clock went back
                if now_us - self._tried_us < FETCH_EVERY_US:
                    return None if self._fetch is None or self._fetch.done() else self._fetch
            self._tried_us = now_us
            fetch: Future[None] = Future()
            fetch.set_running_or_notify_cancel()  # waiting callers cannot cancel it
            self._fetch = fetch
        try:
            threading.Thread(target=self._run, args=(fetch, now_us), name="headgate-jwks", daemon=True).start()
        except RuntimeError as error:  # no more threads
            self._fail(error)
            fetch.set_result(None)
        return fetch

    def _run(self, fetch: Future[None], now_us: int) -> None:
        try:
            keys = keys_of(_document(self._url, self._timeout), self._algorithms)
        except HTTPError as error:
            with error:  # the error is an open response: close it
                self._fail(error)
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            self._fail(error)
        else:
            self._keys = (now_us, keys)
            self._failed = False
            if not keys:
                log.warning("identity: %s has no keys for %s", self._url, ", ".join(self._algorithms))
        finally:
            fetch.set_result(None)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        log.warning("identity: fetching keys from %s failed: %s", self._url, error)


def _fit(keys: Sequence[Key] | None, algorithm: str, key_id: str | None) -> tuple[Key, ...]:
    """Return the keys that may verify a token. Without a key id, a token is accepted only if exactly one key fits."""
    fitting = tuple(key for key in keys or () if key.algorithm == algorithm and key_id in (None, key.id))
    return fitting if key_id is not None or len(fitting) == 1 else ()


class _NoRedirects(HTTPRedirectHandler):
    """Makes a redirect an error: keys come only from the URL that the operator configured."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _document(url: str, timeout: float) -> Any:
    """Fetch the JSON at a URL. Raises `OSError`, `HTTPException` or `ValueError`."""
    deadline = time.monotonic() + timeout
    request = Request(url, headers={"Accept": "application/json", "User-Agent": "headgate"})
    response: HTTPResponse
    parts: list[bytes] = []
    size = 0
    with build_opener(_NoRedirects).open(request, timeout=timeout) as response:
        while part := response.read1(65_536):
            parts.append(part)
            size += len(part)
            if size > MAX_DOCUMENT:
                raise ValueError(f"the document is larger than {MAX_DOCUMENT} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"the document did not arrive within {timeout:g} s")
    return json.loads(b"".join(parts))


def keys_of(document: Any, algorithms: Collection[str]) -> tuple[Key, ...]:
    """Return the keys of a JWKS document that sign with one of `algorithms`; ignore all others.

    Raises `ValueError` if it is not a JWKS document.
    """
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError('not a JWKS document: it must be an object with a list of "keys"')  # noqa: TRY004
    found = (_key_of(jwk, algorithms) for jwk in listed if isinstance(jwk, dict))
    return tuple(key for key in found if key is not None)


def _key_of(jwk: Mapping[str, Any], algorithms: Collection[str]) -> Key | None:
    kind, curve = jwk.get("kty"), jwk.get("crv")
    if not isinstance(kind, str) or not isinstance(curve, str | None):
        return None
    algorithm = _ALGORITHM_OF.get((kind, curve))  # a secret (`oct`) is never taken from a URL
    if algorithm is None or algorithm not in algorithms:
        return None
    if jwk.get("alg", algorithm) != algorithm or jwk.get("use", "sig") != "sig":
        return None
    key_id, operations = jwk.get("kid"), jwk.get("key_ops", ["verify"])
    if not isinstance(key_id, str | None) or not isinstance(operations, list) or "verify" not in operations:
        return None
    if "d" in jwk:  # a private key
        return None
    try:
        return Key(algorithm, key_id, _require_fit(algorithm, _jwt_algorithm(algorithm).from_jwk(dict(jwk))))
    except (import_module("jwt").PyJWTError, ValueError, TypeError, LookupError):
        return None


def key_from_settings(algorithm: str, key: Any) -> Key:
    """Return a key from a secret, or from a public key in PEM. Raises `ValueError`, which does not show it."""
    if isinstance(key, str):
        key = key.encode()
    if not isinstance(key, bytes):
        raise ValueError(f"must be text or bytes, got {type(key).__name__}")  # noqa: TRY004
    if algorithm == "HS256" and len(key) < MIN_SECRET:
        raise ValueError(f"must have at least {MIN_SECRET} bytes for HS256, has {len(key)}")
    try:
        prepared = _jwt_algorithm(algorithm).prepare_key(key)
    except (import_module("jwt").PyJWTError, ValueError, TypeError) as error:
        if algorithm == "HS256":
            raise ValueError("is an asymmetric key, not a shared secret: use RS256 or ES256") from error
        raise ValueError(f"must be a public key for {algorithm} in PEM") from error
    return Key(algorithm, None, _require_fit(algorithm, prepared))


def _require_fit(algorithm: str, key: Any) -> Any:
    """Return the key if it suits the algorithm. Raises `ValueError` if not."""
    if algorithm == "RS256":
        if not isinstance(key, _asymmetric("rsa").RSAPublicKey):
            raise ValueError("must be an RSA public key, not a private key")
        if not MIN_RSA <= key.key_size <= MAX_RSA:
            raise ValueError(f"must have {MIN_RSA} to {MAX_RSA} bits for RS256, has {key.key_size}")
    elif algorithm == "ES256":
        if not isinstance(key, _asymmetric("ec").EllipticCurvePublicKey):
            raise ValueError("must be an elliptic curve public key, not a private key")
        if key.curve.name != "secp256r1":
            raise ValueError(f"must use curve P-256 for ES256, uses {key.curve.name}")
    return key


def _asymmetric(kind: str) -> Any:
    return import_module(f"cryptography.hazmat.primitives.asymmetric.{kind}")


def _jwt_algorithm(name: str) -> Any:
    return import_module("jwt").get_algorithm_by_name(name)
