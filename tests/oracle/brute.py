"""Whether VMs can be placed together at all: every VM on every machine, in every combination. Slow and obvious.

Knows no engine and asks no rule: what a placement must fulfil is written out once more, of VMs and machines by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from roost.model.request import VM, Constraints
from roost.model.zone import Zone

Home = tuple[VM, int]  # a VM on a machine, by row


@dataclass(frozen=True)
class Spread:
    """What VMs that count for one another are held to together."""

    min_racks: int = 0
    max_racks: int = 0
    rack_skew: int = 0
    min_update_domains: int = 0
    update_domain_skew: int = 0
    per_machine: int = 0
    per_rack: int = 0
    colocate: str = ""


def spread_of(constraints: Constraints, name: str) -> Spread:
    """What the VMs of a set are held to, or those in none."""
    if not name:
        return Spread(
            constraints.min_fault_domains,
            constraints.max_fault_domains,
            constraints.fault_domain_skew,
            constraints.min_update_domains,
            constraints.update_domain_skew,
            constraints.max_per_machine,
            constraints.max_per_rack,
            constraints.colocate,
        )
    wanted = constraints.sets[name]
    return Spread(
        min_racks=wanted.fault_domains,
        rack_skew=int(wanted.fault_domains > 0),
        min_update_domains=wanted.update_domains,
        update_domain_skew=int(wanted.update_domains > 0),
    )


class Floor:
    """The machines of a zone and the VMs on them, all of one priority."""

    def __init__(self, zone: Zone, others: Iterable[Home], mine: Iterable[Home]) -> None:
        """`others`: VMs of other tenants; `mine`: of the tenant that wants more."""
        self.zone, self.others, self.mine = zone, list(others), list(mine)

    def holds(self, vms: Sequence[VM], machines: Sequence[int], constraints: Constraints) -> bool:
        """Whether all that was asked for holds with the VMs on these machines."""
        new = list(zip(vms, machines, strict=True))
        return all(self._suits(vm, m) for vm, m in new) and self._fits(new) and self._spread(new, constraints)

    def assignment(self, vms: Sequence[VM], constraints: Constraints) -> tuple[int, ...] | None:
        """A machine for each VM, so that all that was asked for holds; None if there is no such assignment."""
        choices = [[m for m in range(len(self.zone.machines)) if self._suits(vm, m)] for vm in vms]
        return next((machines for machines in product(*choices) if self.holds(vms, machines, constraints)), None)

    # ---------------------------------------------------------------------------------------- one machine

    def _suits(self, vm: VM, m: int) -> bool:
        """Whether a machine is of the kind that a VM asks for."""
        zone, machine = self.zone, self.zone.machines[m]
        cluster = zone.clusters[machine["cluster"]]
        generation = zone.generations[machine["generation"]].name
        kind = zone.vm_types[zone.vm_type_index[vm.type]]
        has = {name for i, name in enumerate(zone.features) if int(machine["features"]) & (1 << i)}
        return (
            bool(cluster["supports"][zone.vm_type_index[vm.type]])
            and vm.generation in ("", generation)
            and vm.datacenter in ("", zone.datacenters[machine["datacenter"]])
            and vm.cluster in ("", zone.cluster_names[machine["cluster"]])
            and {*kind.requires, *vm.requires} <= has
        )

    def _fits(self, new: Sequence[Home]) -> bool:
        """Whether no machine has more than it holds, and isolated VMs are among their like."""
        zone = self.zone
        for m in {m for _, m in new}:
            here = [vm for vm, at in (*self.mine, *new) if at == m]
            foreign = [vm for vm, at in self.others if at == m]
            generation = zone.generations[zone.machines[m]["generation"]].name
            for r in range(len(zone.resources)):
                needs = [zone.vm_types[zone.vm_type_index[vm.type]].demand[generation][r] for vm in (*here, *foreign)]
                if sum(needs) > zone.machines[m]["capacity"][r]:
                    return False
            alone = [vm.isolated for vm in (*here, *foreign)]
            if any(alone) and (foreign or not all(alone)):
                return False
            if not self._bearable([vm.colocation for vm in (*here, *foreign)]):
                return False
        return True

    def _bearable(self, classes: Sequence[str]) -> bool:
        """Whether no two VMs are of classes that do not go together."""
        at = [self.zone.classes.index(name) for name in classes if name]
        return not any(self.zone.conflicts[a][b] for i, a in enumerate(at) for b in at[:i])

    # ----------------------------------------------------------------------------------------- all of them

    def _spread(self, new: Sequence[Home], constraints: Constraints) -> bool:
        """Whether the VMs of each set, and those in none, lie as their tenant wants."""
        for name in {vm.set for vm, _ in new}:
            homes = [m for vm, m in self.mine if vm.set == name]
            machines = [m for vm, m in new if vm.set == name]
            wanted = spread_of(constraints, name)
            if not self._wide(homes, machines, wanted) or not self._even(homes, machines, wanted):
                return False
        return True

    def _wide(self, homes: Sequence[int], machines: Sequence[int], wanted: Spread) -> bool:
        """Whether VMs are in enough domains, in not too many, and not too many in one."""
        everywhere = [*homes, *machines]
        racks, updates = self._units("rack", everywhere), self._units("update_domain", everywhere)
        return (
            len(racks) >= min(wanted.min_racks, len(everywhere))
            and len(updates) >= min(wanted.min_update_domains, len(everywhere))
            and len(racks) <= (wanted.max_racks or len(racks))
            and max(Counter(everywhere).values()) <= (wanted.per_machine or len(everywhere))
            and max(racks.values()) <= (wanted.per_rack or len(everywhere))
            and (not wanted.colocate or len(self._units(wanted.colocate, everywhere)) == 1)
        )

    def _even(self, homes: Sequence[int], machines: Sequence[int], wanted: Spread) -> bool:
        """Whether VMs can come in some order so that they are spread evenly all the time."""
        if not wanted.rack_skew and not wanted.update_domain_skew:
            return True
        return any(
            all(
                self._evens_out("rack", [*homes, *order[:at]], machine, total, wanted.min_racks, wanted.rack_skew)
                and self._evens_out(
                    "update_domain",
                    [*homes, *order[:at]],
                    machine,
                    total,
                    wanted.min_update_domains,
                    wanted.update_domain_skew,
                )
                for at, machine in enumerate(order)
            )
            for total in [len(homes) + len(machines)]
            for order in set(permutations(machines))
        )

    def _evens_out(self, unit: str, before: Sequence[int], machine: int, total: int, least: int, skew: int) -> bool:
        """Whether a VM may come to a machine: where the fewest are, or so that the most are not too many more."""
        if not skew:
            return True
        held = self._units(unit, before)
        here = held[int(self.zone.machines[machine][unit])]
        fewest = min(held.values()) if len(held) >= min(least, total) and held else 0
        if here == fewest:
            return True
        after = Counter(held)
        after[int(self.zone.machines[machine][unit])] += 1
        empty = [0] if len(after) < min(least, total) else []
        return max(after.values()) - min([*after.values(), *empty]) <= skew

    def _units(self, unit: str, machines: Sequence[int]) -> Counter[int]:
        """How many VMs are in each rack, cluster, datacenter or update domain."""
        return Counter(int(self.zone.machines[m][unit]) for m in machines)
