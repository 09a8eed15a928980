"""The least change that would make a request fit: drop a constraint, a pin or a threshold, or free VMs on a machine."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import msgspec
import numpy as np

from roost.engine.explain import Remedies, Remedy
from roost.engine.steps import CutShort, Steps
from roost.engine.view import View
from roost.model.availability import AvailabilitySet
from roost.model.request import ANY, Constraints, Request, heeding
from roost.model.rows import MachineState
from roost.model.thresholds import WORDS, Purpose
from roost.placing.arms import Arms
from roost.placing.books import RunningVM
from roost.placing.gang import Trial
from roost.placing.rehearsal import Rehearsal
from roost.placing.search import IN_VAIN, Search

CLUSTERS_TRIED = 8  # of those at a threshold
MACHINES_TRIED = 50  # of those nearest to having room
VMS_TRIED = 10  # on one machine: those that would free most of what is missing
MOST_FREED = 4  # VMs on one machine
GROUPS_TRIED = 8  # of each number of VMs


def seeking_remedies(
    allocator: Arms, rehearsal: Rehearsal, request: Request, constraints: Constraints, number: int, failed: Trial
) -> Steps[Remedies]:
    """Changes that are tried out, a step at a time, and make the request fit, least first.

    `constraints`, `number`: the tenant's, at the time of the request.
    """
    found: list[Remedy] = []
    try:
        for text, rest in _less(constraints, failed):
            if (yield from _fits(rehearsal, request, number, failed, rest)):
                found.append(Remedy("constraint", text))
        for remedy, anywhere in _unpinned(request, constraints):
            if (yield from _fits(rehearsal, anywhere, number, failed, constraints)):
                found.append(remedy)
        for cluster, remedy in _thresholds_to_lift(rehearsal.engine.view, failed.purpose):
            with rehearsal.lifted((cluster,)):
                if (yield from _fits(rehearsal, request, number, failed, constraints)):
                    found.append(remedy)
                    break
        for machine, vms in (yield from _groups_to_free(allocator, rehearsal, request.tenant, failed)):
            with rehearsal.without((machine, vm.shape) for vm in vms):
                if (yield from _fits(rehearsal, request, number, failed, constraints)):
                    name = allocator.zone.machine_names[machine]
                    listed = ", ".join(f"{vm.name} ({vm.vm.type})" for vm in vms)
                    found.append(Remedy("free", f"free {listed} on {name}", tuple(vm.name for vm in vms), name))
                    break
    except CutShort:
        return Remedies(tuple(found), cut_short=True)
    return Remedies(tuple(found))


def _fits(rehearsal: Rehearsal, wanted: Request, number: int, failed: Trial, under: Constraints) -> Steps[bool]:
    beside = failed.seating.under(under)
    brief = Search(in_turn=IN_VAIN)  # there are many to try
    trial = yield from rehearsal.trying_out(wanted, number, beside, failed.purpose, brief)
    yield
    return trial.failed_vm is None


def _unpinned(request: Request, constraints: Constraints) -> Iterator[tuple[Remedy, Request]]:
    """The request without each of the pins that its VMs have, as its tenant would ask again."""
    for pin in ("generation", "cluster", "datacenter"):
        if pinned := sorted({getattr(vm, pin) for vm in request.vms} - {"", ANY}):
            anywhere = tuple(msgspec.structs.replace(vm, **{pin: ANY}) for vm in request.vms)
            text = f"take any {pin}, not only {', '.join(pinned)}"
            yield Remedy("pin", text), heeding(msgspec.structs.replace(request, vms=anywhere), constraints)


def _less(constraints: Constraints, failed: Trial) -> Iterator[tuple[str, Constraints]]:
    """What a tenant might ask for instead, without one of the constraints of VMs in the request."""
    for of_set, part in failed.seating.parts.items():
        if part.terms.best_effort:
            continue  # it is not for them
        if not of_set:
            for name, value in constraints.named.items():
                rest = msgspec.structs.replace(constraints, **{name: "" if name == "colocate" else 0})
                yield f"drop the constraint {name} = {value}", rest
            continue
        wanted = constraints.sets[of_set]
        for name in ("fault_domains", "update_domains"):
            other = "update_domains" if name == "fault_domains" else "fault_domains"
            if getattr(wanted, name) and getattr(wanted, other):
                less = msgspec.structs.replace(wanted, **{name: 0})
                yield f"drop {name} = {getattr(wanted, name)} of set {of_set}", _with_set(constraints, of_set, less)
        best = msgspec.structs.replace(wanted, best_effort=True)
        yield f"let set {of_set} do its best (best_effort)", _with_set(constraints, of_set, best)


def _with_set(constraints: Constraints, name: str, wanted: AvailabilitySet) -> Constraints:
    return msgspec.structs.replace(constraints, sets={**constraints.sets, name: wanted})


def _thresholds_to_lift(view: View, purpose: Purpose) -> Iterator[tuple[int, Remedy]]:
    """Clusters that keep their empty machines from such a request, those that have most of them first."""
    rows, names = view.clusters, view.zone.cluster_names
    least, empty = rows["thresholds"][:, purpose], rows["empty"][:, 0]
    reached = np.flatnonzero((least > 0) & (empty <= least))
    for c in reached[np.argsort(-empty[reached], kind="stable")][:CLUSTERS_TRIED].tolist():
        have = f"has {empty[c]:,} empty machines and keeps {least[c]:,} from {WORDS[purpose]}"
        yield c, Remedy("threshold", f"lower the threshold of cluster {names[c]}, which {have}")


def _groups_to_free(
    allocator: Arms, rehearsal: Rehearsal, tenant: str, failed: Trial
) -> Steps[list[tuple[int, tuple[RunningVM, ...]]]]:
    """Other tenants' VMs on one machine whose release would make room for the VM that failed: fewest, then smallest."""
    assert failed.failed_vm is not None
    vm = failed.shapes[failed.failed_vm].row[0]
    machines = rehearsal.engine.view.machines
    generation = machines["generation"]
    demand = vm["demand"][generation].astype(np.int64)
    rules = allocator.arm_of(tenant).policy.rules
    band = range(len(allocator.zone.bands))[rules.view_of(int(vm["priority"]))]
    missing = np.maximum(0, demand - machines["free"][:, band])
    possible = vm["supported"][generation].astype(bool) & (demand <= machines["capacity"]).all(axis=1)
    rows = np.flatnonzero(possible & (machines["state"] == MachineState.READY) & (machines["vms"] > 0))
    share = (missing[rows] / np.maximum(1, machines["capacity"][rows])).max(axis=1)
    nearest = rows[np.argsort(share, kind="stable")][:MACHINES_TRIED]
    running = allocator.running_on(rehearsal.unchanged(nearest.tolist(), allocator.view))
    held: dict[int, list[tuple[list[int], RunningVM]]] = {}
    for machine, vms in running.items():
        short = missing[machine] > 0
        others = [v for v in vms if v.tenant != tenant and v.shape.traits["priority"] <= band]
        amounts = [(v.shape.row["demand"][0][generation[machine]], v) for v in others]
        amounts.sort(key=lambda pair: (-int(pair[0][short].sum()), pair[1].name))
        held[machine] = [(amount.tolist(), v) for amount, v in amounts[:VMS_TRIED]]
    yield
    found = []
    for count in range(1, MOST_FREED + 1):
        options = []
        for machine, vms_held in held.items():
            wanted = missing[machine].tolist()
            for group in combinations(range(len(vms_held)), count):
                gained = [sum(vms_held[i][0][r] for i in group) for r in range(len(wanted))]
                if all(g >= w for g, w in zip(gained, wanted, strict=True)):
                    options.append((gained[0], machine, group))
            if count > 2:
                yield
        for _, machine, group in sorted(options)[:GROUPS_TRIED]:
            found.append((machine, tuple(held[machine][i][1] for i in group)))
    return found
