"""Flask with Headgate, in memory. Run it, and try the commands that it prints:

python -m examples.flask_app
gunicorn --threads 4 examples.flask_app:app
"""

from __future__ import annotations

import os

import flask

from headgate import Limiter, Rule
from headgate.http.flask import Headgate, Refused

RULES = [
    Rule(id="everybody", quota="100/minute", dimension="ip"),
    Rule(
        id="login",
        quota="5/hour sliding_window_log",
        dimension="ip",
        endpoints=["/login"],
        message="Too many attempts to log in.",
    ),
]

app = flask.Flask(__name__)
headgate = Headgate(app, limiter=Limiter(RULES, store=os.environ.get("HEADGATE_STORE", "memory://")), skip=["/health"])


def team() -> str | None:
    """Who is counted: the team that is asking, or else the client. Of a real app, what its session says."""
    return flask.request.headers.get("X-Team")


@app.get("/")
def index() -> str:
    return f"You have {flask.g.headgate.decision.remaining} requests left in this minute.\n"


@app.post("/login")
def login() -> str:
    return "Welcome.\n"


@app.get("/reports/<int:number>")
@headgate.limit("3/hour sliding_window_log", key=team)
def report(number: int) -> str:
    return f"Report {number}.\n"


@app.get("/export")
@headgate.limit("10/hour", cost=lambda: int(flask.request.args.get("pages", "1")))
async def export() -> str:
    return "Your export is on its way.\n"


@app.get("/status")
@headgate.exempt
def status() -> str:
    return "All is well.\n"


@app.get("/health")
def health() -> str:
    return "ok\n"


@app.errorhandler(429)
def refused(error: Refused) -> flask.typing.ResponseReturnValue:
    """Browsers get a page, everybody else problem details."""
    if flask.request.accept_mimetypes.best == "text/html":
        return f"<h1>Slow down</h1><p>{error.description}</p>", 429
    return error.get_response()


if __name__ == "__main__":
    print("Try:  curl -i http://127.0.0.1:8000/")
    print("      for n in 1 2 3 4; do curl -i http://127.0.0.1:8000/reports/$n; done")
    app.run(port=8000)
