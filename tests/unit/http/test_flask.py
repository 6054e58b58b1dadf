"""The extension for Flask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flask
import pytest
from flask.views import MethodView
from werkzeug.exceptions import HTTPException, TooManyRequests

from headgate import AsyncLimiter, InvalidQuota, InvalidRule, Limiter, Rule
from headgate.errors import StoreUnavailable
from headgate.http.flask import Headgate, Refused
from headgate.stores.memory import MemoryStore
from headgate.stores.program import group_program
from headgate.testing import FakeClock

CLOCK = FakeClock(1_700_000_000)


def make(rules: Any = (), **options: Any) -> tuple[flask.Flask, Headgate]:
    app = flask.Flask(__name__)
    limiter = Limiter(rules, clock=CLOCK, **{key: options.pop(key) for key in ("store",) if key in options})
    return app, Headgate(app, limiter=limiter, **options)


def statuses(app: flask.Flask, *paths: str, method: str = "GET", **headers: str) -> list[int]:
    client = app.test_client()
    return [client.open(path, method=method, headers=headers).status_code for path in paths]


def test_all_responses_tell_of_the_limiters_rules_and_g_has_them() -> None:
    app, _ = make("3/minute")

    @app.get("/")
    def index() -> dict[str, Any]:
        limits = flask.g.headgate
        return {"remaining": limits.decision.remaining, "limiter": limits.limiter.by_subject}

    client = app.test_client()
    assert client.get("/").json == {"remaining": 2, "limiter": True}
    missing = client.get("/missing")
    assert (missing.status_code, missing.headers["X-RateLimit-Remaining"]) == (404, "1")
    client.get("/")
    refused = client.get("/")
    assert (refused.status_code, refused.content_type) == (429, "application/problem+json")
    assert refused.headers.getlist("Retry-After") == ["41"]


def test_what_a_view_refuses_costs_the_rules_nothing() -> None:
    app, headgate = make("5/minute")

    @app.get("/")
    @headgate.limit("2/minute")
    def index() -> str:
        return str(flask.g.headgate.limiter.peek("ip:127.0.0.1").remaining)

    assert statuses(app, *"/////") == [200, 200, 429, 429, 429]
    assert statuses(app, "/a", "/b", "/c", "/d") == [404, 404, 404, 429]


def test_a_view_counts_by_route_method_and_client() -> None:
    app, headgate = make()

    @app.route("/users/<int:number>", methods=["GET", "POST"])
    @headgate.limit("2/minute")
    def user(number: int) -> str:
        return str(number)

    assert statuses(app, "/users/1", "/users/2", "/users/3") == [200, 200, 429]
    assert statuses(app, "/users/1", "/users/1", "/users/1", method="POST") == [200, 200, 429]
    assert statuses(app, "/users/1", method="HEAD") == [429]  # runs what GET does
    other = app.test_client().get("/users/1", environ_base={"REMOTE_ADDR": "192.0.2.9"})
    assert other.status_code == 200
    assert other.headers["RateLimit-Policy"] == '"GET /users/<int:number>";q=2;w=60'


def test_the_refusal_of_a_view_is_a_problem_with_all_limits() -> None:
    app, headgate = make("100/minute")

    @app.get("/")
    @headgate.limit("1/minute; 9/hour")
    def index() -> str:
        return "hello"

    client = app.test_client()
    assert client.get("/").status_code == 200
    refused = client.get("/")
    assert refused.status_code == 429
    assert refused.content_type == "application/problem+json"
    assert refused.get_json(force=True)["violated-policies"] == ["GET //1m"]
    assert refused.headers.getlist("Retry-After") == ["41"]
    assert refused.headers.getlist("RateLimit-Policy") == [
        '"GET //1m";q=1;w=60, "GET //1h";q=9;w=3600, "default";q=100;w=60'
    ]


def test_key_and_cost_are_functions_of_the_request() -> None:
    app, headgate = make()

    @app.get("/")
    @headgate.limit(
        "5/minute",
        key=lambda: flask.request.headers.get("X-Team"),
        cost=lambda: int(flask.request.args.get("n", 1)),
    )
    def index() -> str:
        return "hello"

    assert statuses(app, "/?n=3", "/?n=3", "/?n=2", **{"X-Team": "red"}) == [200, 429, 200]
    assert statuses(app, "/?n=5", **{"X-Team": "ip:127.0.0.1"}) == [200]
    response = app.test_client().get("/?n=5")  # without a team, the client, which no name of a team stands for
    assert response.status_code == 200
    assert response.headers["X-RateLimit-Cost"] == "5"


def test_a_name_is_shared_and_methods_may_be_chosen() -> None:
    app, headgate = make()
    for path in ("/a", "/b"):
        view = headgate.limit("2/minute", name="reports", methods=["GET"])(lambda: "report")
        app.add_url_rule(path, path, view, methods=["GET", "POST"])
    assert statuses(app, "/a", "/b", "/a", "/b") == [200, 200, 429, 429]
    assert statuses(app, "/a", method="HEAD") == [429]
    assert statuses(app, "/a", "/b", method="POST") == [200, 200]


def test_limits_of_one_view_count_apart() -> None:
    app, headgate = make()

    class Items(MethodView):
        decorators = [headgate.limit("4/minute"), headgate.limit("3/minute")]  # noqa: RUF012

        @headgate.limit("2/minute")
        def get(self) -> str:
            return "items"

        def post(self) -> str:
            return "item"

    app.add_url_rule("/items", view_func=Items.as_view("items"))
    assert statuses(app, *["/items"] * 4) == [200, 200, 429, 429]
    assert statuses(app, *["/items"] * 4, method="POST") == [200, 200, 200, 429]


def test_blueprints_are_limited_and_exempt_as_a_whole() -> None:
    app, headgate = make("1/minute")
    limited, free = flask.Blueprint("limited", __name__), flask.Blueprint("free", __name__)
    inside = flask.Blueprint("inside", __name__)
    for blueprint in (limited, inside):
        blueprint.add_url_rule("/<name>", "view", lambda name: name)
    headgate.exempt(headgate.limit("2/minute")(limited))
    headgate.exempt(free)
    free.register_blueprint(inside, url_prefix="/inside")
    app.register_blueprint(limited, url_prefix="/limited")
    app.register_blueprint(free, url_prefix="/free")
    assert statuses(app, "/free/inside/a", "/free/inside/b") == [200, 200]
    assert statuses(app, "/limited/a", "/limited/b", "/limited/c") == [200, 200, 429]
    assert statuses(app, "/missing", "/missing") == [404, 429]


def test_exempt_views_pass_the_rules_but_not_their_own_limits() -> None:
    app, headgate = make("1/minute")

    @app.get("/free")
    @headgate.exempt
    def free() -> str:
        return "free" if "headgate" not in flask.g else "counted"

    @app.get("/own")
    @headgate.exempt
    @headgate.limit("2/minute")
    def own() -> str:
        return "own"

    class Health(MethodView):
        def get(self) -> str:
            return "well"

    app.add_url_rule("/health", view_func=headgate.exempt(Health).as_view("health"))
    client = app.test_client()
    assert [client.get("/free").text for _ in range(3)] == ["free"] * 3
    assert "X-RateLimit-Limit" not in client.get("/health").headers
    told = [client.get("/own") for _ in range(3)]
    assert [response.status_code for response in told] == [200, 200, 429]
    assert told[0].headers.getlist("X-RateLimit-Remaining") == ["1"]
    assert told[2].headers.getlist("Retry-After") == ["41"]
    assert statuses(app, "/free/", "/free%2f") == [404, 429]


def test_a_limit_on_what_is_no_view_counts_all_methods_together() -> None:
    app, headgate = make()
    app.before_request(headgate.limit("2/minute")(lambda: None))
    client = app.test_client()
    assert [client.open("/nowhere", method=method).status_code for method in ("A", "B", "C")] == [404, 404, 429]


def test_async_views() -> None:
    app, headgate = make()

    @app.get("/")
    @headgate.limit("1/minute")
    async def index() -> str:
        return "hello"

    assert statuses(app, "/", "/") == [200, 429]


@pytest.mark.parametrize("handled", [429, TooManyRequests, HTTPException, Refused])
def test_error_handlers_answer_refusals_by_rules_and_by_views(handled: Any) -> None:
    app, headgate = make([Rule(id="few", quota="1/minute", dimension="global", endpoints=["/few"])])

    @app.get("/few")
    @app.get("/own", endpoint="own")
    @headgate.limit("1/minute")
    def view() -> str:
        return "hello"

    @app.errorhandler(handled)
    def refused(error: Refused) -> tuple[str, int]:
        return f"not now: {error.decision.rule}", 429

    @app.after_request
    def cors(response: flask.Response) -> flask.Response:
        response.headers["Access-Control-Allow-Origin"] = "*"
        return response

    client = app.test_client()
    client.get("/few")
    client.get("/own")
    for path, rule in (("/few", "few"), ("/own", "GET /own")):
        response = client.get(path)
        assert (response.status_code, response.text) == (429, f"not now: {rule}")
        assert response.headers["Access-Control-Allow-Origin"] == "*"
        assert response.headers.getlist("Retry-After") == ["41"]


def test_a_rules_own_status_stands() -> None:
    app, _ = make([Rule(id="few", quota="1/minute", dimension="global", status=403, message="Enough.")])
    app.after_request(lambda response: response)  # so that the app answers
    client = app.test_client()
    client.get("/")
    refused = client.get("/")
    assert refused.status_code == 403
    assert refused.get_json(force=True)["detail"] == "Enough."


def test_a_store_that_cannot_decide() -> None:
    class Broken(MemoryStore):
        broken = False

        def check(self, groups: Any) -> Any:
            if self.broken:
                raise StoreUnavailable("gone")
            return super().check(groups)

        def compile(self, plan: Any, states: Any = None, told: Any = None) -> Any:
            return group_program(self.check, plan, states, told)

    store = Broken(clock=CLOCK)
    app = flask.Flask(__name__)
    headgate = Headgate(app, limiter=Limiter([], store=store, clock=CLOCK, failure_mode="closed"))

    @app.get("/")
    @headgate.limit("5/minute")
    def index() -> str:
        return "hello"

    assert statuses(app, "/") == [200]
    Broken.broken = True
    refused = app.test_client().get("/")
    assert refused.status_code == 503
    assert refused.get_json(force=True)["type"].endswith("#temporary-reduced-capacity")


def test_an_app_factory_and_its_configuration(tmp_path: Path) -> None:
    headgate = Headgate(skip=["/health"])

    def view() -> str:
        return "hello"

    def create_app(**config: Any) -> flask.Flask:
        app = flask.Flask(__name__)
        app.config.from_mapping(config)
        headgate.init_app(app)
        app.add_url_rule("/", "index", headgate.limit("2/minute")(view))
        app.add_url_rule("/health", "health", view)
        return app

    assert statuses(create_app(), *["/"] * 3) == [200, 200, 429]
    assert statuses(create_app(), "/") == [200]  # another app, another memory
    rules = tmp_path / "rules.toml"
    rules.write_text('[[rules]]\nid = "all"\ndimension = "ip"\nlimit = 1\nwindow = "1h"\n')
    assert statuses(create_app(HEADGATE_RULES=str(rules)), "/", "/", "/health", "/health") == [200, 429, 200, 200]
    off = create_app(HEADGATE_ENABLED=False, HEADGATE_RULES="1/hour")
    assert statuses(off, *["/"] * 3) == [200] * 3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"HEADGATE_RULEZ": "1/hour"}, "HEADGATE_RULEZ: is not a setting; expected one of RULES, STORE"),
        ({"HEADGATE_RULES": "x"}, "HEADGATE_RULES: cannot read 'x' as a quota"),
        ({"HEADGATE_RULES": 7}, "HEADGATE_RULES: must be a notation"),
        ({"HEADGATE_STORE": "foo://"}, "HEADGATE_STORE: 'foo://' is not a store URL"),
        ({"HEADGATE_SKIP": "/health"}, "HEADGATE_SKIP: must be a list of patterns, got '/health'"),
        ({"HEADGATE_FAILURE_MODE": "x"}, "HEADGATE_FAILURE_MODE: must be one of open, closed, local"),
        ({"HEADGATE_COST": -1}, "HEADGATE_COST: must be a whole number"),
        ({"HEADGATE_MAX_WAITING": "1"}, "HEADGATE_MAX_WAITING: must be a whole number"),
    ],
)
def test_a_bad_configuration_is_told_by_name(config: dict[str, Any], message: str) -> None:
    app = flask.Flask(__name__)
    app.config.from_mapping(config)
    with pytest.raises(InvalidRule) as error:
        Headgate(app)
    assert str(error.value).startswith(message)


def test_mistakes() -> None:
    app, headgate = make()
    with pytest.raises(InvalidRule, match="has Headgate already"):
        headgate.init_app(app)
    with pytest.raises(InvalidRule, match=r"limiter: must be a Limiter, got AsyncLimiter"):
        Headgate(flask.Flask(__name__), limiter=AsyncLimiter("1/minute"))  # type: ignore[arg-type]
    with pytest.raises(InvalidQuota):
        headgate.limit("often")
    with pytest.raises(InvalidRule, match="key: must be a function"):
        headgate.limit("1/minute", key="user")  # type: ignore[arg-type]
    with pytest.raises(InvalidRule, match="cost: must be a whole number"):
        headgate.limit("1/minute", cost=-1)
    with pytest.raises(InvalidRule, match="methods: must be a list"):
        headgate.limit("1/minute", methods="GET")
    with pytest.raises(InvalidRule, match="name: must be a non-empty string"):
        headgate.limit("1/minute", name="")
    other = flask.Flask(__name__)
    other.testing = True
    other.add_url_rule("/", "index", headgate.limit("1/minute")(lambda: "hello"))
    with pytest.raises(InvalidRule, match="call init_app"):
        other.test_client().get("/")


def test_a_limit_above_the_route_holds_too() -> None:
    app, headgate = make()

    @headgate.limit("1/day")
    @app.get("/above")
    def above() -> str:
        return "above"

    @headgate.limit("3/day")
    @headgate.limit("2/day")
    @app.get("/twice")
    def twice() -> str:
        return "twice"

    @headgate.limit("1/day")
    @app.get("/both")
    @headgate.limit("9/day")
    def both() -> str:
        return "both"

    assert statuses(app, "/above", "/above") == [200, 429]
    assert statuses(app, "/twice", "/twice", "/twice") == [200, 200, 429]
    assert statuses(app, "/both", "/both") == [200, 429]


def test_a_limit_has_a_message_a_failure_mode_and_exemptions() -> None:
    app, headgate = make()

    @app.get("/")
    @headgate.limit("1/day", message="Slowly.", exempt_when=lambda: "X-Internal" in flask.request.headers)
    def home() -> str:
        return "home"

    client = app.test_client()
    assert client.get("/").status_code == 200
    assert (refused := client.get("/")).status_code == 429
    assert refused.json is not None
    assert refused.json["detail"] == "Slowly."
    assert client.get("/", headers={"X-Internal": "1"}).status_code == 200
    with pytest.raises(InvalidRule, match="failure_mode: must be one of open, closed, local"):
        headgate.limit("1/day", failure_mode="shut")  # type: ignore[arg-type]


def test_a_function_that_its_limiter_refuses_is_answered_with_429() -> None:
    limiter = Limiter([Rule(id="all", quota="9/day", dimension="ip")])
    app = flask.Flask("shop")
    Headgate(app, limiter=limiter)
    reports = limiter.limit("1/day", name="reports")(lambda: "report")
    app.get("/")(reports)
    client = app.test_client()
    assert client.get("/").status_code == 200
    refused = client.get("/")
    assert (refused.status_code, refused.content_type) == (429, "application/problem+json")
    assert refused.json is not None
    assert refused.json["violated-policies"] == ["reports"]
    assert '"reports"' in refused.headers["RateLimit-Policy"]
    assert limiter.peek(ip="127.0.0.1", endpoint="/", method="GET").remaining == 8  # given back
