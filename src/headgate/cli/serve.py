"""`headgate serve`: runs the service."""

from __future__ import annotations

import inspect
import logging
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headgate._version import __version__
from headgate.cli.options import optional_parameters, set_parameters
from headgate.rules.sources.collection import collection_paused
from headgate.settings import ADMIN_TOKEN_FILE, Settings, load
from headgate.settings_fields import Address
from headgate.telemetry.logs import configure_logging

if TYPE_CHECKING:
    from headgate.service.process import ListenAddresses

log = logging.getLogger("headgate")

_FLAGS: Final[dict[str, dict[str, tuple[str, str]]]] = {  # by panel and setting: its value or flag, and the help
    "Where it listens": {
        "http_address": ("HOST:PORT", "HTTP. (default: 127.0.0.1:8080)"),
        "grpc_address": ("HOST:PORT", "gRPC. (default: 127.0.0.1:8081)"),
        "admin_address": ("HOST:PORT", "The admin API, the console and metrics. (default: together with HTTP)"),
    },
    "Rules and storage": {
        "rules": ("FILE", "A rules file, instead of rules in the database."),
        "samples": ("--samples", "Put sample rules into a database that has never held any."),
        "store": (
            "URL",
            "URL of the store for counters: redis://… (default: memory://; with several workers embedded://, in the "
            "data directory)",
        ),
        "store_file": ("FILE", "File that holds the store's URL. Safer, because other users can see flags."),
        "store_prefix": (
            "TEXT",
            "Prefix of all keys in the store, to share a Redis with other programs. (default: rl)",
        ),
        "database_url": ("URL", "URL of the database: postgresql://… (default: SQLite in the data directory)"),
        "database_url_file": ("FILE", "File that holds the database's URL."),
        "region": ("NAME", "Which of the regions in the settings file this is."),
        "data_dir": ("DIRECTORY", "Directory for local files. (default: ~/.local/share/headgate)"),
    },
    "Access": {
        "admin_token_file": ("FILE", "File with the admin token. (default: generated)"),
        "data_token_file": ("FILE", "File with the token that checks require. (default: none)"),
        "tls_certificate": ("FILE", "TLS certificate with its chain, PEM."),
        "tls_key": ("FILE", "TLS key, PEM."),
        "tls_client_ca": ("FILE", "Require client certificates from this CA, PEM."),
        "insecure": ("--insecure", "Serve other machines without TLS."),
        "reflection": ("--reflection", "Enable gRPC reflection."),
        "console": ("--console/--no-console", "Serve the console. (default: yes)"),
    },
    "How it runs": {
        "workers": ("NUMBER", "Number of processes. (default: 1)"),
        "log_format": ("FORMAT", "console, json or auto. (default: auto, console on a terminal)"),
        "log_level": ("LEVEL", "debug, info, warning, error. (default: info)"),
        "audit_retention": ("TIME", "How long to keep events. (default: 90d)"),
        "usage_retention": ("TIME", "How long to keep usage by the minute. (default: 30d)"),
        "usage_hourly_retention": ("TIME", "How long to keep usage by the hour. (default: 365d)"),
        "otlp_endpoint": ("URL", "Endpoint for OpenTelemetry spans."),
        "webhook_url": ("URL", "Webhook that receives refusals and changes."),
        "webhook_secret_file": ("FILE", "File with the secret that signs webhook messages."),
        "webhook_events": ("KIND", "What to send to the webhook: refusals, changes or all. (default: all)"),
        "drain_delay": ("TIME", "How long to keep serving after SIGTERM. (default: 3s)"),
        "drain_timeout": ("TIME", "How long to wait for open calls when stopping. (default: 15s)"),
        "hints": ("--hints", "Print commands to try."),
    },
}


def _option(panel: str, value: str, text: str) -> Any:
    """Return the type of a parameter that becomes an option."""
    if value.startswith("--"):
        return Annotated[bool | None, typer.Option(value, help=text, rich_help_panel=panel)]
    kind = Path if value in ("FILE", "DIRECTORY") else str
    return Annotated[kind | None, typer.Option(metavar=value, help=text, rich_help_panel=panel)]


def serve(
    config: Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file with settings.")] = None, **flags: Any
) -> None:
    """Run the service: HTTP and gRPC.

    Each flag is also an environment variable: HEADGATE_HTTP_ADDRESS, and a key of the settings file: http_address.
    Tokens and URLs can be in files: HEADGATE_ADMIN_TOKEN_FILE. Ctrl-C stops it gracefully, a second one at once.
    """
    hints = bool(flags.pop("hints"))
    settings, warnings = load(flags, config=config)
    configure_logging(settings.log_format, settings.log_level, secrets=settings.secrets)
    for warning in warnings:
        log.warning("settings: %s", warning)
    _run(settings, hints=hints)


