"""Types of settings: addresses, durations, files, URLs and secrets. Each checks its value."""

from __future__ import annotations

import re
from base64 import b64decode
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, SecretStr

from headgate.rules import fields
from headgate.stores.urls import SCHEMES, check_url

SHORT_TOKEN: Final = 16  # characters; a shorter token can be guessed


class Address(NamedTuple):
    """An address to listen on. Port 0 means any free port."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: Any) -> Address:
        """Parse `127.0.0.1:8080`, `[::1]:8080`, or `:8080` for every interface. Raises `ValueError`."""
        if isinstance(text, Address):
            return text
        host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
        bracketed = host.startswith("[") and host.endswith("]")
        number = int(port) if colon and port.isascii() and port.isdecimal() else -1
        if not 0 <= number <= 65_535 or (":" in host and not bracketed):
            raise ValueError(f"must be host:port, as in 127.0.0.1:8080 or [::1]:8080, got {text!r}")
        return cls((host[1:-1] if bracketed else host) or "::", number)

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        if self.host == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _seconds(value: Any) -> float:
    """Parse seconds from a number, or from a string such as `90d`."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    kept: float = fields.seconds(value)
    return kept


def _file(value: Any) -> Path:
    path = Path(value).expanduser()
    if not path.is_file():
        raise ValueError(f"{str(path)!r} is not an existing file")
    return path


def _store(value: Any) -> Any:
    if isinstance(value, str):
        if value.partition(":")[0].lower() not in SCHEMES:
            raise ValueError(f"must be a URL with {'://, '.join(SCHEMES)}://")
        try:
            check_url(value)
        except ImportError as error:
            raise ValueError(str(error)) from error
    return value


def _database(value: Any) -> Any:
    if isinstance(value, str) and value.partition(":")[0].lower() not in ("sqlite", "postgresql", "postgres"):
        raise ValueError("must be a URL, as in sqlite:////var/lib/headgate/headgate.db or postgresql://user@host/name")
    return value


def _token(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(r"[!-~]+", value):
        raise ValueError("must be printable ASCII characters without spaces: clients send it in a header")
    return value


def _http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
        raise ValueError("must be a URL, as in https://hooks.example/headgate, without user and password")
    return value


def _webhook_secret(value: SecretStr) -> SecretStr:
    secret = value.get_secret_value()
    if len(secret) < SHORT_TOKEN:
        raise ValueError(f"must have at least {SHORT_TOKEN} characters: `openssl rand -hex 32` makes one")
    if secret.startswith("whsec_"):
        try:
            b64decode(secret.removeprefix("whsec_"), validate=True)
        except ValueError:
            raise ValueError("must be base64 after whsec_") from None
    return value


Listen = Annotated[Address, BeforeValidator(Address.parse)]
Duration = Annotated[float, BeforeValidator(_seconds)]
ExistingFile = Annotated[Path, BeforeValidator(_file)]
Token = Annotated[SecretStr, BeforeValidator(_token)]
StoreUrl = Annotated[SecretStr, BeforeValidator(_store)]
DatabaseUrl = Annotated[SecretStr, BeforeValidator(_database)]
HttpUrl = Annotated[str, AfterValidator(_http_url)]
WebhookSecret = Annotated[SecretStr, AfterValidator(_webhook_secret)]
