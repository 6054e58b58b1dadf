"""Webhook: reports refusals and changes to another service, by signed messages, in the background.

Messages and signatures are those of the Standard Webhooks specification: `webhook-id`, `webhook-timestamp`, and
`webhook-signature`, the HMAC-SHA256 of id, timestamp and body. Failed deliveries are retried with growing pauses, and
in the end given up; the queue is bounded. All of that is counted.
"""

from __future__ import annotations

import hmac
import json
import logging
import random
import time
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from secrets import token_hex
from threading import Condition, Thread
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from headgate._version import __version__
from headgate.db.events import Event
from headgate.db.records import time_text

QUEUE: Final = 1_000  # the most messages that wait
MAX_IN_MESSAGE: Final = 100  # refusals, or changes, in one message
ATTEMPTS: Final = 8
BACKOFF_SECONDS: Final = 1.0  # before the second attempt; doubles with each attempt
MAX_BACKOFF_SECONDS: Final = 60.0
TIMEOUT_SECONDS: Final = 5.0
CLOSE_SECONDS: Final = 2.0  # that `close` waits for remaining messages
_AGAIN: Final = (408, 425, 429)  # 4xx that are worth a retry
_SECRET_PREFIX: Final = "whsec_"  # of a secret in base64

log = logging.getLogger("headgate")


@dataclass(frozen=True, slots=True)
class WebhookStatus:
    """A webhook's figures since its creation, in messages."""

    delivered: int
    failed: int  # given up: refused, or tried too often
    dropped: int  # the queue was full
    retries: int
    queued: int


class Message(NamedTuple):
    id: str
    body: bytes


class Webhook:
    """Sends messages to a URL, one at a time. Safe to share between threads; its `tell_` methods never block.

    `secret` signs messages: see `signing_key`. At most `queue` messages wait, and the second attempt comes `backoff`
    seconds after the first. Raises `ValueError` for an invalid secret.
    """

    def __init__(self, url: str, secret: str, *, queue: int = QUEUE, backoff: float = BACKOFF_SECONDS) -> None:
        self._url = urlsplit(url)
        self._key = signing_key(secret)
        self._size = queue
        self._backoff = backoff
        self._changed = Condition()  # guards all that follows
        self._queue: deque[Message] = deque()
        self._closing = False
        self._delivered = self._failed = self._dropped = self._retries = 0
        self._failing = False
        self._thread: Thread | None = None

    def tell_refusals(self, events: Sequence[Event]) -> None:
        """Report requests that were refused, or that a rule that only logs would have refused."""
        for start in range(0, len(events), MAX_IN_MESSAGE):
            self._put("refusals", {"refusals": [event.as_table() for event in events[start : start + MAX_IN_MESSAGE]]})

    def tell_changes(self, version: int, at_us: int, actor: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """Report the changes of one transaction. Of very many changes, report the first ones and their number."""
        transaction = {"version": version, "at": time_text(at_us), "actor": actor}
        self._put("changes", {**transaction, "changes": list(changes[:MAX_IN_MESSAGE]), "count": len(changes)})

    def status(self) -> WebhookStatus:
        with self._changed:
            return WebhookStatus(self._delivered, self._failed, self._dropped, self._retries, len(self._queue))

    def close(self) -> None:
        """Deliver remaining messages for a short time, without retries."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _put(self, kind: str, data: dict[str, Any]) -> None:
        body = json.dumps({"type": kind, "timestamp": time_text(time.time_ns() // 1_000), "data": data}).encode()
        with self._changed:
            if self._closing or len(self._queue) >= self._size:
                self._dropped += 1
                return
            self._queue.append(Message(f"msg_{token_hex(12)}", body))
            if self._thread is None:
                self._thread = Thread(target=self._run, name="headgate-webhook", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closing:
                    self._changed.wait()
                if not self._queue:
                    return
                message = self._queue[0]
            delivered = self._deliver(message)
            with self._changed:
                self._queue.popleft()
                if delivered:
                    self._delivered += 1
                else:
                    self._failed += 1

    def _deliver(self, message: Message) -> bool:
        """Deliver a message, with retries, and return whether it arrived."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                status, retry_after = self._send(message)
            except (OSError, HTTPException) as error:
                why, retry_after = str(error) or type(error).__name__, None
            else:
                if 200 <= status < 300:
                    self._note(None)
                    return True
                why = f"it answers {status}"
                if 400 <= status < 500 and status not in _AGAIN:
                    self._note(why)
                    return False
            self._note(why)
            with self._changed:
                if attempt == ATTEMPTS or self._closing:
                    return False
                self._retries += 1
                self._changed.wait_for(lambda: self._closing, self._wait(attempt, retry_after))
        return False

    def _wait(self, attempt: int, retry_after: float | None) -> float:
        """Return the seconds before the next attempt: more each time, with jitter."""
        seconds: float = self._backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
        return min(max(seconds, retry_after or 0.0), MAX_BACKOFF_SECONDS)

    def _send(self, message: Message) -> tuple[int, float | None]:
        """Send a message. Return the answer's status and its `Retry-After` in seconds."""
        url = self._url
        kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
        connection = kind(url.hostname or "", url.port, timeout=TIMEOUT_SECONDS)
        try:
            headers = {
                "Content-Type": "application/json",
                "User-Agent": f"headgate/{__version__}",
                **signature_fields(self._key, message, int(time.time())),
            }
            path = f"{url.path or '/'}?{url.query}" if url.query else url.path or "/"
            connection.request("POST", path, message.body, headers)
            answer = connection.getresponse()
            answer.read(1)
            after = answer.headers.get("Retry-After", "")
            return answer.status, float(after) if after.isdecimal() else None
        finally:
            connection.close()

    def _note(self, why: str | None) -> None:
        """Log the first failure, and the recovery."""
        if why is not None and not self._failing:
            log.error("webhook: cannot deliver to %s: %s; trying again", self._url.hostname, why)
        elif why is None and self._failing:
            log.warning("webhook: delivering to %s again", self._url.hostname)
        self._failing = why is not None


def signing_key(secret: str) -> bytes:
    """Return the key of a secret: base64 after `whsec_`, as in the specification, otherwise its own bytes.

    Raises `ValueError`.
    """
    if secret.startswith(_SECRET_PREFIX):
        return b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    return secret.encode()


def signature_fields(key: bytes, message: Message, timestamp: int) -> dict[str, str]:
    """Return the header fields by which a receiver verifies a message and its time."""
    content = b"%s.%d.%s" % (message.id.encode(), timestamp, message.body)
    signature = b64encode(hmac.digest(key, content, "sha256")).decode()
    return {"webhook-id": message.id, "webhook-timestamp": str(timestamp), "webhook-signature": f"v1,{signature}"}
