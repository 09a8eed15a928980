"""Machines, clusters and the zone: look, change their condition, add and remove."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import Annotated, Any

import numpy as np
from litestar import delete, get, patch, post
from litestar.params import JSONBody, Parameter, QueryParameter
from litestar.response import Response
from litestar.types import Scope

from roost.agent.operation import Operation
from roost.agent.verbs.cluster import SetCluster
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.machines import AddMachines, RemoveMachines
from roost.api.gate import Asking
from roost.api.problems import Refused
from roost.api.routes.common import (
    ETAG_HEADER,
    WRITING,
    Cursor,
    DryRun,
    IfMatch,
    Key,
    Limit,
    asking_of,
    concluded,
    done,
    generation_of,
    may,
    page_size,
)
from roost.api.routes.tenants import MOST_VMS_SHOWN, vm_view
from roost.model.errors import UnknownName
from roost.model.inventory import MachineSpec
from roost.model.keys import new_key
from roost.model.readable import as_counted
from roost.model.rows import MachineState
from roost.placing.allocator import Allocator
from roost.store.ledger import MachineRow
from roost.wire.basics import StateName
from roost.wire.clusters import ClusterChange, Clusters, ClusterView
from roost.wire.machines import (
    MachineChange,
    MachineLine,
    MachinePage,
    MachineView,
    NewMachine,
    NewMachines,
    RackChange,
    RackDone,
)
from roost.wire.tenants import Done
from roost.wire.zone import ResourceView, VMTypeView, ZoneView

STATES = {int(state): state.name.lower() for state in MachineState}
Name = Annotated[str, Parameter(max_length=200, description="As lists show it.")]


async def _write(asking: Asking, operation: Operation, key: str | None, dry_run: bool) -> Response[Done]:
    service, by = asking.service, asking.principal.name
    ticket = await service.rehearse(operation, by) if dry_run else await service.submit(operation, key or new_key(), by)
    return done(asking, ticket, dry_run=dry_run)


# ----------------------------------------------------------------------------------------------------------- machines


@get("/v1/machines", **may("read", "roost.not_found"))
async def list_machines(
    scope: Scope,
    limit: Limit = 100,
    cursor: Cursor = "",
    cluster: Annotated[str, Parameter(max_length=200, description="Only of this cluster.")] = "",
    rack: Annotated[str, Parameter(max_length=200, description="Only of this rack.")] = "",
    hardware: Annotated[str, Parameter(max_length=200, description="Only of this hardware generation.")] = "",
    in_state: Annotated[StateName | None, QueryParameter(name="state", description="Only in this state.")] = None,
    empty: Annotated[bool | None, Parameter(description="Only without VMs, or only with some.")] = None,
) -> MachinePage:
    """Machines by name, m2 before m10, as this worker's agent sees them."""
    asking = asking_of(scope)
    asking.service.check_open()
    # Sorting the names of a large zone takes a while, once: not in the loop.
    await asyncio.to_thread(getattr, asking.service.agent.allocator.zone, "machines_as_counted")
    allocator, size = asking.service.agent.allocator, page_size(limit, asking.service)
    rows, zone = allocator.view.machines, allocator.zone
    chosen = np.ones(len(rows), bool)
    if cluster:
        chosen &= rows["cluster"] == _index(cluster, "cluster", zone.cluster_names)
    if rack:
        chosen &= rows["rack"] == _index(rack, "rack", zone.rack_names)
    if hardware:
        chosen &= rows["generation"] == _index(hardware, "hardware", tuple(zone.generation_index))
    if in_state:
        chosen &= rows["state"] == MachineState[in_state.upper()]
    if empty is not None:
        chosen &= (rows["vms"] == 0) == empty
    names, order = zone.machine_names, zone.machines_as_counted
    if cursor:
        order = order[bisect_right(order, as_counted(cursor), key=lambda m: as_counted(names[m])) :]
    found = order[chosen[order]][: size + 1].tolist()
    seen = asking.service.agent.replica.seen
    items = [_line(allocator, m, seen(m)) for m in found[:size]]
    return MachinePage(items=items, next=names[found[size - 1]] if len(found) > size else None)


def _index(name: str, kind: str, known: tuple[str, ...]) -> int:
    if name not in known:
        raise Refused("roost.not_found", str(UnknownName(kind, kind, name, known)), field=kind)
    return known.index(name)


def _line(allocator: Allocator, m: int, version: int) -> MachineLine:
    zone, row = allocator.zone, allocator.view.machines[m]
    names = [r.name for r in zone.resources]
    return MachineLine(
        machine=zone.machine_names[m],
        cluster=zone.cluster_names[row["cluster"]],
        rack=zone.rack_names[row["rack"]],
        datacenter=zone.datacenters[row["datacenter"]],
        hardware=zone.generations[row["generation"]].name,
        state=STATES[int(row["state"])],
        health=int(row["health"]),
        vms=int(row["vms"]),
        update_domain=int(row["update_domain"]),
        generation=version,
        capacity=dict(zip(names, row["capacity"].tolist(), strict=True)),
        free=dict(zip(names, row["free"][-1].tolist(), strict=True)),
    )


