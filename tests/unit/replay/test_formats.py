"""Each format of log, recognised by its first lines, gives the same requests."""

from __future__ import annotations

import gzip
import io
import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from headgate.http.identity import hashed_api_key
from headgate.replay.errors import InvalidLog
from headgate.replay.fields import FactField, parse_fields
from headgate.replay.log import Log
from headgate.replay.record import LogRecord
from headgate.replay.times import time_us

AT = 1_431_857_103_000_000  # 17 May 2015, 10:05:03 UTC
COMMON = '192.0.2.7 - alice [17/May/2015:10:05:03 +0000] "GET /search?q=1 HTTP/1.1" 200 12'
EXPECTED = LogRecord(AT, {"ip": "192.0.2.7", "endpoint": "/search", "method": "GET", "user": "alice"})
CADDY: dict[str, Any] = {
    "level": "info",
    "ts": AT / 1_000_000,
    "logger": "http.log.access",
    "request": {
        "remote_ip": "10.0.0.1",
        "client_ip": "192.0.2.7",
        "method": "GET",
        "uri": "/search?q=1",
        "headers": {"X-Tenant": ["acme"]},
    },
    "user_id": "alice",
    "status": 200,
}
TRAEFIK = {
    "ClientAddr": "192.0.2.7:39404",
    "ClientHost": "192.0.2.7",
    "ClientUsername": "alice",
    "RequestMethod": "GET",
    "RequestPath": "/search?q=1",
    "StartUTC": "2015-05-17T10:05:03Z",
    "request_X-Tenant": "acme",
    "time": "2015-05-17T10:05:04Z",
}
ENVOY = {
    "start_time": "2015-05-17T10:05:03.000Z",
    "method": "GET",
    "path": "/search?q=1",
    "downstream_remote_address": "192.0.2.7:5000",
    "user": "alice",
    "x_tenant": "acme",
}
NGINX = {
    "time_iso8601": "2015-05-17T12:05:03+02:00",
    "remote_addr": "192.0.2.7",
    "remote_user": "alice",
    "request": "GET /search?q=1 HTTP/1.1",
    "http_x_tenant": "acme",
}
PLAIN = {"timestamp": AT // 1_000, "client_ip": "192.0.2.7", "user": "alice", "path": "/search", "method": "GET"}
CSV = "Time,Client_IP,User,Path,Method\n2015-05-17 10:05:03,192.0.2.7,alice,/search,GET\n"


def read(path: Path, text: str, **options: Any) -> tuple[Log, list[LogRecord]]:
    path.write_text(text)
    log = Log([str(path)], wanted={"user", "ip"}, **options)
    return log, list(log.records())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("common", COMMON),
        ("combined", COMMON + ' "http://example.com/" "curl/8"'),
        ("common", f"www.example.com:443 {COMMON}"),
        ("common", COMMON.replace("10:05:03 +0000", "06:05:03 -0400")),
        ("common", COMMON.replace("/search?q=1", "http://example.com/search?q=1")),
        ("caddy", json.dumps(CADDY)),
        ("traefik", json.dumps(TRAEFIK)),
        ("envoy", json.dumps(ENVOY)),
        ("nginx", json.dumps(NGINX)),
        ("json", json.dumps(PLAIN)),
        ("csv", CSV),
        ("csv", CSV.replace(",", ";")),
    ],
)
def test_a_format_is_recognised_and_read(tmp_path: Path, name: str, text: str) -> None:
    log, records = read(tmp_path / "log", text)
    assert log.formats[0].name == name
    assert records == [EXPECTED]
    assert {"ip", "endpoint", "method", "user"} <= log.facts
    assert log.remarks.unreadable == 0


@pytest.mark.parametrize("line", [CADDY, TRAEFIK, ENVOY, NGINX])
def test_a_header_is_found_where_each_server_writes_it(tmp_path: Path, line: dict[str, Any]) -> None:
    _, records = read(tmp_path / "log", json.dumps(line), fields=parse_fields(["tenant=header:X-Tenant"]))
    assert records[0].facts["tenant"] == "acme"


