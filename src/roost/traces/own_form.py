"""Roost's own form of workloads: a table with a row per VM, in CSV, gzipped CSV or Parquet (see docs/workloads.md).

What a VM type takes stands in the rows; or, where it differs by hardware, in a second file, NAME.types.csv beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roost.model.availability import MOST
from roost.model.errors import InvalidInput
from roost.model.request import ON_PLACES, Constraints
from roost.model.zone import DEFAULT_RESOURCES, INT32_MAX
from roost.traces.assembly import assemble
from roost.traces.reading import AS_IT_IS, SUFFIXES, Reading, Table, need_polars, read_table, write_table
from roost.traces.times import from_beginning
from roost.traces.workload import ANY, Workload, WorkloadType

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

REQUIRED = ("time_s", "tenant", "vm_type", "lifetime_s")
RESOURCES = {resource.name: resource for resource in DEFAULT_RESOURCES}
COLOCATE, BEST_EFFORT = "colocate", "best_effort"
CONSTRAINTS = (*ON_PLACES, BEST_EFFORT)
COUNTS = tuple(field for field in ON_PLACES if field != COLOCATE)
OPTIONAL = ("request", *RESOURCES, "priority", *CONSTRAINTS)
NEAR = ("rack", "cluster", "datacenter")

Demand = dict[str, dict[str, tuple[float, ...]]]  # by VM type and generation: of each resource


def types_beside(path: Path) -> Path:
    """Where the sizes of VM types are, if a workload keeps them apart."""
    suffix = next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), path.suffix)
    return path.with_name(f"{path.name.removesuffix(suffix)}.types.csv")


# ------------------------------------------------------------------------------------------------------------- reading


def read_own_form(path: Path, how: Reading = AS_IT_IS, types: Path | None = None) -> Workload:
    """The workload in a file, with the sizes of another if it is given or stands beside."""
    table = read_table(path, REQUIRED, OPTIONAL, skip=how.skip, strict=True)
    columns = table.frame.columns
    resources = tuple(column for column in columns if column in RESOURCES)
    sizes: Demand | None = None
    if types or types_beside(path).exists():
        file = types or types_beside(path)
        if resources:
            problem = f"gives {', '.join(resources)}, and so does {file}"
            raise InvalidInput(str(path), problem, "keep the sizes of VM types in one of them")
        resources, sizes = _read_types(file)
    _check(table, sizes)
    firsts, kinds = np.unique(table.groups("vm_type"), return_inverse=True)
    if sizes is None:
        sizes = _own_sizes(table, firsts.tolist(), resources)
    names, request = table.frame["vm_type"], table.groups(*_key(table))
    priorities, priority = _numbered(table, "priority") if "priority" in columns else (("",), None)
    lifetime, times = table.floats("lifetime_s"), from_beginning(table, "time_s")
    return assemble(
        path.name,
        types=[WorkloadType(names[i], sizes[names[i]]) for i in firsts.tolist()],
        resources=resources,
        request=request,
        time=times.seconds,
        tenant=table.frame["tenant"].to_list(),
        type=kinds,
        lifetime=np.where(np.isnan(lifetime), np.inf, lifetime),
        priority=priority,
        priorities=priorities,
        constraints=_constraints(table, request),
        source=str(path),
        skipped=table.reasons(),
        notice=times.notice,
    )


def _check(table: Table, sizes: Demand | None) -> None:
    columns = table.frame.columns
    table.check_names("tenant", "vm_type")
    table.check_numbers("time_s", remedy="give seconds from the beginning of the workload, from 0 up")
    table.check_numbers("lifetime_s", optional=True, remedy="give seconds from 0 up, or nothing for a VM that stays")
    if sizes is not None:
        table.check_known("vm_type", "VM type", sizes)
    for name in (name for name in RESOURCES if name in columns):
        _check_amount(table, name)
        table.check_same(["vm_type"], [name], "vm_type", "a VM type has one size; see `--types` for more")
    for field in (field for field in COUNTS if field in columns):
        remedy = f"use a whole number up to {MOST:,}, or nothing"
        table.check_numbers(field, high=MOST, whole=True, optional=True, remedy=remedy)
    if BEST_EFFORT in columns:
        table.check_numbers(BEST_EFFORT, high=1, whole=True, optional=True, remedy="use 1, 0 or nothing")
    if COLOCATE in columns:
        table.check_known(COLOCATE, "place to keep VMs together in", NEAR)
    if asked := _asked(table):
        table.check_same(_key(table), asked, "request", "the VMs of a request have the same constraints")
        _check_constraints(table, asked)


def _key(table: Table) -> list[str]:
    """The columns that VMs of one request agree in."""
    return [column for column in ("time_s", "tenant", "request") if column in table.frame.columns]


def _asked(table: Table) -> list[str]:
    """The constraints that have a column."""
    return [field for field in CONSTRAINTS if field in table.frame.columns]


def _check_amount(table: Table, name: str) -> None:
    resource = RESOURCES[name]
    highest = INT32_MAX // resource.per_unit
    table.check_numbers(name, high=highest, optional=True, remedy=f"give {resource.unit}, from 0 to {highest:,}")


def _own_sizes(table: Table, firsts: Sequence[int], resources: Sequence[str]) -> Demand:
    """What each VM type takes as its first row says; nothing, if that says nothing."""
    amounts = [table.floats(name)[firsts] for name in resources]
    rows = np.stack(amounts, axis=1) if amounts else np.empty((len(firsts), 0))
    names = (table.frame["vm_type"][i] for i in firsts)
    return {name: _size(ANY, row) for name, row in zip(names, rows, strict=True)}


def _size(generation: str, amounts: Any) -> dict[str, tuple[float, ...]]:
    return {} if np.isnan(amounts).all() else {generation: tuple(np.nan_to_num(amounts).tolist())}


def _read_types(path: Path) -> tuple[tuple[str, ...], Demand]:
    """The resources of a file of VM types, and what each type takes of them by generation."""
    table = read_table(path, ("vm_type",), ("generation", *RESOURCES), strict=True)
    resources = tuple(column for column in table.frame.columns if column in RESOURCES)
    table.check_names("vm_type")
    for name in resources:
        _check_amount(table, name)
    by = tuple(column for column in ("vm_type", "generation") if column in table.frame.columns)
    repeated = table.groups(*by) != np.arange(len(table))
    table.refuse("vm_type", {"is there twice for one generation": repeated}, "a type has one size on a generation")
    generations = table.frame["generation"].to_list() if "generation" in by else [None] * len(table)
    amounts = np.stack([table.floats(name) for name in resources], axis=1) if resources else np.empty((len(table), 0))
    demand: Demand = {}
    for name, generation, row in zip(table.frame["vm_type"], generations, amounts, strict=True):
        demand.setdefault(name, {}).update(_size(ANY if generation is None else str(generation), row))
    return resources, demand


def _check_constraints(table: Table, fields: Sequence[str]) -> None:
    """Constraints that contradict each other are wrong."""
    group = table.groups(*fields)
    for first in np.unique(group).tolist():
        try:
            _wish(table.frame.row(first, named=True), fields)
        except InvalidInput as error:
            table.refuse(error.where.removeprefix("constraints."), {error.problem: group == first}, error.remedy)
            _check_constraints(table, fields)  # what is left
            return


def _wish(row: Mapping[str, Any], fields: Sequence[str]) -> Constraints | None:
    """What a row asks for; a 0 says that there are no constraints, an empty cell says nothing."""
    kinds = {COLOCATE: str, BEST_EFFORT: bool}
    given: dict[str, Any] = {field: kinds.get(field, int)(row[field]) for field in fields if row[field] is not None}
    return Constraints(**given) if given else None


def _constraints(table: Table, request: NDArray[np.int64]) -> dict[int, Constraints]:
    """By the first row of a request, if it has any."""
    fields = _asked(table)
    if not fields:
        return {}
    group = table.groups(*fields)
    wishes = {first: _wish(table.frame.row(first, named=True), fields) for first in np.unique(group).tolist()}
    firsts = np.unique(request)
    found = zip(firsts.tolist(), group[firsts].tolist(), strict=True)
    return {first: wish for first, kind in found if (wish := wishes[kind]) is not None}


def _numbered(table: Table, column: str) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    firsts, numbers = np.unique(table.groups(column), return_inverse=True)
    return tuple(str(table.frame[column][i] or "") for i in firsts.tolist()), numbers


# ------------------------------------------------------------------------------------------------------------- writing


def check_target(path: Path) -> None:
    """A workload can be written to a file of this name."""
    if not path.name.endswith(SUFFIXES):
        raise InvalidInput(str(path), "says not what to write", f"let it end in {', '.join(SUFFIXES)}")


def write_own_form(workload: Workload, path: Path) -> list[Path]:
    """Write a workload, and the sizes of its types beside it if they differ by generation; the files it wrote."""
    need_polars()
    check_target(path)
    for name in workload.resources:
        if name not in RESOURCES:
            problem = f"the workload is of {name}, which this form does not know"
            raise InvalidInput(str(path), problem, f"it knows {', '.join(RESOURCES)}")
    apart = any(set(each.demand) - {ANY} for each in workload.types)
    write_table(_rows(workload, with_sizes=not apart), path)
    types = types_beside(path)
    if not apart:
        types.unlink(missing_ok=True)  # of a workload that was here before
        return [path]
    write_table(_type_rows(workload), types)
    return [path, types]


def _rows(workload: Workload, *, with_sizes: bool) -> pl.DataFrame:
    import polars as pl

    number = np.repeat(np.arange(workload.requests), workload.sizes)
    columns: dict[str, Any] = {
        "time_s": workload.arrival[number],
        "tenant": pl.Series(workload.tenants, dtype=pl.String)[number],
        "vm_type": pl.Series([each.name for each in workload.types], dtype=pl.String)[workload.type],
        "lifetime_s": pl.Series(workload.lifetime).replace(np.inf, None),
    }
    if len(set(zip(workload.arrival.tolist(), workload.tenants, strict=True))) < workload.requests:
        columns["request"] = number
    if with_sizes:
        nothing = (None,) * len(workload.resources)
        sizes = [each.demand.get(ANY, nothing) for each in workload.types]
        for i, name in enumerate(workload.resources):
            columns[name] = pl.Series([size[i] for size in sizes], dtype=pl.Float64)[workload.type]
    if any(workload.priorities[i] for i in np.unique(workload.priority).tolist()):
        columns["priority"] = pl.Series([name or None for name in workload.priorities], dtype=pl.String)[
            workload.priority
        ]
    if workload.constraints:
        asked = workload.constraints
        for field in _used(asked.values()):
            cells = [_cell(asked[i], field) if i in asked else None for i in range(workload.requests)]
            columns[field] = pl.Series(cells, dtype=pl.String if field == COLOCATE else pl.Int64)[number]
    return pl.DataFrame(columns)


def _used(constraints: Iterable[Constraints]) -> list[str]:
    """The constraints that need a column. At least one that is a number: its 0 says that there are none."""
    named = {name for each in constraints for name in (*each.named, *((BEST_EFFORT,) if each.best_effort else ()))}
    return [field for field in CONSTRAINTS if field in named or (field == COUNTS[0] and not named & set(COUNTS))]


def _cell(constraints: Constraints, field: str) -> int | str | None:
    if field == COLOCATE:
        return constraints.colocate or None
    return int(getattr(constraints, field))


def _type_rows(workload: Workload) -> pl.DataFrame:
    import polars as pl

    rows: list[tuple[Any, ...]] = []
    for each in workload.types:
        rows += [(each.name, generation or None, *amounts) for generation, amounts in each.demand.items()]
        if not each.demand:
            rows.append((each.name, None, *(None,) * len(workload.resources)))
    schema = {"vm_type": pl.String, "generation": pl.String} | dict.fromkeys(workload.resources, pl.Float64)
    return pl.DataFrame(rows, schema=schema, orient="row")