_options = {name: _option(panel, *flag) for panel, flags in _FLAGS.items() for name, flag in flags.items()}
_config, *_ = inspect.signature(serve, eval_str=True).parameters.values()
set_parameters(serve, [_config, *optional_parameters(_options)])


def _run(settings: Settings, *, hints: bool) -> None:
    def announce(addresses: ListenAddresses) -> None:
        if hints or sys.stdout.isatty():
            print(_banner(settings, addresses, hints=hints), flush=True)
        else:
            if settings.admin_token is None:
                log.info("the admin token is in %s", _token_file(settings))
            admin = "" if addresses.admin is None else f", admin on {addresses.admin}"
            log.info("serving: HTTP on %s, gRPC on %s%s", addresses.http, addresses.grpc, admin)

    if settings.workers == 1:
        with collection_paused():
            from headgate.service import server  # noqa: PLC0415 - other commands do not need it
        server.run(settings, announce)
        return
    if settings.in_memory:
        log.warning(
            "%d workers with counters in memory: each counts separately, so a client may get up to %d times a "
            "limit; to share counts, leave HEADGATE_STORE (--store) out, or set it to a Redis or Valkey",
            *(settings.workers, settings.workers),
        )
    with collection_paused():
        from headgate.service import supervisor  # noqa: PLC0415
    supervisor.run(settings, announce)


def _banner(settings: Settings, addresses: Any, *, hints: bool) -> str:
    scheme = "https" if settings.tls else "http"
    url = f"{scheme}://{_reachable(addresses.http)}"
    admin_address = addresses.admin or addresses.http
    admin = f"{scheme}://{_reachable(admin_address)}"
    own = [f"  admin         {admin}"] if addresses.admin is not None else []
    console = _console(admin, settings, admin_address) if settings.console else None
    link = [] if console is None else [f"  console       {console}" + "   (signs in once)" * ("?code=" in console)]
    rules = f"the file {settings.rules}" if settings.rules else f"the database, by {admin}/api/v1/rules"
    token_file = _token_file(settings)
    lines = [
        f"Headgate {__version__} is serving.",
        "",
        f"  HTTP          {url}",
        *own,
        *link,
        f"  API docs      {admin}/docs",
        f"  gRPC          {_reachable(addresses.grpc)}",
        f"  rules         in {rules}",
        f"  counters      {_counters(settings)}",
        f"  admin token   {f'in {token_file}' if settings.admin_token is None else 'the one that you set'}",
    ]
    if hints:
        lines += ["", *_hints(url, settings, console or f"{admin}/docs")]
    lines += ["", "Ctrl-C stops it."]
    return "\n".join(lines)


def _console(url: str, settings: Settings, address: Address) -> str:
    """Return the console's address, with a one-time sign-in link if only this machine can use it."""
    from headgate.service.directory import make_link_code  # noqa: PLC0415 - other commands need none of it

    try:
        code = make_link_code(settings.data_dir.absolute()) if address.is_loopback else None
    except OSError:
        code = None
    return f"{url}/console" + ("" if code is None else f"/sign-in?code={code}")


def _counters(settings: Settings) -> str:
    whose = "this process" if settings.workers == 1 else "each worker"
    if settings.in_memory:
        return f"in memory, only in {whose}"
    return "in a bundled Valkey, shared by its processes" if settings.embedded else "in Redis"


def _hints(url: str, settings: Settings, page: str) -> list[str]:
    """Return commands to try. `page` is the page to open: the console, or the API's documentation."""
    post = f"curl -s{'k' if settings.tls else ''}"
    if settings.data_token is not None:
        post += " -H 'Authorization: Bearer <data token>'"
    passes = f"""{post} --json '{{"user": "alice", "endpoint": "/search"}}' {url}/v1/check"""
    facts = '{"ip": "192.0.2.7", "endpoint": "/login", "method": "POST"}'
    login = f"{post} -o /dev/null -w '%{{http_code}} ' --json '{facts}'"
    return [
        "Three commands to try, in another terminal:",
        "",
        "  # a check that passes",
        f"  {passes}",
        "",
        "  # six attempts to log in: the sixth is refused",
        f"  for i in 1 2 3 4 5 6; do {login} {url}/v1/check; done; echo",
        "",
        "  # the console, in your browser" if settings.console else "  # the API, in your browser",
        f"  python3 -m webbrowser {shlex.quote(page)}",
    ]


def _token_file(settings: Settings) -> Path:
    return settings.data_dir.absolute() / ADMIN_TOKEN_FILE


def _reachable(address: Address) -> str:
    """Return an address that a client on this machine can use."""
    return str(address._replace(host={"0.0.0.0": "127.0.0.1", "::": "localhost"}.get(address.host, address.host)))
