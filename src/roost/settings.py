"""Every setting, once: its type, default, range, unit and a sentence.

    flag  >  environment (ROOST_SERVER_PORT)  >  file (roost.toml)  >  default

Files, environment variables, flags, `roost config` and the documentation are all derived from the sections below.
A setting that is unknown, of a wrong type or out of range is refused, wherever it comes from, even if it is overridden.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args, get_type_hints

import msgspec

from roost.model.errors import InvalidInput, UnknownName

PREFIX, CONFIG, FILE = "ROOST_", "ROOST_CONFIG", "roost.toml"
HIDDEN = "***"
POSTGRES = ("postgresql://", "postgres://")
NEAR = 0.8  # how alike a misspelt section must be; Kubernetes sets ROOST_SERVICE_PORT for a service called roost

_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false"}
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class About(msgspec.Struct, frozen=True):
    """What is said of a setting beside its type and default."""

    sentence: str
    unit: str = ""
    between: tuple[float, float] | None = None
    hide: Literal["nothing", "all", "password"] = "nothing"  # a password: the part of a URL
    also: str = ""  # a shorter environment variable


def say(default: str | float, sentence: str, unit: str = "", between: tuple[float, float] | None = None) -> Any:
    """A field with its default, what it means, and for a number its unit and range."""
    return field(default=default, metadata={"about": About(sentence, unit, between)})


def secret(default: str, sentence: str, hide: Literal["all", "password"], also: str = "") -> Any:
    """A field that people may not see, or only without the password in it."""
    return field(default=default, metadata={"about": About(sentence, hide=hide, also=also)})


class Section:
    """Settings that belong together. Secrets stay out of its repr."""

    def __repr__(self) -> str:
        section = type(self).__name__.removesuffix("Section")
        found = ((s.field, s.shown(s.of(self))) for s in SETTINGS.values() if s.section == section.lower())
        return f"{section}({', '.join(f'{name}={value!r}' for name, value in found)})"


@dataclass(frozen=True, repr=False)
class ServerSection(Section):
    """How the service listens."""

    host: str = say("127.0.0.1", "The address to listen on.")
    port: int = say(7_117, "The port to listen on; 0 takes any free one.", "", (0, 65_535))
    workers: int = say(1, "Processes that serve; more than one needs PostgreSQL.", "processes", (1, 64))
    tls_cert: str = say("", "The PEM file of the certificate chain; empty serves plain HTTP.")
    tls_key: str = say("", "The PEM file of the certificate's private key.")
    drain_seconds: float = say(20.0, "The time to finish what is in flight on SIGTERM.", "seconds", (0, 3_600))
    allow_anonymous: bool = say(False, "Serve without tokens beyond loopback, and when all of them were revoked.")


@dataclass(frozen=True, repr=False)
class StoreSection(Section):
    """Where the truth is kept."""

    url: str = secret("roost.db", "Where the store is: a file (SQLite) or postgresql://….", "password")
    zone: str = say(
        "", "The zone of a store that does not exist yet: a zone file, or synthetic:SIZE; empty: synthetic:1000."
    )
    patience_seconds: float = say(
        5.0, "How long a request waits for a store that is away, before it gets a 503.", "seconds", (0, 600)
    )


@dataclass(frozen=True, repr=False)
class AgentSection(Section):
    """How requests are decided."""

    policy: str = say("default", "The policy, by name or file, until one is activated.")
    rules: str = say("", "Python files and modules with rules of your own, which policies may name; commas between.")
    retries: int = say(20, "Attempts after a conflict, before a request is given up.", "attempts", (0, 1_000))
    group: int = say(256, "Requests that may be decided and committed together.", "requests", (1, 1_024))
    group_vms: int = say(512, "VMs that may be decided and committed together.", "VMs", (1, 100_000))
    top: int = say(100, "Machines that a conflict-avoiding choice is among; 1 never avoids.", "machines", (1, 1_000))
    window: int = say(50, "Commits over which the share of conflicts is taken.", "commits", (1, 100_000))
    requeue_seconds: float = say(
        1.0, "How often VMs that had to give way and wait are tried again, once there may be room; 0 is never.",
        "seconds", (0, 86_400),
    )  # fmt: skip
    foresight_seconds: float = say(
        600.0, "How often what is to be expected is worked out anew, for the rule `safest`; 0 is never.",
        "seconds", (0, 86_400),
    )  # fmt: skip
    seed: int = say(0, "Where random choices begin; 0 begins elsewhere each time.", "", (0, 2**63 - 1))


@dataclass(frozen=True, repr=False)
class HealingSection(Section):
    """What is done about machines that are down."""

    retry_seconds: float = say(
        1.0, "How often VMs that found no other machine are tried again, once there may be one; 0 heals nothing.",
        "seconds", (0, 86_400),
    )  # fmt: skip
    flaps: int = say(
        3, "A machine that went down so often within a day is quarantined when it comes back; 0 is never.",
        "times", (0, 1_000),
    )  # fmt: skip
    heartbeat_seconds: float = say(
        0.0, "A machine that sent heartbeats, to any worker, and then none for so long, is down; 0 counts none.",
        "seconds", (0, 86_400),
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class LimitsSection(Section):
    """What the service takes on before it says no."""

    body_bytes: int = say(4_194_304, "The largest body of a request.", "bytes", (1_024, 1_073_741_824))
    header_bytes: int = say(16_384, "The first line and headers of a request.", "bytes", (1_024, 1_048_576))
    vms_per_request: int = say(1_000, "VMs that one request may ask for.", "VMs", (1, 100_000))
    requests_per_batch: int = say(1_000, "Requests that one batch may hold.", "requests", (1, 100_000))
    queued_vms: int = say(20_000, "VMs that may wait to be decided; above, a 503.", "VMs", (1, 10_000_000))
    queued_requests: int = say(5_000, "Requests that may wait to be decided; above, a 503.", "requests", (1, 1_000_000))
    connections: int = say(2_000, "Connections that may be open at once.", "connections", (1, 100_000))
    rate: float = say(0.0, "How fast a token may ask; 0 is no limit.", "requests a second", (0, 1_000_000))
    burst: int = say(200, "Requests a token may make at once, ahead of its rate.", "requests", (1, 1_000_000))
    page: int = say(1_000, "The largest page of a list.", "items", (1, 100_000))
    streams: int = say(100, "Streams of changes that may be open at once.", "streams", (0, 100_000))
    streams_per_token: int = say(20, "Of these, those that one token may have open.", "streams", (0, 100_000))
    write_seconds: float = say(
        30.0, "A reader that takes nothing of what waits for it for so long is cut off.", "seconds", (0.1, 3_600)
    )
    request_seconds: float = say(
        30.0, "The time to receive a request whole, and the time to answer it.", "seconds", (0.1, 3_600)
    )


@dataclass(frozen=True, repr=False)
class LogSection(Section):
    """What the service says about its work."""

    level: Literal["debug", "info", "warning", "error"] = say("info", "The least important messages to write.")
    format: Literal["auto", "json", "text"] = say("auto", "How they are written; auto is text on a terminal.")
    requests: Literal["all", "writes", "failed"] = say("writes", "Which requests get a line in the log.")


@dataclass(frozen=True, repr=False)
class RetentionSection(Section):
    """What the store remembers."""

    revisions: int = say(5_000_000, "Changes that are kept in the feed.", "changes", (0, 1_000_000_000_000))
    decisions_days: float = say(30.0, "How long decisions and keys are remembered.", "days", (0, 36_500))
    every_seconds: float = say(600.0, "How often what is older is forgotten; 0 is never.", "seconds", (0, 604_800))


@dataclass(frozen=True, repr=False)
class ClientSection(Section):
    """How commands reach a service."""

    url: str = secret("http://127.0.0.1:7117", "Where the service is.", "password", also="ROOST_URL")
    token: str = secret("", "The token to show to the service.", "all", also="ROOST_TOKEN")
    timeout_seconds: float = say(30.0, "How long to wait for an answer.", "seconds", (0.1, 3_600))
    ca_file: str = say("", "The PEM file to verify the service by; empty trusts what the system trusts.")


@dataclass(frozen=True)
class Settings:
    """All settings, by section."""

    server: ServerSection = ServerSection()
    store: StoreSection = StoreSection()
    agent: AgentSection = AgentSection()
    healing: HealingSection = HealingSection()
    limits: LimitsSection = LimitsSection()
    log: LogSection = LogSection()
    retention: RetentionSection = RetentionSection()
    client: ClientSection = ClientSection()


class LoadedSettings(msgspec.Struct, frozen=True):
    """Settings, and for each where it comes from: default, file PATH, environment NAME or flag --NAME."""

    settings: Settings
    sources: Mapping[str, str]


class SettingDescription(msgspec.Struct, frozen=True):
    """A setting as documentation tells it."""

    name: str
    type: str
    default: str | int | float | bool
    unit: str
    sentence: str
    environment: str
    allowed: str  # in words: a whole number from 0 to 65,535


class Setting(msgspec.Struct, frozen=True):
    """One setting as it was defined above, and how a value of it is read and shown."""

    section: str
    field: str
    kind: type
    choices: tuple[str, ...]
    default: str | int | float | bool
    about: About

    @property
    def name(self) -> str:
        """The dotted name."""
        return f"{self.section}.{self.field}"

    def of(self, section: Section) -> Any:
        """Its value there."""
        return getattr(section, self.field)

    @property
    def environment(self) -> tuple[str, ...]:
        """The environment variables that set it, the regular one first."""
        regular = f"{PREFIX}{self.section}_{self.field}".upper()
        return (regular, self.about.also) if self.about.also else (regular,)

    @property
    def allowed(self) -> str:
        """What it may be, in words."""
        if self.choices:
            return f"{', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.about.between:
            return f"a {_KINDS[self.kind]} from {self.about.between[0]:,} to {self.about.between[1]:,}"
        if self.kind is bool:
            return _KINDS[bool]
        return "a text that is not empty" if self.default else "a text"

    def read(self, raw: Any, where: str, *, text: bool) -> Any:
        """`raw` as a checked value; a text is understood as a number or a truth value only where `text` says so."""
        value = _from_text(self.kind, raw) if text and isinstance(raw, str) else raw
        if not self._allows(value):
            problem = f"is {_brief(raw)}" if self.about.hide == "nothing" else "cannot be used"
            raise InvalidInput(f"{where}: {self.name}", problem, f"use {self.allowed}")
        return float(value) if self.kind is float else value

    def _allows(self, value: Any) -> bool:
        if type(value) is not self.kind and (type(value), self.kind) != (int, float):
            return False
        if self.choices:
            return value in self.choices
        if self.about.between:
            return bool(self.about.between[0] <= value <= self.about.between[1])
        return value != "" or self.default == ""

    def shown(self, value: object) -> object:
        """A value as people may see it."""
        if self.about.hide == "nothing" or not value:
            return value
        return HIDDEN if self.about.hide == "all" else without_password(str(value))


def _defined() -> Iterator[Setting]:
    for name, section in SECTIONS.items():
        kinds = get_type_hints(section)
        for declared in fields(section):
            choices = get_args(kinds[declared.name])
            kind = str if choices else kinds[declared.name]
            yield Setting(
                name, declared.name, kind, choices, getattr(section, declared.name), declared.metadata["about"]
            )


SECTIONS: Mapping[str, type] = MappingProxyType(get_type_hints(Settings))
SETTINGS: Mapping[str, Setting] = MappingProxyType({setting.name: setting for setting in _defined()})
VARIABLES = MappingProxyType({variable: s for s in SETTINGS.values() for variable in s.environment})


def load(
    file: Path | None, environ: Mapping[str, str], overrides: Mapping[str, object], *, flag: str = ""
) -> LoadedSettings:
    """The settings in force. `file` is else $ROOST_CONFIG, else ./roost.toml if there is one, else none.

    `overrides` are values, texts or paths by dotted name; None is no override. An override counts as a flag named
    after its setting (--port), unless `flag` names the one flag that all of them came by.
    """
    values = {name: setting.default for name, setting in SETTINGS.items()}
    sources = dict.fromkeys(SETTINGS, "default")
    path = _chosen(file, environ)
    layers = (_from_file(path) if path else (), _from_environment(environ), _from_flags(overrides, flag))
    for layer in layers:
        for name, value, source in layer:
            values[name], sources[name] = value, source
    sections = {
        name: section(**{declared.name: values[f"{name}.{declared.name}"] for declared in fields(section)})
        for name, section in SECTIONS.items()
    }
    settings = Settings(**sections)
    _check_together(settings, sources)
    return LoadedSettings(settings, MappingProxyType(sources))


def read_file(file: Path) -> dict[str, object]:
    """What a file sets, by dotted name, each checked by itself: what it must go with may be set elsewhere."""
    return {name: value for name, value, _ in _from_file(file)}


def shown(settings: Settings) -> dict[str, object]:
    """Every value by dotted name, as people may see it: without secrets."""
    return {name: setting.shown(setting.of(getattr(settings, setting.section))) for name, setting in SETTINGS.items()}


def describe() -> tuple[SettingDescription, ...]:
    """Every setting for documentation, in order."""
    return tuple(
        SettingDescription(
            name=setting.name,
            type=" | ".join(setting.choices) or _KINDS[setting.kind],
            default=setting.default,
            unit=setting.about.unit,
            sentence=setting.about.sentence,
            environment=" or ".join(setting.environment),
            allowed=setting.allowed,
        )
        for setting in SETTINGS.values()
    )


def to_toml() -> str:
    """A file that sets everything to its default, with what each setting means: a start for one's own."""
    lines: list[str] = []
    for setting in SETTINGS.values():
        if f"[{setting.section}]" not in lines:
            lines += ["", f"[{setting.section}]"]
        unit = f" {setting.about.unit}:" if setting.about.unit else ""
        lines += [
            f"# {setting.about.sentence}",
            f"{setting.field} = {json.dumps(setting.default)}  #{unit} {setting.allowed}",
        ]
    return "\n".join(lines[1:]) + "\n"


