"""The tables that traces come in: CSV, gzipped CSV and Parquet as checked columns.

A row that is wrong is an error that names its file, row and column; or, if the user said so, it is left out and counted
by reason. Damage to a file as a whole (cut off, not text, a column that is missing) is an error always.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roost.model.errors import InvalidInput, UnknownName
from roost.model.names import PLAIN, REMEDY

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    Rows = NDArray[np.bool_]

CSV, PARQUET = (".csv", ".csv.gz"), ".parquet"
SUFFIXES = (*CSV, PARQUET)


@dataclass(frozen=True)
class Reading:
    """How a trace is read."""

    skip: bool = False  # leave out rows that are wrong, and count them
    seed: int = 0  # of what a trace leaves open, such as the instant within five minutes
    interval: float = 1.0  # seconds between requests of a trace that has no times


AS_IT_IS = Reading()


class Table:
    """Rows of a file, and where each of them stands. Checks drop rows that are wrong, or raise on the first."""

    def __init__(
        self, path: Path, frame: pl.DataFrame, numbers: NDArray[np.int64], mark: str = ":", skip: bool = False
    ) -> None:
        self.path, self.frame, self._numbers, self._mark, self._skip = path, frame, numbers, mark, skip
        self.skipped: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._numbers)

    def where(self, row: int, column: str = "") -> str:
        """The file, row and column of a cell."""
        return f"{self.path}{self._mark}{self._numbers[row]}" + (f": {column}" if column else "")

    def floats(self, column: str) -> NDArray[np.float64]:
        """A column that was checked to be of numbers; NaN where nothing is given."""
        import polars as pl

        return self.frame[column].cast(pl.Float64).to_numpy()

    def groups(self, *columns: str) -> NDArray[np.int64]:
        """For each row, the first one that is equal to it in these columns."""
        import polars as pl

        indexed = self.frame.select(*columns).with_row_index("first row")
        return indexed.select(pl.col("first row").min().over(list(columns)).cast(pl.Int64)).to_series().to_numpy()

    def check_names(self, *columns: str) -> None:
        """From now on these columns are texts that things may be called by, and none is empty."""
        for column in columns:
            self._make_text(column)
            self.refuse(column, {"is empty": self.frame[column].is_null().to_numpy()}, "every row has one")
            self.refuse(column, {"is no name": ~self.frame[column].str.contains(f"^{PLAIN}$").to_numpy()}, REMEDY)

    def check_known(self, column: str, kind: str, known: Iterable[str]) -> None:
        """A column of names has none but these, or nothing."""
        known = list(known)
        self._make_text(column)
        cells = self.frame[column]
        strange = (~cells.is_in(known) & cells.is_not_null()).to_numpy()
        if not self._skip and strange.any():
            row = int(np.flatnonzero(strange)[0])
            raise UnknownName(self.where(row, column), kind, cells[row], known)
        self.refuse(column, {"is unknown": strange}, "")

    def check_numbers(
        self,
        *columns: str,
        remedy: str,
        low: float = 0.0,
        high: float = np.inf,
        whole: bool = False,
        optional: bool = False,
    ) -> None:
        """From now on these columns are numbers within bounds; only if they are optional, a cell may be empty."""
        for column in columns:
            given = self.frame[column].is_not_null().to_numpy()
            parsed = self._parsed(column)
            values = parsed.to_numpy()
            wrong = {
                "is empty": ~given & (not optional),
                "is no number": given & ~np.isfinite(values),
                "is negative" if low == 0 else f"is below {low:,.12g}": values < low,
                f"is above {high:,.12g}": values > high,
            }
            if whole:
                wrong["is no whole number"] = np.isfinite(values) & (values != np.floor(values))
            before = len(self)
            self.refuse(column, wrong, remedy)
            self.frame = self.frame.with_columns(parsed if len(self) == before else self._parsed(column))

    def check_same(self, by: Sequence[str], columns: Iterable[str], what: str, remedy: str) -> None:
        """Rows that are equal in some columns (what they are together) are equal in others, too."""
        for column in columns:
            cells = self.frame[column]
            differs = cells.ne_missing(cells[self.groups(*by)]).to_numpy()
            self.refuse(column, {f"differs from an earlier row of the same {what}": differs}, remedy)

    def refuse(self, column: str, wrong: Mapping[str, Rows], remedy: str) -> None:
        """Rows that are wrong, by reason: the first of them is an error; or all are left out and counted."""
        bad = np.zeros(len(self), np.bool_)
        for these in wrong.values():
            bad = bad | these
        if not bad.any():
            return
        if not self._skip:
            row = int(np.flatnonzero(bad)[0])
            reason = next(reason for reason, these in wrong.items() if these[row])
            cell = self.frame[column][row] if column else None
            raise InvalidInput(self.where(row, column), reason if cell is None else f"{reason}: {cell}", remedy)
        left = np.zeros(len(self), np.bool_)
        for reason, these in wrong.items():
            self.skipped[f"{column} {reason}".strip()] += int((these & ~left).sum())
            left = left | these
        self.keep(~bad)

    def leave_out(self, these: Rows, reason: str) -> None:
        """Rows that are right, but of no use; they are counted, too."""
        if these.any():
            self.skipped[reason] += int(these.sum())
            self.keep(~these)

    def reasons(self) -> dict[str, int]:
        """How many rows were left out, by reason."""
        return {reason: count for reason, count in self.skipped.most_common() if count}

    def keep(self, rows: Rows) -> None:
        """Go on with these rows only."""
        self.frame, self._numbers = self.frame.filter(rows), self._numbers[rows]
        if not len(self):
            why = ", ".join(f"{count:,}: {reason}" for reason, count in self.reasons().items())
            raise InvalidInput(str(self.path), f"no row can be used ({why})", "is it the kind of file you think?")

    def _make_text(self, column: str) -> None:
        import polars as pl

        self._refuse_type(column)
        cells = self.frame[column].cast(pl.String)
        self.frame = self.frame.with_columns(pl.when(cells != "").then(cells).alias(column))

    def _parsed(self, column: str) -> pl.Series:
        import polars as pl

        self._refuse_type(column)
        cells = self.frame[column]
        if cells.dtype == pl.String:
            cells = cells.str.strip_chars()
        return cells.cast(pl.Float64, strict=False)

    def _refuse_type(self, column: str) -> None:
        import polars as pl

        kind = self.frame[column].dtype
        if not (kind.is_numeric() or kind in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Null)):
            raise InvalidInput(f"{self.path}: {column}", f"is a column of {kind}", "use one of numbers or texts")


def read_table(
    path: Path, required: Sequence[str], optional: Sequence[str] = (), *, skip: bool = False, strict: bool = False
) -> Table:
    """The rows of a CSV or Parquet file. Columns that nobody knows are left out; if strict, refused."""
    need_polars()
    if not path.name.endswith(SUFFIXES):
        raise InvalidInput(str(path), "is no table", f"use a file that ends in {', '.join(SUFFIXES)}")
    data = _bytes(path)
    table = _parquet(path, data, skip) if path.name.endswith(PARQUET) else _csv(path, data, skip)
    check_columns(str(path), table.frame.columns, required)
    known = [*required, *optional]
    if strict and (strange := [column for column in table.frame.columns if column not in known]):
        raise UnknownName(str(path), "column", strange[0], known)
    if not len(table):
        raise InvalidInput(str(path), "has no rows", "give each VM or machine a row")
    table.frame = table.frame.select(column for column in known if column in table.frame.columns)
    return table


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Whole or not at all, and the same bytes for the same rows."""
    whole = io.BytesIO()
    if path.name.endswith(PARQUET):
        frame.write_parquet(whole)
    else:
        frame.write_csv(whole)
    data = gzip.compress(whole.getvalue(), mtime=0) if path.name.endswith(CSV[1]) else whole.getvalue()
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be written: {error.strerror}") from None


