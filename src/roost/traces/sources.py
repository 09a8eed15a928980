"""Where workloads come from: one by name, a file in Roost's own form, or KIND:FILE for the form of somebody else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.resources import as_file, files
from pathlib import Path

from roost.model.errors import UnknownName
from roost.traces.azure_packing import read_azure_packing
from roost.traces.azure_v1 import read_azure_v1
from roost.traces.huawei_east import read_huawei_east
from roost.traces.huawei_topology import read_huawei_topology
from roost.traces.own_form import read_own_form
from roost.traces.reading import AS_IT_IS, SUFFIXES, Reading
from roost.traces.workload import Workload

SAMPLE = "azure-2017"  # comes with Roost; see sample/ATTRIBUTION.md
READERS: Mapping[str, Callable[[Path, Reading], Workload]] = {
    "azure-packing": read_azure_packing,  # SQLite
    "azure-v1": read_azure_v1,  # converted to CSV
    "huawei-east": read_huawei_east,  # CSV
    "huawei-topology": read_huawei_topology,  # CSV
}


def find_workload(source: str, how: Reading = AS_IT_IS, types: Path | None = None) -> Workload:
    """The workload that is called so: azure-2017, the path of a file, or a kind and a path: azure-packing:FILE."""
    if source == SAMPLE:
        return _sample(how)
    kind, colon, path = source.partition(":")
    if colon and kind in READERS:
        return READERS[kind](Path(path), how)
    if source.endswith(SUFFIXES) or Path(source).exists():
        return read_own_form(Path(source), how, types)
    known = [SAMPLE, *(f"{kind}:FILE" for kind in READERS), *(f"FILE{suffix}" for suffix in SUFFIXES)]
    raise UnknownName("workload", "workload", source, known)


def _sample(how: Reading) -> Workload:
    with as_file(files("roost.traces") / "sample" / "azure_v1_dev.csv.gz") as path:
        return read_azure_v1(path, how, SAMPLE)
