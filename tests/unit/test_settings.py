"""Every setting is defined once, read from everywhere alike, and refused with a sentence when it is wrong."""

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from rich.pretty import pretty_repr

from roost.agent.avoidance import Avoidance
from roost.agent.settings import AgentSettings
from roost.model.errors import InvalidInput, UnknownName
from roost.settings import (
    SETTINGS,
    LoadedSettings,
    Settings,
    describe,
    load,
    read_file,
    shown,
    to_toml,
    without_password,
)

NUMBERS = [name for name, setting in SETTINGS.items() if setting.kind in (int, float)]
WITHOUT_UNIT = {"server.port", "agent.seed"}


@pytest.fixture(autouse=True)
def _nowhere_special(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(text: str, name: str = "given.toml") -> Path:
    file = Path(name)
    file.write_text(text)
    return file


def refusal(text: str = "", environ: dict[str, str] | None = None, overrides: dict[str, object] | None = None) -> str:
    with pytest.raises(InvalidInput) as caught:
        load(written(text), environ or {}, overrides or {})
    return str(caught.value)


# The definition


def test_there_are_defaults_for_everything() -> None:
    loaded = load(None, {}, {})
    assert loaded.settings == Settings()
    assert set(loaded.sources) == set(SETTINGS)
    assert set(loaded.sources.values()) == {"default"}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_says_a_sentence_and_accepts_its_default(name: str) -> None:
    setting = SETTINGS[name]
    assert setting.about.sentence[0].isupper()
    assert setting.about.sentence.endswith(".")
    assert setting.read(setting.default, "default", text=False) == setting.default


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_a_range_and_a_unit(name: str) -> None:
    about = SETTINGS[name].about
    assert about.between
    assert about.between[0] < about.between[1]
    assert bool(about.unit) == (name not in WITHOUT_UNIT)
    for unit in ("seconds", "days", "bytes"):
        assert name.endswith(f"_{unit}") == (about.unit == unit)


def test_environment_names_are_unique_and_follow_from_the_setting() -> None:
    names = [variable for setting in SETTINGS.values() for variable in setting.environment]
    assert len(names) == len(set(names))
    assert SETTINGS["server.tls_cert"].environment == ("ROOST_SERVER_TLS_CERT",)
    assert SETTINGS["client.url"].environment == ("ROOST_CLIENT_URL", "ROOST_URL")


def test_a_description_tells_all_there_is_to_know() -> None:
    (row,) = (row for row in describe() if row.name == "server.drain_seconds")
    assert (row.type, row.default, row.unit, row.environment) == (
        "number",
        20.0,
        "seconds",
        "ROOST_SERVER_DRAIN_SECONDS",
    )
    assert row.allowed == "a number from 0 to 3,600"


def test_an_agent_accepts_both_ends_of_every_range_of_its_settings() -> None:
    for name in ("retries", "group", "group_vms", "window"):
        for end in SETTINGS[f"agent.{name}"].about.between or ():
            given: dict[str, Any] = {name: end}
            AgentSettings(**given)
    for end in SETTINGS["agent.top"].about.between or ():
        Avoidance(top=int(end))


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(AttributeError):
        settings.server.port = 1  # type: ignore[misc]
    with pytest.raises(AttributeError):
        settings.server = settings.server  # type: ignore[misc]


# Where settings come from


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default() -> None:
    file = written("[server]\nport = 1\nhost = 'file'\nworkers = 1\n")
    environ = {"ROOST_SERVER_PORT": "2", "ROOST_SERVER_HOST": "environment"}
    loaded = load(file, environ, {"server.port": 3, "server.workers": None})
    server, sources = loaded.settings.server, loaded.sources
    assert (server.port, server.host, server.workers, server.tls_key) == (3, "environment", 1, "")
    assert sources["server.port"] == "flag --port"
    assert sources["server.host"] == "environment ROOST_SERVER_HOST"
    assert sources["server.workers"] == f"file {file}"
    assert sources["server.tls_key"] == "default"


def test_the_file_is_the_given_one_else_the_environments_else_the_one_right_here() -> None:
    def seed(file: Path | None, environ: dict[str, str]) -> int:
        return load(file, environ, {}).settings.agent.seed

    assert seed(None, {}) == 0
    here, elsewhere = (written(f"agent.seed = {n}", name) for n, name in ((1, "roost.toml"), (2, "elsewhere.toml")))
    given = written("agent.seed = 3")
    assert here.exists()
    assert seed(None, {}) == 1
    assert seed(None, {"ROOST_CONFIG": ""}) == 1
    assert seed(None, {"ROOST_CONFIG": str(elsewhere)}) == 2
    assert seed(given, {"ROOST_CONFIG": str(elsewhere)}) == 3


def test_a_generated_file_with_every_default_reads_back_as_the_defaults() -> None:
    file = written(to_toml())
    assert tomllib.loads(to_toml()) == {
        section: {setting.field: setting.default for setting in SETTINGS.values() if setting.section == section}
        for section in dict.fromkeys(setting.section for setting in SETTINGS.values())
    }
    loaded = load(file, {}, {})
    assert loaded.settings == Settings()
    assert set(loaded.sources.values()) == {f"file {file}"}


def test_every_default_can_be_given_as_text() -> None:
    texts = {name: str(s.default).lower() if s.kind is bool else str(s.default) for name, s in SETTINGS.items()}
    assert load(None, {}, texts).settings == Settings()
    environ = {SETTINGS[name].environment[0]: text for name, text in texts.items()}
    assert load(None, environ, {}).settings == Settings()


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_truth_is_written_as_true_or_false_or_1_or_0(text: str, value: bool) -> None:
    assert load(None, {"ROOST_SERVER_ALLOW_ANONYMOUS": text}, {}).settings.server.allow_anonymous is value


def test_a_whole_number_will_do_for_a_number() -> None:
    for loaded in (load(written("limits.rate = 7"), {}, {}), load(None, {}, {"limits.rate": 7})):
        assert loaded.settings.limits.rate == 7.0
        assert isinstance(loaded.settings.limits.rate, float)


def test_a_path_or_a_choice_of_the_command_line_becomes_a_plain_text() -> None:
    class Level(StrEnum):
        DEBUG = "debug"

    settings = load(None, {}, {"client.ca_file": Path("ca.pem"), "log.level": Level.DEBUG}).settings
    assert (type(settings.client.ca_file), settings.client.ca_file) == (str, "ca.pem")
    assert (type(settings.log.level), settings.log.level) == (str, "debug")


def test_the_client_has_shorter_variables_that_mean_the_same() -> None:
    loaded = load(None, {"ROOST_URL": "http://there:1", "ROOST_TOKEN": "t"}, {})
    assert (loaded.settings.client.url, loaded.settings.client.token) == ("http://there:1", "t")
    assert loaded.sources["client.url"] == "environment ROOST_URL"
    assert load(None, {"ROOST_TOKEN": "t", "ROOST_CLIENT_TOKEN": "t"}, {}).settings.client.token == "t"


def test_two_variables_that_contradict_each_other_are_refused_without_their_values() -> None:
    said = refusal(environ={"ROOST_TOKEN": "hush-1", "ROOST_CLIENT_TOKEN": "hush-2"})
    assert "ROOST_CLIENT_TOKEN and ROOST_TOKEN differ" in said
    assert "hush" not in said


def test_one_flag_may_have_brought_all_overrides() -> None:
    loaded = load(None, {}, {"server.port": "8000"}, flag="--set")
    assert loaded.settings.server.port == 8000
    assert loaded.sources["server.port"] == "flag --set"


# Mistakes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[server]\nprot = 1", "given.toml:2: no setting is called 'server.prot'; did you mean server.port"),
        ("\n[servr]\nport = 1", "given.toml:2: no section is called 'servr'; did you mean server"),
        ("\nservr.port = 1", "given.toml:2: no section is called 'servr'"),
        ("port = 1", "given.toml:1: no section is called 'port'; known are"),
        ("server = 1", "given.toml:1: is not a section; write [server]"),
        ("[[server]]\nport = 1", "given.toml: is not a section"),
        ("[server]\n\nport = '1'", "given.toml:3: server.port: is '1'; use a whole number from 0 to 65,535"),
        ("server.port = 1.0", "given.toml:1: server.port: is 1.0"),
        ("server = { port = 65536 }", "given.toml: server.port: is 65536; use a whole number from 0 to 65,535"),
        ("[server]\nport = true", "server.port: is True"),
        ("[server]\nport = [1]", "server.port: is a list"),
        ("[server.port]\nnumber = 1", "given.toml:1: server.port: is a table"),
        ("[server]\nport = 1979-05-27", "server.port: is datetime.date"),
        (f"[server]\nport = 0x{'f' * 5000}", "server.port: is a very long number"),
        (f"[server]\nport = {'9' * 5000}", "given.toml: not valid TOML"),
        (f"server.port = {'[' * 5000}", "given.toml: not valid TOML"),
        ("[server]\nhost = 1", "server.host: is 1; use a text that is not empty"),
        ("[server]\nhost = ''", "server.host: is ''; use a text that is not empty"),
        (f"[log]\nlevel = '{'x' * 500}'", "xxx…; use debug, info, warning or error"),
        ("[server]\nallow_anonymous = 1", "server.allow_anonymous: is 1; use true or false"),
        ("[limits]\nrate = nan", "limits.rate: is nan; use a number from 0 to 1,000,000"),
        ("[limits]\nrate = inf", "limits.rate: is inf"),
        ("[limits]\nrate = -1", "limits.rate: is -1"),
        ("[log]\nlevel = 'loud'", "given.toml:2: log.level: is 'loud'; use debug, info, warning or error"),
        ("[server]\nport = 1\nport = 2", "given.toml:3: not valid TOML: Cannot overwrite a value"),
        ("[server]\nport =\n", "given.toml:2: not valid TOML: Invalid value"),
        ("[server]\nport = 1\nhost = '", "given.toml:3: not valid TOML"),
    ],
)
def test_a_mistake_in_a_file_is_refused_with_its_line_and_what_would_be_right(text: str, words: str) -> None:
    assert words in refusal(text)
    with pytest.raises(InvalidInput):
        read_file(Path("given.toml"))


