"""The WSGI middleware around a plain app."""

from __future__ import annotations

from tests.acceptance.suite import ANY_HEADERS, Suite, ThreadedSuite


class TestGunicornSync(Suite):
    server = "gunicorn"
    app = "tests.acceptance.apps.plain_wsgi:app"
    options = ("--threads", "1", "--worker-class", "sync", *ANY_HEADERS)


class TestGunicornThreads(ThreadedSuite):
    server = "gunicorn"
    app = "tests.acceptance.apps.plain_wsgi:app"
    options = ANY_HEADERS


class TestGranian(Suite):
    server = "granian-wsgi"
    app = "tests.acceptance.apps.plain_wsgi:app"
    options = ("--blocking-threads", "4")
