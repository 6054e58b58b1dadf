"""Settings: which place wins, what messages say, and that secrets stay secret."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.serve import serve
from headgate.errors import InvalidSettings
from headgate.service.tls import Certificates
from headgate.settings import Settings, load, names_of
from headgate.settings_fields import Address

SECRET = "correct-horse-battery-staple"


def settings(environ: Mapping[str, str] | None = None, config: Path | None = None, /, **flags: Any) -> Settings:
    return load(flags, config=config, environ=environ or {}).settings


def problems(environ: Mapping[str, str] | None = None, config: Path | None = None, /, **flags: Any) -> list[str]:
    with pytest.raises(InvalidSettings) as caught:
        settings(environ, config, **flags)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_defaults_need_nothing_and_serve_this_machine_alone() -> None:
    got = settings()
    assert (got.http_address, got.grpc_address) == (Address("127.0.0.1", 8080), Address("127.0.0.1", 8081))
    assert got.store_url == "memory://"
    assert got.in_memory
    assert got.data_dir == Path("~/.local/share/headgate").expanduser()
    assert got.database == f"sqlite:///{got.data_dir}/headgate.db"
    assert (got.rules, got.admin_token, got.data_token, got.workers) == (None, None, None, 1)
    assert got.audit_retention == 90 * 24 * 3600


def test_data_lives_where_xdg_says() -> None:
    assert settings({"XDG_DATA_HOME": "/srv/data"}).data_dir == Path("/srv/data/headgate")
    assert settings({"XDG_DATA_HOME": "relative"}).data_dir == Path("~/.local/share/headgate").expanduser()


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    config = written(tmp_path / "headgate.toml", 'workers = 2\nlog_level = "error"\nstore = "redis://file"\n')
    environ = {"HEADGATE_WORKERS": "3", "HEADGATE_LOG_LEVEL": "debug"}
    got = settings(environ, config, workers=4, http_address=None)
    assert got.workers == 4
    assert got.log_level == "debug"
    assert got.store_url == "redis://file"
    assert got.http_address.port == 8080


def test_the_prefix_of_keys_is_put_into_the_stores_url(tmp_path: Path) -> None:
    prefix = {"HEADGATE_STORE_PREFIX": "shop-a"}
    assert settings({**prefix, "HEADGATE_STORE": "redis://r:1/0"}).store_url == "redis://r:1/0?prefix=shop-a"
    assert settings(prefix, store="redis://r/0?timeout=1").store_url == "redis://r/0?timeout=1&prefix=shop-a"
    assert settings(prefix, store="redis://r/0", store_prefix="b:c").store_url == "redis://r/0?prefix=b:c"
    assert settings(prefix, store="redis://r/0?prefix=own").store_url == "redis://r/0?prefix=own"
    assert settings({}, store="redis://r/0").store_url == "redis://r/0"
    assert settings(prefix).store_url == "memory://?prefix=shop-a"
    assert settings(prefix).in_memory
    workers = settings(prefix, workers=2, data_dir=tmp_path)
    assert workers.store_url == f"embedded://{tmp_path}/counters?prefix=shop-a"
    assert workers.embedded


def test_a_prefix_that_makes_no_sense_is_refused() -> None:
    (told,) = problems({"HEADGATE_STORE_PREFIX": "{shop}"})
    assert told.startswith("HEADGATE_STORE_PREFIX: must be 1 to 64 letters, digits")
    (told,) = problems({}, store="redis://r/0?prefix=a*")
    assert "prefix: must be 1 to 64 letters, digits" in told


def test_several_workers_share_counters_unless_told_otherwise(tmp_path: Path) -> None:
    got = settings(workers=2, data_dir=tmp_path / "my data")
    assert got.store_url == f"embedded://{tmp_path}/my%20data/counters"
    assert (got.embedded, got.in_memory) == (True, False)
    told = settings(workers=2, store="memory://")
    assert (told.store_url, told.embedded, told.in_memory) == ("memory://", False, True)


def test_an_empty_variable_is_none() -> None:
    assert settings({"HEADGATE_DATA_TOKEN": "", "HEADGATE_WORKERS": ""}).data_token is None


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", ("127.0.0.1", 8080)),
        ("[::1]:8080", ("::1", 8080)),
        ("localhost:0", ("localhost", 0)),
        (":9000", ("::", 9000)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert Address.parse(text) == address


@pytest.mark.parametrize("text", ["8080", "::1:8080", "localhost", "host:", "host:65536", "host:-1", "host:٣", 8080])
def test_what_is_no_address(text: Any) -> None:
    assert problems(http_address=text) == [
        f"--http-address: must be host:port, as in 127.0.0.1:8080 or [::1]:8080, got {text!r}"
    ]


def test_addresses_are_shown_as_they_are_written() -> None:
    assert str(Address("::1", 80)) == "[::1]:80"
    assert str(Address("127.0.0.1", 80)) == "127.0.0.1:80"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("example.org", False),
    ],
)
def test_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert Address(host, 80).is_loopback is loopback


def test_every_problem_at_once_by_the_name_that_the_user_gave_it(tmp_path: Path) -> None:
    config = written(tmp_path / "headgate.toml", 'audit_retention = "90 moons"\nstroe = "memory://"\n')
    found = problems({"HEADGATE_WORKERS": "many", "HEADGATE_LOG_LEVEL": "loud"}, config, tls_key="nowhere.pem")
    assert len(found) == 5
    assert found[0] == f"{config}: stroe: unknown key; did you mean store?"
    assert found[1].startswith("HEADGATE_WORKERS: ")
    assert found[1].endswith("got 'many'")
    assert found[2] == "--tls-key: 'nowhere.pem' is not an existing file"
    assert found[3].startswith("HEADGATE_LOG_LEVEL: ")
    assert found[3].endswith("'error', got 'loud'")
    assert found[4].startswith(f"{config}: audit_retention: ")
    assert "moons" in found[4]


def test_a_config_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing, broken = tmp_path / "missing.toml", written(tmp_path / "broken.toml", "workers =")
    assert problems(None, missing) == [f"--config: {missing}: cannot be read: No such file or directory"]
    assert problems(None, broken)[0].startswith(f"--config: {broken}: is not TOML: ")


@pytest.mark.parametrize("given", ["90d", "7776000", 7_776_000])
def test_durations(given: Any) -> None:
    assert settings(audit_retention=given).audit_retention == 7_776_000


def test_unknown_variables_are_told_of() -> None:
    environ = {
        "HEADGATE_HTTP_ADRESS": "x",
        "HEADGATE_WHATEVER_THIS_IS": "x",
        "HEADGATE_SERVER": "of the other commands",
        "HEADGATE_SERVICE_HOST": "of Kubernetes",
        "HEADGATE_PORT": "of Kubernetes",
        "HEADGATE_PORT_8080_TCP_ADDR": "of Kubernetes",
        "OTHER_HTTP_ADRESS": "x",
    }
    assert load(environ=environ).warnings == [
        "HEADGATE_HTTP_ADRESS: unknown setting, ignored; did you mean HEADGATE_HTTP_ADDRESS?",
        "HEADGATE_WHATEVER_THIS_IS: unknown setting, ignored",
    ]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://localhost/zero", "the database must be a number"),
        ("redis://localhost?timeout=soon", "timeout: must be a number above 0"),
        (f"redis://:{SECRET}/@localhost", "a / ? # or @ is in the wrong place"),
        ("redis+sentinel://localhost", "with Sentinel's name of the service"),
        ("embedded://a/b", "is neither a name nor an absolute path"),
        ("embedded:///d?timeout=soon", "timeout: must be a number above 0"),
        ("memory://?max_keys=many", "max_keys=<whole number>"),
    ],
)
def test_a_store_that_makes_no_sense_is_told_with_all_other_mistakes(url: str, told: str) -> None:
    first, second = problems({"HEADGATE_STORE": url, "HEADGATE_LOG_LEVEL": "loud"})
    assert first.startswith("HEADGATE_STORE: ")
    assert told in first
    assert SECRET not in first
    assert second.startswith("HEADGATE_LOG_LEVEL: ")


# Secrets


def test_secrets_are_masked_wherever_settings_are_shown() -> None:
    got = settings(
        admin_token=SECRET,
        data_token=SECRET,
        store=f"redis://:{SECRET}@localhost/0",
        database_url=f"postgresql://headgate:{SECRET}@localhost/headgate",
    )
    assert SECRET not in repr(got)
    assert SECRET not in str(got)
    assert got.database.endswith(f"{SECRET}@localhost/headgate")


@pytest.mark.parametrize("name", ["store", "database_url", "admin_token", "data_token"])
def test_no_message_tells_a_secret(name: str) -> None:
    found = problems({f"HEADGATE_{name.upper()}": f"http://{SECRET} \x00"})
    assert found[0].startswith(f"HEADGATE_{name.upper()}: must be ")
    assert SECRET not in "".join(found)


@pytest.mark.parametrize("name", ["store", "database_url", "admin_token", "data_token"])
def test_secrets_from_files_of_their_own(tmp_path: Path, name: str) -> None:
    value = {"store": "redis://host", "database_url": "postgresql://host/name"}.get(name, SECRET)
    secret = written(tmp_path / "secret", f"{value}\n")
    config = written(tmp_path / "headgate.toml", f'{name}_file = "{secret}"\n')
    for got in (
        settings({f"HEADGATE_{name.upper()}_FILE": str(secret)}),
        settings(None, config),
        settings(**{f"{name}_file": secret}),
    ):
        assert getattr(got, name).get_secret_value() == value


def test_a_secrets_file_in_a_stronger_place_wins(tmp_path: Path) -> None:
    secret = written(tmp_path / "secret", SECRET)
    got = settings({"HEADGATE_ADMIN_TOKEN": "of-the-environment"}, admin_token_file=secret)
    assert got.admin_token is not None
    assert got.admin_token.get_secret_value() == SECRET


def test_secrets_files_that_are_no_good(tmp_path: Path) -> None:
    empty = written(tmp_path / "empty", "\n")
    environ = {
        "HEADGATE_ADMIN_TOKEN": SECRET,
        "HEADGATE_ADMIN_TOKEN_FILE": str(empty),
        "HEADGATE_DATA_TOKEN_FILE": str(tmp_path / "missing"),
        "HEADGATE_STORE_FILE": str(empty),
    }
    assert problems(environ) == [
        f"HEADGATE_STORE_FILE: {empty}: is empty",
        "HEADGATE_ADMIN_TOKEN and HEADGATE_ADMIN_TOKEN_FILE: only one of them can be given",
        f"HEADGATE_DATA_TOKEN_FILE: {tmp_path}/missing: cannot be read: No such file or directory",
    ]


def test_a_token_that_can_be_guessed_is_told_of() -> None:
    assert load({"admin_token": "hunter2"}, environ={}).warnings == [
        "--admin-token: this token has only 7 characters, and can be guessed: use at least 16, "
        "for example from `openssl rand -hex 32`"
    ]


def test_what_no_log_may_show() -> None:
    assert settings().secrets == []
    got = settings(admin_token=SECRET, database_url="postgresql://headgate:p%40ss@localhost/headgate")
    assert got.secrets == [SECRET, "p%40ss", "p@ss"]
    got = settings(database_url="postgresql:///headgate?sslpassword=p%40ss&sslmode=require")
    assert set(got.secrets) == {"p@ss"}


# Who may be served


@pytest.fixture
def tls(tmp_path: Path) -> dict[str, Path]:
    """Files for settings, which look no further than that they are there."""
    return {name: written(tmp_path / name, "") for name in ("tls_certificate", "tls_key")}


@pytest.mark.parametrize("name", ["http_address", "grpc_address"])
def test_others_are_served_with_tokens_and_tls(name: str, tls: dict[str, Path]) -> None:
    tokens = {"admin_token": SECRET, "data_token": SECRET}
    assert settings(**{name: "0.0.0.0:80"}, **tokens, **tls)
    assert settings(**{name: "0.0.0.0:80"}, **tokens, insecure=True)
    found = problems(**{name: "0.0.0.0:80"})
    assert len(found) == 2
    assert "HEADGATE_ADMIN_TOKEN and HEADGATE_DATA_TOKEN" in found[0]
    assert f"HEADGATE_{name.upper()} (--{name.replace('_', '-')}) is 0.0.0.0:80" in found[0]
    assert "HEADGATE_TLS_CERTIFICATE (--tls-certificate)" in found[1]
    assert len(problems(**{name: "[::]:80"}, insecure=True)) == 1
    assert "set HEADGATE_DATA_TOKEN," in problems(**{name: ":80"}, **tls, admin_token=SECRET)[0]


def test_others_are_served_with_certificates_of_their_own(tls: dict[str, Path]) -> None:
    assert settings(http_address="0.0.0.0:80", **tls, tls_client_ca=tls["tls_key"])


def test_halves_of_tls(tls: dict[str, Path]) -> None:
    assert "needs both" in problems(tls_key=tls["tls_key"])[0]
    assert "needs both" in problems(tls_certificate=tls["tls_certificate"])[0]
    assert "HEADGATE_TLS_CLIENT_CA (--tls-client-ca) is set without" in problems(tls_client_ca=tls["tls_key"])[0]


def test_the_reference_lists_every_setting() -> None:
    text = Path(__file__).parents[2].joinpath("docs/reference/settings.md").read_text()
    assert [name for name in Settings.model_fields if f"`{name}`" not in text] == []


REGION = """
store = "redis://eu"
[region]
name = "eu"
interval = "500ms"
[[region.members]]
name = "eu"
weight = 5
[[region.members]]
name = "us"
store = "redis://:correct-horse-battery-staple@us"
"""


def test_a_file_says_who_the_regions_are_and_the_environment_which_one_this_is(tmp_path: Path) -> None:
    config = written(tmp_path / "headgate.toml", REGION)
    got = settings({}, config).region
    assert got is not None
    region = got.region()
    assert (region.name, region.central, region.interval, dict(region.weights)) == ("eu", "eu", 0.5, {"eu": 5, "us": 1})
    shared = written(
        tmp_path / "shared.toml", REGION.replace('name = "eu"\nweight', 'name = "eu"\nstore = "redis://e"\nweight')
    )
    for got in (settings({"HEADGATE_REGION": "us"}, shared).region, settings({}, shared, region="us").region):
        assert got is not None
        assert got.region().name == "us"


def test_stores_of_other_regions_have_the_same_prefix_unless_they_say_otherwise(tmp_path: Path) -> None:
    config = written(tmp_path / "headgate.toml", REGION)
    for own, expected in (("", "?prefix=shop-a"), ("?prefix=own", "?prefix=own")):
        config.write_text(REGION.replace("@us", f"@us{own}"))
        region = settings({"HEADGATE_STORE_PREFIX": "shop-a"}, config).own_region
        assert region is not None
        (other,) = (member.store for member in region.members if member.name == "us")
        assert str(other).endswith(f"@us{expected}")


def test_stores_of_other_regions_are_secrets(tmp_path: Path) -> None:
    got = settings({}, written(tmp_path / "headgate.toml", REGION))
    assert SECRET in got.secrets
    assert SECRET not in repr(got)
    bad = written(
        tmp_path / "bad.toml",
        REGION.replace('store = "redis://:', 'stor = "redis://:').replace("weight = 5", 'weight = "x"'),
    )
    told = problems({}, bad)
    assert not any(SECRET in one for one in told)
    assert [one.partition(": ")[2] for one in told] == [
        "region: members: 0: weight: input should be a valid integer, unable to parse string as an integer",
        "region: members: 1: stor: extra inputs are not permitted",
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('name = "eu"\ninterval', 'name = "ap"\ninterval', "region: name: 'ap' is not one of the members ('eu', 'us')"),
        ('interval = "500ms"', 'central = "ap"', "region: central: 'ap' is not one of the members ('eu', 'us')"),
        ('"500ms"', '"1ms"', "region: interval: must be from 0.1 to 60 seconds, got 0.001"),
        (
            'store = "redis://eu"',
            "",
            "region is set, but other regions cannot reach this one's store: set HEADGATE_STORE",
        ),
        ("weight = 5", "weight = 0", "region: members: 0: weight: input should be greater than or equal to 1, got 0"),
    ],
)
def test_a_region_that_makes_no_sense_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    (told,) = problems({}, written(tmp_path / "headgate.toml", REGION.replace(old, new)))
    assert expected in told


def test_a_name_alone_makes_no_region() -> None:
    (told,) = problems({"HEADGATE_REGION": "eu"})
    assert told.startswith("HEADGATE_REGION: names this region, but the regions are not configured")


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_messages_name_a_variable_and_a_flag_that_exists(name: str) -> None:
    """Those about webhooks once named `--webhook-secret`, which serve does not take."""
    variable, flag = names_of(name).removesuffix(")").split(" (")
    assert variable == f"HEADGATE_{name.upper()}"
    assert flag.removeprefix("--").replace("-", "_") in inspect.signature(serve).parameters


def test_a_fault_that_is_found_at_the_start_names_the_flag_too(tmp_path: Path) -> None:
    """Such messages once named the variable alone, whatever was used."""
    key = written(tmp_path / "key", "not a key")
    with pytest.raises(InvalidSettings, match=r"^HEADGATE_TLS_CERTIFICATE \(--tls-certificate\): "):
        Certificates(key, key, protocol="h2")