@get("/v1/machines/{machine:str}", response_headers=ETAG_HEADER, **may("read", "roost.not_found"))
async def get_machine(machine: Name, scope: Scope) -> Response[MachineView]:
    """A machine with its VMs, as the store has it."""
    asking = asking_of(scope)
    row, vms = await asking.service.read(
        lambda store: (store.machine(machine), store.vms(limit=MOST_VMS_SHOWN, machine=machine))
    )
    if row is None:
        names = asking.service.agent.allocator.zone.machine_names
        raise Refused("roost.not_found", str(UnknownName("machine", "machine", machine, names)), field="machine")
    resources = [r.name for r in asking.service.agent.allocator.zone.resources]
    view = MachineView(
        **_described(row, resources),
        update_domain=row.spec.update_domain,
        features=row.spec.features,
        failures=row.failures,
        versions_behind=row.versions_behind,
        running=[vm_view(asking, name, vm) for name, vm in vms],
    )
    return Response(view, headers={"etag": f'"{row.version}"'})  # 0, as long as nothing happened to it


def _described(row: MachineRow, resources: list[str]) -> dict[str, Any]:
    spec, n = row.spec, len(resources)
    used = [sum(row.used[r::n]) for r in range(n)]
    return {
        "machine": spec.name,
        "cluster": spec.cluster,
        "rack": spec.rack,
        "datacenter": spec.datacenter,
        "hardware": spec.generation,
        "state": STATES[row.state],
        "health": row.health,
        "vms": row.vms,
        "generation": row.version,
        "capacity": dict(zip(resources, spec.capacity, strict=True)),
        "free": {name: spec.capacity[r] - used[r] for r, name in enumerate(resources)},
    }


@patch("/v1/machines/{machine:str}", response_headers=ETAG_HEADER, **may("operate", *WRITING, "roost.not_found"))
async def change_machine(
    machine: Name,
    data: JSONBody[MachineChange],
    scope: Scope,
    key: Key = None,
    if_match: IfMatch = None,
    dry_run: DryRun = False,
) -> Response[Done]:
    """Say how a machine is: ready, draining, down or quarantined, and how healthy.

    What runs on it stays; the VMs of one that is down are placed again elsewhere, see /v1/healing.
    """
    operation = SetMachine(
        machine, data.state or "", data.health, data.failures, data.versions_behind, generation_of(if_match)
    )
    return await _write(asking_of(scope), operation, key, dry_run)


@post("/v1/machines", status_code=201, **may("operate", *WRITING, "roost.not_found", dry=Done))
async def add_machines(
    data: JSONBody[NewMachines], scope: Scope, key: Key = None, dry_run: DryRun = False
) -> Response[Done]:
    """Add machines, and with them racks and clusters: all of them, or none."""
    asking = asking_of(scope)
    asking.service.check_open()
    specs = tuple(_spec(asking, i, machine) for i, machine in enumerate(data.machines))
    conditions = {each.name: {"state": int(MachineState[each.state.upper()])} for each in data.machines}
    unusual = {name: given for name, given in conditions.items() if given["state"] != MachineState.READY}
    response = await _write(asking, AddMachines(specs, unusual), key, dry_run)
    response.status_code = 200 if dry_run else 201
    return response


def _spec(asking: Asking, i: int, machine: NewMachine) -> MachineSpec:
    """What a machine is; of a hardware generation that has others already, their capacity unless it says otherwise."""
    zone = asking.service.agent.allocator.zone
    resources = [r.name for r in zone.resources]
    for name in machine.capacity:
        if name not in resources:
            raise Refused(
                "roost.invalid_request",
                str(UnknownName(f"machines[{i}].capacity", "resource", name, resources)),
                field=f"machines[{i}].capacity",
            )
    generation = zone.generation_index.get(machine.generation)
    if generation is None:
        known = UnknownName(
            f"machines[{i}].generation", "hardware generation", machine.generation, zone.generation_index
        )
        raise Refused("roost.invalid_request", str(known), field=f"machines[{i}].generation")
    alike = np.flatnonzero(zone.machines["generation"] == generation)
    usual = zone.machines[alike[0]]["capacity"].tolist() if len(alike) else [0] * len(resources)
    return MachineSpec(
        machine.name,
        machine.datacenter,
        machine.cluster,
        machine.rack,
        machine.generation,
        machine.update_domain,
        machine.features,
        tuple(machine.capacity.get(name, usual[r]) for r, name in enumerate(resources)),
    )


@delete("/v1/machines/{machine:str}", status_code=200, **may("operate", *WRITING, "roost.not_found"))
async def remove_machine(machine: Name, scope: Scope, key: Key = None, dry_run: DryRun = False) -> Response[Done]:
    """Remove a machine that runs nothing."""
    return await _write(asking_of(scope), RemoveMachines((machine,)), key, dry_run)