def without_password(url: str) -> str:
    """A URL with *** for its password. A URL that is not quite right loses too much rather than too little."""
    hidden = re.sub(r"(://[^:@]*:).*@", rf"\g<1>{HIDDEN}@", url, flags=re.DOTALL)
    return re.sub(r"([?&][^=&]*password=)[^&]*", rf"\g<1>{HIDDEN}", hidden, flags=re.IGNORECASE)


_Layer = Iterator[tuple[str, Any, str]]


def _chosen(file: Path | None, environ: Mapping[str, str]) -> Path | None:
    if file or environ.get(CONFIG):
        return file or Path(environ[CONFIG])
    return Path(FILE) if Path(FILE).exists() else None


def _from_file(path: Path) -> _Layer:
    text = _text_of(path)
    for section, given in _parsed(path, text).items():
        where = _where(path, text, section)
        if section not in SECTIONS:
            raise UnknownName(where, "section", section, SECTIONS)
        if not isinstance(given, dict):
            raise InvalidInput(where, "is not a section", f"write [{section}], and its settings below")
        for key, raw in given.items():
            where, name = _where(path, text, section, key), f"{section}.{key}"
            yield name, _known(name, where).read(raw, where, text=False), f"file {path}"


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(str(path), "no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(str(path), f"cannot be read: {error}") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem, _, place = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", place)
        at = line[1] if line else text.count("\n") + 1
        raise InvalidInput(f"{path}:{at}", f"not valid TOML: {problem}") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits; lists in lists without end
        raise InvalidInput(str(path), f"not valid TOML: {error}") from None


