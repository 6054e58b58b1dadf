"""Where the service is, which token is sent to it, and what is said when it does not answer as it should."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headgate.cli.client import InvalidRules, ServiceClient, find_token, is_loopback, server_url
from headgate.cli.output import CommandFault
from headgate.errors import InvalidSettings, Problem
from headgate.settings import ClientSettings
from tests.servers import free_port

Answer = tuple[int, Any]


@contextmanager
def answering(answer: Callable[[BaseHTTPRequestHandler], Answer]) -> Iterator[str]:
    """A server that is no Headgate service, and its URL."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            status, body = answer(self)
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = answer  # noqa: N815

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def fault_of(answer: Answer, *, token: str | None = None) -> CommandFault:
    with (
        answering(lambda _: answer) as url,
        ServiceClient(url, token=token) as client,
        pytest.raises(CommandFault) as error,
    ):
        client.get("/api/v1/rules")
    return error.value


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("https://limits.example/headgate/", "https://limits.example/headgate"),
        ("localhost:9000", "http://localhost:9000"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_servers(given: str, url: str) -> None:
    assert server_url(given) == url


@pytest.mark.parametrize(
    "given", ["", "http://", "ftp://host", "http://host:port", "http://[::1", "http://a:b@host", "http://host/?a=b"]
)
def test_what_is_no_server_is_named(given: str) -> None:
    with pytest.raises(
        CommandFault, match=re.escape(f"--server: must be a URL as in http://127.0.0.1:8080, got {given!r}")
    ):
        server_url(given)


@pytest.mark.parametrize(
    ("url", "here"),
    [("http://127.0.0.1:1", True), ("http://localhost", True), ("http://[::1]:8", True), ("http://10.0.0.1", False)],
)
def test_loopback(url: str, here: bool) -> None:
    assert is_loopback(url) is here


class TestToken:
    HERE, AWAY = "http://127.0.0.1:8080", "https://limits.example"

    def test_a_flag_wins_then_the_first_that_is_set(self, tmp_path: Path) -> None:
        environ = {"HEADGATE_ADMIN_TOKEN": "admin", "HEADGATE_DATA_TOKEN": "data", "HEADGATE_DATA_DIR": str(tmp_path)}
        settings = ClientSettings(environ)
        both = ("data_token", "admin_token")
        assert find_token("flag", self.HERE, both, settings) == "flag"
        assert find_token(None, self.AWAY, both, settings) == "data"
        assert find_token(None, self.AWAY, ("admin_token",), settings) == "admin"

    def test_the_one_that_a_service_of_this_machine_made_is_sent_to_this_machine_alone(self, tmp_path: Path) -> None:
        (tmp_path / "admin-token").write_text("hg_made\n")
        settings = ClientSettings({"HEADGATE_DATA_DIR": str(tmp_path)})
        assert find_token(None, self.HERE, ("admin_token",), settings) == "hg_made"
        assert find_token(None, self.AWAY, ("admin_token",), settings) is None

    def test_without_any_there_is_none(self, tmp_path: Path) -> None:
        settings = ClientSettings({"XDG_DATA_HOME": str(tmp_path)})
        assert find_token(None, self.HERE, ("admin_token",), settings) is None

    def test_a_file_that_is_named_has_to_be_there(self, tmp_path: Path) -> None:
        settings = ClientSettings({"HEADGATE_ADMIN_TOKEN_FILE": str(tmp_path / "none")})
        with pytest.raises(InvalidSettings, match=r"HEADGATE_ADMIN_TOKEN_FILE: .*none: cannot be read"):
            find_token(None, self.HERE, ("admin_token",), settings)
        assert find_token("flag", self.HERE, ("admin_token",), settings) == "flag"

    def test_one_that_no_header_can_hold_is_not_sent_and_not_shown(self) -> None:
        with pytest.raises(CommandFault, match="--token: must consist of printable ASCII") as error:
            ServiceClient(self.HERE, token="secret\r\nX: y")
        assert "secret" not in str(error.value)


def test_it_is_sent_as_a_bearer() -> None:
    with answering(lambda request: (200, {"seen": request.headers["Authorization"]})) as url:
        with ServiceClient(url, token="hg_1") as client:
            assert client.get("/") == {"seen": "Bearer hg_1"}
        with ServiceClient(url) as client:
            assert client.get("/") == {"seen": None}


def test_nobody_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with ServiceClient(url) as client, pytest.raises(CommandFault) as error:
        client.get("/")
    assert str(error.value) == (
        f"no service answers at {url}: start one with `headgate serve`, or name its address with --server"
    )
    assert error.value.code == 2


def test_something_else_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = Thread(target=greet)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with ServiceClient(url) as client, pytest.raises(CommandFault, match="does not speak HTTP"):
            client.get("/")
        thread.join()


def test_tls_where_there_is_none() -> None:
    with (
        answering(lambda _: (200, {})) as url,
        ServiceClient(url.replace("http:", "https:")) as client,
        pytest.raises(CommandFault, match="cannot make a TLS connection"),
    ):
        client.get("/")


def test_answers_that_are_not_ours() -> None:
    for answer in ((404, b"<h1>Not Found</h1>"), (200, b"<h1>Welcome</h1>"), (200, [1]), (302, b""), (500, {"a": 1})):
        fault = fault_of(answer)
        assert re.search(rf"answers {answer[0]} to /api/v1/rules: is it a Headgate service\?", str(fault)), answer


def test_the_detail_of_a_problem_is_what_is_said() -> None:
    fault = fault_of((409, {"status": 409, "detail": "the rules are in the file rules.toml"}))
    assert (str(fault), fault.code) == ("the rules are in the file rules.toml", 2)


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (None, r"http://127.0.0.1:\d+ needs a token: give one with --token, or with HEADGATE_ADMIN_TOKEN"),
        ("wrong", "this token is not known: give another with --token, or with HEADGATE_ADMIN_TOKEN"),
    ],
)
def test_how_to_give_a_token_is_said_to_those_who_need_one(token: str | None, text: str) -> None:
    fault = fault_of((401, {"status": 401, "detail": "this token is not known"}), token=token)
    assert re.fullmatch(text, str(fault))


