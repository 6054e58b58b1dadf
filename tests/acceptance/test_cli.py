"""The command line as people use it: the real script, against the real service."""

from __future__ import annotations

import csv
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from headgate import __version__
from headgate.rules.sources.file import load
from tests import warm
from tests.certificates import Authority
from tests.servers import free_port
from tests.service import Service, environment, warm_service

SCRIPT: Final = str(Path(sys.executable).with_name("headgate"))
WAIT_SECONDS: Final = 30.0  # for what comes some moments later
RULES: Final = """\
[[rules]]
id = "search"
endpoints = ["/search"]
algorithm = "sliding_window_log"
limit = 2
window = "1d"

[[rules]]
id = "trial"
endpoints = ["/trial"]
algorithm = "sliding_window_log"
limit = 1
window = "1d"
action = "log_only"
"""


class Cli:
    """`headgate`, with this environment."""

    def __init__(self, **settings: Any) -> None:
        self.environ = environment(settings) | {"XDG_DATA_HOME": "/nowhere"}

    def __call__(self, *args: str, code: int = 0) -> str:
        """What it prints, given that it ends with this code, and complains only if that is one of a fault."""
        ended = self.run(*args)
        assert ended.returncode == code, ended
        assert "Traceback" not in ended.stderr
        return ended.stdout

    def json(self, *args: str, code: int = 0) -> Any:
        return json.loads(self(*args, "--json", code=code))

    def fault(self, *args: str, code: int = 2) -> str:
        """The one line that it complains in."""
        ended = self.run(*args)
        assert (ended.returncode, ended.stdout) == (code, ""), ended
        assert ended.stderr.startswith("headgate: ")
        assert ended.stderr.count("\n") == 1, ended.stderr
        return ended.stderr.removeprefix("headgate: ").rstrip("\n")

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """In a process of its own."""
        return warm.run("headgate", args, cwd=Path.cwd(), env=self.environ)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with warm_service(tmp_path_factory.mktemp("service")) as service:
        yield service


@pytest.fixture(scope="module")
def rules_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "rules.toml"
    file.write_text(RULES)
    return file


@pytest.fixture(scope="module")
def headgate(service: Service, rules_file: Path) -> Cli:
    """Of a service that has `RULES`, and whose token it finds in the data directory."""
    cli = Cli(server=service.url, data_dir=service.data_dir)
    cli("rules", "apply", str(rules_file))
    return cli