def test_a_mistake_in_a_file_is_refused_even_if_it_is_overridden() -> None:
    assert "server.port" in refusal("server.port = 'x'", {"ROOST_SERVER_PORT": "2"}, {"server.port": 3})


def test_a_file_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"missing\.toml: no such file"):
        load(Path("missing.toml"), {}, {})
    with pytest.raises(InvalidInput, match=r"missing\.toml: no such file"):
        load(None, {"ROOST_CONFIG": "missing.toml"}, {})
    with pytest.raises(InvalidInput, match="cannot be read"):
        load(Path(), {}, {})
    Path("latin.toml").write_bytes(b"[server]\nhost = '\xe9'\n")
    with pytest.raises(InvalidInput, match=r"latin\.toml: cannot be read"):
        load(Path("latin.toml"), {}, {})


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("ROOST_SERVER_PORT", "many", "environment ROOST_SERVER_PORT: server.port: is 'many'; use a whole number"),
        ("ROOST_SERVER_PORT", "", "server.port: is ''"),
        ("ROOST_SERVER_PORT", "-1", "server.port: is '-1'"),
        ("ROOST_SERVER_PORT", "9" * 5000, "server.port: is '999"),
        ("ROOST_LIMITS_RATE", "1e999", "limits.rate: is '1e999'"),
        ("ROOST_SERVER_ALLOW_ANONYMOUS", "yes", "is 'yes'; use true or false"),
        ("ROOST_SERVER_ALLOW_ANONYMOUS", "True", "is 'True'; use true or false"),
        ("ROOST_SERVER_PROT", "1", "no setting is called 'ROOST_SERVER_PROT'; did you mean ROOST_SERVER_PORT"),
        ("ROOST_SERVR_PORT", "1", "did you mean ROOST_SERVER_PORT"),
        ("ROOST_LIMIT_PAGE", "1", "did you mean ROOST_LIMITS_PAGE"),
    ],
)
def test_a_mistake_in_the_environment_is_refused_with_the_variable(variable: str, text: str, words: str) -> None:
    assert words in refusal(environ={variable: text})


