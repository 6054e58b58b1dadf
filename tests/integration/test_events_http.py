"""Events over HTTP, with a real server and client."""

from __future__ import annotations

import csv
import io
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import httpx
import jsonschema
import pytest
import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse

from headgate import Limiter, Rule
from headgate.audit.auditor import Auditor
from headgate.audit.options import AuditOptions
from headgate.db import Database
from headgate.db.events import Events
from headgate.errors import DatabaseError
from headgate.service.admin.events import COLUMNS, events_router
from headgate.testing import FakeClock
from tests.postgres import Postgres
from tests.servers import free_port

START = 1_700_000_000  # 2023-11-14T22:13:20Z
USERS = ("alice", "bob", '=HYPERLINK("x")', "+1", "-1", "@x", 'ünïcode, with "quotes" and\nlines')


@contextmanager
def serving(app: FastAPI) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=free_port(), log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.config.port}"
    finally:
        server.should_exit = True
        thread.join()


def require(authorization: Annotated[str, Header()] = "") -> None:
    if authorization != "Bearer secret":
        raise HTTPException(401)


def application(database: Database) -> FastAPI:
    app = FastAPI()
    app.include_router(events_router(Events(database), Depends(require)), prefix="/api/v1")

    @app.exception_handler(DatabaseError)
    def away(request: Request, error: DatabaseError) -> JSONResponse:
        return JSONResponse({"detail": "away"}, 503)

    return app


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a database of each kind in turn, which tests only read."""
    if request.param == "postgresql":
        server: Postgres = request.getfixturevalue("postgres")
        return server.copy(request.getfixturevalue("migrated_template"))
    file = tmp_path_factory.mktemp("events") / "rules.db"
    shutil.copy(request.getfixturevalue("migrated_file"), file)
    return f"sqlite:///{file}"


@pytest.fixture(scope="module")
def database(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One with three events of each user, a second apart; the last one a shadow's."""
    database = Database(url)
    clock = FakeClock(START)
    rules = [Rule(id="search", quota="1/day"), Rule(id="try", quota="1/day", dimension="ip", action="log_only")]
    limiter = Limiter(rules, clock=clock, facts=["note"])
    options = AuditOptions(rows=1_000, rows_per_client=1_000)
    auditor = Auditor(database, tmp_path_factory.mktemp("spool"), node="n", options=options, clock=clock)
    for user in USERS:
        facts = {"user": user, "ip": "192.0.2.7", "endpoint": "/search", "method": "GET", "note": "=1+1"}
        limiter.check(cost=1, **facts)
        for _ in range(3):
            auditor.record(facts, 1, limiter.check(cost=1, **facts))
            clock.advance(1)
    shadow = limiter.check(user="zoe", ip="192.0.2.7")
    auditor.record({"user": "zoe", "ip": "192.0.2.7"}, 1, shadow)
    auditor.flush()
    auditor.write()
    auditor.close()
    yield database
    database.close()


@pytest.fixture(scope="module")
def client(database: Database) -> Iterator[httpx.Client]:
    with client_of(database) as client:
        yield client


@contextmanager
def client_of(database: Database) -> Iterator[httpx.Client]:
    with (
        serving(application(database)) as url,
        httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": "Bearer secret"}, timeout=30) as client,
    ):
        yield client


def events(client: httpx.Client, **parameters: Any) -> list[dict[str, Any]]:
    answer = client.get("/events", params=parameters)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["events"]
    return found


