"""Every experiment runs in its quick form, from the command to the report; one that was interrupted goes on."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from roost.cli.main import app
from roost.experiments.catalogue import MODULES, find_study
from roost.experiments.performing import begin, perform, report, unfinished
from roost.model.errors import InvalidInput


def nothing(_: object) -> None:
    """Nobody is told how far it is."""


@pytest.mark.parametrize("name", MODULES)
def test_the_quick_form_leaves_data_a_plot_and_a_report(name: str, tmp_path: Path) -> None:
    study, folder = find_study(name), tmp_path / name
    begin(study, True, folder)
    findings = perform(folder, nothing, processes=1)
    assert findings.tables
    with (folder / "data.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["cell"] for row in rows} == {cell.label for cell in study.cells(True)}
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    text = (folder / "report.md").read_text(encoding="utf-8")
    assert findings.verdict in text
    assert ("slides" if name.startswith("slides") else "paper") in text
    assert f"roost experiment run {name} --quick" in text
    assert "- seed: 1" in text


def test_the_whole_form_has_more_parts_and_names_that_can_be_files() -> None:
    for name in MODULES:
        study = find_study(name)
        whole, quick = study.cells(False), study.cells(True)
        assert len(whole) >= len(quick)
        labels = [cell.label for cell in whole]
        assert len(set(labels)) == len(labels)
        assert all(set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-") for label in labels), labels
        assert all("seed" in cell.settings for cell in whole)


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, ["experiment", "run", "protean-fig15", "--quick", "--processes", "1"])
    assert ran.exit_code == 0, ran.output
    folder = tmp_path / "experiments" / "protean-fig15-quick"
    kept = sorted((folder / "cells").glob("*.json"))
    before = {path: path.stat().st_mtime_ns for path in kept}
    kept[0].unlink()
    assert unfinished(folder) == [kept[0].stem]
    again = CliRunner().invoke(app, ["experiment", "run", "protean-fig15", "--quick", "-o", "json"])
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["tables"]
    assert {path: path.stat().st_mtime_ns for path in kept[1:]} == {path: before[path] for path in kept[1:]}
    assert kept[0].exists()
    written = CliRunner().invoke(app, ["experiment", "report", str(folder)])
    assert "the shape" in written.stdout


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    begin(find_study("protean-table5"), True, folder)
    with pytest.raises(InvalidInput, match="another experiment"):
        begin(find_study("protean-table5"), False, folder)
    with pytest.raises(InvalidInput, match="2 of its 2 parts are still to be done"):
        report(folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InvalidInput, match="is not empty"):
        begin(find_study("protean-table5"), True, tmp_path / "mine")


def test_what_is_damaged_is_told_by_its_file(tmp_path: Path) -> None:
    folder, study = tmp_path / "results", find_study("protean-table5")
    begin(study, True, folder)
    kept = folder / "cells" / f"{study.cells(True)[0].label}.json"
    for other in study.cells(True)[1:]:
        (kept.parent / f"{other.label}.json").write_text('{"settings":{},"rows":[{}],"seconds":1,"peak_mb":1}')
    for damaged in (b"{", b'{"settings":{"\xff":1}}', b'{"settings":{},"rows":[],"seconds":1,"peak_mb":1}'):
        kept.write_bytes(damaged)
        with pytest.raises(InvalidInput, match=kept.name):
            report(folder)
    (folder / "study.json").write_text('{"study":"protean-table5","quick":true,"version":"1","cells":{}}')
    with pytest.raises(InvalidInput, match="has no parts"):
        report(folder)


def test_a_name_that_nobody_knows_is_told_with_those_that_are() -> None:
    with pytest.raises(InvalidInput, match="protean-table5"):
        find_study("protean-tabel5")


def test_the_list_says_what_each_asks() -> None:
    shown = CliRunner().invoke(app, ["experiment", "list", "-o", "json"])
    assert [each["name"] for each in json.loads(shown.stdout)] == list(MODULES)
