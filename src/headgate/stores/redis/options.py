"""Parse a store's URL: how to reach Redis, and Headgate's own options."""

from __future__ import annotations

import re
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from redis.connection import Connection, SSLConnection, parse_url
from redis.exceptions import RedisError

from headgate.core.key import DEFAULT_PREFIX
from headgate.core.suggestion import did_you_mean
from headgate.errors import InvalidStore
from headgate.stores.breaker import PROBE_SECONDS
from headgate.stores.redis.faults import Address
from headgate.stores.redis.tls import Tls
from headgate.stores.urls import parts_of, read_options, read_prefix

OWN: Final = ("timeout", "connect_timeout", "max_batch", "max_in_flight", "probe_every", "remember")  # numeric options
WHOLE: Final = ("max_batch", "max_in_flight")
# Options of redis-py's connections: `timeout` replaces timeouts, nothing is sent twice, and the rest are not strings.
REFUSED: Final = ("socket_timeout", "socket_connect_timeout", "retry", "retry_on_timeout", "retry_on_error")
SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password", "sentinel_ssl")
NAMES: Final = (*OWN, "prefix", *SENTINEL_OPTIONS)
PORTS: Final = {"sentinel": 26379, "cluster": 6379}

_UNEXPECTED: Final = re.compile(r"unexpected keyword argument '(\w+)'")

TopologyName = Literal["single", "sentinel", "cluster"]


class RedisOptions(NamedTuple):
    """Headgate's own options. They are part of the URL: `redis://localhost:6379/0?timeout=0.2`."""

    timeout: float = 0.2  # seconds that a check may take
    connect_timeout: float = 2.0  # seconds for connecting, TLS and greetings, and for a late reply
    max_batch: int = 128  # groups in one script call: one call blocks Redis for well under a millisecond
    max_in_flight: int = 4  # calls, and so connections, at a time per server
    probe_every: float = PROBE_SECONDS  # the shortest interval between probes of a server that fails
    remember: float | None = None  # seconds for which a refusal is repeated without a call, at most; None: one
    prefix: str = DEFAULT_PREFIX  # the prefix of every key and channel

    @property
    def patience(self) -> float:
        """Seconds after which an attempt to connect, or a connection without a reply, is given up."""
        return max(self.timeout, self.connect_timeout)

    def remember_us(self, *, own_time: bool) -> int:
        """Return `remember` in microseconds. `own_time`: the store has its own clock, which may stand still."""
        seconds = (0.0 if own_time else 1.0) if self.remember is None else self.remember
        return round(seconds * 1_000_000)


class ConnectionParams(NamedTuple):
    """The parameters of connections to a server."""

    kind: type[Any] | None  # redis-py's connection class, if it is not the plain one
    arguments: dict[str, Any]  # arguments of that class
    tls: Tls | None = None

    @property
    def name(self) -> str:
        """The server's name for messages: host:port, or the path of its socket."""
        path = self.arguments.get("path")
        return path or f"{self.arguments.get('host', 'localhost')}:{self.arguments.get('port', 6379)}"

    def to(self, address: Address) -> ConnectionParams:
        """Return these parameters for another server."""
        return self._replace(arguments={**self.arguments, "host": address[0], "port": address[1]})


class StoreTarget(NamedTuple):
    """The target of a URL: one server, or several and the servers that know them."""

    options: RedisOptions
    params: ConnectionParams  # for the server; if there are several, without its address
    topology: TopologyName = "single"
    seeds: tuple[Address, ...] = ()  # servers to ask
    seed_params: ConnectionParams | None = None  # and how to connect to them
    service: str = ""  # the service's name in Sentinel


