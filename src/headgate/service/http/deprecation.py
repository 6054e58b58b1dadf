"""Deprecated routes: the header fields that announce a route's removal to clients.

`Deprecation` is RFC 9745, `Sunset` RFC 8594. Nothing is deprecated now; v2 will need it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from headgate.errors import InvalidRule, Problem
from headgate.http.asgi import App, Message, Receive, Scope, Send


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecated:
    """The deprecation of a route: `since` a time, which may be in the future; its removal at `sunset`, if known; and
    the URLs of a page with instructions (`link`) and of the replacement (`successor`).

    Raises `InvalidRule`, which names the field.
    """

    since: datetime
    sunset: datetime | None = None
    link: str | None = None
    successor: str | None = None

    def __post_init__(self) -> None:
        for name in ("since", "sunset"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
                raise InvalidRule(Problem("Deprecated", name, f"must be a datetime with a time zone, got {value!r}"))
        if self.sunset is not None and self.sunset < self.since:  # forbidden by RFC 9745
            message = f"must not be before since ({self.since}), got {self.sunset}"
            raise InvalidRule(Problem("Deprecated", "sunset", message))
        for name in ("link", "successor"):
            value = getattr(self, name)
            if value is not None and (not value.isascii() or not value.isprintable() or set('<> "') & set(value)):
                raise InvalidRule(Problem("Deprecated", name, f"must be a URL, got {value!r}"))

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """The header fields of every response."""
        fields = [("deprecation", f"@{int(self.since.timestamp())}")]
        if self.sunset is not None:
            fields.append(("sunset", format_datetime(self.sunset.astimezone(UTC), usegmt=True)))
        links = []
        if self.link is not None:
            relations = "deprecation" if self.sunset is None else "deprecation sunset"
            links.append(f'<{self.link}>; rel="{relations}"; type="text/html"')
        if self.successor is not None:
            links.append(f'<{self.successor}>; rel="successor-version"')
        if links:
            fields.append(("link", ", ".join(links)))
        return [(name.encode(), value.encode()) for name, value in fields]


def announce(app: App, deprecated: Deprecated) -> App:
    """Wrap an app to announce its deprecation in each response."""
    fields = deprecated.fields

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        def send_announced(message: Message) -> Awaitable[Any]:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *fields]}
            return send(message)

        await app(scope, receive, send_announced)

    return answer
