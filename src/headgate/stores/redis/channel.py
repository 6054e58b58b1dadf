"""A channel of Redis: a word from one node to all others, which those who are away miss."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread, current_thread
from typing import Any, Final

from redis import Redis
from redis.connection import ConnectionPool

from headgate.stores.redis.faults import FAULTS
from headgate.stores.redis.options import read_url

RETRY_SECONDS: Final = 0.5
STOP_SECONDS: Final = 0.25  # how soon a listener notices that it is to stop
PATIENCE_SECONDS: Final = 1.0  # for a reply

log = logging.getLogger("headgate")


class Channel:
    """Says and hears words. `heard` is called, in a thread of the channel's, after each word, and whenever it may
    have missed some: it must not raise."""

    def __init__(self, url: str, name: str, heard: Callable[[], None]) -> None:
        target = read_url(url)
        if target.topology != "single":
            raise ValueError(f"Redis channel {name}: must be the URL of a single server, got {url!r}")
        kind, arguments = target.way
        arguments |= {"socket_connect_timeout": PATIENCE_SECONDS, "socket_timeout": PATIENCE_SECONDS}
        if kind is not None:
            arguments["connection_class"] = kind
        self._client: Any = Redis(connection_pool=ConnectionPool(**arguments))
        self._name = name
        self._heard = heard
        self._failing = False
        self._stop = Event()
        self._thread = Thread(target=self._run, name="headgate-channel", daemon=True)
        self._thread.start()

    def say(self, word: str) -> None:
        """Tell all who listen now. A failure is logged, and that is all: nobody may rely on this alone."""
        try:
            self._client.publish(self._name, word)
        except FAULTS as error:
            log.warning("Redis channel %s: %r was not announced (%s)", self._name, word, error)

    def close(self) -> None:
        """Stop listening, and wait until it has."""
        self._stop.set()
        if self._thread is not current_thread():
            self._thread.join()
        self._client.close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except FAULTS as error:
                if not self._failing:
                    self._failing = True
                    log.warning("Redis channel %s: not heard until Redis is back (%s)", self._name, error)
                self._stop.wait(RETRY_SECONDS)

    def _listen(self) -> None:
        with self._client.pubsub() as subscription:
            subscription.subscribe(self._name)
            while not self._stop.is_set():
                message = subscription.get_message(timeout=STOP_SECONDS)
                if message is not None:  # one of them says that the subscription stands
                    if self._failing:
                        self._failing = False
                        log.warning("Redis channel %s: heard again", self._name)
                    self._heard()
