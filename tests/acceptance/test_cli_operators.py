"""Operators at the command line: users, overrides, exemptions, the change log; the real script, the real service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headgate import __version__
from tests.acceptance.test_cli import Cli, eventually
from tests.service import Service, warm_service

RULES = """
[[tiers]]
name = "free"
[[tiers]]
name = "premium"
[[rules]]
id = "search"
algorithm = "fixed_window"
limit = 2
window = "1d"
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with warm_service(tmp_path_factory.mktemp("service"), samples=False) as service:
        yield service


@pytest.fixture
def headgate(service: Service, tmp_path: Path) -> Cli:
    cli = Cli(server=service.url, data_dir=service.data_dir)
    (tmp_path / "rules.toml").write_text(RULES)
    cli("rules", "apply", str(tmp_path / "rules.toml"))
    users = [{"id": user["id"]} for user in cli.json("users", "list")]
    httpx.put(f"{service.url}/api/v1/users:batch", json={"users": users}, headers=service.headers).raise_for_status()
    return cli


def test_users(headgate: Cli) -> None:
    assert headgate("users", "list") == "no users with a tier, an anchor or overrides\n"
    assert headgate("users", "set", "a/lice", "--tier", "premium") == "a/lice: tier premium\n"
    assert headgate("users", "list", "--tier", "premium").splitlines()[1].split() == ["a/lice", "premium", "-", "-"]
    assert headgate.json("users", "list", "--tier", "free") == []
    headgate("overrides", "set", "a/lice", "search", "--limit", "7", "--expires", "30d")
    shown = headgate("users", "show", "a/lice").splitlines()
    assert shown[0] == "tier: premium"
    assert shown[1].startswith("override of search: limit 7 until ")
    assert shown[3].split() == ["search", "7/1d", "fixed_window", "(override)", "user", "7", "0", "s", "-"]
    assert headgate.json("users", "show", "a/lice")["limits"][0]["figures"]["remaining"] == 7
    assert headgate("users", "set", "a/lice", "--default") == "a/lice: the default tier\n"
    assert headgate.json("users", "delete", "a/lice") == {"id": "a/lice"}
    assert headgate.fault("users", "delete", "a/lice") == "user 'a/lice' has no tier, anchor or overrides"
    assert headgate.fault("users", "set", "bob", "--tier", "gold", code=1).endswith("tiers (free, premium)")
    assert headgate.run("users", "set", "bob").returncode == 2
    assert headgate("users", "set", "bob", "--anchor", "15") == "bob: anchor 15\n"
    assert "anchor: 15\n" in headgate("users", "show", "bob")
    assert headgate.json("users", "set", "bob", "--tier", "free", "--anchor", "monday")["anchor"] == "monday"
    assert headgate("users", "list").splitlines()[1].split() == ["bob", "free", "monday", "-"]
    assert headgate.fault("users", "set", "bob", "--anchor", "noday", code=1).endswith("got 'noday'")
    assert headgate.run("users", "set", "bob", "--anchor", "3", "--no-anchor").returncode == 2
    assert headgate("users", "set", "bob", "--no-anchor", "--default") == "bob: the default tier, no anchor\n"


def test_users_by_the_thousand(headgate: Cli, tmp_path: Path) -> None:
    users = [{"id": f"u{number:04}", "tier": "free"} for number in range(1_500)]
    file = tmp_path / "users.json"
    file.write_text(json.dumps({"users": users, "overrides": [{"user": "zoe", "rule": "search", "limit": 9}]}))
    assert headgate("users", "apply", str(file)) == "applied: 1,501 created, 0 updated, 0 deleted, 0 unchanged\n"
    assert len(headgate.json("users", "list")) == 1_501
    toml = tmp_path / "users.toml"
    toml.write_text(
        '[[users]]\nid = "u0000"\n[[users]]\nid = "u0001"\ntier = "free"\n'
        'overrides = [{ rule = "search", limit = 3, expires = 2099-01-01T00:00:00Z }]\n'
    )
    assert headgate.json("users", "apply", str(toml))["deleted"] == 1
    newest = headgate.json("changes", "list", "--limit", "1")[0]
    planned = headgate("changes", "revert", str(newest["id"]), "--together", "--dry-run")
    assert planned.splitlines()[-1] == "2 changes"
    assert headgate("changes", "revert", str(newest["id"]), "--together").splitlines()[-1].startswith("reverted: ")
    assert len(headgate.json("users", "list")) == 1_501
    toml.write_text('[[users]]\nid = "u0001"\ntier = "gold"\n')
    assert f"{toml}: user 'u0001': tier" in headgate.fault("users", "apply", str(toml), code=1)
    assert headgate.fault("users", "apply", "/nope.json") == "/nope.json: cannot be read: No such file or directory"
    file.write_text("[")
    assert "is not JSON" in headgate.fault("users", "apply", str(file), code=1)


