"""Reads the data plane's requests from JSON. Strict: an error names the field, and the request is not charged."""

from __future__ import annotations

import json
from ipaddress import IPv6Network
from typing import Any, Final

from headgate.core.cost import UNIT
from headgate.core.quota import MAX_INT
from headgate.errors import InvalidCheck
from headgate.http.identity.address import NOWHERE, Trust
from headgate.rules.facts import FactNames
from headgate.rules.penalties import IDENTITIES
from headgate.service.data_plane import MAX_BATCH, BatchedRequest

SHOWN: Final = 80  # characters of a value in a message
IPV6_PREFIX: Final = 64  # the middleware's default, so that both count the same subjects

_new: Final[Any] = tuple.__new__  # makes a named tuple in half the time of calling its class
_SECRET: Final = frozenset({"api_key"})  # not shown in messages
_ADDRESSES: Final = Trust((), 1, IPV6_PREFIX)  # trusts no proxy: it only parses addresses


def ask_of(value: Any, names: FactNames, where: str = "") -> BatchedRequest:
    """Read a check from a JSON object with facts, `cost` and `idempotency_key`. May change the object.

    `names` are the known facts. They are checked here because the limiter never sees facts that are null.

    Raises `InvalidCheck`, whose message begins with `where` and the field's name.
    """
    if not isinstance(value, dict):
        example = '{"user": "alice"}'
        what = where or "the body "
        raise InvalidCheck(f"{what}must be an object with the request's facts, such as {example}, got {shown(value)}")
    cost, key = value.pop("cost", 1), value.pop("idempotency_key", None)
    if cost.__class__ is not int or not 0 <= cost <= MAX_INT:
        cost = 1 if cost is None else _units(cost, where)
    if key is not None and (not isinstance(key, str) or not key):
        raise InvalidCheck(f"{where}idempotency_key: must be a non-empty string, got {shown(key)}")
    for fact in value.values():
        if fact.__class__ is not str:
            value = _texts(value, names, where)
            break
    if "" in value:
        raise InvalidCheck(f"{where}the name of a fact must not be empty: it has the value {shown(value[''])}")
    if "ip" in value:
        place(value, where)
    checked: BatchedRequest = _new(BatchedRequest, (value, cost, key, None))
    return checked


def _units(cost: Any, where: str) -> dict[str, int]:
    """Read a cost that is an object with an amount of each unit. Raises `InvalidCheck`."""
    if not isinstance(cost, dict):
        raise InvalidCheck(f"{where}cost: must be a whole number from 0 to 2^53-1, got {shown(cost)}")
    if not cost:
        example = '{"requests": 1, "tokens": 4000}'
        raise InvalidCheck(f"{where}cost: must name at least one unit, such as {example}, got {{}}")
    for unit, amount in cost.items():
        if not UNIT.fullmatch(unit):
            raise InvalidCheck(f"{where}cost: the name of a unit must be letters, digits and _.-, got {shown(unit)}")
        if amount.__class__ is not int or not 0 <= amount <= MAX_INT:
            raise InvalidCheck(f"{where}cost.{unit}: must be a whole number from 0 to 2^53-1, got {shown(amount)}")
    return cost


def slot_of(value: Any) -> str:
    """Return the id in `{"slot": "…"}`. Raises `InvalidCheck`."""
    if not isinstance(value, dict) or list(value) != ["slot"] or not isinstance(value["slot"], str):
        raise InvalidCheck(
            f'the body must be an object like {{"slot": "s1.…"}}, as /v1/acquire returns it, got {shown(value)}'
        )
    return value["slot"]


