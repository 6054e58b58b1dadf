"""Rules files: every mistake is named with file, entry and field, and all of them at once."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from headgate import InvalidRule, Quota
from headgate.rules import Snapshot
from headgate.rules.sources.document import snapshot_of

CONTRACT = """
[headgate]
enabled = true
failure_mode = "open"
trusted_proxies = ["10.0.0.0/8"]
trusted_proxy_depth = 1
default_tier = "free"

[[rules]]
id = "search-free"
name = "Free tier, search"
dimension = "user"
endpoints = ["/api/search", "/api/v1/*", "/users/{id}/posts"]
methods = ["GET"]
tiers = ["free"]
match = { country = "DE" }
algorithm = "sliding_window_counter"
limit = 100
window = "1h"
burst = 120
action = "reject"
max_delay = "2s"
priority = 100
group = "search"
sync = "exact"
failure_mode = "closed"
cost = 1
status = 429
message = "Rate limit exceeded. Upgrade to Premium."
enabled = true

[[tiers]]
name = "free"

[[users]]
id = "alice"
tier = "premium"
overrides = [{ rule = "search-free", limit = 500, expires = 2027-01-01T00:00:00Z }]

[[exemptions]]
type = "ip"
value = "10.0.0.0/8"

[penalties]
enabled = true
detection_window = "1h"
violation_threshold = 3
multipliers = [1, 2, 4, 8]
"""


def read(text: str) -> Snapshot:
    return snapshot_of(tomllib.loads(text), version="1", file="rules.toml")


def problems(text: str) -> list[str]:
    with pytest.raises(InvalidRule) as caught:
        read(text)
    assert all(problem.file == "rules.toml" for problem in caught.value.problems)
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]
    return [str(problem).removeprefix("rules.toml: ") for problem in caught.value.problems]


def test_the_contract_s_sample_means_what_it_says() -> None:
    snapshot = read(CONTRACT)
    (rule,) = snapshot.rules
    assert rule.quota == Quota(100, "1h", burst=120, algorithm="sliding_window_counter")
    assert rule.endpoints == ("/api/search", "/api/v1/*", "/users/{id}/posts")
    assert (rule.name, rule.dimension, rule.methods, rule.tiers) == ("Free tier, search", "user", ("GET",), ("free",))
    assert (rule.match, rule.action, rule.max_delay, rule.priority) == ({"country": "DE"}, "reject", 2.0, 100)
    assert (rule.group, rule.sync, rule.failure_mode, rule.cost) == ("search", "exact", "closed", 1)
    assert (rule.status, rule.message, rule.enabled) == (429, "Rate limit exceeded. Upgrade to Premium.", True)
    assert [tier.name for tier in snapshot.tiers] == ["free"]
    (user,) = snapshot.users
    assert (user.id, user.tier, user.overrides[0].limit) == ("alice", "premium", 500)
    assert str(user.overrides[0].expires) == "2027-01-01 00:00:00+00:00"
    assert [(exemption.type, exemption.value) for exemption in snapshot.exemptions] == [("ip", "10.0.0.0/8")]
    assert (snapshot.penalties.enabled, snapshot.penalties.multipliers) == (True, (1, 2, 4, 8))
    assert (snapshot.enabled, snapshot.failure_mode, snapshot.default_tier) == (True, "open", "free")
    assert [str(network) for network in snapshot.trusted_proxies] == ["10.0.0.0/8"]


def test_a_proxy_on_a_unix_socket() -> None:
    assert read("[headgate]\ntrusted_proxies = ['unix']").trusted_proxies == ("unix",)


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ('failure_mode = "fail_open"', "failure_mode", "open"),
        ('failure_mode = "fail_closed"', "failure_mode", "closed"),
        ("enabled = false", "enabled", False),
        ("", "failure_mode", None),
        ("", "default_tier", None),
        ("", "trusted_proxies", ()),
        ("", "trusted_proxy_depth", 1),
    ],
)
def test_settings(text: str, name: str, value: object) -> None:
    assert getattr(read(f"[headgate]\n{text}"), name) == value


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("limit = 5\nwindow = 60", Quota(5, 60)),
        ("limit = 5\nwindow = 0.25", Quota(5, 0.25)),
        ('limit = 5\nwindow = "250ms"', Quota(5, 0.25)),
        ('limit = 5\nwindow = "1m"\nalgorithm = "sliding_window"', Quota(5, 60, algorithm="sliding_window_counter")),
        ('limit = 5\nwindow = "1m"\nalgorithm = "gcra"\nburst = 9', Quota(5, 60, algorithm="gcra", burst=9)),
        ("limit = 5\nwindow = 60\nburst = 9", Quota(5, 60, algorithm="token_bucket", burst=9)),
        ("limit = 9007199254740991\nwindow = 1", Quota(2**53 - 1, 1)),
        ("limit = 1\nwindow = 0.001", Quota(1, 0.001)),
    ],
)
def test_quotas(text: str, quota: Quota) -> None:
    assert read(f'[[rules]]\nid = "a"\n{text}').rules[0].quota == quota


WRONG_RULE = [
    ("limt = 5", "limt: unknown key; did you mean 'limit'?"),
    ("frobnicate = 5", "frobnicate: unknown key"),
    ("quota = '60/minute'", "quota: unknown key; write limit = 60, window = '1m'"),
    ("limit = '5/s'", "limit: must be a whole number, got '5/s'; write limit = 5, window = '1s'"),
    ("limit = 0", "limit: must be a whole number from 1 to 2^53-1, got 0"),
    ("limit = -1", "limit: must be a whole number from 1 to 2^53-1, got -1"),
    ("limit = 9007199254740992", "limit: must be a whole number from 1 to 2^53-1, got 9007199254740992"),
    ('limit = "5"', "limit: must be a whole number, got '5'"),
    ("limit = 5.0", "limit: must be a whole number, got 5.0"),
    ("limit = true", "limit: must be a whole number, got true"),
    ("window = 0", "window: must be from 1 ms to 366 days, got 0"),
    ('window = "0.9ms"', "window: must be from 1 ms to 366 days, got '0.9ms'"),
    ('window = "367d"', "window: must be from 1 ms to 366 days, got '367d'"),
    ('window = "1 fortnight"', "window: cannot read '1 fortnight' as a duration"),
    ("window = true", "window: must be seconds, or a string like '15m', got true"),
    ("window = [1]", "window: must be seconds, or a string like '15m', got [1]"),
    ("window = inf", "window: cannot read inf as a duration"),
    ("window = nan", "window: cannot read nan as a duration"),
    ("burst = 0", "burst: must be a whole number from 1 to 2^53-1, got 0"),
    ("burst = '1'", "burst: must be a whole number, got '1'"),
    ("burst = 9007199254740991", "burst: 9007199254740991 would take more than 100 years to refill"),
    ('algorithm = "magic"', "algorithm: 'magic' is not known; choose one of fixed_window"),
    ("algorithm = 1", "algorithm: must be a string, got 1"),
    ("id = 5", "id: must be a string, got 5"),
    ('id = ""', "id: must be a non-empty string"),
    ("name = 5", "name: must be a string, got 5"),
    ("dimension = 5", "dimension: must be a string, got 5"),
    ('dimension = "user+"', "dimension: cannot read 'user+'"),
    ('endpoints = "/a"', "endpoints: must be a list, got '/a'"),
    ('endpoints = ["a"]', "endpoints: must be patterns like '/api/search'"),
    ('endpoints = ["/a/*/b"]', "endpoints: '/a/*/b' has a * inside"),
    ("endpoints = [5]", "endpoints: must be a string, got 5"),
    ('methods = "GET"', "methods: must be a list, got 'GET'"),
    ('methods = ["G T"]', "methods: must be methods like 'GET', got 'G T'"),
    ("methods = [5]", "methods: must be a string, got 5"),
    ('tiers = "free"', "tiers: must be a list, got 'free'"),
    ('tiers = [""]', "tiers: must be a non-empty string"),
    ("tiers = [5]", "tiers: must be a string, got 5"),
    ('match = "DE"', "match: must be a table, got 'DE'"),
    ("match = { country = true }", "match: 'country' must be a string or an integer, got True"),
    ('match = { tier = "x" }', "match: cannot contain 'tier'; use its own field: tiers"),
    ('action = "block"', "action: must be one of reject, throttle, annotate, log_only, got 'block'"),
    ("action = 5", "action: must be a string, got 5"),
    ("max_delay = -1", "max_delay: must be from 0 to 366 days, got -1"),
    ('max_delay = "x"', "max_delay: cannot read 'x' as a duration"),
    ("max_delay = []", "max_delay: must be seconds, or a string like '15m', got []"),
    ("priority = 1.5", "priority: must be a whole number, got 1.5"),
    ("priority = 9007199254740992", "priority: must be a whole number from -2^53+1 to 2^53-1"),
    ("group = 5", "group: must be a string, got 5"),
    ('group = ""', "group: must be a non-empty string"),
    ("sync = 5", "sync: must be a string, got 5"),
    ("regions = 5", "regions: must be a string, got 5"),
    ('regions = "synced"\nalgorithm = "gcra"', "regions: a gcra cannot be synced"),
    ('sync = "eventual"', "sync: must be one of exact, leased, got 'eventual'"),
    ('sync = "leased"\nalgorithm = "sliding_window_log"', "sync: a sliding_window_log cannot be leased"),
    ("shards = 0", "shards: must be a whole number from 1 to 64, got 0"),
    ('shards = "2"', "shards: must be a whole number, got '2'"),
    ('shards = 4\nalgorithm = "leaky_bucket"', "shards: a leaky_bucket cannot have shards"),
    ('failure_mode = "maybe"', "failure_mode: must be one of open, closed, local, got 'maybe'"),
    ("failure_mode = 5", "failure_mode: must be a string, got 5"),
    ("cost = 0", "cost: must be a whole number from 1 to 2^53-1, got 0"),
    ('cost = "1"', "cost: must be a whole number, got '1'"),
    ("status = 200", "status: must be a whole number from 400 to 599, got 200"),
    ('status = "429"', "status: must be a whole number, got '429'"),
    ("message = 5", "message: must be a string, got 5"),
    ('enabled = "yes"', "enabled: must be true or false, got 'yes'"),
    ("enabled = 1", "enabled: must be true or false, got 1"),
]


@pytest.mark.parametrize(("text", "complaint"), WRONG_RULE)
def test_a_wrong_field_of_a_rule(text: str, complaint: str) -> None:
    given = {line.split(" ")[0] for line in text.splitlines()}
    lines = [line for line in ('id = "a"', "limit = 1", 'window = "1s"') if line.split(" ")[0] not in given]
    (problem,) = problems("\n".join(["[[rules]]", *lines, text]))
    where = "rule 1" if "id" in given else "rule 'a'"
    assert problem.startswith(f"{where}: {complaint}")


@pytest.mark.parametrize("missing", ["id", "limit", "window"])
def test_a_missing_field_of_a_rule(missing: str) -> None:
    fields = {"id": '"a"', "limit": "1", "window": "1"}
    del fields[missing]
    text = "\n".join(f"{name} = {value}" for name, value in fields.items())
    where = "rule 1" if missing == "id" else "rule 'a'"
    assert problems(f"[[rules]]\n{text}") == [f"{where}: {missing}: is missing"]


RULE = '[[rules]]\nid = "a"\nlimit = 1\nwindow = 1\n'


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rulez = 1", "rulez: unknown key; did you mean 'rules'?"),
        ("[[rule]]\nid = 'a'", "rule: unknown key; did you mean 'rules'?"),
        ("rules = 5", "rules: must be a list of tables: write [[rules]], got 5"),
        ("[rules]\nid = 'a'", "rules: must be a list of tables: write [[rules]], got {'id': 'a'}"),
        ("rules = [5]", "rule 1: must be a table, got 5"),
        ("headgate = 5", "headgate: must be a table, got 5"),
        ("[[headgate]]\nenabled = true", "headgate: must be a table, got [{'enabled': True}]"),
        ("penalties = 5", "penalties: must be a table, got 5"),
        ("[headgate]\nenable = true", "[headgate]: enable: unknown key; did you mean 'enabled'?"),
        ("[headgate]\nenabled = 1", "[headgate]: enabled: must be true or false, got 1"),
        ("[headgate]\nfailure_mode = 1", "[headgate]: failure_mode: must be a string, got 1"),
        ("[headgate]\nfailure_mode = 'x'", "[headgate]: failure_mode: must be one of open, closed, local, got 'x'"),
        ("[headgate]\ntrusted_proxies = 'x'", "[headgate]: trusted_proxies: must be a list, got 'x'"),
        ("[headgate]\ntrusted_proxies = [5]", "[headgate]: trusted_proxies: must be a string, got 5"),
        ("[headgate]\ntrusted_proxies = ['x']", "[headgate]: trusted_proxies: must be an address or a network"),
        ("[headgate]\ntrusted_proxies = ['10.1.1.1/8']", "[headgate]: trusted_proxies: '10.1.1.1/8' is an address"),
        ("[headgate]\ntrusted_proxy_depth = 0", "[headgate]: trusted_proxy_depth: must be a whole number from 1"),
        ("[headgate]\ntrusted_proxy_depth = 'x'", "[headgate]: trusted_proxy_depth: must be a whole number, got 'x'"),
        ("[headgate]\nregions = 'all'", "[headgate]: regions: must be one of separate, central, quota"),
        ("[headgate]\ndefault_tier = 5", "[headgate]: default_tier: must be a string, got 5"),
        ("[headgate]\ndefault_tier = ''", "[headgate]: default_tier: must be a non-empty string"),
        ("[headgate]\ndefault_tier = 'x'\n[[tiers]]\nname = 'y'", "[headgate]: default_tier: 'x' is not one of the"),
        ("[[tiers]]\nnam = 'x'\nname = 'x'", "tier 'x': nam: unknown key; did you mean 'name'?"),
        ("[[tiers]]", "tier 1: name: is missing"),
        ("[[tiers]]\nname = 5", "tier 1: name: must be a string, got 5"),
        ("[[tiers]]\nname = ''", "tier 1: name: must be a non-empty string"),
        ("[[tiers]]\nname = 'x'\n[[tiers]]\nname = 'x'", "tier 'x': name: used 2 times (numbers 1 and 2)"),
        ("tiers = ['x']", "tier 1: must be a table, got 'x'"),
        (RULE + "tiers = ['gold']\n[[tiers]]\nname = 'free'", "rule 'a': tiers: 'gold' is not one of the tiers (free)"),
        (RULE + RULE, "rule 'a': id: used 2 times (numbers 1 and 2); each needs its own"),
        ("[[users]]", "user 1: id: is missing"),
        ("[[users]]\nid = 5", "user 1: id: must be a string, got 5"),
        ("[[users]]\nid = ''", "user 1: id: must be a non-empty string"),
        ("[[users]]\nid = 'u'\ntier = 5", "user 'u': tier: must be a string, got 5"),
        ("[[users]]\nid = 'u'\ntier = ''", "user 'u': tier: must be a non-empty string"),
        ("[[users]]\nid = 'u'\nteir = 'x'", "user 'u': teir: unknown key; did you mean 'tier'?"),
        ("[[users]]\nid = 'u'\n[[users]]\nid = 'u'", "user 'u': id: used 2 times"),
        ("[[users]]\nid = 'u'\noverrides = 5", "user 'u': overrides: must be a list, got 5"),
        ("[[users]]\nid = 'u'\noverrides = [5]", "user 'u': override 1: must be a table, got 5"),
        ("[[exemptions]]\nvalue = 'x'", "exemption 1: type: is missing"),
        ("[[exemptions]]\ntype = 'ip'", "exemption 1: value: is missing"),
        ("[[exemptions]]\ntype = 'email'\nvalue = 'x'", "exemption 1: type: must be one of ip, user, api_key, tenant"),
        ("[[exemptions]]\ntype = 5\nvalue = 'x'", "exemption 1: type: must be a string, got 5"),
        ("[[exemptions]]\ntype = 'ip'\nvalue = 5", "exemption 1: value: must be a string, got 5"),
        ("[[exemptions]]\ntype = 'ip'\nvalue = '10.0.0.5/8'", "exemption 1: value: '10.0.0.5/8' is an address inside"),
        ("[[exemptions]]\ntype = 'user'\nvalue = ''", "exemption 1: value: must be a non-empty string"),
        ("[[exemptions]]\ntype = 'ip'\nvalue = 'x'", "exemption 1: value: must be an address or a network"),
        (
            "[[exemptions]]\ntype = 'ip'\nvalue = '::1'\nvalu = 1",
            "exemption 1: valu: unknown key; did you mean 'value'?",
        ),
        ("[penalties]\nenabled = 1", "[penalties]: enabled: must be true or false, got 1"),
        ("[penalties]\nmultiplier = [1]", "[penalties]: multiplier: unknown key; did you mean 'multipliers'?"),
        (
            "[penalties]\nmultipliers = []",
            "[penalties]: multipliers: must be a non-empty list of whole numbers",
        ),
        ("[penalties]\nmultipliers = [0]", "[penalties]: multipliers: must be a whole number from 1"),
        ("[penalties]\nmultipliers = ['1']", "[penalties]: multipliers: must be a whole number, got '1'"),
        ("[penalties]\nmultipliers = 2", "[penalties]: multipliers: must be a list, got 2"),
        ("[penalties]\nviolation_threshold = 0", "[penalties]: violation_threshold: must be a whole number from 1"),
        ("[penalties]\nviolation_threshold = '1'", "[penalties]: violation_threshold: must be a whole number, got '1'"),
        ("[penalties]\ndetection_window = 0", "[penalties]: detection_window: must be from 1 ms to 366 days, got 0"),
        ("[penalties]\ndetection_window = 'x'", "[penalties]: detection_window: cannot read 'x' as a duration"),
        ("[penalties]\ndetection_window = true", "[penalties]: detection_window: must be seconds, or a string"),
    ],
)
def test_everything_else_that_can_be_wrong(text: str, complaint: str) -> None:
    found = problems(text)
    assert found[0].startswith(complaint)
    assert len(found) <= 2  # a wrong multiplier leaves an empty list, which is wrong too
    assert all(problem.split(": ")[:2] == found[0].split(": ")[:2] for problem in found)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("limit = 1", "override 1: rule: is missing"),
        ("rule = 'a'", "override of rule 'a': limit: is missing"),
        ("rule = 'zz', limit = 1", "override of rule 'zz': rule: no rule has this id"),
        ("rule = 5, limit = 1", "override 1: rule: must be a string, got 5"),
        ("rule = 'a', limit = 0", "override of rule 'a': limit: must be a whole number from 1 to 2^53-1, got 0"),
        ("rule = 'a', limit = '5'", "override of rule 'a': limit: must be a whole number, got '5'"),
        ("rule = 'a', limit = 1, window = 0", "override of rule 'a': window: must be from 1 ms to 366 days, got 0"),
        ("rule = 'a', limit = 1, window = []", "override of rule 'a': window: must be seconds, or a string like '15m'"),
        ("rule = 'a', limit = 1, burst = 0", "override of rule 'a': burst: must be a whole number from 1"),
        ("rule = 'a', limit = 1, burst = 1.5", "override of rule 'a': burst: must be a whole number, got 1.5"),
        ("rule = 'a', limit = 1, limt = 1", "override of rule 'a': limt: unknown key; did you mean 'limit'?"),
        (
            "rule = 'a', limit = 1, expires = 2027-01-01",
            "override of rule 'a': expires: must be a time like 2027-01-01T",
        ),
        ("rule = 'a', limit = 1, expires = 12:00:00", "override of rule 'a': expires: must be a time like 2027-01-01T"),
        ("rule = 'a', limit = 1, expires = 'soon'", "override of rule 'a': expires: must be a time like 2027-01-01T"),
        (
            "rule = 'a', limit = 1, expires = 2027-01-01T00:00:00",
            "override of rule 'a': expires: needs a time zone, as in",
        ),
    ],
)
def test_a_wrong_field_of_an_override(text: str, complaint: str) -> None:
    (problem,) = problems(f"{RULE}[[users]]\nid = 'u'\noverrides = [{{ {text} }}]")
    assert problem.startswith(f"user 'u': {complaint}")


def test_the_same_override_twice_and_one_of_a_rule_that_is_not_by_user() -> None:
    twice = "overrides = [{ rule = 'a', limit = 1 }, { rule = 'a', limit = 2 }]"
    assert problems(f"{RULE}[[users]]\nid = 'u'\n{twice}") == [
        "user 'u': override of rule 'a': rule: used 2 times (numbers 1 and 2); each needs its own"
    ]
    other = RULE + "dimension = 'ip'\n[[users]]\nid = 'u'\noverrides = [{ rule = 'a', limit = 1 }]"
    assert problems(other) == [
        "user 'u': override of rule 'a': rule: it counts by ip, not by user, so it cannot be overridden for a user"
    ]


def test_all_mistakes_are_named_at_once_in_the_order_of_the_file_s_sections() -> None:
    found = problems("""
        rulez = 1
        [headgate]
        failure_mode = "fail_opn"
        default_tier = "gold"
        [[rules]]
        id = "a"
        limt = 5
        limit = 0
        window = "0s"
        sync = "leased"
        algorithm = "sliding_window_log"
        endpoints = ["x", "/a/*/b", 5]
        [[rules]]
        limit = "5"
        window = true
        burst = 0
        tiers = ["silver"]
        [[rules]]
        id = "a"
        limit = 1
        window = 5
        [[tiers]]
        name = "free"
        [[users]]
        id = "u"
        overrides = [{ limit = 0 }, { rule = "a", limit = 3, expires = 2027-01-01T00:00:00, x = 1 }]
        [[exemptions]]
        type = "ipp"
        value = "x"
        [penalties]
        violation_threshold = "3"
        """)
    assert [": ".join(problem.split(": ")[:-1]).split(": must")[0] for problem in found] == [
        "rulez",
        "[headgate]: default_tier",
        "[headgate]: failure_mode",
        "rule 'a': endpoints",
        "rule 'a': limt",
        "rule 'a': limit",
        "rule 'a': window",
        "rule 'a': endpoints",
        "rule 'a': endpoints: '/a/*/b' has a * inside; it stands for the rest, as the last segment",
        "rule 'a': sync",
        "rule 2: id",
        "rule 2: limit",
        "rule 2: window",
        "rule 2: burst",
        "rule 'a': id",
        "rule 2: tiers",
        "user 'u': override 1: rule",
        "user 'u': override of rule 'a': x",
        "user 'u': override 1: limit",
        "user 'u': override of rule 'a': expires",
        "exemption 1: type",
        "[penalties]: violation_threshold",
    ]


def test_one_mistake_makes_no_others_of_what_is_right() -> None:
    names = "[[tiers]]\nnam = 'free'\n" + RULE + "tiers = ['free']\n[headgate]\ndefault_tier = 'free'"
    assert problems(names) == ["tier 1: name: is missing", "tier 1: nam: unknown key; did you mean 'name'?"]
    ids = "[[rules]]\nidd = 'a'\nlimit = 1\nwindow = 1\n[[users]]\nid = 'u'\noverrides = [{ rule = 'a', limit = 1 }]"
    assert problems(ids) == ["rule 1: id: is missing", "rule 1: idd: unknown key; did you mean 'id'?"]
    bad_rule = RULE + "dimension = 'user+'\n[[users]]\nid = 'u'\noverrides = [{ rule = 'a', limit = 1 }]"
    assert [problem.split(": ")[1] for problem in problems(bad_rule)] == ["dimension"]


@pytest.mark.parametrize(
    "quota",
    [
        "algorithm = 'concurrency'",
        "window = 'month'\ncalendar = true",
        "window = 1\nalgorithm = 'sliding_window_log'",
    ],
)
def test_fields_that_are_only_checked_when_others_are_right_hide_no_mistakes(quota: str) -> None:
    rule = f"[[rules]]\nid = 'b'\nlimit = 2\n{quota}\nsync = 'leased'\nregions = 'synced'\n"
    named = [problem.split(": ")[:2] for problem in problems("[[rules]]\nid = 'a'\nlimit = 0\nwindow = 1\n" + rule)]
    assert named == [["rule 'a'", "limit"], ["rule 'b'", "sync"], ["rule 'b'", "regions"]]


def test_exemptions_may_overlap() -> None:
    text = "".join(
        f"[[exemptions]]\ntype = 'ip'\nvalue = '{value}'\n" for value in ("10.0.0.0/8", "10.0.0.0/8", "::/0")
    )
    assert len(read(text).exemptions) == 3


def test_long_values_are_cut_off() -> None:
    (problem,) = problems(f"rules = {'x' * 500!r}")
    assert len(problem) < 150


def test_data_that_is_no_file_names_none() -> None:
    data: dict[str, Any] = {"rulez": 1}
    with pytest.raises(InvalidRule, match=r"^rulez: unknown key"):
        snapshot_of(data, version="1")