@patch("/v1/racks/{rack:str}", **may("operate", *WRITING, "roost.not_found"))
async def change_rack(rack: Name, data: JSONBody[RackChange], scope: Scope, key: Key = None) -> RackDone:
    """Say how all machines of a rack are, at once: when a rack fails, that is one event."""
    asking = asking_of(scope)
    service, by, given = asking.service, asking.principal.name, key or new_key()
    service.check_open()
    zone = service.agent.allocator.zone
    machines = np.flatnonzero(zone.machines["rack"] == _index(rack, "rack", zone.rack_names)).tolist()
    names = [zone.machine_names[m] for m in machines]
    # A key for each, made of the one given; no key of a request has a space.
    wishes = [service.submit(SetMachine(name, data.state), f"{given} {i}", by) for i, name in enumerate(names)]
    for ticket in await asyncio.gather(*wishes):
        concluded(asking, ticket)
    asking.decision = given
    return RackDone(rack=rack, machines=len(names), state=data.state)


# ----------------------------------------------------------------------------------------------------------- clusters


def _cluster(allocator: Allocator, c: int) -> ClusterView:
    zone, row = allocator.zone, allocator.view.clusters[c]
    first, last = int(row["first"]), int(row["first"] + row["machines"])
    ready = int((allocator.view.machines["state"][first:last] == MachineState.READY).sum())
    return ClusterView(
        cluster=zone.cluster_names[c],
        datacenter=zone.datacenters[row["datacenter"]],
        hardware=zone.generations[row["generation"]].name,
        racks=int(row["racks"]),
        machines=int(row["machines"]),
        ready=ready,
        empty=int(row["empty"][-1]),
        vms=int(row["vms"]),
        utilisation=round(float(row["used"][-1][0] / max(1, row["capacity"][0])), 6),
        quarantined=bool(row["quarantined"]),
    )


@get("/v1/clusters", **may("read"))
async def list_clusters(scope: Scope) -> Clusters:
    """All clusters and how full they are."""
    service = asking_of(scope).service
    service.check_open()
    allocator = service.agent.allocator
    return Clusters(items=[_cluster(allocator, c) for c in range(len(allocator.zone.cluster_names))])


@get("/v1/clusters/{cluster:str}", **may("read", "roost.not_found"))
async def get_cluster(cluster: Name, scope: Scope) -> ClusterView:
    """A cluster and how full it is."""
    service = asking_of(scope).service
    service.check_open()
    allocator = service.agent.allocator
    return _cluster(allocator, _index(cluster, "cluster", allocator.zone.cluster_names))


@patch("/v1/clusters/{cluster:str}", **may("operate", *WRITING, "roost.not_found"))
async def change_cluster(
    cluster: Name, data: JSONBody[ClusterChange], scope: Scope, key: Key = None, dry_run: DryRun = False
) -> Response[Done]:
    """Take a cluster out of use for new VMs, or back."""
    return await _write(asking_of(scope), SetCluster(cluster, data.quarantined), key, dry_run)


@delete("/v1/clusters/{cluster:str}", status_code=200, **may("operate", *WRITING, "roost.not_found"))
async def remove_cluster(cluster: Name, scope: Scope, key: Key = None, dry_run: DryRun = False) -> Response[Done]:
    """Remove all machines of a cluster, if they run nothing."""
    return await _write(asking_of(scope), RemoveMachines(cluster=cluster), key, dry_run)


# --------------------------------------------------------------------------------------------------------------- zone


@get("/v1/zone", **may("read"))
async def get_zone(scope: Scope) -> ZoneView:
    """The zone at a glance: how full it is, what it can run, who decides."""
    service = asking_of(scope).service
    service.check_open()
    allocator = service.agent.allocator
    zone, usage = allocator.zone, allocator.usage()
    names = [r.name for r in zone.resources]
    return ZoneView(
        zone=zone.name,
        revision=service.agent.replica.revision,
        machines=usage.machines,
        empty_machines=usage.empty_machines,
        clusters=len(zone.cluster_names),
        tenants=usage.tenants,
        vms=usage.vms,
        utilisation=round(usage.utilisation, 6),
        packing_density=round(usage.packing_density, 6),
        bands=zone.bands,
        resources=[ResourceView(name=r.name, unit=r.unit, per_unit=r.per_unit) for r in zone.resources],
        vm_types=[
            VMTypeView(
                type=t.name,
                demand={g: dict(zip(names, amounts, strict=True)) for g, amounts in t.demand.items()},
                requires=t.requires,
            )
            for t in zone.vm_types
        ],
        policy=allocator.policy.name,
        agent=service.agent.name,
    )


ROUTES = [
    list_machines,
    get_machine,
    change_machine,
    add_machines,
    remove_machine,
    change_rack,
    list_clusters,
    get_cluster,
    change_cluster,
    remove_cluster,
    get_zone,
]
