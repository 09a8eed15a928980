"""Reads the Azure trace for packing of 2020: SQLite with a table of VMs and one of VM types.

What a type takes is a share of a machine, and differs by kind of machine. Here a machine of each kind, a generation
called `m` and its number, has the amounts of `WHOLE`. VMs that were there before the trace began arrive at 0.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from roost.model.errors import InvalidInput
from roost.model.spans import DAY
from roost.traces.assembly import assemble
from roost.traces.reading import AS_IT_IS, Reading, Table, check_columns, need_polars
from roost.traces.times import LONGEST
from roost.traces.workload import Workload, WorkloadType

if TYPE_CHECKING:
    import polars as pl

WHOLE = {"cores": 100.0, "memory": 1_000.0, "disk": 10_000.0, "ssd": 10_000.0, "nic": 100.0}  # of one machine
SHARES = ("core", "memory", "hdd", "ssd", "nic")  # in the order of `WHOLE`
VM_COLUMNS = ("tenantId", "vmTypeId", "priority", "starttime", "endtime")
TYPE_COLUMNS = ("vmTypeId", "machineId", *SHARES)
PRIORITIES = ("", "spot")  # 0 is high, 1 is low
CHUNK = 100_000  # rows read at once
SOURCE = "Azure trace for packing of 2020 (AzurePublicDataset, CC-BY-4.0): Hadary et al., Protean, OSDI 2020"


def read_azure_packing(path: Path, how: Reading = AS_IT_IS) -> Workload:
    """The workload in a trace; a request is what a tenant asks for at one time."""
    need_polars()
    if not path.is_file():
        raise InvalidInput(str(path), "no such file")
    try:
        address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(address, uri=True)) as database:
            sizes = _table(database, path, "vmType", TYPE_COLUMNS, skip=False)
            vms = _table(database, path, "vm", VM_COLUMNS, skip=how.skip)
    except sqlite3.Error as error:
        raise InvalidInput(str(path), f"is cut off or no SQLite file: {error}", "fetch it again") from None
    types = _types(sizes)
    _check(vms, types)
    start, end = vms.floats("starttime"), vms.floats("endtime")
    begin = np.maximum(start, 0.0)
    _, kinds = np.unique(vms.groups("vmTypeId"), return_inverse=True)
    used = vms.frame["vmTypeId"].unique(maintain_order=True).to_list()
    return assemble(
        path.name,
        types=[types[name] for name in used],
        resources=tuple(WHOLE),
        request=vms.groups("tenantId", "starttime"),
        time=begin * DAY,
        tenant=[f"tenant-{tenant}" for tenant in vms.frame["tenantId"].to_list()],
        type=kinds,
        lifetime=np.where(np.isnan(end), np.inf, (end - begin) * DAY),
        priority=vms.floats("priority").astype(np.int64),
        priorities=PRIORITIES,
        source=SOURCE,
        skipped=vms.reasons(),
    )


def _table(database: sqlite3.Connection, path: Path, name: str, columns: tuple[str, ...], *, skip: bool) -> Table:
    import polars as pl

    found = [row[1] for row in database.execute(f"PRAGMA table_info({name})")]
    if not found:
        raise InvalidInput(str(path), f"has no table {name}", "needed are vm and vmType")
    check_columns(f"{path}: table {name}", found, columns)
    cursor = database.execute(f"SELECT {', '.join(columns)} FROM {name} ORDER BY rowid")
    cells: list[list[pl.Series]] = [[] for _ in columns]
    while rows := cursor.fetchmany(CHUNK):
        for column, values in zip(cells, zip(*rows, strict=True), strict=True):
            column.append(pl.Series(values, strict=False))
    frame = pl.DataFrame({column: _joined(parts) for column, parts in zip(columns, cells, strict=True)})
    table = Table(path, frame, np.arange(1, frame.height + 1), mark=f": {name} row ", skip=skip)
    if not len(table):
        raise InvalidInput(str(path), f"the table {name} is empty")
    return table


def _joined(parts: list[pl.Series]) -> pl.Series:
    """A column of its chunks; SQLite may keep numbers in one and texts in another."""
    import polars as pl

    kinds = {part.dtype for part in parts}
    if len(kinds) == 1 or not parts:
        return pl.concat(parts) if parts else pl.Series([], dtype=pl.Null)
    number = all(kind.is_numeric() or kind == pl.Null for kind in kinds)
    return pl.concat([part.cast(pl.Float64 if number else pl.String) for part in parts])


def _types(table: Table) -> dict[str, WorkloadType]:
    """VM types by number, with what they take on each kind of machine."""
    table.check_names("vmTypeId", "machineId")
    table.check_numbers(*SHARES, high=1.0, optional=True, remedy="give a share of a machine, from 0 to 1")
    repeated = table.groups("vmTypeId", "machineId") != np.arange(len(table))
    table.refuse("machineId", {"is there twice for one vmTypeId": repeated}, "a type has one size on a machine")
    amounts = [np.nan_to_num(table.floats(share)) * whole for share, whole in zip(SHARES, WHOLE.values(), strict=True)]
    demand: dict[str, dict[str, tuple[float, ...]]] = {}
    rows = zip(table.frame["vmTypeId"], table.frame["machineId"], np.stack(amounts, axis=1).tolist(), strict=True)
    for name, machine, takes in rows:
        demand.setdefault(name, {})[f"m{machine}"] = tuple(takes)
    return {name: WorkloadType(f"type-{name}", each) for name, each in demand.items()}


def _check(table: Table, types: dict[str, WorkloadType]) -> None:
    table.check_names("tenantId", "vmTypeId")
    table.check_known("vmTypeId", "row of vmType", types)
    table.check_numbers("priority", high=1, whole=True, remedy="0 is high, 1 is low")
    most = LONGEST / DAY
    table.check_numbers("starttime", low=-np.inf, high=most, remedy="give days, below 0 if it was there before")
    table.check_numbers("endtime", low=-np.inf, optional=True, remedy="give days, or NULL if it stayed")
    start, end = table.floats("starttime"), table.floats("endtime")
    table.refuse("endtime", {"is before starttime": end < start}, "a VM leaves after it came")
    table.leave_out(table.floats("endtime") < 0, "left before the trace begins")
