"""Reads Huawei-East-1: a CSV of VMs that are created (type 0) and deleted (type 1). Each VM is a request of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roost.traces.assembly import assemble
from roost.traces.reading import AS_IT_IS, Reading, Table, read_table
from roost.traces.times import from_beginning
from roost.traces.workload import ANY, Workload, WorkloadType

COLUMNS = ("vmid", "cpu", "memory", "time", "type")
SOURCE = "Huawei-East-1, a month of a zone of Huawei Cloud: published with VMAgent (mail-ecnu/VMAgent)"


def read_huawei_east(path: Path, how: Reading = AS_IT_IS) -> Workload:
    """The workload in a trace. A VM that is never deleted stays."""
    table = read_table(path, COLUMNS, skip=how.skip)
    _check(table)
    deleted = table.floats("type") == 1
    gone = dict(zip(table.frame["vmid"].filter(deleted), table.floats("time")[deleted].tolist(), strict=True))
    table.keep(~deleted)
    names, times = table.frame["vmid"].to_list(), from_beginning(table, "time")
    firsts, kinds = np.unique(table.groups("cpu", "memory"), return_inverse=True)
    cores, memory = table.floats("cpu"), table.floats("memory")
    return assemble(
        path.name,
        types=[size_of(float(cores[i]), float(memory[i])) for i in firsts.tolist()],
        resources=("cores", "memory"),
        request=np.arange(len(names)),
        time=times.seconds,
        tenant=[f"vm{name}" for name in names],
        type=kinds,
        lifetime=np.array([gone.get(name, np.inf) for name in names]) - table.floats("time"),
        source=SOURCE,
        skipped=table.reasons(),
        notice=times.notice,
    )


def size_of(cores: float, memory: float) -> WorkloadType:
    """The VM type of so many cores and GiB, with a name that says so."""
    return WorkloadType(f"{cores:.12g}U{memory:.12g}G", {ANY: (cores, memory)})


def _check(table: Table) -> None:
    table.check_names("vmid")
    table.check_numbers("cpu", "memory", high=1e6, remedy="give cores, and GiB of memory")
    table.check_numbers("time", remedy="give seconds from 0 up")
    table.check_numbers("type", high=1, whole=True, remedy="0: it is created, 1: it is deleted")
    repeated = table.groups("vmid", "type") != np.arange(len(table))
    is_deletion = table.floats("type") == 1
    wrong = {"is created twice": repeated & ~is_deletion, "is deleted twice": repeated & is_deletion}
    table.refuse("vmid", wrong, "a VM comes and goes once")
    is_deletion = table.floats("type") == 1
    created = dict(zip(table.frame["vmid"].filter(~is_deletion), table.floats("time")[~is_deletion], strict=True))
    begin = np.array([created.get(name, np.nan) for name in table.frame["vmid"]])
    wrong = {
        "is deleted but never created": np.isnan(begin),
        "is deleted before it is created": table.floats("time") < begin,
    }
    table.refuse("vmid", wrong, "a VM leaves after it came")
