"""Keys from a JWKS URL, on a real HTTP server that counts how often it is asked."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from headgate.http.identity import JWT, Identity
from headgate.http.identity.keys import keys_of
from headgate.testing import FakeClock
from tests.unit.http.identity.requests import NOW, bearer, ec_key, jwk, part, rsa_key, signed

ALICE = {"ip": "203.0.113.9", "user": "alice"}
NOBODY = {"ip": "203.0.113.9"}
LONG = NOW + 1_000_000


class Issuer:
    """Publishes keys at `url`, and counts who asks."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.body: bytes | None = None  # instead of the keys
        self.status = 200
        self.fetches = 0
        self.paths: list[str] = []
        self.open = threading.Event()  # while it is not set, answers are held back
        self.open.set()
        self.asked = threading.Semaphore(0)
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.fetches += 1
                issuer.paths.append(self.path)
                issuer.asked.release()
                issuer.open.wait(10)
                body = json.dumps({"keys": issuer.keys}).encode() if issuer.body is None else issuer.body
                self.send_response(issuer.status)
                if issuer.status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/jwks"

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    made.keys = [jwk(rsa_key(), kid="r1"), jwk(ec_key(), kid="e1")]
    yield made
    made.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


def identity(issuer: Issuer, clock: FakeClock, **options: Any) -> Identity:
    options = {"algorithms": ["RS256", "ES256"], "jwks_timeout": 10, **options}
    return Identity(jwt=JWT(jwks_url=issuer.url, **options), clock=clock)


def token(key_id: str | None = "r1", key: Any = None, **changes: Any) -> str:
    """A token that lasts longer than any of these tests."""
    key = key or (ec_key() if key_id == "e1" else rsa_key())
    algorithm = "ES256" if isinstance(key, ec.EllipticCurvePrivateKey) else "RS256"
    changes = {"exp": LONG, **changes}
    return signed(key, algorithm, None if key_id is None else {"kid": key_id}, **changes)


def settled(one: Identity) -> None:
    """Wait for a fetch in the background."""
    fetch = one._tokens._keys._fetch  # type: ignore[union-attr]
    fetch.result(10)


