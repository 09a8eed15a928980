"""Zones that were full once: VMs have left at random, and those that stayed are spread over too many machines."""

from __future__ import annotations

import random
from collections import Counter

from msgspec.structs import replace

from roost.model.availability import AvailabilitySet
from roost.model.inventory import catalogue_of, machine_specs
from roost.model.request import VM, Constraints, Request
from roost.model.zone import CONDITION, Zone
from roost.placing.allocator import Allocator
from roost.rules.policy import Policy
from roost.store.ledger import ClusterRow, Ledger, TenantRow
from roost.store.snapshot import MachineNow, Snapshot, VMNow, ledger_of

SMALL = ("A0", "A1", "D1") * 12 + ("A2", "D2") * 3 + ("D3", "A3", "D4", "D11")
MIXED = ("A1", "A2", "D2", "D3", "A3", "D4", "D1") * 3 + ("D12", "G2", "D14", "A9", "D13", "G3", "G4", "A7")
WISHES = (
    {"min_fault_domains": 2}, {"max_per_rack": 1}, {"max_per_machine": 1}, {"colocate": "cluster"},
    {"fault_domain_skew": 1, "min_fault_domains": 2}, {"min_update_domains": 2}, {"update_domain_skew": 1},
    {"max_fault_domains": 2}, {"colocate": "rack"},
)  # fmt: skip

SETS = Constraints(
    sets={"pair": AvailabilitySet(fault_domains=2), "web": AvailabilitySet(update_domains=3, best_effort=True)}
)


def fragmented(
    machines: int,
    *,
    mix: tuple[str, ...] = SMALL,
    full: float = 0.8,
    left: float = 0.55,
    fussy: float = 0.2,
    sets: bool = False,
) -> Ledger:
    """Fill a zone by policy `default`, then let VMs leave at random. `fussy`: tenants that ask for something.

    `sets`: every fifth tenant has availability sets.
    """
    rng = random.Random(1)
    allocator = Allocator(Zone.synthetic(machines), Policy.named("default"))
    refused = number = 0
    while (number % 50 or allocator.usage().utilisation < full) and refused < 1_000:
        number += 1
        request = _request(number, mix, rng, fussy)
        if sets and number % 5 == 0:
            members = ("pair", "web", "") * len(request.vms)
            request = Request(request.tenant, [replace(request.vms[0], set=name) for name in members], SETS)
        refused += not allocator.allocate(request).ok
    names = sorted(allocator.vms)
    rng.shuffle(names)
    while allocator.usage().utilisation > left:
        for _ in range(20):
            allocator.release(names.pop())
    return ledger_from(allocator)


def _request(number: int, mix: tuple[str, ...], rng: random.Random, fussy: float) -> Request:
    count = rng.choice((1, 1, 1, 2, 3, 4))
    special = rng.random() < fussy
    vm = VM(
        rng.choice(mix),
        priority=rng.choice(("", "", "spot")),
        isolated=special and rng.random() < 0.05,
        colocation=rng.choice(("", "disk-heavy", "latency-critical", "licensed")) if special else "",
    )
    wish = Constraints(**rng.choice(WISHES)) if special else None
    return Request(f"t{number}", [vm] * count, wish)


def ledger_from(allocator: Allocator) -> Ledger:
    """What an allocator holds, as a store would have it."""
    zone, rows = allocator.zone, allocator.view.machines
    specs = machine_specs(zone)
    kinds = {spec.cluster: (spec.datacenter, spec.generation) for spec in specs}
    sizes = Counter(spec.cluster for spec in specs)
    asked = list(dict.fromkeys(id(vm.vm) for vm in allocator.vms.values()))
    place = {each: at for at, each in enumerate(asked)}
    wanted = {id(vm.vm): vm.vm for vm in allocator.vms.values()}
    return ledger_of(
        Snapshot(
            revision=7,
            catalogue=catalogue_of(zone),
            clusters={name: ClusterRow(*kind, sizes[name]) for name, kind in kinds.items()},
            machines=[MachineNow(spec, *how) for spec, how in zip(specs, rows[list(CONDITION)].tolist(), strict=True)],
            tenants={
                name: TenantRow(tenant.constraints, 1_024, len(tenant.vms))
                for name, tenant in allocator.tenants.items()
            },
            specs=[wanted[each] for each in asked],
            vms=[
                VMNow(name, vm.tenant, zone.machine_names[vm.machine], place[id(vm.vm)])
                for name, vm in allocator.vms.items()
            ],
        )
    )
