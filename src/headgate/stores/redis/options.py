"""How to reach a Redis server: what its URL says, and our own options in it."""

from __future__ import annotations

from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis.connection import parse_url
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeout

from headgate.errors import StoreError, StoreTimeout, StoreUnavailable

OWN = ("timeout", "max_batch", "max_in_flight")


class Options(NamedTuple):
    """Our own options. They are written into the URL: `redis://localhost:6379/0?timeout=0.2`."""

    timeout: float = 0.05  # seconds that a check may take
    max_batch: int = 128  # groups in one script call: one call holds up Redis for well under a millisecond
    max_in_flight: int = 4  # script calls, and so connections, at a time of an async store


def read_url(url: str) -> tuple[Options, type[Any] | None, dict[str, Any]]:
    """Our options, the connection class if it is not the plain one, and its arguments.

    Raises `ValueError` on anything that it does not know.
    """
    parts = urlsplit(url)
    number = parts.path.strip("/")
    if parts.scheme != "unix" and number and not (number.isascii() and number.isdecimal()):  # redis would take 0
        raise ValueError(f"store URL: the database must be a number, as in redis://localhost:6379/0, got {number!r}")
    own: dict[str, Any] = {}
    others = []
    for name, value in parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)):
        if name in OWN:
            own[name] = _positive(name, value, whole=name != "timeout")
        else:
            others.append((name, value))
    # Not by urlunsplit, which writes unix:///path with one slash.
    plain = f"{parts.scheme}://{parts.netloc}{parts.path}?{urlencode(others)}"
    arguments = dict(parse_url(plain))  # type: ignore[no-untyped-call]
    options = Options(**own)
    arguments.setdefault("protocol", 2)
    arguments.setdefault("client_name", "headgate")
    arguments["socket_connect_timeout"] = options.timeout
    return options, arguments.pop("connection_class", None), arguments


def _positive(name: str, value: str, *, whole: bool) -> float:
    try:
        number = int(value) if whole else float(value)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        raise ValueError(f"store URL: {name}: must be a {'whole ' if whole else ''}number above 0, got {value!r}")
    return number


def fault(error: Exception, timeout: float) -> StoreError:
    """What a failure of the connection or an error reply means to the limiter."""
    if isinstance(error, RedisTimeout | TimeoutError):
        return StoreTimeout(f"Redis did not answer within {timeout * 1000:g} ms")
    return StoreUnavailable(f"Redis failed: {error}")


FAULTS = (RedisError, OSError)
