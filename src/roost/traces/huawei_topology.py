"""Reads Huawei's requests with affinity, anti-affinity and fault domains: a CSV with a row per VM, in order, no times.

A group of the trace is a tenant. Its VMs come in several goes, with others between them: each run of rows of one group
is a request. Groups have constraints, as near to what the trace says as Roost has them:

- affinity: all VMs in one rack (the trace means one server; Roost has no constraint so narrow);
- anti-affinity: no two VMs on one machine;
- fault_domain: over as many racks as the group has domains. Which VM is in which domain is left out.

The number of NUMA nodes of a VM is left out. All VMs stay.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roost.model.request import Constraints
from roost.traces.assembly import assemble
from roost.traces.huawei_east import size_of
from roost.traces.reading import AS_IT_IS, Reading, Table, read_table
from roost.traces.workload import Workload

COLUMNS = ("seq", "flavor_vcpus", "flavor_ram", "strategy", "group", "domain")
AFFINITY, ANTI_AFFINITY, FAULT_DOMAIN = "affinity", "anti-affinity", "fault_domain"
STRATEGIES = (AFFINITY, ANTI_AFFINITY, FAULT_DOMAIN)
SOURCE = "Huawei Cloud requests with placement groups (mdl1104/Dataset-for-topology-aware-VM-placement, CC0)"


def read_huawei_topology(path: Path, how: Reading = AS_IT_IS) -> Workload:
    """The workload in a trace; `how.interval` seconds lie between a VM and the next."""
    table = read_table(path, COLUMNS, skip=how.skip)
    _check(table)
    tenants = [
        f"{strategy}-{group:.0f}" if strategy else f"vm{seq:.0f}"
        for strategy, group, seq in table.frame.select("strategy", "group", "seq").iter_rows()
    ]
    request = _runs(tenants)
    firsts, kinds = np.unique(table.groups("flavor_vcpus", "flavor_ram"), return_inverse=True)
    cores, memory = table.floats("flavor_vcpus"), table.floats("flavor_ram")
    asked = _constraints(table)
    return assemble(
        path.name,
        types=[size_of(float(cores[i]), float(memory[i])) for i in firsts.tolist()],
        resources=("cores", "memory"),
        request=request,
        time=table.floats("seq") * how.interval,
        tenant=tenants,
        type=kinds,
        lifetime=np.full(len(table), np.inf),
        constraints={i: asked[tenants[i]] for i in np.unique(request).tolist() if tenants[i] in asked},
        source=SOURCE,
        skipped=table.reasons(),
    )


def _check(table: Table) -> None:
    table.check_numbers("seq", whole=True, remedy="number the rows from 0")
    back = np.diff(table.floats("seq"), prepend=-1.0) <= 0
    table.refuse("seq", {"is not above the row before it": back}, "rows are in order")
    table.check_numbers("flavor_vcpus", "flavor_ram", high=1e6, remedy="give cores, and GiB of memory")
    table.check_known("strategy", "strategy", STRATEGIES)
    table.check_numbers("group", "domain", whole=True, optional=True, remedy="give the number of one, or nothing")
    grouped = table.frame["strategy"].is_not_null().to_numpy()
    table.refuse("group", {"is empty": grouped & np.isnan(table.floats("group"))}, "a strategy is one of a group")
    by_domain = (table.frame["strategy"] == FAULT_DOMAIN).fill_null(False).to_numpy()
    lacking = by_domain & np.isnan(table.floats("domain"))
    table.refuse("domain", {"is empty": lacking}, "with fault_domain each VM has a domain")


def _runs(tenants: list[str]) -> np.ndarray:
    """For each row, the first of the rows of the same tenant that it stands among."""
    begins = [0, *(i for i in range(1, len(tenants)) if tenants[i] != tenants[i - 1])]
    return np.repeat(begins, np.diff([*begins, len(tenants)]))


def _constraints(table: Table) -> dict[str, Constraints]:
    """What each tenant that is a group asks for, if anything."""
    import polars as pl

    groups = table.frame.drop_nulls("strategy").group_by("strategy", "group").agg(pl.col("domain").n_unique())
    asked = {}
    for strategy, group, domains in groups.iter_rows():
        wish = Constraints()
        if strategy == AFFINITY:
            wish = Constraints(colocate="rack")
        elif strategy == ANTI_AFFINITY:
            wish = Constraints(max_per_machine=1)
        elif domains > 1:
            wish = Constraints(min_fault_domains=domains)
        if wish.named:
            asked[f"{strategy}-{group:.0f}"] = wish
    return asked
