"""A browser without scripts: signs in to the console of a service, reads pages and sends forms."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import httpx

from tests.service import Service

_CSRF = re.compile(r'name="csrf" value="([0-9a-f]+)"')
_HIDDEN = re.compile(r'<input type="hidden" name="([^"]+)" value="([^"]*)">')


class Visitor:
    """Somebody with a session of their own."""

    def __init__(self, service: Service, token: str | None = None) -> None:
        self.client = httpx.Client(base_url=f"{service.url}/console", timeout=30, verify=False)
        answer = self.client.post("/sign-in", data={"token": token or service.admin_token})
        assert answer.status_code == 200, answer.text

    def get(self, path: str, status: int = 200, /, **parameters: Any) -> str:
        answer = self.client.get(path, params=parameters)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.text

    def post(self, path: str, page: str, status: int = 303, /, **fields: Any) -> httpx.Response:
        """Send the hidden fields of the form on a page, and others."""
        hidden = {name: unescape(value) for name, value in _HIDDEN.findall(page)}
        answer = self.client.post(path, data={**hidden, **fields})
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer

    def close(self) -> None:
        self.client.close()


def csrf_of(page: str) -> str:
    found = _CSRF.search(page)
    assert found is not None, page
    return found[1]