def test_keys_are_fetched_once_and_used_for_all(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    assert issuer.fetches == 0
    for _ in range(3):
        assert one.facts(bearer(token("r1"))) == ALICE
        assert one.facts(bearer(token("e1"))) == ALICE
    assert issuer.fetches == 1
    assert one.rejected == {}


def test_async_does_the_same(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)

    async def main() -> None:
        answers = await asyncio.gather(*(one.facts_async(bearer(token("r1"))) for _ in range(50)))
        assert answers == [ALICE] * 50

    asyncio.run(main())
    assert issuer.fetches == 1
    assert one.waits


def test_1_000_unknown_key_ids_make_one_fetch_in_30_seconds(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    template = token("r1").split(".")
    for n in range(1_000):
        header = part({"alg": "RS256", "kid": f"k{n}"})
        assert one.facts(bearer(".".join([header, *template[1:]]))) == NOBODY
    assert issuer.fetches == 1
    assert one.rejected == {"token_key": 1_000}
    clock.advance(29.999)
    one.facts(bearer(token("other")))
    assert issuer.fetches == 1
    clock.advance(0.001)
    for n in range(100):
        one.facts(bearer(token(f"more{n}")))
    assert issuer.fetches == 2


def test_a_failure_counts_as_a_fetch(issuer: Issuer, clock: FakeClock) -> None:
    issuer.status = 500
    one = identity(issuer, clock)
    for _ in range(100):
        assert one.facts(bearer(token())) == NOBODY
    assert issuer.fetches == 1
    assert one.rejected == {"token_keys_unavailable": 100}
    issuer.status = 200
    clock.advance(30)
    assert one.facts(bearer(token())) == ALICE
    assert issuer.fetches == 2


def test_a_clock_that_goes_back_does_not_bring_more_fetches(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    for _ in range(20):
        one.facts(bearer(token("unknown")))
        clock.advance(-3_600)
    assert issuer.fetches == 1
    one.facts(bearer(token("unknown")))
    clock.advance(30)
    assert one.facts(bearer(token("unknown"))) == NOBODY
    assert issuer.fetches == 2


def test_a_new_key_is_found(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    assert one.facts(bearer(token("r1"))) == ALICE
    issuer.keys.append(jwk(rsa_key(2), kid="r2"))
    clock.advance(30)
    assert one.facts(bearer(token("r2", rsa_key(2)))) == ALICE
    assert issuer.fetches == 2


def test_a_key_that_was_withdrawn_is_not_used_beyond_its_lifetime(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    good = bearer(token("r1"))
    assert one.facts(good) == ALICE
    issuer.keys = [jwk(rsa_key(2), kid="r2")]
    clock.advance(299)
    assert one.facts(good) == ALICE
    assert issuer.fetches == 1
    clock.advance(301)  # nobody has asked in the meantime: this one waits for the new keys
    assert one.facts(good) == NOBODY
    assert one.rejected == {"token_key": 1}
    assert issuer.fetches == 2


def test_a_token_that_was_good_is_not_once_its_key_is_another(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    good = bearer(token("r1"))
    assert one.facts(good) == ALICE
    issuer.keys = [jwk(rsa_key(2), kid="r1")]
    clock.advance(600)
    assert one.facts(good) == NOBODY
    assert one.rejected == {"token_signature": 1}


def test_keys_are_renewed_in_the_background_before_they_are_too_old(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    good = bearer(token("r1"))
    assert one.facts(good) == ALICE
    clock.advance(300)
    issuer.open.clear()
    assert one.facts(good) == ALICE  # without waiting: the answer is held back
    assert one.facts(good) == ALICE
    issuer.open.set()
    settled(one)
    clock.advance(299)
    assert one.facts(good) == ALICE
    assert issuer.fetches == 2


def test_while_the_issuer_is_down_its_keys_go_on_being_used_for_a_while(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock, jwks_lifetime=600, jwks_stale=3_600)
    good = bearer(token("r1"))
    assert one.facts(good) == ALICE
    issuer.status = 503
    clock.advance(600)
    assert one.facts(good) == ALICE
    clock.advance(3_599)
    assert one.facts(good) == ALICE
    settled(one)
    clock.advance(1)
    assert one.facts(good) == NOBODY
    assert one.rejected == {"token_keys_unavailable": 1}
    issuer.status = 200
    clock.advance(30)
    assert one.facts(good) == ALICE


def test_an_issuer_that_hangs_is_not_waited_for_twice(issuer: Issuer, clock: FakeClock) -> None:
    """Once it is known not to answer, keys that are at hand are used without waiting for it."""
    one = identity(issuer, clock)
    good = bearer(token("r1"))
    assert one.facts(good) == ALICE
    issuer.status = 503
    clock.advance(600)
    assert one.facts(good) == ALICE
    issuer.open.clear()
    clock.advance(30)
    assert one.facts(good) == ALICE
    assert issuer.asked.acquire(timeout=10)
    assert one.facts(good) == ALICE


def test_threads_share_one_fetch(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    issuer.open.clear()
    with ThreadPoolExecutor(16) as threads:
        answers = [threads.submit(one.facts, bearer(token("r1"))) for _ in range(16)]
        assert issuer.asked.acquire(timeout=10)
        issuer.open.set()
        assert [answer.result(10) for answer in answers] == [ALICE] * 16
    assert issuer.fetches == 1


def test_a_task_that_is_cancelled_takes_nobody_along(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    issuer.open.clear()

    async def main() -> None:
        first = asyncio.create_task(one.facts_async(bearer(token("r1"))))
        second = asyncio.create_task(one.facts_async(bearer(token("r1"))))
        await asyncio.to_thread(issuer.asked.acquire)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        issuer.open.set()
        assert await second == ALICE

    asyncio.run(main())
    assert issuer.fetches == 1


def test_a_loop_that_is_gone_when_the_keys_arrive(
    issuer: Issuer, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    one = identity(issuer, clock)
    issuer.open.clear()

    async def gives_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await one.facts_async(bearer(token("r1")))

    asyncio.run(gives_up())
    issuer.open.set()
    settled(one)
    assert asyncio.run(one.facts_async(bearer(token("r1")))) == ALICE
    assert issuer.fetches == 1
    assert caplog.messages == []


def test_a_fetch_of_another_process_is_not_waited_for(issuer: Issuer, clock: FakeClock) -> None:
    """After a fork, the thread that was fetching is not there."""
    one = identity(issuer, clock)
    keys: Any = one._tokens._keys  # type: ignore[union-attr]
    issuer.open.clear()
    with ThreadPoolExecutor(2) as threads:
        before = threads.submit(one.facts, bearer(token("r1")))
        assert issuer.asked.acquire(timeout=10)
        keys.reset_after_fork()  # as in a child
        after = threads.submit(one.facts, bearer(token("e1")))
        assert issuer.asked.acquire(timeout=10)
        issuer.open.set()
        assert before.result(10) == after.result(10) == ALICE


def test_a_token_of_another_algorithm_does_not_get_as_far_as_the_keys(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock, algorithms=["RS256"])
    assert one.facts(bearer(token("e1"))) == NOBODY
    assert one.rejected == {"token_algorithm": 1}
    assert issuer.fetches == 0


def test_a_token_without_key_id_needs_the_only_fitting_key(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    assert one.facts(bearer(token(None))) == ALICE
    assert one.facts(bearer(token(None, ec_key()))) == ALICE
    issuer.keys.append(jwk(rsa_key(2), kid="r2"))
    another = identity(issuer, clock)
    assert another.facts(bearer(token(None))) == NOBODY
    assert another.facts(bearer(token(None, ec_key()))) == ALICE
    assert another.rejected == {"token_key": 1}


def test_a_key_is_bound_to_its_algorithm(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    assert one.facts(bearer(token("e1", rsa_key()))) == NOBODY
    assert one.facts(bearer(token("r1", rsa_key(2)))) == NOBODY
    assert one.rejected == {"token_key": 1, "token_signature": 1}


def test_a_key_that_a_token_points_to_is_not_fetched(issuer: Issuer, clock: FakeClock) -> None:
    one = identity(issuer, clock)
    elsewhere = issuer.url.replace("/jwks", "/mine")
    header = {"kid": "r1", "jku": elsewhere, "x5u": elsewhere, "jwk": jwk(rsa_key(3))}
    assert one.facts(bearer(signed(rsa_key(3), "RS256", header))) == NOBODY
    assert issuer.paths == ["/jwks"]


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (302, b""),
        (404, b"{}"),
        (200, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (200, b"{}"),
        (200, b'{"keys": {}}'),
        (200, b"[" * 100_000),
        (200, b'{"keys": [], "pad": "' + b"x" * 300_000 + b'"}'),
    ],
)
def test_an_answer_that_is_no_document(
    issuer: Issuer, clock: FakeClock, caplog: pytest.LogCaptureFixture, status: int, body: bytes
) -> None:
    issuer.status, issuer.body = status, body
    one = identity(issuer, clock)
    assert one.facts(bearer(token())) == NOBODY
    assert one.rejected == {"token_keys_unavailable": 1}
    assert issuer.paths == ["/jwks"]
    assert f"fetching keys from {issuer.url} failed" in caplog.text


def test_nobody_is_there(clock: FakeClock) -> None:
    one = Identity(jwt=JWT(algorithms=["RS256"], jwks_url="http://127.0.0.1:1/jwks"), clock=clock)
    assert one.facts(bearer(token())) == NOBODY
    assert one.rejected == {"token_keys_unavailable": 1}


P384 = ec.generate_private_key(ec.SECP384R1())


@pytest.mark.parametrize(
    "unfit",
    [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "a"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
        {"kty": ["RSA"]},
        {"kty": "RSA"},
        {"kty": "RSA", "n": "!", "e": "AQAB"},
        {"kty": "RSA", "n": 5, "e": 5},
        {"kty": "RSA", "n": "AA", "e": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": ["P-256"]},
        jwt.algorithms.ECAlgorithm.to_jwk(P384.public_key(), as_dict=True),
        jwk(rsa_key(), use="enc"),
        jwk(rsa_key(), alg="HS256"),
        jwk(rsa_key(), alg="RS512"),
        jwk(rsa_key(), alg="none"),
        jwk(rsa_key(), key_ops=["encrypt"]),
        jwk(rsa_key(), key_ops="verify"),
        jwk(rsa_key(), kid=5),
        jwk(rsa_key(bits=1_024)),
        jwt.algorithms.RSAAlgorithm.to_jwk(rsa_key(), as_dict=True),  # the private one
        "text",
        None,
        [],
    ],
)
def test_keys_that_do_not_fit_are_ignored(unfit: Any) -> None:
    good = jwk(ec_key(), kid="e1", use="sig", alg="ES256", key_ops=["verify"])
    (key,) = keys_of({"keys": [unfit, good]}, ("RS256", "ES256"))
    assert (key.algorithm, key.id) == ("ES256", "e1")


def test_keys_of_an_algorithm_that_is_not_pinned_are_ignored() -> None:
    assert keys_of({"keys": [jwk(rsa_key()), jwk(ec_key())]}, ("HS256",)) == ()
    assert [key.algorithm for key in keys_of({"keys": [jwk(rsa_key()), jwk(ec_key())]}, ("RS256",))] == ["RS256"]