def read_url(url: str) -> StoreTarget:
    """Parse the URL of a store. Raises `InvalidStore` on anything unknown."""
    parts = parts_of(url)
    scheme, _, topology = parts.scheme.partition("+")
    own: dict[str, Any] = {}
    others, of_sentinels = [], {}
    for name, value in read_options(parts):
        if name in OWN:
            own[name] = _number(name, value, whole=name in WHOLE, zero=name == "remember")
        elif name == "prefix":
            own[name] = read_prefix(value)
        elif name in SENTINEL_OPTIONS and topology == "sentinel":
            of_sentinels[name] = value
        elif name in REFUSED or name.startswith(("ssl_validate_ocsp", "ssl_ocsp_")):
            instead = "; use timeout or connect_timeout" if "timeout" in name else ""
            raise InvalidStore(f"store URL: {name}: unknown option{instead}")
        else:
            others.append((name, value))
    options = RedisOptions(**own)
    if not topology:
        number = parts.path.strip("/")
        if scheme != "unix" and number and not (number.isascii() and number.isdecimal()):  # redis-py would use 0
            problem = "the database must be a number, as in redis://localhost:6379/0"
            raise InvalidStore(f"store URL: {problem}, got {number!r}")
        return StoreTarget(options, _params(parts._replace(query=urlencode(others)), options))
    if topology not in PORTS or scheme not in ("redis", "rediss"):
        raise InvalidStore(
            f"store URL: scheme: must be redis+sentinel, redis+cluster or rediss+…, got {parts.scheme!r}"
        )
    user, at, hosts = parts.netloc.rpartition("@")
    seeds = tuple(_address(host, PORTS[topology]) for host in hosts.split(","))
    first = f"[{seeds[0][0]}]" if ":" in seeds[0][0] else seeds[0][0]
    plain = parts._replace(scheme=scheme, netloc=f"{user}{at}{first}:{seeds[0][1]}", query=urlencode(others), path="")
    path = [unquote(part) for part in parts.path.strip("/").split("/")]
    if topology == "cluster":
        if path not in ([""], ["0"]):
            raise InvalidStore(f"store URL: a cluster has only database 0, got {parts.path!r}")
        params = _params(plain, options)
        return StoreTarget(options, params, "cluster", seeds, params)
    service, *database = path
    if not service or len(database) > 1 or not (database or ["0"])[0].isdecimal():
        raise InvalidStore(
            f"store URL: path: must be /<service>/<db>, with Sentinel's name of the service, got {parts.path!r}"
        )
    params = _params(plain._replace(path="/".join(("", *database))), options)
    return StoreTarget(options, params, "sentinel", seeds, _sentinel_params(params, of_sentinels), service)


def _params(parts: SplitResult, options: RedisOptions) -> ConnectionParams:
    # urlunsplit would leave out the slashes of unix:///path
    whole = f"{parts.scheme}://{parts.netloc}{parts.path}?{parts.query}"
    try:
        arguments = dict(parse_url(whole))  # type: ignore[no-untyped-call]
    except ValueError as error:
        what = "the port must be a number" if str(error).startswith("Port ") else error  # it may be a password
        raise InvalidStore(f"store URL: {what}") from None
    arguments.setdefault("protocol", 2)
    arguments.setdefault("client_name", "headgate")
    arguments["socket_connect_timeout"] = options.connect_timeout
    kind = arguments.pop("connection_class", None)
    try:
        (kind or Connection)(**arguments)  # does not connect yet
    except TypeError as error:  # else the first check would fail
        found = _UNEXPECTED.search(str(error))
        unknown = f"{found[1]}: unknown option{did_you_mean(found[1], NAMES)}" if found else f"unknown option: {error}"
        raise InvalidStore(f"store URL: {unknown}") from error
    except RedisError as error:
        raise InvalidStore(f"store URL: unknown option: {error}") from error
    return _tls_params(kind, arguments)


def _tls_params(kind: type[Any] | None, arguments: dict[str, Any]) -> ConnectionParams:
    return ConnectionParams(kind, arguments, Tls(arguments) if kind is SSLConnection else None)


def _sentinel_params(params: ConnectionParams, sentinel_options: dict[str, str]) -> ConnectionParams:
    """Return how to connect to a Sentinel: as to a server, except for user, password, database and TLS options."""
    own = ("username", "password", "db")
    arguments = {name: value for name, value in params.arguments.items() if name not in own}
    for name in ("username", "password"):
        if sentinel_options.get(f"sentinel_{name}"):
            arguments[name] = sentinel_options[f"sentinel_{name}"]
    kind, tls = params.kind, sentinel_options.get("sentinel_ssl", "")
    if tls:
        if tls not in ("true", "false"):
            raise InvalidStore(f"store URL: sentinel_ssl: must be true or false, got {tls!r}")
        kind = parse_url("rediss://").get("connection_class") if tls == "true" else None  # type: ignore[no-untyped-call]
    if kind is None:
        arguments = {name: value for name, value in arguments.items() if not name.startswith("ssl_")}
    return _tls_params(kind, arguments)


def _address(text: str, port: int) -> Address:
    """Parse a host with or without a port. Raises `InvalidStore`."""
    parts = urlsplit(f"//{text}")
    try:
        host, number = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.path or parts.username is not None:
        raise InvalidStore(f"store URL: hosts must be host:port,host:port, got {text!r}")
    return host, number or port


def _number(name: str, value: str, *, whole: bool, zero: bool = False) -> float:
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        number = -1
    if not 0 <= number < float("inf") or (number == 0 and not zero):
        kind, least = "whole number" if whole else "number", "from 0" if zero else "above 0"
        raise InvalidStore(f"store URL: {name}: must be a {kind} {least}, got {value!r}")
    return number