def eventually(what: Callable[[], Any]) -> Any:
    """What is there some moments later: events are written in the background."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = what()
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)


class TestCheck:
    def test_allowed_then_refused(self, headgate: Cli) -> None:
        first = headgate("check", "alice", "--endpoint", "/search")
        assert first.splitlines()[0] == "allowed by search: 1 of 2 left, all of them in 1 d"
        assert first.splitlines()[2].split() == [
            "search",
            "allowed",
            "2/1d",
            "sliding_window_log",
            "1",
            "2",
            "1",
            "d",
            "-",
        ]
        second = headgate.json("check", "--user", "alice", "--endpoint", "/search")
        assert (second["allowed"], second["remaining"], second["rule"]) == (True, 0, "search")
        third = headgate("check", "alice", "--endpoint", "/search", code=1)
        assert third.startswith("refused by search: 0 of 2 left, all of them in")
        assert "retry after" in third

    def test_peeking_charges_nothing_and_resetting_forgets(self, headgate: Cli) -> None:
        who = ("--user", "bob", "--endpoint", "/search")
        assert headgate.json("peek", *who, "--cost", "3", code=1)["retry_after"] is None
        assert headgate.json("peek", *who)["remaining"] == 2
        headgate("check", *who, "--cost", "2")
        assert headgate("reset", *who) == "reset: user bob, endpoint /search\n"
        assert headgate.json("peek", *who)["remaining"] == 2

    def test_a_repeated_check_with_a_key_is_charged_once(self, headgate: Cli) -> None:
        for _ in range(2):
            decision = headgate.json("check", "carol", "--endpoint", "/search", "--idempotency-key", "k1")
            assert (decision["allowed"], decision["remaining"]) == (True, 1)

    def test_a_shadow_is_shown_and_lets_pass(self, headgate: Cli) -> None:
        headgate("check", "dave", "--endpoint", "/trial")
        printed = headgate("check", "dave", "--endpoint", "/trial")
        assert "over the limit of a rule that only logs" in printed
        assert printed.splitlines()[2].split()[:2] == ["trial", "shadow"]

    def test_without_a_rule(self, headgate: Cli) -> None:
        assert headgate("check", "--ip", "192.0.2.7", "--fact", "country=DE") == "allowed: no rule applies\n"

    def test_what_makes_no_sense_is_a_fault_or_wrong_usage(self, headgate: Cli) -> None:
        assert headgate.fault("check", "--ip", "nonsense") == 'ip: must be an address of IPv4 or IPv6, got "nonsense"'
        for wrong in (["--fact", "x"], ["--cost", "-1"]):
            ended = headgate.run("check", *wrong)
            assert (ended.returncode, ended.stdout) == (2, ""), wrong


class TestRules:
    def test_the_list(self, headgate: Cli) -> None:
        lines = headgate("rules", "list").splitlines()
        assert lines[0].split() == [
            *("ID", "QUOTA", "DIMENSION", "ENDPOINTS", "METHODS", "TIERS", "ACTION", "PRIORITY", "GROUP", "ENABLED")
        ]
        assert lines[2].split()[:5] == ["trial", "1/1d", "sliding_window_log", "user", "/trial"]
        assert [rule["id"] for rule in headgate.json("rules", "list")] == ["search", "trial"]

    def test_changes_are_shown_before_they_are_applied(self, headgate: Cli, rules_file: Path, tmp_path: Path) -> None:
        file = tmp_path / "new.toml"
        file.write_text(RULES.replace("limit = 1", "limit = 10") + '[[rules]]\nid = "new"\nlimit = 5\nwindow = "1m"\n')
        shown = ["~ rule trial: limit 1 → 10", "+ rule new: 5/1m sliding_window_counter, by user", "2 changes"]
        assert headgate("rules", "diff", str(file), code=1).splitlines() == shown
        assert headgate("rules", "apply", str(file), "--dry-run").splitlines() == shown
        assert headgate("rules", "diff", str(rules_file)) == "no difference\n"

        *lines, last = headgate("rules", "apply", str(file)).splitlines()
        assert lines == shown
        assert last.startswith("applied: version ")
        assert headgate("rules", "diff", str(file)) == "no difference\n"
        assert headgate("check", "erin").startswith("allowed by new: 4 of 5 left")

        changes = headgate.json("rules", "diff", str(rules_file), code=1)["changes"]
        assert [(change["action"], change["subject"]) for change in changes] == [("update", "trial"), ("delete", "new")]
        applied = headgate.json("rules", "apply", str(rules_file))
        assert (applied["dry_run"], applied["changes"]) == (False, changes)

    def test_what_is_exported_can_be_applied(self, headgate: Cli, tmp_path: Path) -> None:
        file = tmp_path / "exported.toml"
        assert headgate("rules", "export", str(file)) == f"written: {file}\n"
        assert headgate("rules", "export") == file.read_text()
        assert [rule.id for rule in load(file).rules] == ["search", "trial"]
        assert headgate("rules", "diff", str(file)) == "no difference\n"
        assert [rule["id"] for rule in headgate.json("rules", "export")["rules"]] == ["search", "trial"]
        assert "cannot be written" in headgate.fault("rules", "export", str(tmp_path / "none" / "x.toml"))

    def test_every_problem_has_its_file_rule_and_field(self, headgate: Cli, rules_file: Path, tmp_path: Path) -> None:
        file = tmp_path / "bad.toml"
        file.write_text('[[rules]]\nid = "a"\nlimit = 0\nwindow = "1m"\ncolour = "red"\n')
        problems = [
            f"{file}: rule 'a': colour: unknown key",
            f"{file}: rule 'a': limit: must be a whole number from 1 to 2^53-1, got 0",
        ]
        for command in ("apply", "diff"):
            ended = headgate.run("rules", command, str(file))
            assert (ended.returncode, ended.stdout) == (1, "")
            assert ended.stderr.splitlines() == [f"headgate: {problem}" for problem in problems]
        alone = Cli(server="http://127.0.0.1:1")  # validate needs no service
        assert alone("rules", "validate", str(file), code=1).splitlines() == problems
        assert alone("rules", "validate", str(rules_file)) == f"{rules_file}: good: 2 rules\n"
        answer = alone.json("rules", "validate", str(rules_file), str(file), code=1)
        assert answer["good"] is False
        assert [(one["where"], one["field"]) for one in answer["problems"]] == [
            ("rule 'a'", "colour"),
            ("rule 'a'", "limit"),
        ]
        assert headgate("rules", "diff", str(rules_file)) == "no difference\n"

    def test_on_a_terminal_one_is_asked(self, headgate: Cli, tmp_path: Path, rules_file: Path) -> None:
        file = tmp_path / "new.toml"
        file.write_text(RULES.replace("limit = 1", "limit = 10"))
        with terminal(headgate, "rules", "apply", str(file)) as shown:
            shown.until("Apply? [y/N]")
            shown.type("n\n")
            assert shown.ended() == 1
        assert headgate("rules", "diff", str(rules_file)) == "no difference\n"
        with terminal(headgate, "rules", "apply", str(file)) as shown:
            shown.until("Apply? [y/N]")
            shown.type("y\n")
            shown.until("applied: version")
            assert shown.ended() == 0
        with terminal(headgate, "rules", "apply", str(rules_file), "--yes") as shown:
            shown.until("applied: version")
            assert shown.ended() == 0


class TestTokens:
    def test_one_is_made_used_listed_and_revoked(self, headgate: Cli, service: Service) -> None:
        ended = headgate.run("token", "create", "ci", "--scope", "rules", "--expires", "30d")
        secret = ended.stdout.strip()
        assert ended.returncode == 0
        assert secret.startswith("hg_")
        assert "of ci: viewer, for rules, until" in ended.stderr
        assert "not shown again" in ended.stderr
        [token] = headgate.json("token", "list")
        left = datetime.fromisoformat(token["expires"]) - datetime.now(UTC)
        assert timedelta(days=29) < left <= timedelta(days=30)
        assert secret not in headgate("token", "list")

        ci = Cli(server=service.url, admin_token=secret)
        assert [rule["id"] for rule in ci.json("rules", "list")] == ["search", "trial"]
        assert ci.fault("events").startswith("this token is not for events")
        assert headgate("token", "revoke", token["id"]) == f"revoked: {token['id']}\n"
        assert ci.fault("rules", "list").startswith("this token was revoked: give another with --token")
        assert headgate("token", "list").splitlines()[1].split()[4] == "revoked"

    def test_what_cannot_be_a_token(self, headgate: Cli) -> None:
        assert headgate.run("token", "create", "x").returncode == 2  # for nothing at all
        assert "role: must be one of" in headgate.fault(
            "token", "create", "x", "--scope", "rules", "--role", "a", code=1
        )
        assert headgate.fault("token", "revoke", "none of them") == "there is no token 'none of them'"

    def test_who_has_none_is_told_how_to_give_one(self, service: Service, tmp_path: Path) -> None:
        away = Cli(server=service.url)  # where the service's data directory is not to be seen
        expected = f"{service.url} needs a token: give one with --token, or with HEADGATE_ADMIN_TOKEN"
        assert away.fault("rules", "list") == expected
        assert away.fault("rules", "list", "--token", "wrong").startswith("this token is not known: give another")
        file = tmp_path / "token"
        file.write_text(f"{service.admin_token}\n")
        assert away.json("token", "list", "--token-file", str(file)) is not None
        file.write_text("\n")
        assert away.fault("token", "list", "--token-file", str(file)) == f"--token-file: {file}: is empty"
        assert away("check", "frank").startswith("allowed")  # the data plane is open


class TestEvents:
    def test_what_was_refused_is_listed(self, headgate: Cli) -> None:
        strange = "mallory \x1b[2J"
        headgate("check", strange, "--endpoint", "/search", "--method", "GET", "--cost", "7", code=1)
        only = ("--user", strange, "--since", "1h")
        assert eventually(lambda: headgate.run("events", *only, "--json").stdout)
        lines = headgate("events", *only).splitlines()
        assert len(lines) == 2
        assert "mallory \\x1b[2J" in lines[1]  # which a terminal is not to obey
        assert "\x1b" not in lines[1]
        assert lines[1].split()[2:5] == ["refused", "over_limit", "search"]
        [event] = [json.loads(line) for line in headgate("events", *only, "--json").splitlines()]
        assert (event["rule"], event["user"], event["cost"], event["allowed"]) == ("search", strange, 7, False)
        [row] = csv.DictReader(headgate("events", *only, "--csv").splitlines())
        assert (row["id"], row["rule"], row["cost"]) == (event["id"], "search", "7")
        for others in ("--rule=trial", "--until=1h", "--shadow"):
            assert headgate("events", "--user", strange, others) == "no events\n"

    def test_so_many_and_the_latest_first(self, headgate: Cli) -> None:
        for cost in ("10", "11"):
            headgate("check", "grace", "--endpoint", "/search", "--cost", cost, code=1)
        asked = ("events", "--user", "grace", "--json")
        assert eventually(lambda: headgate(*asked).count("\n") == 2)
        assert [json.loads(line)["cost"] for line in headgate(*asked, "--limit", "1").splitlines()] == [11]

    def test_new_ones_are_followed(self, headgate: Cli) -> None:
        headgate("check", "heidi", "--endpoint", "/search", "--cost", "21", code=1)
        with terminal(headgate, "events", "--follow", "--user", "heidi", "--json") as shown:
            shown.until('"cost": 21')
            headgate("check", "heidi", "--endpoint", "/search", "--cost", "22", code=1)
            shown.until('"cost": 22')
            shown.process.send_signal(signal.SIGINT)
            assert shown.ended() == 130
        assert shown.text.count('"cost": 21') == 1

    def test_times_that_are_none(self, headgate: Cli) -> None:
        for wrong in (["--since", "yesterday"], ["--csv", "--json"], ["--csv", "--limit", "1001"]):
            ended = headgate.run("events", *wrong)
            assert (ended.returncode, ended.stdout) == (2, ""), wrong


class TestTop:
    def test_once(self, headgate: Cli) -> None:
        headgate("check", "ivan", "--endpoint", "/search", "--cost", "9", code=1)
        assert eventually(lambda: "user ivan" in headgate("top", "--once", "--interval", "0.1"))
        lines = headgate("top", "--interval", "0.1").splitlines()  # not on a terminal: once, too
        assert lines[0].startswith("rates: node ")
        assert lines[1].split() == ["RULE", "CHECKS/S", "ALLOWED/S", "REFUSED/S", "SHADOW/S", "CHECKS"]
        assert "search" in [line.split()[0] for line in lines[1:] if line]
        data = headgate.json("top", "--once", "--interval", "0.1")
        assert [one["checks"] > 0 for one in data["rules"] if one["rule"] == "search"] == [True]
        assert "ivan" in [one["subject"] for one in data["subjects"]]

    def test_without_a_token_there_are_rates_alone(self, headgate: Cli, service: Service) -> None:
        headgate("check", "judy", "--endpoint", "/search")  # without any check, there are no rates to show
        ended = Cli(server=service.url).run("top", "--once", "--interval", "0.1")
        assert ended.returncode == 0
        assert "CHECKS/S" in ended.stdout
        assert "WHO" not in ended.stdout
        assert ended.stderr.startswith("headgate: clients that hit limits cannot be shown: ")

    def test_live_until_q(self, headgate: Cli, service: Service) -> None:
        with terminal(headgate, "top", "--interval", "0.1") as shown:
            shown.until(service.url)
            shown.until("checks/s")
            shown.type("x")
            shown.type("q")
            assert shown.ended() == 0
        assert shown.text.rstrip().endswith("\x1b[?1049l")  # the screen is as it was

    def test_as_json_it_is_a_line_for_each_look(self, headgate: Cli) -> None:
        with terminal(headgate, "top", "--interval", "0.1", "--json") as shown:
            shown.until("\n")
            shown.until("\n", times=3)
            shown.process.send_signal(signal.SIGINT)
            assert shown.ended() == 0
        assert json.loads(shown.text.splitlines()[0])["fault"] is None

    def test_a_service_that_is_gone_is_waited_for(self, tmp_path: Path) -> None:
        port = free_port()
        cli = Cli(server=f"http://127.0.0.1:{port}", data_dir=tmp_path / "data")
        with terminal(cli, "top", "--interval", "0.1") as shown:
            shown.until("trying again: no service answers at")
            with warm_service(tmp_path, http_address=f"127.0.0.1:{port}"):
                shown.until("0.0 refused/s", "no checks yet")
                assert cli("top", "--once", "--interval", "0.1").splitlines()[1:] == ["no checks yet"]
            shown.until("trying again: ", again=True)
            shown.process.send_signal(signal.SIGINT)
            assert shown.ended() == 0


def test_rules_of_a_file_are_not_applied_and_checks_may_need_a_token(rules_file: Path, tmp_path: Path) -> None:
    with warm_service(tmp_path, rules=rules_file, data_token="data-token-of-tests") as service:
        admin = Cli(server=service.url, data_dir=service.data_dir)
        assert f"the rules are in the file {rules_file}" in admin.fault("rules", "apply", str(rules_file))
        assert [rule["id"] for rule in admin.json("rules", "list")] == ["search", "trial"]
        assert admin("check", "alice") == "allowed: no rule applies\n"  # the admin's token will do
        asked = "needs a token: give one with --token, or with HEADGATE_DATA_TOKEN or HEADGATE_ADMIN_TOKEN"
        assert asked in Cli(server=service.url).fault("check", "alice")
        data = Cli(server=service.url, data_token="data-token-of-tests", admin_token="not asked for")
        assert data("check", "alice") == "allowed: no rule applies\n"


def test_tls_with_certificates_of_both_sides(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.certified("server")
    files = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.file}
    with warm_service(tmp_path, **files) as service:
        cli = Cli(server=service.url, data_dir=service.data_dir)
        assert cli.fault("check", "alice").startswith(f"{service.url}: its certificate is not trusted: ")
        assert service.url in cli.fault("check", "alice", "--ca", str(authority.file))  # it asks for ours
        own, own_key = map(str, authority.certified("client"))
        trusting = ("--ca", str(authority.file), "--certificate", own, "--key", own_key)
        assert cli("check", "alice", *trusting).startswith("allowed by user-free: 99 of 100 left")


def test_who_reads_may_stop_reading(headgate: Cli) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [SCRIPT, "rules", "export"], env=headgate.environ, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.mark.parametrize(
    "command",
    [
        *(["check", "alice"], ["rules", "export"], ["token", "list"], ["events", "--csv"], ["top", "--once"]),
    ],
    ids=" ".join,
)
def test_without_a_service(command: list[str]) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    expected = f"no service answers at {url}: start one with `headgate serve`, or name its address with --server"
    assert Cli().fault(*command, "--server", url) == expected


def test_version() -> None:
    cli = Cli()
    assert cli("version").startswith(f"headgate {__version__} ")
    assert cli.json("version")["headgate"] == __version__


def _interruptible() -> None:
    """Ctrl-C counts, also where whoever runs the tests ignores it, as shells have their background jobs do."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Terminal:
    """What a command shows on a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self.text = ""
        self._descriptor = descriptor

    def until(self, *wanted: str, times: int = 1, again: bool = False) -> None:
        """Wait until all of this has been shown; `again`: from now on."""
        start = len(self.text) if again else 0
        deadline = time.monotonic() + WAIT_SECONDS
        while any(self.text[start:].count(one) < times for one in wanted):
            assert time.monotonic() < deadline, self.text
            self._read()

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def ended(self) -> int:
        """Wait for the end, and return the exit code."""
        deadline = time.monotonic() + WAIT_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
            self._read()
        while self._read():
            pass
        return self.process.returncode

    def _read(self) -> bool:
        if not select.select([self._descriptor], [], [], 0.05)[0]:
            return False
        try:
            content = os.read(self._descriptor, 65_536)
        except OSError:  # nobody has the other end any more
            return False
        self.text += content.decode(errors="replace")
        return bool(content)


@contextmanager
def terminal(cli: Cli, *args: str) -> Iterator[Terminal]:
    """A command on a terminal of its own."""
    ours, theirs = pty.openpty()
    environ = cli.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    process = subprocess.Popen(
        [SCRIPT, *args],
        env=environ,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=_interruptible,  # noqa: PLW1509 - it sets a signal, and nothing else
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(ours)
