"""The example for Flask, under gunicorn."""

from __future__ import annotations

import httpx

from tests.webserver import serving, stay_clear_of_the_hour


def test_it_does_what_it_says() -> None:
    stay_clear_of_the_hour()
    with serving("gunicorn", "examples.flask_app:app") as url, httpx.Client(base_url=url, timeout=30) as client:
        assert client.get("/").text == "You have 99 requests left in this minute.\n"
        assert [client.post("/login").status_code for _ in range(6)] == [200] * 5 + [429]
        assert client.post("/login").json()["detail"] == "Too many attempts to log in."
        reports = [client.get(f"/reports/{number}", headers={"X-Team": "red"}) for number in range(4)]
        assert [response.status_code for response in reports] == [200, 200, 200, 429]
        assert reports[3].headers["Content-Type"] == "application/problem+json"
        page = client.get("/reports/4", headers={"X-Team": "red", "Accept": "text/html"})
        assert page.text.startswith("<h1>Slow down</h1>")
        assert int(page.headers["Retry-After"]) > 0
        assert client.get("/reports/4").text == "Report 4.\n"
        assert [client.get("/export?pages=8").status_code for _ in range(2)] == [200, 429]
        for path in ("/status", "/health"):
            assert "X-RateLimit-Limit" not in client.get(path).headers
