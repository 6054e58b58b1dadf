"""The extension for Flask."""

from __future__ import annotations

import httpx

from tests.acceptance.suite import ANY_HEADERS, Suite


class FlaskSuite(Suite):
    app = "tests.acceptance.apps.flask_suite:app"

    def test_the_limit_of_a_view_counts_by_its_route(self, client: httpx.Client) -> None:
        told = [client.get(f"/limited/{number}") for number in range(3)]
        assert [response.status_code for response in told] == [200, 200, 429]
        assert told[2].headers["Content-Type"] == "application/problem+json"
        assert told[2].headers.get_list("RateLimit-Policy") == [
            '"GET /limited/<int:number>";q=2;w=3600, "all";q=1000000;w=31622400'
        ]
        assert told[2].headers["Retry-After"] == str(told[2].json()["retry_after"])


class TestGunicorn(FlaskSuite):
    server = "gunicorn"
    options = ANY_HEADERS


class TestGranian(FlaskSuite):
    server = "granian-wsgi"
    options = ("--blocking-threads", "4")
