"""The gateway of the how-to settles when its client disconnects in the middle of an answer."""

from __future__ import annotations

import asyncio
import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.http.test_asgi import scope_of

PAGE = Path(__file__).parents[2] / "docs/how-to/meter-a-language-model.md"
HEADERS = [(b"x-customer", b"acme"), (b"content-type", b"application/json")]


@pytest.fixture
def gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the page's program defines."""
    program, _, _ = PAGE.read_text().partition("## What happens")
    (rules,) = re.findall(r"```toml\n(.*?)```", program, re.DOTALL)
    (tmp_path / "rules.toml").write_text(rules)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "gateway"}
    exec(compile("\n".join(re.findall(r"```python\n(.*?)```", program, re.DOTALL)), PAGE.name, "exec"), names)
    return names


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_a_client_that_disconnects_while_a_chunk_is_sent_pays_for_what_was_generated(gateway: dict[str, Any]) -> None:
    async def main() -> dict[str, int]:
        requests, left, sent = asyncio.Queue[Any](), asyncio.Event(), 0
        body = {"model": "stub", "stream": True, "messages": [{"role": "user", "content": "Say 50"}]}
        requests.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})

        async def send(message: Any) -> None:
            nonlocal sent
            sent += message["type"] == "http.response.body"
            if sent == 20:
                requests.put_nowait({"type": "http.disconnect"})
                await left.wait()

        scope = scope_of("/v1/chat/completions", method="POST", headers=HEADERS, query_string=b"")
        await gateway["app"](scope, requests.get, send)
        cost = {"requests": 1, "tokens": 1, "usd_micros": 1}
        decision = await gateway["limiter"].peek(user="acme", cost=cost)
        return {status.rule: status.remaining for status in decision.limits}

    with without_garbage_collection():
        left = asyncio.run(main())
    assert left["at-a-time"] == 2
    assert 0 < 20_000_000 - left["budget"] < 412  # less than the whole answer costs, of which 812 were reserved
