"""`roost config`, as a person runs it: what is in force and why, what there is to set, and whether a file is right."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from roost.settings import SETTINGS

# The whole command with `config` in it, whether or not it is registered already: the later of two is the same.
ROOST = """
from roost.cli import config, main

main.app.add_typer(config.app, name="config")
main.main()
"""


def config(*arguments: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROOST_")}
    command = [sys.executable, "-c", ROOST, "config", *arguments]
    environment = kept | {"COLUMNS": "120"} | environ
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_show_tells_each_value_and_where_it_comes_from(tmp_path: Path) -> None:
    (tmp_path / "roost.toml").write_text("[agent]\nseed = 9\n")
    done = config("show", "--set", "server.port=8000", folder=tmp_path, ROOST_LOG_LEVEL="debug")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["agent.seed"] == ["9", "file", "roost.toml"]
    assert rows["server.port"] == ["8000", "flag", "--set"]
    assert rows["log.level"] == ["debug", "environment", "ROOST_LOG_LEVEL"]
    assert rows["server.allow_anonymous"] == ["false", "default"]
    assert set(SETTINGS) <= set(rows)


def test_show_prints_json_for_programs(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text("limits.rate = 2\n")
    done = config("show", "--config", str(file), "-o", "json", folder=tmp_path)
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["limits.rate"] == {"name": "limits.rate", "value": 2.0, "from": f"file {file}"}
    assert list(rows) == list(SETTINGS)


@pytest.mark.parametrize("form", ["table", "json"])
def test_show_keeps_secrets(tmp_path: Path, form: str) -> None:
    done = config(
        "show",
        *("-o", form, "--set", "store.url=postgresql://me:hush@db/roost"),
        folder=tmp_path,
        ROOST_TOKEN="hush",
    )
    assert done.returncode == 0, done.stderr
    assert "hush" not in done.stdout + done.stderr
    assert "postgresql://me:***@db/roost" in done.stdout


def test_a_value_is_no_markup(tmp_path: Path) -> None:
    assert "[bold]x[/]" in config("show", "--set", "agent.policy=[bold]x[/]", folder=tmp_path).stdout


def test_describe_names_every_setting_and_its_variable(tmp_path: Path) -> None:
    table = config("describe", folder=tmp_path).stdout
    rows = json.loads(config("describe", "-o", "json", folder=tmp_path).stdout)
    assert [row["name"] for row in rows] == list(SETTINGS)
    assert set(rows[0]) == {"name", "type", "default", "unit", "sentence", "environment", "allowed"}
    for row in rows:
        assert row["name"] in table
        assert row["environment"] in table


def test_describe_writes_a_file_to_start_from_and_check_finds_it_fine(tmp_path: Path) -> None:
    written = config("describe", "-o", "toml", folder=tmp_path).stdout
    assert tomllib.loads(written)["server"]["port"] == 7117
    (tmp_path / "mine.toml").write_text(written)
    done = config("check", "mine.toml", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"mine.toml is fine; settings in it: {len(SETTINGS)}\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("check", "bad.toml"), "bad.toml:2: no setting is called 'server.prot'; did you mean server.port"),
        (("check", "missing.toml"), "missing.toml: no such file"),
        (("show", "--config", "bad.toml"), "bad.toml:2: no setting"),
        (("show", "--set", "server.port=many"), "flag --set: server.port: is 'many'; use a whole number"),
        (("show", "--set", "server.prot=1"), "--set: no setting is called 'server.prot'"),
        (("show", "--set", "server.port"), "write it as server.port=8000"),
    ],
)
def test_a_mistake_ends_with_a_sentence_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "bad.toml").write_text("[server]\nprot = 1\n")
    done = config(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_help_shows_examples(tmp_path: Path) -> None:
    for command in ("show", "describe", "check"):
        assert f"roost config {command}" in config(command, "--help", folder=tmp_path).stdout
