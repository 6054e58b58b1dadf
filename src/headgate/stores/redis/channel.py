"""A Redis channel: sends a word from one node to all other connected nodes.

Behind Sentinel, it is on the master. On a cluster, listeners on all servers hear what is published on any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Lock, Thread, current_thread
from time import monotonic
from typing import Any, Final

from redis import Redis
from redis.connection import ConnectionPool

from headgate.errors import StoreError
from headgate.stores.redis.faults import FAULTS, Address
from headgate.stores.redis.finders import finder_of
from headgate.stores.redis.options import StoreTarget, read_url

RETRY_SECONDS: Final = 0.5
STOP_SECONDS: Final = 0.25  # how soon a listener notices that it should stop
PATIENCE_SECONDS: Final = 1.0  # timeout of a reply

_TROUBLE: Final = (*FAULTS, StoreError)  # StoreError: the server is unknown

log = logging.getLogger("headgate")


class Channel:
    """Publishes and receives words on the channel `<prefix of the URL>:<name>`.

    `heard` is called, in the channel's thread, after each word and whenever words may have been missed. It must not
    raise.
    """

    def __init__(self, url: str, name: str, heard: Callable[[], None]) -> None:
        target = read_url(url)
        self._speaking, self._listening = _End(target), _End(target)
        self._several = target.topology != "single"
        self._name = f"{target.options.prefix}:{name}"
        self._heard = heard
        self._failing = False
        self._stop = Event()
        self._lock = Lock()  # for publishers
        self._thread = Thread(target=self._run, name="headgate-channel", daemon=True)
        self._thread.start()

    def say(self, word: str) -> None:
        """Notify all current listeners. A failure is only logged: delivery is not guaranteed."""
        with self._lock:
            error = self._publish(word)
            if error is not None and self._several:  # the server may be gone
                error = self._publish(word)
        if error is not None:
            log.warning("Redis channel %s: cannot publish %r (%s)", self._name, word, error)

    def close(self) -> None:
        """Stop listening, and wait for the end of the thread."""
        self._stop.set()
        if self._thread is not current_thread():
            self._thread.join()
        with self._lock:
            self._speaking.leave()

    def _publish(self, word: str) -> Exception | None:
        """Publish a word. Return the error, if any."""
        try:
            self._speaking.client().publish(self._name, word)
        except _TROUBLE as error:
            self._speaking.leave()
            return error
        return None

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._listen()
            except _TROUBLE as error:
                if not self._failing:
                    self._failing = True
                    log.warning("Redis channel %s: no notifications until Redis is back (%s)", self._name, error)
                self._stop.wait(RETRY_SECONDS)
            finally:
                self._listening.leave()

    def _listen(self) -> None:
        with self._listening.client().pubsub() as subscription:
            subscription.subscribe(self._name)
            while not self._stop.is_set() and not self._listening.has_moved():
                message = subscription.get_message(timeout=STOP_SECONDS)
                if message is not None:  # one of them confirms the subscription
                    if self._failing:
                        self._failing = False
                        log.warning("Redis channel %s: receiving notifications again", self._name)
                    self._heard()


class _End:
    """One end of a channel, connected to one server. Used by one thread at a time."""

    def __init__(self, target: StoreTarget) -> None:
        self._target = target
        self._finder = finder_of(target)
        self._look_at = 0.0
        self._client: Any = None
        self._address: Address | None = None  # of its server
        self._left = 0  # number of servers left so far

    def client(self) -> Any:
        """Return a client of the current server, or of another after `leave` or a failover.

        Raises redis-py's exceptions and `StoreError`.
        """
        if self._client is None or self.has_moved():
            self.leave()
            params = self._target.params
            if self._target.topology != "single":
                self._address = self._choose()
                params = params.to(self._address)
            arguments = params.arguments | {
                "socket_connect_timeout": PATIENCE_SECONDS,
                "socket_timeout": PATIENCE_SECONDS,
            }
            if params.kind is not None:
                arguments["connection_class"] = params.kind
            self._client = Redis(connection_pool=ConnectionPool(**arguments))
        return self._client

    def has_moved(self) -> bool:
        """Return whether Sentinels name another master. Asks them once a second, and when they announce a failover."""
        if self._target.topology != "sentinel" or not (self._finder.hear() or monotonic() >= self._look_at):
            return False
        try:
            return self._choose() != self._address
        except StoreError:  # the topology is unknown
            return False

    def leave(self) -> None:
        """Close the connection; the next one is to another server, if there are several."""
        self._finder.close()
        if self._client is not None:
            self._client.close()
            self._client = None
            self._left += 1

    def _choose(self) -> Address:
        self._look_at = monotonic() + (self._finder.every or 0.0)
        addresses = list(dict.fromkeys(address for _, address in self._finder.find()))
        return addresses[self._left % len(addresses)]
