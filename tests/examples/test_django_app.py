"""The example for Django, in both of its worlds."""

from __future__ import annotations

import httpx
import pytest

from tests.webserver import serving, stay_clear_of_the_hour


@pytest.mark.parametrize(("server", "app"), [("gunicorn", "wsgi"), ("uvicorn", "asgi")])
def test_it_does_what_it_says(server: str, app: str) -> None:
    stay_clear_of_the_hour()
    with serving(server, f"examples.django_app:{app}") as url, httpx.Client(base_url=url, timeout=30) as client:
        assert client.get("/").text == "You have 99 requests left in this minute.\n"
        assert [client.post("/login/").status_code for _ in range(6)] == [200] * 5 + [429]
        assert client.get("/login/").status_code == 200
        reports = [client.get(f"/reports/{number}/", headers={"X-Team": "red"}) for number in range(4)]
        assert [response.status_code for response in reports] == [200, 200, 200, 429]
        assert reports[3].headers["Content-Type"] == "application/problem+json"
        assert client.get("/reports/4/").text == "Report 4.\n"
        assert [client.get("/export/?pages=8").status_code for _ in range(2)] == [200, 429]
        found = [client.get("/search/") for _ in range(3)]
        assert [response.status_code for response in found] == [200, 200, 429]
        assert found[0].json() == {"found": 7}
        assert int(found[2].headers["Retry-After"]) > 0
        assert "X-RateLimit-Limit" not in client.get("/health/").headers
