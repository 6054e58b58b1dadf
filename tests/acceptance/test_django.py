"""The middleware for Django, in both of its worlds."""

from __future__ import annotations

import httpx
import pytest

from tests.acceptance.suite import ANY_HEADERS, Suite, ThreadedSuite


class DjangoSuite(Suite):
    @pytest.mark.parametrize("path", ["/limited", "/limited-async"])
    def test_the_limit_of_a_view_counts_by_its_route(self, client: httpx.Client, path: str) -> None:
        told = [client.get(f"{path}/{number}") for number in range(3)]
        assert [response.status_code for response in told] == [200, 200, 429]
        assert told[2].headers["Content-Type"] == "application/problem+json"
        assert told[2].headers.get_list("RateLimit-Policy") == [
            f'"{path}/<int:number>";q=2;w=3600, "all";q=1000000;w=31622400'
        ]
        assert told[2].headers["Retry-After"] == str(told[2].json()["retry_after"])


class TestGunicorn(DjangoSuite):
    server = "gunicorn"
    app = "tests.acceptance.apps.django_suite:wsgi"
    options = ANY_HEADERS


class TestUvicorn(DjangoSuite, ThreadedSuite):
    server = "uvicorn"
    app = "tests.acceptance.apps.django_suite:asgi"