def asks_of(value: Any, names: FactNames) -> list[BatchedRequest]:
    """Read the checks of a batch, `{"checks": […]}`. Raises `InvalidCheck`."""
    if not isinstance(value, dict):
        raise InvalidCheck(f'the body must be an object like {{"checks": [{{"user": "alice"}}]}}, got {shown(value)}')
    checks = value.get("checks")
    if not isinstance(checks, list):
        raise InvalidCheck(f"checks: must be a list of checks, got {shown(checks)}")
    if len(value) > 1:
        other = next(name for name in value if name != "checks")
        raise InvalidCheck(f'unknown field {shown(other)}; expected only "checks"')
    if len(checks) > MAX_BATCH:
        raise InvalidCheck(f"checks: must be at most {MAX_BATCH:,}, got {len(checks):,}")
    return [ask_of(check, names, f"checks[{number}]: ") for number, check in enumerate(checks)]


def place(facts: dict[str, str], where: str = "") -> None:
    """Normalize the fact `ip` as the middleware does, and add `address` for an IPv6 network.

    `ip` may be an address as servers and proxies write it, or the middleware's name for a client: an IPv6 network or
    `unix`. Raises `InvalidCheck`.
    """
    ip = facts["ip"]
    seen = _ADDRESSES.recent.get(ip) or (_ADDRESSES.see(ip) if ip else None)
    if seen is not None and seen.is_address:
        facts.update(seen.facts)
    elif ip != NOWHERE:
        facts["ip"] = _group(ip, where)


def decode(body: bytes) -> Any:
    """Decode a JSON body. Raises `InvalidCheck` for anything that is not strict JSON (RFC 8259, I-JSON)."""
    try:
        text = body.decode()
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise InvalidCheck(f"the body must be JSON in UTF-8: byte {error.start} is not") from None
    except UnicodeEncodeError as error:
        half = json.dumps(error.object[error.start])
        raise InvalidCheck(f"the body holds {half}, half of a pair that stands for one character") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidCheck(f"the body must be JSON: {error.msg} ({where})" if body else "the body is empty") from None
    except RecursionError:
        raise InvalidCheck("the body is nested too deeply") from None
    except InvalidCheck:
        raise
    except ValueError:  # Python's limit on a number's digits
        raise InvalidCheck("the body holds a number with too many digits") from None
    return value


def shown(value: Any) -> str:
    """Return a value for a message: as JSON, shortened."""
    try:
        text = json.dumps(value)
    except (RecursionError, ValueError):
        text = type(value).__name__
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _texts(facts: dict[str, Any], names: FactNames, where: str) -> dict[str, str]:
    """Return the facts as strings, without those that are null. A fact that identifies the client must not be null."""
    texts = {}
    for name, value in facts.items():
        if isinstance(value, str):
            texts[name] = value
        elif isinstance(value, int) and not isinstance(value, bool):
            texts[name] = str(value)
        elif value is None and name in IDENTITIES:
            raise InvalidCheck(
                f"{where}{name}: must not be null: it identifies no client; leave it out if it is not known"
            )
        elif value is None:
            _require_known(name, names, where)
        else:
            got = type(value).__name__ if name in _SECRET else shown(value)
            raise InvalidCheck(f"{where}{shorter(name)}: must be a string or an integer, got {got}")
    return texts


def _require_known(name: str, names: FactNames, where: str) -> None:
    """Raise `InvalidCheck` for an unknown fact."""
    try:
        names.require((name,))
    except InvalidCheck as error:
        raise InvalidCheck(f"{where}{error}") from None


def shorter(name: str) -> str:
    """Return a field's name for a message, shortened."""
    return name if name.isprintable() and len(name) <= SHOWN else shown(name)


def _group(ip: str, where: str) -> str:
    try:
        group = IPv6Network(ip) if "/" in ip else None
    except ValueError:
        group = None
    if group is None or group.prefixlen != IPV6_PREFIX:
        raise InvalidCheck(f"{where}ip: must be an address of IPv4 or IPv6, got {shown(ip)}")
    return str(group)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object, and reject repeated names: JSON readers differ in which one they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise InvalidCheck(f"{shorter(name)}: given twice")
            seen.add(name)
    return found


def _no_constant(name: str) -> Any:
    raise InvalidCheck(f"the body must be JSON, which has no {name}")


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)
