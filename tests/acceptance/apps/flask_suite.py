"""The same in Flask."""

from __future__ import annotations

import os

import flask

from headgate import Limiter
from headgate.http.flask import Headgate
from tests.acceptance.apps.rules import CHUNK, MANY, MAX_WAITING, RULES, SKIP, STORE, Closing, chunks_until

app = flask.Flask(__name__)
headgate = Headgate(app, limiter=Limiter(RULES, store=STORE), skip=SKIP, max_waiting=MAX_WAITING)


@app.after_request
def process(response: flask.Response) -> flask.Response:
    response.headers["X-Process"] = str(os.getpid())
    return response


@app.get("/stream")
def stream() -> flask.Response:
    return flask.Response(chunks_until(flask.request.args["file"]))


@app.get("/closing")
def closing() -> flask.Response:
    return flask.Response(Closing(flask.request.args["file"]))


@app.get("/large")
def large() -> flask.Response:
    return flask.Response(CHUNK for _ in range(MANY))


@app.get("/boom")
def boom() -> str:
    raise RuntimeError("boom")


@app.get("/<any(ok, few, shared, closed, slow, crowd, health):name>")
def view(name: str) -> str:
    return f"view {name}"


@app.get("/limited/<int:number>")
@headgate.limit("2/hour sliding_window_log")
def limited(number: int) -> str:
    return f"view {number}"


@app.get("/exact")
@app.get("/café")
@app.get("/items/<number>")
@app.get("/guarded/<path:rest>")
def guarded(**_: str) -> str:
    return "view guarded"
