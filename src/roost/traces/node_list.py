"""Lists of real machines, as the list that a zone file points to and the generations that the zone file needs.

Two forms are known by their columns:
- a node per row with cpu_milli and memory_mib (Alibaba's openb): each shape is a generation and a cluster;
- free cores and memory per NUMA node (Huawei's pm_free): one generation, as large as the largest of each; a machine has
  its own amounts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from roost.model.errors import InvalidInput
from roost.traces.reading import Table, read_table, write_table

if TYPE_CHECKING:
    import polars as pl

RACK = 20  # machines, where the list knows no racks
NODES = ("sn", "cpu_milli", "memory_mib")
FREE = ("pm", "cpu_numa0", "ram_numa0", "cpu_numa1", "ram_numa1")
HOSTS = ("host_id", "rack_id")
REMEDY = "give a number from 0 up"


@dataclass(frozen=True)
class NodeList:
    """Machines as a zone file's list has them, and the generations they are of."""

    machines: pl.DataFrame
    generations: Mapping[str, Mapping[str, Any]]  # name -> cores, memory, features
    skipped: Mapping[str, int]


def read_node_list(path: Path, racks: Path | None = None, *, skip: bool = False) -> NodeList:
    """The machines of a list; `racks` says in which rack each stands (columns host_id and rack_id)."""
    table = read_table(path, (), (*NODES, "gpu", "model", *FREE), skip=skip)
    columns = set(table.frame.columns)
    own: Mapping[str, Any] = {}
    if set(NODES) <= columns:
        names, clusters, generations = _nodes(table)
    elif set(FREE) <= columns:
        names, clusters, generations, own = _free(table)
    else:
        problem = "is no list of machines that Roost knows"
        raise InvalidInput(str(path), problem, f"needed are {', '.join(NODES)}, or {', '.join(FREE)}")
    return NodeList(_machines(names, clusters, _racks(names, clusters, racks), own), generations, table.reasons())


def zone_file(nodes: NodeList, machines: str) -> str:
    """A zone file with these machines, complete but for its VM types."""
    import yaml

    whole = {"name": "imported", "machines": machines, "generations": dict(nodes.generations)}
    note = "# Add vm_types: what they take, and on which generations they run."
    return yaml.safe_dump(whole, sort_keys=False, default_flow_style=None, width=120) + note


def write_machines(nodes: NodeList, path: Path) -> None:
    """Write the list of machines that a zone file points to."""
    if not path.name.endswith((".csv", ".parquet")):
        raise InvalidInput(str(path), "says not what to write", "a list of machines ends in .csv or .parquet")
    write_table(nodes.machines, path)


def _nodes(table: Table) -> tuple[list[str], list[str], dict[str, dict[str, Any]]]:
    table.check_names("sn")
    _refuse_repeats(table, "sn")
    table.check_numbers("cpu_milli", "memory_mib", low=1, high=1e9, remedy=REMEDY)
    if "gpu" in table.frame.columns:
        table.check_numbers("gpu", whole=True, optional=True, high=1e6, remedy=REMEDY)
    cells = {column: table.frame[column].to_list() for column in table.frame.columns}
    clusters: list[str] = []
    generations: dict[str, dict[str, Any]] = {}
    for i in range(len(table)):
        cores, memory = cells["cpu_milli"][i] / 1000, cells["memory_mib"][i] / 1024
        gpus = cells["gpu"][i] if "gpu" in cells else 0
        model = str(cells["model"][i] or "gpu") if gpus and "model" in cells else ""
        name = f"c{cores:g}-m{memory:g}" + (f"-{gpus:g}x{model}" if model else "")
        generations[name] = {"cores": cores, "memory": memory} | ({"features": [model]} if model else {})
        clusters.append(name)
    return cells["sn"], clusters, generations


def _free(table: Table) -> tuple[list[str], list[str], dict[str, dict[str, Any]], dict[str, Any]]:
    table.check_names("pm")
    _refuse_repeats(table, "pm")
    table.check_numbers(*FREE[1:], high=1e6, remedy=REMEDY)
    own = {
        "cores": table.floats("cpu_numa0") + table.floats("cpu_numa1"),
        "memory": table.floats("ram_numa0") + table.floats("ram_numa1"),
    }
    largest = {name: float(amounts.max()) for name, amounts in own.items()}
    names = [f"host-{pm}" for pm in table.frame["pm"].to_list()]
    return names, ["server"] * len(names), {"server": largest}, own


def _refuse_repeats(table: Table, column: str) -> None:
    repeated = table.groups(column) != np.arange(len(table))
    table.refuse(column, {"is there twice": repeated}, "names of machines differ")


def _racks(names: list[str], clusters: list[str], path: Path | None) -> list[str]:
    """The rack of each machine; if nobody says, those of a cluster fill one after another."""
    if path is None:
        seen: dict[str, int] = {}
        racks = []
        for cluster in clusters:
            seen[cluster] = seen.get(cluster, -1) + 1
            racks.append(f"r{seen[cluster] // RACK:02d}")
        return racks
    table = read_table(path, HOSTS)
    table.check_names(*HOSTS)
    _refuse_repeats(table, "host_id")
    known = dict(zip(table.frame["host_id"].to_list(), table.frame["rack_id"].to_list(), strict=True))
    if missing := [name for name in names if name not in known]:
        raise InvalidInput(str(path), f"says nothing about {missing[0]}", "give every machine a rack")
    return [f"r{known[name]}" for name in names]


def _machines(names: list[str], clusters: list[str], racks: list[str], own: Mapping[str, Any]) -> pl.DataFrame:
    import polars as pl

    return pl.DataFrame({"name": names, "cluster": clusters, "rack": racks, "generation": clusters, **own})