def test_overrides(headgate: Cli) -> None:
    assert headgate("overrides", "list") == "no overrides\n"
    assert (
        headgate("overrides", "set", "bob", "search", "--limit", "5", "--window", "1h") == "bob: limit 5 for search\n"
    )
    (listed,) = headgate.json("overrides", "list", "--user", "bob", "--rule", "search", "--active")
    assert (listed["limit"], listed["window"], listed["expired"]) == (5, 3600, False)
    assert headgate.json("overrides", "list", "--expired") == []
    assert headgate("overrides", "list").splitlines()[1].split() == ["bob", "search", "5", "1h", "-", "never", "no"]
    past = headgate.fault("overrides", "set", "bob", "search", "--limit", "5", "--expires", "2020-01-01T00:00Z", code=1)
    assert "is in the past" in past
    assert headgate.run("overrides", "set", "bob", "search", "--limit", "5", "--expires", "soon").returncode == 2
    assert headgate("overrides", "delete", "bob", "search") == "deleted: bob's override of search\n"
    assert "has no override" in headgate.fault("overrides", "delete", "bob", "search")


def test_exemptions(headgate: Cli) -> None:
    assert headgate("exemptions", "list") == "no exemptions\n"
    assert headgate("exemptions", "add", "ip", "10.0.0.0/8") == "exempt: ip 10.0.0.0/8\n"
    assert headgate.json("exemptions", "list") == [{"type": "ip", "value": "10.0.0.0/8"}]
    assert headgate("exemptions", "delete", "ip", "10.0.0.0/8") == "deleted: exemption of ip 10.0.0.0/8\n"
    assert "there is no exemption" in headgate.fault("exemptions", "delete", "ip", "10.0.0.0/8")
    assert "type" in headgate.fault("exemptions", "add", "country", "DE", code=1)


def test_changes_and_the_way_back(headgate: Cli, tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text(RULES.replace("limit = 2", "limit = 50"))
    headgate("rules", "apply", str(file))
    (change,) = headgate.json("changes", "list", "--kind", "rule", "--subject", "search", "--limit", "1")
    listed = headgate("changes", "list", "--kind", "rule", "--limit", "1").splitlines()
    assert listed[1].endswith("bootstrap  ~ rule search: limit 2 → 50")
    assert headgate("changes", "revert", str(change["id"])).splitlines()[:2] == [
        "~ rule search: limit 50 → 2",
        "1 change",
    ]
    assert headgate.json("rules", "list")[0]["limit"] == 2
    assert "was changed again since, by change" in headgate.fault("changes", "revert", str(change["id"]))
    assert headgate.fault("changes", "revert", "99999") == "there is no change 99999"


def test_the_version_is_an_option_too(headgate: Cli) -> None:
    assert headgate("--version").startswith(f"headgate {__version__} (Python ")


def test_a_file_that_is_not_there_is_a_fault_and_no_bad_rule(headgate: Cli, tmp_path: Path) -> None:
    assert headgate.fault("rules", "validate", "/nope") == "/nope: cannot be read: No such file or directory"
    good = str(tmp_path / "rules.toml")
    assert headgate.fault("rules", "validate", good, "/nope", "--json").startswith("/nope: cannot be read")


def test_top_says_whose_figures_it_shows(headgate: Cli, service: Service) -> None:
    for _ in range(3):
        httpx.post(f"{service.url}/v1/check", json={"user": "greta"})
    page = httpx.get(f"{service.url}/metrics").text
    assert eventually(lambda: headgate.json("top", "--once", "--interval", "0.1")["subjects"])
    shown = headgate("top", "--once", "--interval", "0.1", "--period", "15m").splitlines()
    node = headgate.json("top", "--once", "--interval", "0.1")["node"]
    assert f'node="{node}"' in page
    assert shown[0] == f"rates: node {node} alone ({service.url})"
    assert "who hits limits: on all nodes, in the last 15 min" in shown


def test_top_and_the_log_show_requests_that_no_rule_limits(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES)  # which count by user
    with warm_service(tmp_path, rules=rules) as service:
        for facts in [{"ip": "192.0.2.1"}, {"ip": "192.0.2.2"}] * 2 + [{"tenant": "acme"}, {"user": "alice"}]:
            decided = httpx.post(f"{service.url}/v1/check", json=facts).json()
            assert (decided["reason"] == "no_rule") == ("user" not in facts)
        cli = Cli(server=service.url, data_dir=service.data_dir)
        shown = cli("top", "--once", "--interval", "0.1")
        (row,) = [line for line in shown.splitlines() if line.startswith("(no rule applies)")]
        assert row.split()[-1] == "5"
        data = cli.json("top", "--once", "--interval", "0.1")
        assert {"rule": None, "reason": "no_rule", "checks": 5}.items() <= data["rules"][0].items()
        # One line for each shape of request, however many such requests there are.
        logged = [json.loads(line)["event"] for line in service.log.splitlines() if "no rule applies" in line]
        assert sorted(logged) == [
            "no rule applies to requests with the facts ip: they are allowed, and not limited",
            "no rule applies to requests with the facts tenant: they are allowed, and not limited",
        ]
