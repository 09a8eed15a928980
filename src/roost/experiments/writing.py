"""What a study leaves behind for people: a report in Markdown, a plot, all rows as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roost.experiments.study import FigureRow, Findings, ReportTable, Study
from roost.plotting import save
from roost.sim.formats import span

DATA, PLOT, REPORT = "data.csv", "plot.png", "report.md"


def write(
    folder: Path,
    study: Study,
    quick: bool,
    cells: Mapping[str, Mapping[str, Any]],
    rows: Sequence[FigureRow],
    findings: Findings,
    seconds: float,
) -> None:
    """All of it into a folder."""
    _write_rows(folder / DATA, rows)
    save(study.draw(rows), folder / PLOT)
    text = "\n".join(_report(study, quick, cells, findings, seconds)) + "\n"
    (folder / REPORT).write_text(text, encoding="utf-8")


def _write_rows(path: Path, rows: Sequence[FigureRow]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    names.insert(0, names.pop(names.index("cell")))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in row.items()} for row in rows)


def _report(
    study: Study, quick: bool, cells: Mapping[str, Mapping[str, Any]], findings: Findings, seconds: float
) -> list[str]:
    command = f"roost experiment run {study.name}" + (" --quick" if quick else "")
    lines = [f"# {study.name}: {study.title}", "", f"After {study.source}. {study.question}", ""]
    if quick:
        lines += ["**The quick form: it shows that all of it works; its figures mean little.**", ""]
    lines += [f"**{'The shape holds' if findings.holds else 'The shape does not hold'}**: {findings.verdict}", ""]
    lines += [f"![{study.title}]({PLOT})", ""]
    for table in findings.tables:
        lines += [*_table(table), ""]
    lines += [line for remark in findings.remarks for line in (f"- {remark}",)]
    lines += [""] if findings.remarks else []
    lines += ["## Again", "", f"    {command}", "", f"{len(cells)} parts, {span(seconds)} of computing. Settings:", ""]
    lines += [*_settings(cells), "", f"All figures are in [{DATA}]({DATA})."]
    return lines


def _table(table: ReportTable) -> list[str]:
    rows = [f"| {' | '.join(cells)} |" for cells in (table.headings, *table.rows)]
    rule = "|" + "|".join(" --- " if i == 0 else " ---: " for i in range(len(table.headings))) + "|"
    return [f"### {table.title}", "", rows[0], rule, *rows[1:]]


def _settings(cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What all cells have in common, and in what they differ."""
    names = list(dict.fromkeys(name for settings in cells.values() for name in settings))
    lines = []
    for name in names:
        values = list(dict.fromkeys(str(settings.get(name, "–")) for settings in cells.values()))
        lines.append(f"- {name.replace('_', ' ')}: {', '.join(values)}")
    return lines