def test_a_user_whose_name_has_spaces_is_read(tmp_path: Path) -> None:
    _, records = read(tmp_path / "log", COMMON.replace("alice", "Alice Liddell"))
    assert records[0].facts["user"] == "Alice Liddell"


def test_the_parts_of_a_line_are_named_by_their_number(tmp_path: Path) -> None:
    line = f'{COMMON} "ref" "agent" "203.0.113.9, 198.51.100.7" "acme corp"'
    _, records = read(tmp_path / "log", line, fields=parse_fields(["ip=$10,tenant=$11", "agent=header:User-Agent"]))
    facts = records[0].facts
    assert (facts["ip"], facts["tenant"], facts["agent"]) == ("198.51.100.7", "acme corp", "agent")


def test_a_log_of_no_known_format_is_read_by_its_parts(tmp_path: Path) -> None:
    fields = parse_fields(["time=$1,ip=$2,endpoint=$3,cost=$4"])
    log, records = read(tmp_path / "log", "1431857103.5 192.0.2.7 /a 7\n1431857104 192.0.2.7 /a -\n", fields=fields)
    assert log.formats[0].name == "parts"
    assert records[0] == LogRecord(AT + 500_000, {"ip": "192.0.2.7", "endpoint": "/a"}, 7)
    assert records[1].cost == 1


def test_a_path_leads_into_an_object(tmp_path: Path) -> None:
    line = json.dumps(PLAIN | {"jwt": {"sub": "bob"}})
    _, records = read(tmp_path / "log", line, fields=parse_fields(["user=json:jwt.sub"]))
    assert records[0].facts["user"] == "bob"


def test_events_of_headgate_count_as_many_times_as_they_stand_for(tmp_path: Path) -> None:
    event = {
        **{"id": "1", "at": "2015-05-17T10:05:03+00:00", "node": "n", "rule": "r", "reason": "over_limit"},
        **{"allowed": False, "user": "alice", "ip": "192.0.2.7", "api_key": "sha256-1", "tenant": None},
        **{"endpoint": "/a", "method": "GET", "tier": None, "facts": {"country": "DE"}, "cost": 2, "weight": 3},
    }
    path = tmp_path / "events"
    path.write_text(json.dumps(event))
    log = Log([str(path)], wanted={"country", "api_key"})
    records = list(log.records())
    assert log.formats[0].name == "headgate"
    assert len(records) == 3
    assert records[0].cost == 2
    assert records[0].facts["country"] == "DE"
    assert records[0].facts["api_key"] == "sha256-1"  # which was hashed when it was recorded


def test_the_cost_of_an_event_is_in_the_unit_of_its_rule(tmp_path: Path) -> None:
    event = {"at": "2015-05-17T10:05:03+00:00", "node": "a", "reason": "limit", "user": "alice", "weight": 1}
    lines = [json.dumps({**event, "rule": rule, "cost": cost}) for rule, cost in (("tokens-day", 4_000), ("calls", 2))]
    path = tmp_path / "log"
    path.write_text("\n".join(lines))
    log = Log([str(path)], wanted={"user", "cost.tokens"}, units={"tokens-day": "tokens"})
    assert [record.cost for record in log.records()] == [{"requests": 1, "tokens": 4_000}, {"requests": 2}]
    columns = "at,node,rule,reason,user,cost,weight"
    path.write_text(f"{columns}\n2015-05-17T10:05:03+00:00,a,tokens-day,limit,alice,4000,1\n")
    log = Log([str(path)], wanted={"user", "cost.tokens"}, units={"tokens-day": "tokens"})
    assert [record.cost for record in log.records()] == [{"requests": 1, "tokens": 4_000}]


