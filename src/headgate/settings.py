"""Settings of the service, and of the commands that call it. Only this module reads the environment.

Defaults < a TOML file (`http_address`) < the environment (`HEADGATE_HTTP_ADDRESS`) < flags (`--http-address`). Secrets
can also be read from their own files: `HEADGATE_ADMIN_TOKEN_FILE`.

Every value is kept with its origin, so that messages can name what to change.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from os import environ as process_environment
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from headgate.core.key import checked_prefix
from headgate.core.suggestion import nearest
from headgate.errors import InvalidSettings
from headgate.regions import Member, Region
from headgate.settings_fields import (
    SHORT_TOKEN,
    Address,
    DatabaseUrl,
    Duration,
    ExistingFile,
    HttpUrl,
    Listen,
    StoreUrl,
    Token,
    WebhookSecret,
)
from headgate.stores.urls import with_prefix

PREFIX: Final = "HEADGATE_"
FROM_FILES: Final = ("store", "database_url", "admin_token", "data_token", "webhook_secret")  # also with suffix _file
OF_CLIENTS: Final = ("HEADGATE_SERVER",)  # settings of the other commands
DEFAULT_SERVER: Final = "http://127.0.0.1:8080"
ADMIN_TOKEN_FILE: Final = "admin-token"  # in the data directory: the token that is generated if none is set
DATABASE_FILE: Final = "headgate.db"  # in the data directory: the default database
# Variables that Kubernetes sets for a service called headgate, and those of our tests.
_OF_OTHERS: Final = re.compile(r"HEADGATE_(SERVICE_(HOST|PORT)|PORT(_\d+_|$)|TEST_)")


class MemberSettings(BaseModel):
    """One of the regions: a table of `[[region.members]]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: str
    store: StoreUrl | None = None  # None: this region's own store
    weight: int = Field(1, ge=1)


class RegionSettings(BaseModel):
    """`[region]`: this region's name, and all regions."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    name: str
    members: tuple[MemberSettings, ...]
    central: str | None = None
    interval: Duration = 1.0
    term: Duration | None = None
    floor: float = 0.05

    def region(self, store_prefix: str | None = None) -> Region:
        """Return the region. Others' stores use `store_prefix` unless their URLs set one. Raises `ValueError`."""
        members = [
            Member(
                one.name,
                None if one.store is None else with_prefix(one.store.get_secret_value(), store_prefix),
                one.weight,
            )
            for one in self.members
        ]
        return Region(
            self.name, members, central=self.central, interval=self.interval, term=self.term, floor=self.floor
        )


class Settings(BaseModel):
    """The settings of `headgate serve`. Durations are in seconds. Secrets are masked in its repr."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    store: StoreUrl | None = None  # None: memory; with several workers, embedded
    store_prefix: Annotated[str, AfterValidator(checked_prefix)] | None = None  # None: the store URL's prefix, or rl
    database_url: DatabaseUrl | None = None  # None: SQLite in data_dir
    rules: ExistingFile | None = None  # if set, the only source of rules
    samples: bool = False  # put sample rules into a database that has never held any
    http_address: Listen = Address("127.0.0.1", 8080)
    grpc_address: Listen = Address("127.0.0.1", 8081)
    admin_address: Listen | None = None  # of the admin API, the console and metrics; None: they share http_address
    admin_token: Token | None = None  # None: generated on first use, and kept in data_dir
    data_token: Token | None = None  # None: checks need no token
    region: RegionSettings | None = None  # None: there is only one region
    workers: int = Field(1, ge=1, le=256)
    data_dir: Annotated[Path, AfterValidator(Path.expanduser)]
    tls_certificate: ExistingFile | None = None
    tls_key: ExistingFile | None = None
    tls_client_ca: ExistingFile | None = None  # if set, clients need a certificate from it
    insecure: bool = False  # serve other machines without TLS
    reflection: bool = False  # of gRPC
    console: bool = True  # serve the console at /console
    log_format: Literal["auto", "console", "json"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    audit_retention: Duration = 90 * 86_400.0
    usage_retention: Duration = 30 * 86_400.0  # by the minute
    usage_hourly_retention: Duration = 365 * 86_400.0
    otlp_endpoint: str | None = None  # the collector of spans
    webhook_url: HttpUrl | None = None  # receives refusals and changes
    webhook_secret: WebhookSecret | None = None  # signs messages
    webhook_events: Literal["all", "refusals", "changes"] = "all"
    drain_delay: Duration = 3.0  # from announcing the stop to stopping, so that load balancers notice
    drain_timeout: Duration = 15.0  # for open calls

    @property
    def database(self) -> str:
        """The URL of the database. It may contain a password."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        return f"sqlite:///{self.data_dir.absolute() / DATABASE_FILE}"

    @property
    def store_url(self) -> str:
        """The URL of the store, with the prefix of its keys. It may contain a password.

        By default, a single process counts in memory, and several in an embedded server in `data_dir`.
        """
        if self.store is not None:
            url = self.store.get_secret_value()
        elif self.workers == 1:
            url = "memory://"
        else:
            url = f"embedded://{quote(str(self.data_dir.absolute() / 'counters'))}"
        return with_prefix(url, self.store_prefix)

    @property
    def own_region(self) -> Region | None:
        """This region; None if there is only one. Raises `ValueError`."""
        return None if self.region is None else self.region.region(self.store_prefix)

    @property
    def secrets(self) -> list[str]:
        """The secrets to mask in logs."""
        own = (self.admin_token, self.data_token, self.webhook_secret)
        tokens = [one.get_secret_value() for one in own if one is not None]
        members = () if self.region is None else self.region.members
        stores = [member.store.get_secret_value() for member in members if member.store is not None]
        urls = [urlsplit(url) for url in (self.store_url, self.database, *stores)]
        passwords = [url.password for url in urls]
        passwords += [value for url in urls for name, value in parse_qsl(url.query) if name.endswith("password")]
        return [*tokens, *(form for one in passwords if one for form in (one, unquote(one)))]

    @property
    def tls(self) -> bool:
        return self.tls_certificate is not None

    @property
    def in_memory(self) -> bool:
        """Whether counters are in this process's memory."""
        return self.store_url.startswith("memory:")

    @property
    def embedded(self) -> bool:
        """Whether counters are in a server that Headgate runs."""
        return self.store_url.startswith("embedded:")


class ClientSettings:
    """The settings of commands that call a service, used where a flag is missing. Each is read on access."""

    def __init__(self, environ: Mapping[str, str] = process_environment) -> None:
        self._environ = environ

    @property
    def server(self) -> str:
        """The URL of the service."""
        return self._environ.get("HEADGATE_SERVER") or DEFAULT_SERVER

    @property
    def admin_token_file(self) -> Path:
        """The file of the token that a service on this machine generated."""
        value = self._environ.get(variable("data_dir"))
        return (Path(value).expanduser() if value else _data_home(self._environ)) / ADMIN_TOKEN_FILE

    def token(self, *names: str) -> str | None:
        """Return the first of these settings (`data_token`, `admin_token`) that is set. Raises `InvalidSettings`."""
        for name in names:
            problems: list[str] = []
            keys = {one: variable(one) for one in (name, f"{name}_file")}
            layer = {one: _Value(self._environ[key], key) for one, key in keys.items() if self._environ.get(key)}
            found = _with_secrets(layer, problems).get(name)
            if problems:
                raise InvalidSettings(*problems)
            if found is not None:
                return str(found.value)
        return None


class Loaded(NamedTuple):
    """Settings, and warnings about possible mistakes."""

    settings: Settings
    warnings: list[str]


class _Value(NamedTuple):
    value: Any
    origin: str  # its name in messages: "HEADGATE_STORE", "--store", "headgate.toml: store"


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    config: Path | None = None,
    environ: Mapping[str, str] = process_environment,
) -> Loaded:
    """Merge the settings of all sources. Flags that are None count as absent.

    Raises `InvalidSettings` with every problem.
    """
    problems: list[str] = []
    warnings: list[str] = []
    values: dict[str, _Value] = {"data_dir": _Value(_data_home(environ), "data_dir")}
    for layer in (
        _of_file(config, problems),
        _of_environment(environ, warnings),
        {name: _Value(value, flag(name)) for name, value in (flags or {}).items() if value is not None},
    ):
        values |= _with_region(_with_secrets(layer, problems), values.get("region"), problems)
    try:
        settings = Settings(**{name: value.value for name, value in values.items()})
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise InvalidSettings(*problems, *(_problem(detail, values) for detail in details)) from None
    problems += _contradictions(settings)
    if problems:
        raise InvalidSettings(*problems)
    for name in ("admin_token", "data_token"):
        token = getattr(settings, name)
        if token is not None and len(token.get_secret_value()) < SHORT_TOKEN:
            warnings.append(
                f"{values[name].origin}: this token has only {len(token.get_secret_value())} characters, and can be "
                f"guessed: use at least {SHORT_TOKEN}, for example from `openssl rand -hex 32`"
            )
    return Loaded(settings, warnings)


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def flag(name: str) -> str:
    """Return the command line's flag of a setting."""
    return f"--{name.replace('_', '-')}"


def names_of(name: str) -> str:
    """Return both names of a setting, for messages: `HEADGATE_STORE (--store)`. Secrets alone have flags for files."""
    suffix = "_file" if name in ("admin_token", "data_token", "webhook_secret") else ""
    return f"{variable(name)} ({flag(name + suffix)})"


def _names() -> list[str]:
    return [*Settings.model_fields, *(f"{name}_file" for name in FROM_FILES)]


def _of_file(path: Path | None, problems: list[str]) -> dict[str, _Value]:
    if path is None:
        return {}
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"--config: {path}: cannot be read: {error.strerror}")
    except ValueError as error:  # also raised if it is not UTF-8
        problems.append(f"--config: {path}: is not TOML: {error}")
    else:
        unknown = [name for name in data if name not in _names()]
        problems += [f"{path}: {name}: unknown key{_suggest(name)}" for name in unknown]
        return {name: _Value(value, f"{path}: {name}") for name, value in data.items() if name not in unknown}
    return {}


def _of_environment(environ: Mapping[str, str], warnings: list[str]) -> dict[str, _Value]:
    """Return the settings in the environment. An empty variable counts as absent, as in compose files and charts."""
    known = {variable(name): name for name in _names()}
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in OF_CLIENTS and not _OF_OTHERS.match(name):
            meant = _suggest(name.removeprefix(PREFIX).lower(), variable)
            warnings.append(f"{name}: unknown setting, ignored{meant}")
    return {name: _Value(environ[key], key) for key, name in known.items() if environ.get(key)}


def _with_secrets(layer: dict[str, _Value], problems: list[str]) -> dict[str, _Value]:
    """Return the values with those of `*_file` settings read from their files."""
    for name in FROM_FILES:
        kept = layer.pop(f"{name}_file", None)
        if kept is None:
            continue
        if name in layer:
            problems.append(f"{layer[name].origin} and {kept.origin}: only one of them can be given")
            continue
        try:
            layer[name] = _Value(read_secret(kept.value), kept.origin)
        except ValueError as error:
            problems.append(f"{kept.origin}: {kept.value}: {error}")
    return layer


def read_secret(file: str | Path) -> str:
    """Return the secret in a file. Raises `ValueError`."""
    try:
        secret = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError, TypeError) as error:
        why = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise ValueError(f"cannot be read: {why}") from error
    if not secret:
        raise ValueError("is empty")
    return secret


def _with_region(layer: dict[str, _Value], table: _Value | None, problems: list[str]) -> dict[str, _Value]:
    """Return the values with the region's name, from flags or the environment, put into its table."""
    named = layer.get("region")
    if named is not None and isinstance(named.value, str):
        if table is None:
            problems.append(
                f"{named.origin}: names this region, but the regions are not configured: "
                "use a file (--config) with [region] and [[region.members]]"
            )
            del layer["region"]
        elif isinstance(table.value, Mapping):
            layer["region"] = _Value({**table.value, "name": named.value}, table.origin)
    return layer


def _contradictions(settings: Settings) -> Iterator[str]:
    """Yield problems that involve several settings."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        present, missing = ("tls_certificate", "tls_key")[:: 1 if settings.tls_certificate else -1]
        yield f"{names_of(present)} is set without {names_of(missing)}: TLS needs both"
    if settings.tls_client_ca is not None and not settings.tls:
        yield f"{names_of('tls_client_ca')} is set without {names_of('tls_certificate')} and {names_of('tls_key')}"
    if (settings.webhook_url is None) != (settings.webhook_secret is None):
        yield f"{names_of('webhook_url')} and {names_of('webhook_secret')}: set both, or none: every message is signed"
    if settings.region is not None:
        try:
            _ = settings.own_region
        except ValueError as error:
            yield f"region: {error}"
        if settings.in_memory or settings.embedded:
            yield f"region is set, but other regions cannot reach this one's store: set {names_of('store')}"
    open_ones = [
        f"{names_of(name)} is {address}"
        for name in ("http_address", "grpc_address", "admin_address")
        if (address := getattr(settings, name)) is not None and not address.is_loopback
    ]
    if not open_ones:
        return
    others = f"{' and '.join(open_ones)}, which other machines can reach"
    missing_tokens = [variable(name) for name in ("admin_token", "data_token") if getattr(settings, name) is None]
    if missing_tokens and settings.tls_client_ca is None:
        yield f"{others}: set {' and '.join(missing_tokens)}, or {names_of('tls_client_ca')} to ask for certificates"
    if not settings.tls and not settings.insecure:
        yield (
            f"{others}: set {names_of('tls_certificate')} and {names_of('tls_key')}, "
            f"or {names_of('insecure')} if something in front does TLS"
        )


def _problem(detail: ErrorDetails, values: Mapping[str, _Value]) -> str:
    name, *inner = map(str, detail["loc"])
    value, origin = values[name]
    message = detail["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    if inner:  # a table: its values may be secrets, except numbers
        value = detail["input"]
        shown = f", got {value!r}" if isinstance(value, int | float) and detail["type"] != "value_error" else ""
        return f"{origin}: {': '.join(inner)}: {message}{shown}"
    secret = name in FROM_FILES
    shown = "" if secret or detail["type"] == "value_error" else f", got {value!r}"
    return f"{origin}: {message}{shown}"


def _suggest(name: str, shown: Callable[[str], str] = str) -> str:
    found = nearest(name, _names())
    return "" if found is None else f"; did you mean {shown(found)}?"


def _data_home(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_DATA_HOME", "")
    return (Path(home) if Path(home).is_absolute() else Path("~/.local/share").expanduser()) / "headgate"
