"""A client of the service's HTTP API: returns answers as data, and raises `CommandFault` for all else.

httpx is imported only by commands that need a client: `headgate serve` starts without it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

from headgate._version import __version__
from headgate.cli import REFUSED
from headgate.cli.output import CommandFault
from headgate.errors import Problem
from headgate.settings import ClientSettings, variable
from headgate.settings_fields import Address
from headgate.tls_advice import advise

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT: Final = 5.0  # seconds
TIMEOUT: Final = 30.0  # seconds for everything else
PAGE: Final = 500  # entries per page
TOML: Final = "application/toml"

Json = dict[str, Any]
Params = Mapping[str, str | int | bool | None]


class ServiceClient:
    """Calls one service. Every method raises `CommandFault`.

    `token` is sent if there is one. `ca` is a file of CA certificates to trust in place of the system's; `certificate`
    and `key` are the client's own. `variables` names the environment variables for a token, for error messages.
    """

    def __init__(
        self,
        server: str,
        *,
        token: str | None = None,
        ca: Path | None = None,
        certificate: Path | None = None,
        key: Path | None = None,
        variables: str = variable("admin_token"),
    ) -> None:
        import httpx  # noqa: PLC0415

        self._variables = variables
        self.server = server_url(server)
        headers = {"User-Agent": f"headgate/{__version__}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {_require_sendable(token)}"
        self._has_token = token is not None
        self._http = httpx.Client(
            base_url=self.server,
            headers=headers,
            timeout=httpx.Timeout(TIMEOUT, connect=CONNECT_TIMEOUT),
            verify=_trust(ca, certificate, key, needed=self.server.startswith("https:")),
            trust_env=not is_loopback(self.server),  # a proxy cannot reach this machine for us
        )

    def check(self, path: str, facts: Json) -> Json:
        """Post a check and return its decision. A refusal is a decision too, whatever its status."""
        response = self._send("POST", path, json=facts)
        data = _json(response)
        if isinstance(data, dict) and "allowed" in data:
            return data
        raise self._fault(response)

    def get(self, path: str, params: Params | None = None) -> Json:
        """Return an object."""
        return self._object(self._send("GET", path, params=params))

    def text(self, path: str, *, accept: str = "*/*") -> str:
        """Get an answer as text."""
        response = self._send("GET", path, headers={"Accept": accept})
        if not response.is_success:
            raise self._fault(response)
        return response.text

    def chunks(self, path: str, params: Params | None = None) -> Iterator[str]:
        """Get an answer as text, piece by piece as it arrives."""
        with self._faults(), self._http.stream("GET", path, params=_query(params)) as response:
            if not response.is_success:
                response.read()
                raise self._fault(response)
            yield from response.iter_text()

    def post(self, path: str, data: Json | None = None, params: Params | None = None) -> Json:
        """Post data and return the answer; empty if there is no body."""
        return self._object(self._send("POST", path, params=params, json=data))

    def put(self, path: str, data: Json) -> Json:
        """Put data and return the answer."""
        return self._object(self._send("PUT", path, json=data))

    def put_toml(self, path: str, content: bytes, params: Params | None = None, *, version: Any = None) -> Json:
        """Put TOML; with `version`, only if the stored version is still that one."""
        condition = {} if version is None else {"If-Match": f'"{version}"'}
        headers = {"Content-Type": TOML, **condition}
        return self._object(self._send("PUT", path, params=params, content=content, headers=headers))

    def delete(self, path: str, params: Params | None = None) -> Json:
        return self._object(self._send("DELETE", path, params=params))

    def pages(
        self, path: str, name: str, params: Params | None = None, *, max_items: int | None = None
    ) -> Iterator[Json]:
        """Yield the entries of all pages, at most `max_items`; `name` is the key of a page's entries."""
        left = max_items
        query = dict(params or {})
        while left is None or left > 0:
            page = self.get(path, {**query, "limit": PAGE if left is None else min(PAGE, left)})
            entries = page.get(name, [])
            yield from entries
            left = None if left is None else left - len(entries)
            if not entries or page.get("next") is None:
                return
            query["after"] = page["next"]

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, method: str, path: str, *, params: Params | None = None, **options: Any) -> httpx.Response:
        with self._faults():
            return self._http.request(method, path, params=_query(params), **options)

    def _object(self, response: httpx.Response) -> Json:
        if response.status_code == 204:
            return {}
        data = _json(response)
        if response.is_success and isinstance(data, dict):
            return data
        raise self._fault(response)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        import httpx  # noqa: PLC0415

        try:
            yield
        except httpx.TransportError as error:
            raise CommandFault(_fault_text(error, self.server)) from error

    def _fault(self, response: httpx.Response) -> CommandFault:
        """Return the fault for an answer with an error status."""
        status, data = response.status_code, _json(response)
        if not isinstance(data, dict) or not isinstance(data.get("detail"), str):
            return CommandFault(
                f"{self.server} answers {status} to {response.request.url.path}: is it a Headgate service?"
            )
        if status == 401:
            why = f"{data['detail']}: give another" if self._has_token else f"{self.server} needs a token: give one"
            return CommandFault(f"{why} with --token, or with {self._variables}")
        problems = problems_of(data)
        if problems:
            return InvalidRules(*problems)
        return CommandFault(data["detail"])


