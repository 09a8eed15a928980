"""When machines of a real system were down: a row per outage, with the machine's number, its start and its end."""

from __future__ import annotations

from pathlib import Path

import msgspec

from roost.model.errors import InvalidInput
from roost.traces.reading import read_table

COLUMNS = ("node", "start", "end")


class Outage(msgspec.Struct, frozen=True, gc=False):
    """A machine is down for a while; times are in seconds from the first outage."""

    start: float
    end: float
    node: int


def read_outages(path: Path, system: str = "") -> list[Outage]:
    """The outages of a file (CSV or Parquet, as LANL's), in the order of their beginning; of one system, if it says."""
    import polars as pl

    frame = read_table(path, COLUMNS, ("system",)).frame
    if system:
        if "system" not in frame.columns:
            raise InvalidInput(str(path), "has no column system", "leave the system out")
        frame = frame.filter(pl.col("system").cast(pl.String) == system)
    if frame.is_empty():
        raise InvalidInput(
            str(path), f"has no outage of system {system}" if system else "has no outage", "choose another"
        )
    try:
        times = [frame[name].cast(pl.String).str.to_datetime("%Y-%m-%d %H:%M:%S").dt.epoch("s") for name in COLUMNS[1:]]
        nodes = frame["node"].cast(pl.Int64).to_list()
    except pl.exceptions.PolarsError as error:
        said = str(error).splitlines()[0]
        raise InvalidInput(str(path), f"cannot be read: {said}", "give times as 2002-05-06 08:45:00") from None
    first = min(times[0].to_list())
    rows = zip(times[0].to_list(), times[1].to_list(), nodes, strict=True)
    return sorted((Outage(start - first, max(start, end) - first, node) for start, end, node in rows), key=_when)


def _when(outage: Outage) -> tuple[float, float, int]:
    return outage.start, outage.end, outage.node
