"""`headgate replay` on a real log: 10,000 requests of 1,753 clients, four days of 2015 (tests/data/README.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headgate.cli.app import app
from headgate.cli.replay_report import bar, percent, sparkline

LOG = Path(__file__).parents[2] / "data" / "apache-access.log.gz"
RULES = """
[[rules]]
id = "everybody"
dimension = "global"
limit = 3000
window = "1h"

[[rules]]
id = "per-ip"
dimension = "ip"
limit = {limit}
window = "1m"
algorithm = "gcra"
burst = {burst}
"""


def rules_file(path: Path, limit: int = 30, burst: int = 10, more: str = "") -> str:
    path.write_text(RULES.format(limit=limit, burst=burst) + more)
    return str(path)


def run(*arguments: str, given: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments], input=given)


def run_json(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def test_a_real_log_is_replayed(tmp_path: Path) -> None:
    report = run_json(str(LOG), "--rules", rules_file(tmp_path / "rules.toml"))
    assert (report["requests"], report["unreadable"], report["late"]) == (10_000, 0, 0)
    assert report["allowed"] + report["refused"] == 10_000
    everybody, per_ip = report["rules"]
    assert (everybody["refused"], everybody["all_subjects"]) == (0, 1)
    assert (per_ip["id"], per_ip["refused"], per_ip["subjects"]) == ("per-ip", 259, 13)
    assert per_ip["all_subjects"] == 1_753
    assert per_ip["used"]["max"] == 1.0
    assert per_ip["used"]["p50"] <= per_ip["used"]["p95"] <= per_ip["used"]["p99"] <= 1.0
    assert sum(step["requests"] for step in report["timeline"]) == 10_000
    assert sum(step["refused"] for step in report["timeline"]) == 259
    assert sum(step["rules"].get("per-ip", 0) for step in report["timeline"]) == 259
    assert report["top"][0]["subject"] == "75.97.9.59"
    assert sum(one["refused"] for one in report["top"]) == 259
    assert (report["first"], report["last"]) == ("2015-05-17T10:05:00+00:00", "2015-05-20T21:05:59+00:00")


def test_the_burst_that_was_needed_is_enough(tmp_path: Path) -> None:
    report = run_json(str(LOG), "--rules", rules_file(tmp_path / "rules.toml"))
    needed = report["rules"][1]["burst_needed"]
    assert run_json(str(LOG), "--rules", rules_file(tmp_path / "more.toml", burst=needed))["refused"] == 0
    assert run_json(str(LOG), "--rules", rules_file(tmp_path / "less.toml", burst=needed - 1))["refused"] > 0


def test_two_rule_sets_are_compared(tmp_path: Path) -> None:
    new, old = rules_file(tmp_path / "new.toml"), rules_file(tmp_path / "old.toml", limit=60, burst=20)
    report = run_json(str(LOG), "--rules", new, "--against", old)
    against = report["against"]
    assert report["refused"] - against["refused"] == against["newly_refused"] - against["newly_allowed"]
    assert (against["newly_refused"], against["newly_refused_subjects"]) == (224, 13)
    assert sum(one["requests"] for one in against["top_refused"]) == 224
    assert sum(step["newly_refused"] for step in report["timeline"]) == 224
    reverse = run_json(str(LOG), "--rules", old, "--against", new)["against"]
    assert (reverse["newly_allowed"], reverse["newly_refused"]) == (224, 0)


@pytest.mark.parametrize("share", [pytest.param("0.1%", marks=pytest.mark.extended), "1% of subjects"])
def test_the_suggested_limit_is_the_smallest_that_fits(tmp_path: Path, share: str) -> None:
    more = '[[rules]]\nid = "all-day"\ndimension = "ip"\nlimit = 20\nwindow = "1d"\n'
    rules = rules_file(tmp_path / "rules.toml", limit=10_000, burst=10_000, more=more)
    suggestion = run_json(str(LOG), "--rules", rules, "--suggest", "all-day", "--refuse-at-most", share)["suggestion"]
    limit, of = suggestion["limit"], suggestion["of"]
    allowed = float(share.partition("%")[0]) / 100

    def refused_with(limit: int) -> float:
        less = more.replace("limit = 20", f"limit = {limit}")
        path = rules_file(tmp_path / "tried.toml", limit=10_000, burst=10_000, more=less)
        rule = run_json(str(LOG), "--rules", path)["rules"][2]
        found: float = rule["refused"] / 10_000 if of == "requests" else rule["subjects"] / rule["all_subjects"]
        return found

    assert refused_with(limit) <= allowed < refused_with(limit - 1)
    shares = [point["share_of_requests"] for point in suggestion["curve"]]
    assert shares == sorted(shares, reverse=True)
    assert suggestion["now"]["limit"] == 20


@pytest.mark.extended
def test_the_suggested_burst_is_the_smallest_that_fits(tmp_path: Path) -> None:
    rules = rules_file(tmp_path / "rules.toml")
    found = run_json(str(LOG), "--rules", rules, "--suggest", "per-ip", "--refuse-at-most", "0.1%")["suggestion"]
    assert found["found"]["refused"] <= 10
    less = rules_file(tmp_path / "less.toml", limit=found["limit"], burst=found["burst"] - 1)
    assert run_json(str(LOG), "--rules", less)["refused"] > 10
    same = rules_file(tmp_path / "same.toml", limit=found["limit"], burst=found["burst"])
    assert run_json(str(LOG), "--rules", same)["refused"] == found["found"]["refused"]


def test_a_limit_of_a_calendar_is_suggested(tmp_path: Path) -> None:
    table = (
        '[[rules]]\nid = "daily"\ndimension = "ip"\nlimit = {}\nwindow = "day"\ncalendar = true\ntz = "Asia/Tokyo"\n'
    )
    rules = tmp_path / "rules.toml"
    rules.write_text(table.format(60))
    found = run_json(str(LOG), "--rules", str(rules), "--suggest", "daily", "--refuse-at-most", "1%")["suggestion"]
    assert found["quota"] == f"{found['limit']}/calendar day tz Asia/Tokyo"
    refused = []
    for limit in (found["limit"], found["limit"] - 1):
        rules.write_text(table.format(limit))
        refused.append(run_json(str(LOG), "--rules", str(rules))["refused"])
    assert refused[0] == found["found"]["refused"] <= 100 < refused[1]


def test_a_client_under_several_rules_is_one_subject(tmp_path: Path) -> None:
    more = '[[rules]]\nid = "all-day"\ndimension = "ip"\nlimit = 2\nwindow = "1d"\n'
    report = run_json(str(LOG), "--rules", rules_file(tmp_path / "rules.toml", more=more))
    assert report["all_subjects"] == 1_753 + 1  # and everybody, for the rule that counts all
    assert report["subjects"] == report["rules"][2]["subjects"]  # all whom per-ip refuses, all-day refuses as well


def test_facts_that_the_log_lacks_are_named_before_it_starts(tmp_path: Path) -> None:
    rules = rules_file(tmp_path / "rules.toml", more='[[rules]]\nid = "per-user"\nlimit = 1\nwindow = "1m"\n')
    result = run(str(LOG), "--rules", rules)
    assert result.exit_code == 0
    assert "rule per-user needs user: no field; use --fields user=…" in result.stderr
    report = run_json(str(LOG), "--rules", rules)
    assert report["missing"] == [{"rule": "per-user", "fact": "user", "why": "dimension"}]


def test_requests_without_a_rule_are_counted_and_not_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "rules.toml").write_text('[[rules]]\nid = "per-user"\nlimit = 1\nwindow = "1m"\n')
    assert run_json(str(LOG), "--rules", str(tmp_path / "rules.toml"))["unmatched"] == 10_000
    assert "no rule applies" not in caplog.text


def test_rules_of_concurrency_are_left_out_and_named(tmp_path: Path) -> None:
    slots = '[[rules]]\nid = "slots"\ndimension = "ip"\nalgorithm = "concurrency"\nlimit = 3\nttl = "60s"\n'
    rules = rules_file(tmp_path / "rules.toml", more=slots)
    result = run(str(LOG), "--rules", rules, "--json")
    assert "rule slots needs the end of requests: no field; it is left out" in result.stderr
    report = json.loads(result.stdout)
    assert [rule["id"] for rule in report["rules"]] == ["everybody", "per-ip"]
    assert report["refused"] == 259


def test_the_report_is_text_for_people(tmp_path: Path) -> None:
    new, old = rules_file(tmp_path / "new.toml"), rules_file(tmp_path / "old.toml", limit=60, burst=20)
    result = run(str(LOG), "--rules", new, "--against", old, "--suggest", "per-ip", "--refuse-at-most", "2%")
    for text in (
        "10,000 requests replayed",
        "refused            259     2.6 %",
        "per-ip  ip 75.97.9.59",
        "newly refused        224  of 13 subjects",
        "The smallest limit of per-ip that refuses at most 2.0 % of requests",
        "▁",
    ):
        assert text in result.stdout


def test_unreadable_lines_are_counted_and_shown(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    good = '192.0.2.7 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 12\n'
    log.write_text(good * 5 + "\x1b[31mnonsense\n")
    result = run(str(log), "--rules", rules_file(tmp_path / "rules.toml"))
    assert "1 line could not be read:" in result.stdout
    assert "\\x1b[31mnonsense" in result.stdout  # as text, not as a command to the terminal


def test_standard_input_can_be_replayed(tmp_path: Path) -> None:
    rules = rules_file(tmp_path / "rules.toml")
    result = run("-", "--rules", rules, "--json", given=LOG.read_bytes())
    assert json.loads(result.stdout)["refused"] == 259


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.log"], 2, "nowhere.log: cannot be read"),
        ([str(LOG), "--suggest", "no-rule"], 2, "there is no rule 'no-rule'; expected one of everybody, per-ip"),
        ([str(LOG), "--suggest", "per-ip", "--refuse-at-most", "lots"], 2, "must be a share like 0.1%"),
        ([str(LOG), "--sort-window", "soon"], 2, "--sort-window: cannot read 'soon'"),
        ([str(LOG), "--format", "xml"], 2, "--format: must be one of common, combined"),
        ([str(LOG), "--fields", "ip"], 2, "--fields: must be NAME=WHERE"),
        ([str(LOG), "--fields", "user=$3", "--suggest", "nobody"], 2, "rule 'nobody' applies to no request of the log"),
        ([str(LOG), "--suggest", "slots"], 2, "rule 'slots' limits concurrency, and a log does not show"),
        (["-", "--suggest", "per-ip"], 2, "standard input can be read only once"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    more = '[[rules]]\nid = "nobody"\nlimit = 1\nwindow = "1m"\n'
    more += '[[rules]]\nid = "slots"\nalgorithm = "concurrency"\nlimit = 1\n'
    result = run(*arguments, "--rules", rules_file(tmp_path / "rules.toml", more=more))
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_rules_file_that_is_not_good_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text('[[rules]]\nid = "x"\nlimit = 0\nwindow = "1m"\n')
    result = run(str(LOG), "--rules", str(tmp_path / "rules.toml"))
    assert result.exit_code == 1
    assert "limit" in result.stderr


def test_a_bar_is_as_long_as_its_share() -> None:
    assert [bar(part) for part in (0, 0.0001, 0.1, 0.525, 1)] == ["", "▏", "██", "█" * 10 + "▌", "█" * 20]


def test_bars_show_what_is_small() -> None:
    assert sparkline([0, 1, 4, 8]) == " ▁▄█"
    assert sparkline([]) == ""
    assert len(sparkline([1] * 1_000, 20)) == 20


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (1, "100 %"), (0.0259, "2.6 %"), (0.0004, "0.04 %"), (0.00001, "0.0010 %")]
)
def test_shares_are_readable(share: float, text: str) -> None:
    assert percent(share) == text


@pytest.mark.parametrize("options", [[], ["--suggest", "per-ip", "--refuse-at-most", "0.1%"]])
def test_the_how_to_shows_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    page = (Path(__file__).parents[3] / "docs/how-to/ship-a-limit-without-fear.md").read_text()
    monkeypatch.chdir(tmp_path)
    Path("access.log.gz").symlink_to(LOG)
    Path("new.toml").write_text(page.partition("```toml\n")[2].partition("```")[0])
    arguments = ["access.log.gz", "--rules", "new.toml", *(options or ["--html", "report.html"])]
    shown = page.partition(f"$ headgate replay {' '.join(arguments)}\n")[2].partition("```")[0].splitlines()
    printed = [line.rstrip() for line in run(*arguments).stdout.splitlines()]
    expected = [line for line in shown if line != "…" and " requests replayed in " not in line]
    assert len(expected) > 8
    assert [line for line in expected if line not in printed] == []
