"""Masks secrets in logs and records: by field name, by pattern, and by known value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus

MASK: Final = "***"
MIN_KNOWN: Final = 4  # characters: a shorter secret would mask half of every text
_DEPTH: Final = 8  # of nested structures; deeper ones are shown by their repr

# At the end of a name: `token`, `admin_token`, `apiKey` and `X-API-Key`, but neither `tokens` nor `tokenizer`.
_WORDS = r"token|password|passwd|passphrase|secret|authorization|cookie|credentials?|api[-_ ]?key|private[-_ ]?key|jwt"
_NAME = rf"[\w.-]*(?:{_WORDS})"
_SECRET_NAME: Final = re.compile(_NAME, re.IGNORECASE)

_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
_LOOKS: Final = (
    # The password of a URL: up to the last @, as it may contain unescaped characters. A port is not a password.
    (re.compile(r"(://[^\s:@/\"'<>]*:)(?!\d{1,5}(?:[/?#\s\"',;)]|$))[^\s\"'<>]*@"), rf"\1{MASK}@"),
    (re.compile(r"(://:)[^\s\"'<>]*@"), rf"\1{MASK}@"),
    # name=value, 'name': 'value', "name": "value"
    (re.compile(rf"((?<![\w.-]){_NAME}[\"']?\s*=\s*)(?:b?{_QUOTED}|[^\s,;&)\]}}\"']+)", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(rf"([\"']{_NAME}[\"']\s*:\s*)(?:b?{_QUOTED}|[^\s,;&)\]}}\"']+)", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(authorization\s*:\s*\w+\s+)[^\s\"',;]+", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"\b(bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"\bhg_[\w-]{8,}"), f"hg_{MASK}"),  # Headgate's tokens
    (re.compile(r"\beyJ[\w-]{4,}\.[\w-]{4,}\.[\w-]*"), MASK),  # JSON web tokens
)


class Masking:
    """Masks texts and structures. `known` are this process's secrets, which are masked wherever they appear."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        forms = {form for one in known if len(one) >= MIN_KNOWN for form in (one, quote(one, ""), quote_plus(one))}
        longest_first = sorted(forms | {repr(form)[1:-1] for form in forms}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """Return the text without the secrets in it."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        for look, instead in _LOOKS:
            text = look.sub(instead, text)
        return text

    def value(self, value: Any, depth: int = _DEPTH) -> Any:
        """Return a value for the log: texts masked; anything but text, numbers and structures as its repr."""
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, bytes | bytearray):
            return self.text(value.decode(errors="backslashreplace"))
        if depth > 0 and isinstance(value, Mapping):
            return {self.text(str(name)): self.field(name, one, depth - 1) for name, one in value.items()}
        if depth > 0 and isinstance(value, list | tuple | set | frozenset):
            return [self.value(one, depth - 1) for one in value]
        try:
            return self.text(str(value) if isinstance(value, BaseException) else repr(value))
        except Exception as error:  # noqa: BLE001 - a foreign __repr__ must not lose the log line
            return f"<{type(value).__name__}: {type(error).__name__} in repr>"

    def field(self, name: object, value: Any, depth: int = _DEPTH) -> Any:
        """Mask the value of a field, entirely if its name suggests a secret."""
        if value is not None and isinstance(name, str) and _SECRET_NAME.fullmatch(name):
            return MASK
        return self.value(value, depth)


def is_secret_name(name: str) -> bool:
    """Return whether a field of this name holds a secret: `password`, `session_token`, `X-API-Key`."""
    return _SECRET_NAME.fullmatch(name) is not None


def masked(text: str) -> str:
    """Mask what looks like a secret in a text: passwords in URLs, bearer tokens, `password=…`."""
    return _LOOKS_ONLY.text(text)


_LOOKS_ONLY: Final = Masking()