class InvalidRules(CommandFault):
    """The service rejected the data; lists every problem."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*map(str, problems), code=REFUSED)
        self.problems = problems

    def of_file(self, file: str) -> InvalidRules:
        """Return this fault with the name of the file that was sent."""
        return InvalidRules(*(problem._replace(file=file) for problem in self.problems))


def problems_of(data: Json) -> list[Problem]:
    """Return the `problems` of problem details."""
    listed = data.get("problems")
    if not isinstance(listed, list):
        return []
    names = ("where", "field", "message")
    return [Problem(*(str(one.get(name) or "") for name in names)) for one in listed if isinstance(one, dict)]


def server_url(text: str) -> str:
    """Return a service's URL; `http://` may be left out."""
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
        raise CommandFault(f"--server: must be a URL as in http://127.0.0.1:8080, got {text!r}")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """Return whether a URL points to this machine."""
    return Address(urlsplit(url).hostname or "", 0).is_loopback


def find_token(flag_value: str | None, server: str, names: tuple[str, ...], settings: ClientSettings) -> str | None:
    """Return the token to send: from the flag, from these settings, or the one that a local service generated."""
    token = flag_value or settings.token(*names)
    if token is not None or not is_loopback(server_url(server)):
        return token
    try:
        return settings.admin_token_file.read_text(encoding="utf-8").strip() or None
    except (OSError, ValueError):  # there is none, or it belongs to another user
        return None


def _require_sendable(token: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        raise CommandFault("--token: must consist of printable ASCII characters without spaces")
    return token


def _trust(ca: Path | None, certificate: Path | None, key: Path | None, *, needed: bool) -> ssl.SSLContext | bool:
    if key is not None and certificate is None:
        raise CommandFault("--key: needs --certificate")
    if not needed:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # no CA needed: loading them is slow
    if ca is None and certificate is None:
        return True
    try:
        context = ssl.create_default_context(cafile=ca)
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except OSError as error:  # also raised for an invalid certificate
        files = ", ".join(str(one) for one in (ca, certificate, key) if one is not None)
        raise CommandFault(f"{files}: cannot be used as certificates: {error.strerror or error}") from error
    return context


def _query(params: Params | None) -> dict[str, str | int | bool]:
    """Return the values that are set."""
    return {name: value for name, value in (params or {}).items() if value is not None}


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return None


def _fault_text(error: httpx.TransportError, server: str) -> str:
    import httpx  # noqa: PLC0415

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return (
                f"{server}: its certificate is not trusted: {advise(cause.verify_message)}; "
                "--ca names a file of those to trust"
            )
        if isinstance(cause, ssl.SSLError):
            return f"{server}: cannot make a TLS connection: {cause.reason or cause}"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return f"no service answers at {server}: start one with `headgate serve`, or name its address with --server"
    if isinstance(error, httpx.TimeoutException):
        return f"{server} did not answer in time"
    return f"{server} closed the connection, or does not speak HTTP: {error}"
