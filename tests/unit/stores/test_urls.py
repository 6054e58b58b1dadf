"""URLs of stores: an invalid one raises `InvalidStore`, in whichever part it is invalid."""

from __future__ import annotations

from typing import Any

import pytest

from headgate import AsyncLimiter, HeadgateError, InvalidStore, Limiter


@pytest.mark.parametrize(
    "store",
    [
        "",
        "nope://x",
        "redis://[::1",
        "redis://p/w@host",
        "redis://host:x/0",
        "redis://host/x",
        "redis://host/0?secret",
        "redis://host/0?prefix=*",
        "redis://host/0?timeout=soon",
        "redis://host/0?no_such_option=1",
        "rediss://host/0?ssl_ca_certs=/nowhere.pem",
        "redis+sentinel://host",
        "redis+cluster://a,b/3",
        "embedded://a?secret",
        "embedded://a b",
        "memory://?max_keys=0",
        "memory://?size=1",
        5,
    ],
)
@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_an_invalid_store_raises_one_kind_of_error(kind: Any, store: Any) -> None:
    """It was a plain `ValueError` once, which `except HeadgateError` does not catch."""
    with pytest.raises(InvalidStore, match=r"^store( URL)?: ") as caught:
        kind("1/minute", store=store)
    assert isinstance(caught.value, HeadgateError)
    assert isinstance(caught.value, ValueError)
    assert "secret" not in str(caught.value)