def _where(path: Path, text: str, section: str, setting: str = "") -> str:
    """The file and the line of a setting or section, as far as can be told from how lines begin."""
    inside = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*\[\s*([^\]]*?)\s*\]", line):
            inside = header[1]
        key = re.match(r"\s*([\w.\-]+)\s*=", line)
        here = ".".join(part for part in (inside, key[1] if key else "") if part)
        if here == f"{section}.{setting}".rstrip(".") or (not setting and here.startswith(f"{section}.")):
            return f"{path}:{number}"
    return str(path)


def _from_environment(environ: Mapping[str, str]) -> _Layer:
    for setting in SETTINGS.values():
        given = [variable for variable in setting.environment if variable in environ]
        if len({environ[variable] for variable in given}) > 1:
            raise InvalidInput("environment", f"{' and '.join(given)} differ", "set one of them")
        for variable in given[:1]:
            source = f"environment {variable}"
            yield setting.name, setting.read(environ[variable], source, text=True), source
    for variable in sorted(environ.keys() - VARIABLES.keys()):
        if _means_a_setting(variable):
            raise UnknownName("environment", "setting", variable, VARIABLES)


def _means_a_setting(variable: str) -> bool:
    """Whether a variable nobody knows begins with a section, or with nearly one and ends with a field of it."""
    section, _, rest = variable.removeprefix(PREFIX).lower().partition("_")
    if not variable.startswith(PREFIX) or not rest:
        return False
    near = difflib.get_close_matches(section, SECTIONS, n=1, cutoff=NEAR)
    return section in SECTIONS or (bool(near) and f"{near[0]}.{rest}" in SETTINGS)


