"""Performs a study in a folder: cell by cell on all cores, each kept as soon as it is done, so that it can go on.

FOLDER/study.json           what is performed: study, cells with their settings and seeds, version
FOLDER/cells/LABEL.json     what a cell found
FOLDER/data.csv             all rows; plot.png; report.md
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from roost.experiments.catalogue import find_study
from roost.experiments.study import Cell, CellContext, FigureValue, Findings, Study
from roost.experiments.writing import write
from roost.model.errors import InvalidInput
from roost.sim.processes import ENDED, WAITS, Tell, Told, perform_in_turn, perform_together
from roost.sim.result import pretty

STUDY, CELLS = "study.json", "cells"


class Performance(msgspec.Struct, frozen=True):
    """What is performed in a folder."""

    study: str
    quick: bool
    version: str
    cells: dict[str, dict[str, Any]]  # label: settings

    @classmethod
    def of(cls, study: Study, quick: bool) -> Performance:
        """As this version would do it."""
        cells = {cell.label: dict(cell.settings) for cell in study.cells(quick)}
        return cls(study.name, quick, version("roost"), cells)


class CellResult(msgspec.Struct, frozen=True):
    """What a cell found, and what it took."""

    settings: dict[str, Any]
    rows: list[dict[str, FigureValue]]
    seconds: float
    peak_mb: float


def begin(study: Study, quick: bool, folder: Path) -> None:
    """Make a folder for a study, or see that the one there is of this very study, to go on with it."""
    wanted = Performance.of(study, quick)
    if (folder / STUDY).exists():
        if _opened(folder) != wanted:
            raise InvalidInput(str(folder), "holds another experiment, or one with other settings", "choose another")
        return
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(str(folder), "is not empty", "choose another folder with --to")
    try:
        (folder / CELLS).mkdir(parents=True, exist_ok=True)
        (folder / STUDY).write_bytes(pretty(wanted))
    except OSError as error:
        raise InvalidInput(str(folder), f"cannot be written: {error.strerror}", "choose another folder") from None


def perform(folder: Path, progress: Callable[[Told[str]], None], processes: int = 0) -> Findings:
    """All cells that are not done yet; then the report. `processes`: how many at once; 0: one per core."""
    performance = _opened(folder)
    study = find_study(performance.study)
    jobs = {label: partial(perform_cell, folder, label) for label in unfinished(folder)}
    together = {label: job for label, job in jobs.items() if not study.alone(Cell(label, performance.cells[label]))}
    workers = min(processes or os.cpu_count() or 1, len(together))
    told: dict[str, tuple[float, int]] = dict.fromkeys(jobs, WAITS)

    def show(some: Told[str]) -> None:
        told.update(some)
        progress(told)

    if workers > 1:
        for label, problem in perform_together(together, show, workers).items():
            short = "perhaps memory is short: the same command with --processes 1 goes on" if problem == ENDED else ""
            raise InvalidInput(f"experiment {study.name}, {label}", problem, short)
        jobs = {label: job for label, job in jobs.items() if label not in together}
    perform_in_turn(jobs, show)
    return report(folder)


def unfinished(folder: Path) -> list[str]:
    """The cells that are still to be done."""
    return [label for label in _opened(folder).cells if not _kept(folder, label).exists()]


def perform_cell(folder: Path, label: str, tell: Tell) -> None:
    """One cell, from its checkpoint if it has one."""
    performance = _opened(folder)
    cell = Cell(label, performance.cells[label])
    tell(0.0, 0)
    started = time.perf_counter()
    checkpoint = folder / CELLS / f"{label}.checkpoint"
    operations = 0

    def note(share: float, done: int) -> None:
        nonlocal operations
        operations = done
        tell(share, done)

    rows = find_study(performance.study).perform(cell, CellContext(checkpoint, note))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = CellResult(dict(cell.settings), rows, time.perf_counter() - started, peak)
    part = _kept(folder, label).with_suffix(".part")
    part.write_bytes(msgspec.json.encode(found))
    part.replace(_kept(folder, label))
    checkpoint.unlink(missing_ok=True)
    tell(1.0, operations)


def report(folder: Path) -> Findings:
    """Write data, plot and report, once all cells are done."""
    performance = _opened(folder)
    if left := unfinished(folder):
        problem = f"{len(left)} of its {len(performance.cells)} parts are still to be done"
        raise InvalidInput(str(folder), problem, f"go on with `roost experiment run {performance.study}`")
    results = {label: _result(folder, label) for label in performance.cells}
    rows = [{**row, "cell": label} for label, result in results.items() for row in result.rows]
    study = find_study(performance.study)
    findings = study.find(rows)
    seconds = sum(result.seconds for result in results.values())
    write(folder, study, performance.quick, performance.cells, rows, findings, seconds)
    return findings


def _result(folder: Path, label: str) -> CellResult:
    path, remedy = _kept(folder, label), "remove it and run the experiment again"
    try:
        found = msgspec.json.decode(path.read_bytes(), type=CellResult)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(str(path), f"cannot be read: {error}", remedy) from None
    if not found.rows:
        raise InvalidInput(str(path), "has no rows", remedy)
    return found


def _kept(folder: Path, label: str) -> Path:
    return folder / CELLS / f"{label}.json"


def _opened(folder: Path) -> Performance:
    try:
        found = msgspec.json.decode((folder / STUDY).read_bytes(), type=Performance)
    except FileNotFoundError:
        raise InvalidInput(str(folder), "holds no experiment", "give the folder of `roost experiment run`") from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(str(folder / STUDY), f"cannot be read: {error}", "choose another folder") from None
    if not found.cells:
        raise InvalidInput(str(folder / STUDY), "has no parts", "choose another folder")
    return found