@pytest.mark.parametrize(
    "variable",
    [
        "ROOST_CONFIG",
        "ROOST_CACHE_DIR",
        "ROOST_TEST_EFFORT",
        "ROOST_SERVICE_HOST",  # Kubernetes sets these four for a service called roost
        "ROOST_SERVICE_PORT",
        "ROOST_PORT",
        "ROOST_PORT_7117_TCP",
        "SERVER_PORT",
        "ROOST_",
        "PATH",
    ],
)
def test_a_variable_that_is_no_setting_is_left_alone(variable: str) -> None:
    assert load(None, {variable: ""}, {}).settings == Settings()


def test_a_mistake_in_a_flag_is_refused_with_the_flag() -> None:
    assert "flag --drain-seconds: server.drain_seconds: is -1" in refusal(overrides={"server.drain_seconds": -1})
    said = refusal(overrides={"server.prot": 1})
    assert "no setting is called 'server.prot'; did you mean server.port" in said
    with pytest.raises(UnknownName):
        load(None, {}, {"server": 1})


def test_a_certificate_needs_its_key_and_a_key_its_certificate() -> None:
    assert "server.tls_cert: is set, but server.tls_key is not" in refusal("server.tls_cert = 'a.pem'")
    assert "server.tls_key: is set, but server.tls_cert is not" in refusal("server.tls_key = 'a.pem'")
    both = load(written("server.tls_cert = 'a.pem'"), {}, {"server.tls_key": "b.pem"}).settings.server
    assert (both.tls_cert, both.tls_key) == ("a.pem", "b.pem")


