"""Lists of machines in CSV or Parquet, as columns of text that know where each cell stands."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roost.model.errors import InvalidInput, UnknownName
from roost.model.mistakes import Mistakes
from roost.model.names import check_new_name, is_name
from roost.model.yaml_file import YamlFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_MACHINES = 1_000_000
INT16_MAX = 2**15 - 1

# Columns of a list of machines, besides one per resource; for numbers, with the highest.
REQUIRED_COLUMNS = ("name", "cluster", "rack", "generation")
NUMBER_COLUMNS = {"update_domain": INT16_MAX, "health": 100, "failures": INT16_MAX, "versions_behind": INT16_MAX}
COLUMNS = (*REQUIRED_COLUMNS, "datacenter", "state", "features", *NUMBER_COLUMNS)


@dataclass(frozen=True)
class MachineList:
    """A list of machines as text: cells by column and row, empty where nothing is given."""

    header: str  # where the names of the columns stand, in errors
    mark: str  # what stands before the number of a row, in errors
    numbers: Sequence[int]  # of the rows, as people count them
    columns: Mapping[str, Sequence[str]]
    mistakes: Mistakes = field(default_factory=Mistakes)  # of cells, to be told together

    def where(self, row: int, column: str) -> str:
        """The file, row and column of a cell."""
        return f"{self.mark}{self.numbers[row]}: {column}"

    def cells(self, column: str) -> Sequence[str]:
        """A column as it is; without it, nothing is given."""
        return self.columns[column] if column in self.columns else [""] * len(self.numbers)

    def note(self, row: int, column: str, problem: str, remedy: str) -> None:
        """Note what is wrong with a cell."""
        self.mistakes.note(InvalidInput(self.where(row, column), problem, remedy))

    def names(self, column: str, default: str = "") -> Sequence[str]:
        """A column of names; if there is no default, every row has one."""
        cells = self.cells(column)
        if "" not in cells:
            return cells
        if not default:
            for row in (row for row, cell in enumerate(cells) if not cell):
                self.note(row, column, "is empty", "every machine has one")
        return [cell or default for cell in cells]

    def new_names(self, column: str, default: str = "") -> Sequence[str]:
        """A column of names by which things will be called."""
        names = self.names(column, default)
        for name in dict.fromkeys(names):
            if name and not is_name(name):
                with self.mistakes.noted():
                    check_new_name(self.where(names.index(name), column), name)
        return names

    def choices(self, column: str, kind: str, known: Mapping[str, int], default: str = "") -> NDArray[np.int64]:
        """A column of known names, as what they stand for; -1 for others, which are noted."""
        names = self.names(column, default)
        strange = [name for name in dict.fromkeys(names) if name not in known]
        for name in (name for name in strange if name):
            self.mistakes.note(UnknownName(self.where(names.index(name), column), kind, name, known))
        return looked_up(names, {**known, **dict.fromkeys(strange, -1)})

    def amounts(self, column: str, highest: int, remedy: str, whole: bool = False) -> NDArray[np.float64]:
        """A column of numbers from 0 to `highest`, NaN where nothing is given, or nothing right."""
        if column not in self.columns:
            return np.full(len(self.numbers), np.nan)
        cells = self.columns[column]
        values = np.array(_floats(cells))
        right = (values >= 0) & (values <= highest)
        if whole:
            right &= values == np.floor(values)
        for row in np.flatnonzero(~right).tolist():
            if cells[row]:
                self.note(row, column, f"is {cells[row]!r}", remedy)
        return np.where(right, values, np.nan)


def _floats(cells: Sequence[str]) -> list[float]:
    """Each cell as a number, NaN if it is none."""
    try:
        return [float(cell) if cell else np.nan for cell in cells]
    except ValueError:
        return [_float(cell) for cell in cells]


def _float(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return np.nan


def numbered(keys: Iterable[Any]) -> dict[Any, int]:
    """Different keys, numbered in the order in which they first appear."""
    return {key: i for i, key in enumerate(dict.fromkeys(keys))}


def looked_up(keys: Iterable[Any], numbers: Mapping[Any, int]) -> NDArray[np.int64]:
    """The number of each key."""
    return np.fromiter(map(numbers.__getitem__, keys), np.int64)


def read_machine_list(file: YamlFile, name: str, resources: Iterable[str]) -> MachineList:
    """The list that a zone file points to, with the columns it must have and none that nobody knows.

    What is wrong with its cells will be noted with the mistakes of the file.
    """
    path = file.path.parent / name
    readers = {".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise file.mistake(("machines",), f"{name!r} is not a list of machines", f"use a {' or '.join(readers)} file")
    try:
        table = readers[path.suffix](path)
    except FileNotFoundError:
        raise file.mistake(("machines",), f"there is no file {path}", "the path starts at the zone file") from None
    except OSError as error:
        raise file.mistake(("machines",), f"cannot be read: {error}") from None
    except ImportError:
        remedy = "install Roost with its `data` extra (pip install 'roost[data]'), or use a .csv file"
        raise file.mistake(("machines",), "Parquet is read by Polars, which is not installed", remedy) from None
    known = [*COLUMNS, *resources]
    for column in table.columns:
        if column not in known:
            raise UnknownName(table.header, "column", column, known)
    for column in REQUIRED_COLUMNS:
        if column not in table.columns:
            raise InvalidInput(table.header, f"has no column {column}", f"needed are {', '.join(REQUIRED_COLUMNS)}")
    if not table.numbers:
        raise InvalidInput(table.header, "lists no machines", "give each machine a row")
    return replace(table, mistakes=file.mistakes)


def _read_csv(path: Path) -> MachineList:
    rows: list[list[str]] = []
    numbers: list[int] = []
    line = 0
    try:
        with path.open(encoding="utf-8-sig", newline="") as source:
            reader = csv.reader(source, strict=True)
            header = [cell.strip() for cell in next(reader, [])]
            line = reader.line_num
            for row in reader:
                line = reader.line_num
                if len(row) == len(header):
                    rows.append(row)
                    numbers.append(line)
                    if len(rows) > MOST_MACHINES:
                        break  # too many: refused soon
                elif row:  # an empty line is no row
                    problem = f"has {len(row)} cells, but there are {len(header)} columns"
                    raise InvalidInput(f"{path}:{line}", problem, "leave a cell empty rather than out")
    except csv.Error as error:
        raise InvalidInput(f"{path}:{line + 1}", f"not valid CSV: {error}") from None
    except UnicodeDecodeError:
        raise InvalidInput(f"{path}:{line + 1}", "not valid UTF-8, here or soon after", "save it as UTF-8") from None
    if not header:
        raise InvalidInput(f"{path}:1", "there are no columns", f"start with {','.join(REQUIRED_COLUMNS)}")
    for i, column in enumerate(header):
        if column in header[:i]:
            raise InvalidInput(f"{path}:1", f"the column {column!r} is there twice", "keep one of them")
    cells = zip(*rows, strict=True) if rows else [()] * len(header)
    # Most cells repeat; sharing the equal ones makes what follows a third faster.
    columns = {
        column: list(map(sys.intern, map(str.strip, values))) for column, values in zip(header, cells, strict=True)
    }
    return MachineList(f"{path}:1", f"{path}:", numbers, columns)


def _read_parquet(path: Path) -> MachineList:
    import polars as pl  # an extra, and slow to import

    columns = {}
    try:
        with path.open("rb") as source:
            frame = pl.read_parquet(source)
        for column in frame.iter_columns():
            texts = column.list.join("|") if column.dtype == pl.List(pl.String) else column.cast(pl.String)
            columns[column.name] = texts.fill_null("").str.strip_chars().to_list()
    except pl.exceptions.PolarsError as error:
        raise InvalidInput(str(path), f"not a Parquet file of texts and numbers: {error}") from None
    return MachineList(str(path), f"{path}: row ", range(1, frame.height + 1), columns)