def rows(answer: httpx.Response) -> list[dict[str, str]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    return list(csv.DictReader(io.StringIO(answer.text, newline="")))


def test_events_the_latest_first(client: httpx.Client) -> None:
    found = events(client)
    assert len(found) == len(USERS) * 3 + 1
    assert found[0] | {"id": ""} == {
        **dict.fromkeys(COLUMNS),
        **{"id": "", "at": "2023-11-14T22:13:41+00:00", "node": "n", "rule": "try", "reason": "shadow"},
        **{"allowed": True, "dimension": "ip", "subject": "192.0.2.7", "user": "zoe", "ip": "192.0.2.7"},
        **{"facts": {}, "cost": 1, "limit": 1, "remaining": 0, "weight": 1, "retry_after": found[0]["retry_after"]},
    }
    assert 0 < found[0]["retry_after"] <= 2 * 86_400


def test_the_answers_are_as_the_openapi_document_says(client: httpx.Client) -> None:
    document = client.get(str(client.base_url).replace("/api/v1/", "/openapi.json")).json()
    for path in ("/events", "/events/top"):
        operation = document["paths"][f"/api/v1{path}"]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(client.get(path).json(), {**schema, "components": document["components"]})
        for name in schema["$ref"].split("/")[-1:]:
            model = document["components"]["schemas"][name]
            jsonschema.validate(model["example"], {**schema, "components": document["components"]})
        assert {"401", "422"} & operation["responses"].keys() == {"422"}
    assert "text/csv" in document["paths"]["/api/v1/events"]["get"]["responses"]["200"]["content"]


@pytest.mark.parametrize(
    ("parameters", "many"),
    [
        ({"user": "alice"}, 3),
        ({"user": "nobody"}, 0),
        ({"user": "nul\0"}, 0),
        ({"rule": "search"}, 21),
        ({"rule": "try", "shadow": "true"}, 1),
        ({"shadow": "false", "reason": "over_limit", "ip": "192.0.2.7", "endpoint": "/search"}, 21),
        ({"tenant": "none"}, 0),
        ({"since": "2023-11-14T22:13:40Z"}, 2),
        ({"since": "2023-11-14T23:13:40+01:00"}, 2),
        ({"since": str(START + 20)}, 2),
        ({"since": START + 19.5, "until": START + 21}, 1),
        ({"since": "2023-11-15"}, 0),
        ({"until": "2023-11-14"}, 0),
        ({"limit": 5}, 5),
    ],
)
def test_filters(client: httpx.Client, parameters: dict[str, Any], many: int) -> None:
    assert len(events(client, **parameters)) == many


def test_an_offset_whose_plus_was_not_escaped(client: httpx.Client) -> None:
    assert len(client.get("/events?since=2023-11-14T23:13:40+01:00").json()["events"]) == 2


@pytest.mark.parametrize(
    ("path", "parameters", "field"),
    [
        ("/events", {"since": "yesterday"}, "since"),
        ("/events", {"until": "nan"}, "until"),
        ("/events", {"limit": "0"}, "limit"),
        ("/events", {"limit": "1001"}, "limit"),
        ("/events", {"after": "nowhere"}, "after"),
        ("/events", {"shadow": "maybe"}, "shadow"),
        ("/events", {"format": "xml"}, "format"),
        ("/events", {"user": "x" * 1_025}, "user"),
        ("/events/top", {"since": "-1"}, "since"),
        ("/events/top", {"by": ""}, "by"),
        ("/events/top", {"limit": "many"}, "limit"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    client: httpx.Client, path: str, parameters: dict[str, str], field: str
) -> None:
    answer = client.get(path, params=parameters)
    assert answer.status_code == 422
    assert [problem["loc"] for problem in answer.json()["detail"]] == [["query", field]]


def test_pages(client: httpx.Client) -> None:
    whole = events(client, limit=1_000)
    paged: list[dict[str, Any]] = []
    url: str | None = "/events?limit=4&ip=192.0.2.7"
    while url is not None:
        answer = client.get(url)
        page = answer.json()
        paged += page["events"]
        url = None
        if page["next"] is not None:
            assert len(page["events"]) == 4
            url = str(answer.url.join(answer.links["next"]["url"]))
            assert f"after={page['next']}" in url
    assert paged == whole
    assert "next" not in client.get("/events?limit=1000").links


@pytest.mark.parametrize("by", ["format", "accept"])
def test_csv_has_everything_in_one_answer(client: httpx.Client, by: str) -> None:
    if by == "format":
        answer = client.get("/events?format=csv")
    else:
        answer = client.get("/events", headers={"Accept": "text/csv"})
    found = rows(answer)
    assert list(found[0]) == list(COLUMNS)
    whole = events(client, limit=1_000)
    assert [row["id"] for row in found] == [event["id"] for event in whole]
    assert found[-1] | {"retry_after": ""} == {
        **{name: "" if value is None else str(value) for name, value in whole[-1].items()},
        **{"allowed": "false", "facts": '{"note": "=1+1"}', "retry_after": ""},
    }
    assert len(rows(client.get("/events?format=csv&limit=4"))) == 4
    assert [row["user"] for row in rows(client.get("/events?format=csv&user=alice"))] == ["alice"] * 3


def test_csv_of_more_than_a_page(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.service.admin.events.MAX_PAGE", 4)
    assert len(rows(client.get("/events?format=csv"))) == len(USERS) * 3 + 1


def test_no_cell_of_csv_is_a_formula(client: httpx.Client) -> None:
    found = rows(client.get("/events?format=csv"))
    assert {row["user"].removeprefix("'") for row in found} == {*USERS, "zoe"}
    assert not [value for row in found for value in row.values() if value.startswith(("=", "+", "-", "@"))]


@pytest.mark.parametrize(
    ("accept", "is_csv"),
    [
        ("*/*", False),
        ("text/csv", True),
        ("text/csv;q=0.5, application/json", False),
        ("application/json;q=0.5, text/csv;q=0.9", True),
        ("text/csv;q=0", False),
        ("text/csv;q=x", False),
    ],
)
def test_what_is_accepted(client: httpx.Client, accept: str, is_csv: bool) -> None:
    answer = client.get("/events", headers={"Accept": accept})
    assert answer.headers["content-type"].startswith("text/csv" if is_csv else "application/json")
    assert answer.headers["vary"] == "Accept"


def test_top(client: httpx.Client) -> None:
    answer = client.get("/events/top?by=user&rule=search&limit=2&since=2023-11-14T22:00:00Z").json()
    assert (answer["by"], answer["since"], answer["until"]) == ("user", "2023-11-14T22:00:00+00:00", None)
    assert [one["events"] for one in answer["top"]] == [3, 3]
    (whole,) = client.get("/events/top?by=rule&rule=search").json()["top"]
    assert whole == {
        **{"rule": "search", "dimension": "", "subject": "", "events": 21, "refused": 21, "shadow": 0, "cost": 21},
        **{"first": "2023-11-14T22:13:00+00:00", "last": "2023-11-14T22:13:00+00:00"},
    }
    own = client.get("/events/top").json()["top"]
    assert {(one["rule"], one["dimension"]) for one in own} == {("search", "user"), ("try", "ip")}
    assert client.get("/events/top?until=2023-11-14T22:13:00Z").json()["top"] == []
    assert client.get("/events/top?since=0001-01-01T00:00:00%2B14:00").status_code == 200


@pytest.mark.parametrize("path", ["/events", "/events/top", "/events?format=csv"])
def test_who_may_not_sees_nothing(client: httpx.Client, path: str) -> None:
    assert client.get(path, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_database_that_is_away_is_told_by_the_status(url: str) -> None:
    database = Database(url)
    with client_of(database) as client:
        database.close()
        for path in ("/events", "/events/top", "/events?format=csv"):
            assert client.get(path).status_code == 503, path