def test_several_workers_need_postgresql() -> None:
    assert "server.workers: is 2, but store.url is not PostgreSQL" in refusal("server.workers = 2")
    for url in ("postgresql://localhost/roost", "postgres://localhost/roost"):
        assert load(None, {}, {"server.workers": 2, "store.url": url}).settings.server.workers == 2


def test_a_file_alone_may_leave_the_other_half_to_the_environment() -> None:
    assert read_file(written("[server]\nworkers = 2\ntls_key = 'a.pem'")) == {
        "server.workers": 2,
        "server.tls_key": "a.pem",
    }


# Secrets


def secretive() -> LoadedSettings:
    environ = {
        "ROOST_TOKEN": "hush-token",
        "ROOST_URL": "https://me:hush-client@there",
        "ROOST_STORE_URL": "postgresql://roost:hush-store@db:5432/roost?sslmode=require&sslpassword=hush-ssl",
    }
    return load(None, environ, {})


def test_secrets_are_never_shown() -> None:
    values = shown(secretive().settings)
    assert values["client.token"] == "***"
    assert values["client.url"] == "https://me:***@there"
    assert values["store.url"] == "postgresql://roost:***@db:5432/roost?sslmode=require&sslpassword=***"
    assert shown(Settings())["client.token"] == ""


def test_secrets_are_in_no_repr() -> None:
    loaded = secretive()
    for thing in (loaded, loaded.settings, loaded.settings.client, loaded.settings.store):
        for text in (repr(thing), str(thing), f"{thing}", pretty_repr(thing)):
            assert "hush" not in text
            assert "***" in text
    assert "port=7117" in repr(loaded)


def test_secrets_are_in_no_refusal() -> None:
    for name in ("client.token", "client.url", "store.url"):
        assert "12345" not in refusal(overrides={name: 12345})
        assert "hush" not in refusal(f"{name} = ['hush']")
    said = refusal(overrides={"server.workers": 2, "store.url": "mysql://a:hush@b"})
    assert "hush" not in said


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("roost.db", "roost.db"),
        ("postgresql://db/roost", "postgresql://db/roost"),
        ("postgresql://me@db:5432/roost", "postgresql://me@db:5432/roost"),
        ("postgresql://a:1,b:2/roost", "postgresql://a:1,b:2/roost"),
        ("postgresql://me:hu/s:h@x@db:5432/roost", "postgresql://me:***@db:5432/roost"),
        ("postgresql://:hush@db/roost", "postgresql://:***@db/roost"),
        ("postgresql:///roost?user=me&password=hush&port=1", "postgresql:///roost?user=me&password=***&port=1"),
    ],
)
def test_only_the_password_of_a_url_is_hidden(url: str, seen: str) -> None:
    assert without_password(url) == seen