def test_api_keys_are_hashed_as_the_service_hashes_them(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(json.dumps(PLAIN | {"api_key": "secret"}))
    (record,) = Log([str(path)], wanted={"api_key"}).records()
    assert record.facts["api_key"] == hashed_api_key("secret")


def test_ipv6_addresses_of_one_network_are_one_client(tmp_path: Path) -> None:
    lines = [COMMON.replace("192.0.2.7", address) for address in ("2001:db8::1", "2001:db8::2")]
    _, records = read(tmp_path / "log", "\n".join(lines))
    assert {record.facts["ip"] for record in records} == {"2001:db8::/64"}


def test_lines_that_cannot_be_read_are_counted_and_the_first_five_kept(tmp_path: Path) -> None:
    bad = [f'192.0.2.7 - - [17/May/2015:10:05:03 +0000] "\\x16\\x03{n}" 400 0' for n in range(7)]
    log, records = read(tmp_path / "log", "\n".join([COMMON] * 10 + bad + ["", "  "]))
    assert len(records) == 10
    assert log.remarks.unreadable == 7
    assert len(log.remarks.unreadable_lines) == 5
    assert log.remarks.unreadable_lines[0].endswith(bad[0])


@pytest.mark.parametrize("line", ['{"time": 1e400, "path": "/"}', '{"time": true, "ip": "1"}', "[]", "{", "null"])
def test_strange_json_is_unreadable(tmp_path: Path, line: str) -> None:
    log, records = read(tmp_path / "log", f"{json.dumps(PLAIN)}\n{line}\n")
    assert len(records) == 1
    assert log.remarks.unreadable == 1


def packed_with_zstd(data: bytes) -> bytes:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    packed: bytes = import_module(name).compress(data)
    return packed


@pytest.mark.parametrize("pack", [gzip.compress, packed_with_zstd], ids=["gzip", "zstd"])
def test_packed_logs_are_unpacked_whatever_their_name(tmp_path: Path, pack: Any) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(pack(COMMON.encode() * 1))
    assert list(Log([str(path)]).records()) == [EXPECTED]


def test_a_log_that_is_cut_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "access.log.gz"
    path.write_bytes(gzip.compress((COMMON + "\n").encode() * 10_000)[:-20])
    log = Log([str(path)])
    with pytest.raises(InvalidLog, match=r"access.log.gz: cannot be read to its end"):
        list(log.records())
    log.close()


def test_standard_input_is_a_log() -> None:
    assert list(Log(["-"], stdin=io.BytesIO(COMMON.encode())).records()) == [EXPECTED]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("what is this\n", "unknown format: 'what is this'; name it with --format"),
        ('{"a": 1}\n', "its lines of JSON have no time"),
    ],
)
def test_what_is_no_log_is_said(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidLog, match=message):
        read(tmp_path / "log", text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ("ip", "must be NAME=WHERE"),
        ("ip=1", r"ip: must be \$N, json:PATH"),
        ("ip=$0", r"ip: must be \$N"),
        ("ip=$1,ip=$2", "'ip' is given twice"),
        ("ip=json:", "ip: must be"),
    ],
)
def test_fields_that_make_no_sense_are_named(fields: str, message: str) -> None:
    with pytest.raises(InvalidLog, match=message):
        parse_fields([fields])


def test_fields_are_read() -> None:
    assert parse_fields(["ip=$1, user=json:jwt.sub", "tenant=header:X-Tenant"]) == (
        FactField("ip", "position", "1"),
        FactField("user", "json", "jwt.sub"),
        FactField("tenant", "header", "X-Tenant"),
    )


@pytest.mark.parametrize(
    ("value", "us"),
    [
        ("17/May/2015:10:05:03 +0000", AT),
        ("[17/May/2015:10:05:03 +0000]", AT),
        ("2015-05-17T10:05:03Z", AT),
        ("2015-05-17T10:05:03.25Z", AT + 250_000),
        ("2015-05-17T12:05:03.1234567+02:00", AT + 123_456),
        ("2015-05-17 10:05:03", AT),
        (1_431_857_103, AT),
        (1_431_857_103_000, AT),
        (1_431_857_103_000_000, AT),
        ("1431857103.5", AT + 500_000),
    ],
)
def test_times_of_all_kinds_are_read(value: object, us: int) -> None:
    assert time_us(value) == us


@pytest.mark.parametrize("value", [None, True, "", "soon", "-1", "17/Foo/2015:10:05:03 +0000", "2015-13-01T00:00:00Z"])
def test_what_is_no_time_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r".+"):
        time_us(value)
