"""A secret never shows in the log, wherever in an event it is."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from io import StringIO
from urllib.parse import quote

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from headgate.telemetry.logs import configure_logging

UNRESERVED = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
ODD = UNRESERVED + "!$%&*+.:;=?@^|~/#äß€"  # what people put into passwords
tokens = st.text(UNRESERVED, min_size=20, max_size=43).map(lambda text: f"hg_{text}")
MARK = "~7"  # in all passwords, and in nothing that the log says of itself: hypothesis tries names that are there, too
passwords = st.text(ODD, min_size=10, max_size=38).filter(lambda text: "***" not in text)
passwords = passwords.map(lambda text: f"{text[:6]}{MARK}{text[6:]}")
names = st.sampled_from(["password", "admin_token", "Authorization", "X-Api-Key", "apiKey", "client_secret"])
styles = st.sampled_from(["json", "console"])


@pytest.fixture(autouse=True, scope="module")
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    structlog.reset_defaults()


def fail(text: str) -> None:
    raise ValueError(text) from OSError(repr(text))


def logged(style: str, secret: str, *known: str, name: str = "value") -> str:
    """What an event shows that has a text in all its places, by both ways of logging."""
    stream = StringIO()
    configure_logging(style, secrets=known, stream=stream)  # type: ignore[arg-type]
    fields = {name: secret, "nested": {"list": [secret, {name: secret}], "bytes": secret.encode()}}
    logging.getLogger("headgate").warning(
        "event with %s in it", secret, extra={"fields": fields, "error": OSError(secret)}
    )
    try:
        fail(secret)
    except ValueError:
        structlog.get_logger("headgate").exception(f"another: {secret}", **fields)
    text = stream.getvalue()
    assert text.count("event with") == 1
    assert text.count("another: ") == 1
    return text


@given(styles, tokens)
def test_tokens_of_ours(style: str, token: str) -> None:
    assert token[3:] not in logged(style, token)
    assert token[3:] not in logged(style, f"Bearer {token}, and more")


@given(styles, passwords, st.sampled_from(["postgresql", "redis", "rediss", "https"]), st.sampled_from(["", "user"]))
def test_passwords_in_urls(style: str, password: str, scheme: str, user: str) -> None:
    assert password not in logged(style, f"{scheme}://{user}:{quote(password, '')}@host:5432/0")
    if not password[0].isdigit():  # it could be a port
        assert password not in logged(style, f"cannot reach {scheme}://{user}:{password}@host:5432/0?x=1, sorry")


@given(styles, passwords, names)
def test_fields_that_are_named_like_secrets(style: str, secret: str, name: str) -> None:
    stream = StringIO()
    configure_logging(style, stream=stream)  # type: ignore[arg-type]
    structlog.get_logger("headgate").warning("event", **{name: secret, "nested": [{name: secret}]})
    logging.getLogger("headgate").warning("event", extra={name: secret, "nested": {"a": {name: secret}}})
    logging.getLogger("headgate").warning("headers %s", {name: secret})
    assert secret not in stream.getvalue()


@given(styles, passwords)
def test_secrets_that_are_known(style: str, secret: str) -> None:
    text = logged(style, f"before {secret} after, quoted {quote(secret, '')}", secret)
    assert secret not in text
    assert quote(secret, "") not in text