def _from_flags(overrides: Mapping[str, object], flag: str) -> _Layer:
    for name, raw in overrides.items():
        if raw is not None:
            setting = _known(name, flag or "flag")
            source = f"flag {flag or '--' + setting.field.replace('_', '-')}"
            yield name, setting.read(str(raw) if isinstance(raw, Path) else raw, source, text=True), source


def _known(name: str, where: str) -> Setting:
    if name not in SETTINGS:
        raise UnknownName(where, "setting", name, SETTINGS)
    return SETTINGS[name]


def _from_text(kind: type, text: str) -> Any:
    if kind is bool:
        return _BOOLEANS.get(text, text)
    try:
        return kind(text)
    except ValueError:
        return text  # refused later, as what it is


def _brief(raw: object) -> str:
    """A refused value, short enough for a sentence."""
    if isinstance(raw, int) and raw.bit_length() > 64:
        return "a very long number"  # Python refuses to write out the longest
    if isinstance(raw, dict | list):
        return "a table" if isinstance(raw, dict) else "a list"
    return repr(raw) if len(repr(raw)) <= 80 else f"{repr(raw)[:77]}…"


def _check_together(settings: Settings, sources: Mapping[str, str]) -> None:
    """What is right on its own may not go with the rest."""
    server = settings.server
    if bool(server.tls_cert) != bool(server.tls_key):
        given, missing = ("tls_cert", "tls_key") if server.tls_cert else ("tls_key", "tls_cert")
        where = f"{sources[f'server.{given}']}: server.{given}"
        raise InvalidInput(where, f"is set, but server.{missing} is not", "set both, or none to serve plain HTTP")
    if server.workers > 1 and not settings.store.url.startswith(POSTGRES):
        where = f"{sources['server.workers']}: server.workers"
        raise InvalidInput(
            where, f"is {server.workers}, but store.url is not PostgreSQL", "use 1, or postgresql://… as the store"
        )