def check_columns(where: str, found: Sequence[str], required: Sequence[str]) -> None:
    """All that are required are found."""
    if missing := [column for column in required if column not in found]:
        raise InvalidInput(where, f"has no column {', '.join(missing)}", f"needed are {', '.join(required)}")


def need_polars() -> None:
    """Workloads are read and written by Polars, which may be missing."""
    try:
        import polars  # noqa: F401
    except ImportError:
        remedy = "install Roost with its `data` extra: pip install 'roost[data]'"
        raise InvalidInput("workload", "is read and written by Polars, which is not installed", remedy) from None


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except FileNotFoundError:
        raise InvalidInput(str(path), "no such file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(str(path), f"is cut off or damaged: {error}", "fetch it again") from None
    except OSError as error:
        raise InvalidInput(str(path), f"cannot be read: {error.strerror}") from None


# ----------------------------------------------------------------------------------------------------------------- CSV


def _csv(path: Path, data: bytes, skip: bool) -> Table:
    import polars as pl

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidInput(f"{path}:{line}", "is not valid UTF-8", "save it as UTF-8") from None
    if not text.strip():
        raise InvalidInput(str(path), "is empty", "the first row names the columns")
    header, frame, cells, numbers = _quoted(path, text) if '"' in text else _plain(text)
    for i, column in enumerate(header):
        if column in header[:i]:
            raise InvalidInput(f"{path}:1", f"the column {column!r} is there twice", "keep one of them")
    frame.columns = header
    table = Table(path, frame.with_columns(pl.when(pl.all() != "").then(pl.all())), numbers, skip=skip)
    last = np.arange(len(table)) == len(table) - 1
    table.refuse(
        "",
        {
            "has too few cells": cells < len(header),
            "has too many cells": cells > len(header),
            "has no end": last & (not text.endswith("\n")),
        },
        f"each row has {len(header)} cells and ends with a newline; the file may be cut off",
    )
    return table


def _plain(text: str) -> tuple[list[str], pl.DataFrame, NDArray[np.int64], NDArray[np.int64]]:
    """CSV without quotes, the usual case: columns, rows, cells of each row, numbers of the rows."""
    import polars as pl

    first, *lines = text.replace("\r\n", "\n").split("\n")
    header = [cell.strip() for cell in first.split(",")]
    rows = pl.Series(lines, dtype=pl.String)
    filled = rows != ""
    rows = rows.filter(filled)
    frame = rows.str.split_exact(",", len(header) - 1).struct.unnest()
    cells = rows.str.count_matches(",", literal=True).cast(pl.Int64).to_numpy() + 1
    return header, frame, cells, filled.arg_true().cast(pl.Int64).to_numpy() + 2


def _quoted(path: Path, text: str) -> tuple[list[str], pl.DataFrame, NDArray[np.int64], NDArray[np.int64]]:
    """The same of any CSV, more slowly."""
    import polars as pl

    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows, numbers = [], []
    try:
        header = [cell.strip() for cell in next(reader)]
        width, line = len(header), reader.line_num
        for row in reader:
            if row:
                rows.append(row)
                numbers.append(line + 1)  # where it begins; a quoted cell may have several lines
            line = reader.line_num
    except csv.Error as error:
        raise InvalidInput(f"{path}:{reader.line_num}", f"is not valid CSV: {error}", "it may be cut off") from None
    cells = np.fromiter(map(len, rows), np.int64)
    padded = [(row + [""] * width)[:width] for row in rows]
    frame = pl.DataFrame(padded, schema=dict.fromkeys(map(str, range(width)), pl.String), orient="row")
    return header, frame, cells, np.array(numbers, np.int64)


# ------------------------------------------------------------------------------------------------------------- Parquet


def _parquet(path: Path, data: bytes, skip: bool) -> Table:
    import polars as pl

    try:
        frame = pl.read_parquet(io.BytesIO(data))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInput(str(path), f"is cut off or no Parquet file: {reason}", "fetch or make it again") from None
    return Table(path, frame, np.arange(1, frame.height + 1), mark=": row ", skip=skip)
