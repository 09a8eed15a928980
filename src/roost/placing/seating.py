"""Which VMs of a tenant count for one another when its next ones are placed, and by which terms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from roost.model.request import UNCONSTRAINED, VM, Constraints, Terms
from roost.placing.books import RunningVM


class Part(msgspec.Struct, frozen=True, gc=False):
    """VMs that count for one another: those of an availability set, or those in none."""

    terms: Terms
    homes: tuple[int, ...] = ()  # where they are; of no interest without terms


class Seating(msgspec.Struct, frozen=True, gc=False):
    """The parts that the VMs of a request belong to."""

    parts: Mapping[str, Part]  # by availability set; without a name: those in none
    sets: tuple[str, ...] = ()  # by index in the request; empty: the tenant has no sets

    def part_of(self, vm: int) -> Part:
        """The part of a VM, by its index in the request."""
        return self.parts[self.sets[vm] if self.sets else ""]

    def under(self, constraints: Constraints) -> Seating:
        """The same if the tenant had other constraints, and no other sets."""
        parts = {name: Part(constraints.terms(name), part.homes) for name, part in self.parts.items()}
        return Seating(parts, self.sets)

    def strictly(self) -> Seating:
        """The same, with nothing waived."""
        parts = {
            name: Part(msgspec.structs.replace(part.terms, best_effort=False), part.homes)
            for name, part in self.parts.items()
        }
        return Seating(parts, self.sets)


FREE = Seating({"": Part(Terms(UNCONSTRAINED))})  # itself, not its like: nothing need be known of where VMs are


def seating(
    constraints: Constraints, vms: Sequence[VM], running: Iterable[RunningVM], leaving: Collection[RunningVM] = ()
) -> Seating:
    """How VMs are placed beside those of the same tenant that run, without those that leave."""
    if constraints == UNCONSTRAINED or not constraints.on_places:
        return FREE
    staying = [each for each in running if not leaving or each not in leaving]
    if not constraints.sets:
        return Seating({"": Part(constraints.terms(), tuple([each.machine for each in staying]))})
    homes: dict[str, list[int]] = {vm.set: [] for vm in vms}
    for each in staying:
        if each.vm.set in homes:
            homes[each.vm.set].append(each.machine)
    return seated(constraints, vms, homes)


def seated(constraints: Constraints, vms: Sequence[VM], homes: Mapping[str, Sequence[int]]) -> Seating:
    """The same, once it is known where the VMs of each set are."""
    if constraints == UNCONSTRAINED or not constraints.on_places:
        return FREE
    sets = tuple([vm.set for vm in vms]) if constraints.sets else ()
    parts = {}
    for name in dict.fromkeys(sets or ("",)):
        terms = constraints.terms(name)
        parts[name] = Part(terms, () if terms.constraints == UNCONSTRAINED else tuple(homes.get(name, ())))
    return Seating(parts, sets)