def test_every_problem_is_said_with_the_file_that_has_it() -> None:
    problems = [
        {"where": "rule 'a'", "field": "limit", "message": "must be 1 or more, got 0"},
        {"where": "", "field": "rulez", "message": "unknown key"},
    ]
    fault = fault_of((422, {"status": 422, "detail": "There are 2 problems", "problems": problems}))
    assert isinstance(fault, InvalidRules)
    assert fault.code == 1
    assert fault.problems[0] == Problem("rule 'a'", "limit", "must be 1 or more, got 0")
    assert str(fault.of_file("rules.toml")) == (
        "rules.toml: rule 'a': limit: must be 1 or more, got 0\nrules.toml: rulez: unknown key"
    )


def test_a_refusal_is_an_answer_whichever_status_it_has() -> None:
    for status in (429, 403, 503):
        with answering(lambda _, status=status: (status, {"allowed": False})) as url, ServiceClient(url) as client:  # type: ignore[misc]
            assert client.check("/v1/check", {}) == {"allowed": False}


def test_pages_are_followed_up_to_the_limit() -> None:
    asked: list[str] = []

    def page(request: BaseHTTPRequestHandler) -> Answer:
        asked.append(request.path.partition("?")[2])
        number = len(asked)
        return 200, {"rules": [{"id": f"{number}-{one}"} for one in range(2)], "next": None if number == 3 else number}

    with answering(page) as url, ServiceClient(url) as client:
        assert [one["id"] for one in client.pages("/rules", "rules")] == ["1-0", "1-1", "2-0", "2-1", "3-0", "3-1"]
        assert asked == ["limit=500", "after=1&limit=500", "after=2&limit=500"]
        asked.clear()
        assert len(list(client.pages("/rules", "rules", {"user": "a b", "ip": None}, max_items=4))) == 4
        assert asked == ["user=a+b&limit=4", "user=a+b&after=1&limit=2"]


def test_certificates_have_to_be_some(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    with pytest.raises(CommandFault, match=r"ca\.pem: cannot be used as certificates"):
        ServiceClient("https://limits.example", ca=file)
    with pytest.raises(CommandFault, match="--key: needs --certificate"):
        ServiceClient("https://limits.example", key=file)
