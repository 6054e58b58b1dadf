"""Lines of JSON: nginx, Envoy, Caddy, Traefik, Headgate's own events, and others with usual names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from pydantic_core import from_json

from headgate.replay.fields import UNIT_COST
from headgate.replay.formats.base import ABSENT, Getter, Rows

# By dialect and name: the paths to look at, the best first. `request` is the first line of a request.
DIALECTS: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "headgate": {
        "time": ("at",),
        **{name: (name,) for name in ("ip", "user", "api_key", "tenant", "endpoint", "method", "tier", "cost")},
    },
    "caddy": {
        "time": ("ts",),
        "ip": ("request.client_ip", "request.remote_ip", "request.remote_addr"),
        "user": ("user_id",),
        "endpoint": ("request.uri",),
        "method": ("request.method",),
    },
    "traefik": {
        "time": ("StartUTC", "StartLocal", "time"),
        "ip": ("ClientHost", "ClientAddr"),
        "user": ("ClientUsername",),
        "endpoint": ("RequestPath",),
        "method": ("RequestMethod",),
    },
    "envoy": {
        "time": ("start_time",),
        "ip": ("downstream_remote_address", "x_forwarded_for", "downstream_remote_address_without_port"),
        "endpoint": ("x_envoy_original_path", "path"),
        "method": ("method",),
    },
    "nginx": {
        "time": ("time_iso8601", "msec", "time_local", "@timestamp", "timestamp", "time"),
        "ip": ("remote_addr",),
        "user": ("remote_user",),
        "endpoint": ("request_uri", "uri", "request"),
        "method": ("request_method", "request"),
    },
    "json": {
        "time": ("time", "timestamp", "@timestamp", "ts", "date", "datetime", "at", "start_time", "time_local"),
        "ip": ("ip", "client_ip", "remote_ip", "remote_addr", "client", "clientip", "c-ip", "remote_host", "host_ip"),
        "user": ("user", "user_id", "username", "remote_user", "cs-username"),
        "endpoint": ("endpoint", "path", "uri", "url", "request_uri", "request_path", "cs-uri-stem", "request"),
        "method": ("method", "request_method", "http_method", "verb", "cs-method", "request"),
    },
}
NEEDED: Final = ("time", "ip", "endpoint")  # identify a dialect: it has the first, and one of the others
GENERIC: Final = "json"
EVENTS: Final = "headgate"
EVENT_KEYS: Final = frozenset({"at", "node", "rule", "reason", "weight", "cost"})


def json_row(line: str) -> Any:
    """Parse a line's JSON object. Raises `ValueError`."""
    row = from_json(line)
    if row.__class__ is not dict:
        raise ValueError("not an object")
    return row


def json_objects(sample: Iterable[str]) -> list[dict[str, Any]]:
    """Return the objects among lines."""
    found = []
    for line in sample:
        try:
            found.append(json_row(line))
        except ValueError:
            continue
    return found


def dialect_of(objects: Sequence[dict[str, Any]]) -> str | None:
    """Return the dialect of objects; None if they have no time, or neither address, path nor user."""
    if objects[0].keys() >= EVENT_KEYS:
        return EVENTS
    for name, columns in DIALECTS.items():
        needed = (*NEEDED, "user") if name == GENERIC else NEEDED
        found = {column for column in needed if _present(objects, columns.get(column, ()))}
        if name != EVENTS and "time" in found and len(found) > 1:
            return name
    return None


def json_format(
    dialect: str, objects: Sequence[dict[str, Any]], getters: Mapping[str, Getter], wanted: Iterable[str]
) -> Rows:
    """Return the format of a dialect. Facts that rules want are also found under their own names."""
    return Rows(dialect, json_row, {**json_getters(dialect, objects, wanted), **getters})


def json_getters(dialect: str, objects: Sequence[dict[str, Any]], wanted: Iterable[str]) -> dict[str, Getter]:
    """Return getters for the time, cost and facts that objects of a dialect have."""
    found: dict[str, Getter] = {}
    columns = dict(DIALECTS[dialect])
    for fact in (*wanted, "cost"):
        columns.setdefault(fact, (fact.removeprefix(UNIT_COST),))
    for column, paths in columns.items():
        present = _present(objects, paths)
        if present:
            found[column] = _first([_getter(path, column) for path in present])
    return found


def at_path(path: str) -> Getter:
    """Return a getter for the value at `a.b.c` in an object, or for the first value of a list there."""
    if "." not in path:
        return lambda row: _single(row.get(path))
    first, *rest = path.split(".")

    def find(row: Any) -> Any:
        value = row.get(first)
        for step in rest:
            if value.__class__ is not dict:
                return None
            value = value.get(step)
        return _single(value)

    return find


def header_at(name: str) -> Getter:
    """Return a getter for a request's header field, as Caddy, Traefik, nginx and Envoy name it."""
    written = "-".join(part.capitalize() for part in name.split("-"))
    flat = name.lower().replace("-", "_")
    paths = (f"request_{written}", f"http_{flat}", flat, name, name.lower())

    def find(row: Any) -> Any:
        request = row.get("request")
        headers = request.get("headers") if request.__class__ is dict else row.get("headers")
        if headers.__class__ is dict:
            for one in (written, name, name.lower()):
                if one in headers:
                    return _single(headers[one])
        for path in paths:
            if path in row:
                return _single(row[path])
        return None

    return find


def _present(objects: Iterable[dict[str, Any]], paths: Iterable[str]) -> list[str]:
    return [path for path in paths if any(at_path(path)(one) not in ABSENT for one in objects)]


def _getter(path: str, column: str) -> Getter:
    get = at_path(path)
    if path != "request":
        return get
    index = 0 if column == "method" else 1

    def part(row: Any) -> Any:  # of "GET /path HTTP/1.1"
        return get(row).split(" ")[index]

    return part


def _first(getters: Sequence[Getter]) -> Getter:
    """Return a getter that tries several getters in order."""
    if len(getters) == 1:
        return getters[0]

    def find(row: Any) -> Any:
        for get in getters:
            value = get(row)
            if value not in ABSENT:
                return value
        return None

    return find


def _single(value: Any) -> Any:
    """Return a plain value; the first one of a list; None for an object."""
    if value.__class__ is list:
        value = value[0] if value else None
    return None if value.__class__ is dict else value
