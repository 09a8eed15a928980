"""Every command tells about itself in words that people read, in lines that a terminal of 80 columns shows whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.core import TyperArgument, TyperOption

from roost.cli.main import commands
from roost.model.errors import DESTRUCTIVE, InvalidInput

ROOT = commands()
COLUMNS = 80


def _all_of(command: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _all_of(each, *path, name)


EVERY = dict(_all_of(ROOT))


@pytest.fixture(params=EVERY, ids=lambda path: " ".join(("roost", *path)))
def path(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture
def told(path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert ROOT.main([*path, "-h"], prog_name="roost", standalone_mode=False) in (None, 0)
    return capsys.readouterr().out


def test_help_names_no_type_of_python_and_no_formula(told: str) -> None:
    usage = told.split("\n")[1]
    assert not re.search(r"[{}]|\]\.\.\.$|\[\[", usage.replace("[ARGS]...", "")), usage
    for strange in (r"<\w+>", r"<[\w|]+>", r"list\[", r"x[<>]=", r"\brange\b"):
        assert not re.search(strange, told), strange


def test_help_breaks_no_example_and_no_name(path: tuple[str, ...], told: str) -> None:
    command = EVERY[path]
    for line in (command.help or "").splitlines():
        if line.startswith("\b"):
            assert f" {line.removeprefix(chr(8))}".replace("\\[", "[") in told, line
    for each in command.params:
        names = [each.metavar or ""] if isinstance(each, TyperArgument) else [*each.opts, *each.secondary_opts]
        if isinstance(each, TyperOption) and each.metavar:
            names.append(each.metavar)
        assert all(name in told for name in names), names


def test_every_option_has_a_sentence(path: tuple[str, ...]) -> None:
    assert all(each.help for each in EVERY[path].params)


@pytest.mark.parametrize("word", ["cordon", "dwn", "delet", "remov", "revok", "trimm", "rm", "scalein", "evict"])
def test_no_command_leads_to_one_that_destroys(word: str) -> None:
    for path, command in EVERY.items():
        if word not in getattr(command, "commands", {word}):
            with pytest.raises(InvalidInput) as caught:
                ROOT.main([*path, word], prog_name="roost", standalone_mode=False)
            proposed = caught.value.remedy.removeprefix("did you mean ").removesuffix("?").split(" or ")
            assert caught.value.remedy.startswith("it has ") or not DESTRUCTIVE & set(proposed)


def test_cordon_leads_to_what_keeps_new_vms_away() -> None:
    with pytest.raises(InvalidInput, match="has no command 'cordon'; did you mean drain or quarantine"):
        ROOT.main(["machine", "cordon", "m1"], prog_name="roost", standalone_mode=False)


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert ROOT.main(["--version"], prog_name="roost", standalone_mode=False) in (None, 0)
    assert re.fullmatch(r"roost \d+\.\d+\.\d+\n", capsys.readouterr().out)
