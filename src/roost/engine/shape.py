"""What a VM asks for, as the row that rules read, and the values of its traits.

VMs that ask for the same thing share one shape; shapes are what evaluations are kept for.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roost.engine.rule import TRAIT_FIELDS
from roost.engine.ruleset import RuleSet
from roost.model.errors import InvalidInput, UnknownName
from roost.model.request import ANY, VM
from roost.model.thresholds import Purpose
from roost.model.zone import Zone

MOST_KNOWN = 10_000  # a tenant in isolation has shapes of its own, so they would never stop growing


@dataclass(frozen=True, eq=False, slots=True)
class Shape:
    """One distinct thing that VMs ask for."""

    row: NDArray[np.void]  # a single row
    record: np.void  # the same, by itself
    plain: NDArray[np.void]  # the row without the user's own traits: what kernels of all policies know
    traits: dict[str, int]
    machine_key: tuple[int, ...]  # the trait values that machine rules depend on: names its evaluation
    cluster_key: tuple[int, ...]  # the same for cluster rules: names its ranking
    lots: tuple[int, ...]  # what ties between clusters are drawn by: the same again, but for the purpose
    amounts: tuple[tuple[int, ...], ...]  # by hardware generation: what it takes, by resource


def vm_row_type(zone: Zone, own_traits: tuple[str, ...] = ()) -> np.dtype[np.void]:
    """The row of a VM; a user's own traits follow the fields that Roost knows."""
    fields: list[Any] = [
        ("demand", np.int32, (len(zone.generations), len(zone.resources))),
        ("supported", np.int8, (len(zone.generations),)),
        ("type", np.int32),
        ("features", np.int32),
        ("isolation", np.int32),
        ("cluster", np.int32),
        ("datacenter", np.int16),
        ("colocation", np.int16),
        ("priority", np.int8),
        ("generation", np.int8),
        ("purpose", np.int8),
        ("avoids", np.int8, (max(len(zone.classes), 1),)),
    ]
    return np.dtype(fields + [(trait, np.int64) for trait in own_traits], align=True)


class Shapes:
    """The shapes seen so far, for one zone and one set of rules."""

    def __init__(self, zone: Zone, rules: RuleSet) -> None:
        self.zone, self.rules = zone, rules
        self._type, self._plain = vm_row_type(zone, rules.own_traits), vm_row_type(zone)
        self._known: dict[tuple[Any, ...], Shape] = {}
        self._running: dict[tuple[Any, ...], Shape] = {}  # of VMs that other rules have placed

    def known(self, vm: VM, tenant: int, purpose: Purpose) -> Shape | None:
        """The same, if it was asked for before."""
        return self._known.get(self._key(vm, tenant, purpose))

    def of(self, vm: VM, tenant: int, where: str = "vm", purpose: Purpose = Purpose.NEW) -> Shape:
        """The shape of a VM of a tenant (by number). Names that the zone does not know are refused."""
        key = self._key(vm, tenant, purpose)
        if (shape := self._known.get(key)) is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            shape = self._known[key] = self._make(vm, tenant if vm.isolated else 0, where, purpose)
        return shape

    def of_running(self, vm: VM, tenant: int) -> Shape:
        """The shape of a VM that runs, whoever placed it: what it holds, not what it asked of its machine."""
        key = self._key(vm, tenant)
        if (shape := self._known.get(key) or self._running.get(key)) is None:
            if len(self._running) >= MOST_KNOWN:
                self._running.clear()
            traits = {trait: value for trait, value in vm.traits.items() if trait in self.rules.own_traits}
            plain = VM(vm.type, "", vm.priority, vm.isolated, vm.colocation, traits=traits)
            shape = self._running[key] = self._build(self._values(plain, tenant if vm.isolated else 0, "vm"))
        return shape

    @staticmethod
    def _key(vm: VM, tenant: int, purpose: Purpose = Purpose.NEW) -> tuple[Any, ...]:
        own = tuple(sorted(vm.traits.items())) if vm.traits else ()
        isolation = tenant if vm.isolated else 0
        return (
            vm.type, vm.priority, isolation, vm.colocation, vm.requires, vm.datacenter, vm.cluster, vm.generation, own,
            purpose,
        )  # fmt: skip

    def sample(self, vm_type: str) -> Shape:
        """The plainest shape of a VM type, whether or not the rules heed all that the type requires."""
        return self._build(self._values(VM(vm_type), 0, "vm"))

    def _make(self, vm: VM, isolation: int, where: str, purpose: Purpose) -> Shape:
        traits = self._values(vm, isolation, where)
        for trait, value in traits.items():
            idle = 0 if trait in ("features", "isolation", "priority", "purpose") else -1
            if value != idle and trait in TRAIT_FIELDS and trait not in self.rules.traits:
                raise InvalidInput(f"{where}: {trait}", "no rule of the policy reads it", "use a policy that does")
        return self._build(traits | {"purpose": purpose})

    def _values(self, vm: VM, isolation: int, where: str) -> dict[str, int]:
        """The value of each trait of a VM; names that the zone or the policy does not know are refused."""
        zone = self.zone
        kind = zone.vm_type(vm.type, f"{where}.type")
        required = (*zone.vm_types[kind].requires, *vm.requires)
        traits = {
            "vm_type": kind,
            "priority": _find(vm.priority or zone.bands[0], zone.bands, f"{where}.priority", "priority band"),
            "features": zone.feature_bits(required, f"{where}.requires"),
            "isolation": isolation,
            "colocation": _find(vm.colocation, zone.classes, f"{where}.colocation", "anti-colocation class"),
            "datacenter": _find(vm.datacenter, zone.datacenters, f"{where}.datacenter", "datacenter"),
            "cluster": _find(vm.cluster, zone.cluster_names, f"{where}.cluster", "cluster"),
            "generation": _find(vm.generation, tuple(zone.generation_index), f"{where}.generation", "generation"),
            "purpose": Purpose.NEW,
        }
        for trait, value in vm.traits.items():
            if trait not in self.rules.own_traits:
                raise UnknownName(f"{where}.traits", "trait of the policy's own rules", trait, self.rules.own_traits)
            if not -(2**63) <= value < 2**63:
                raise InvalidInput(f"{where}.traits.{trait}", f"is {value}", "use a 64-bit whole number")
        return traits | {trait: vm.traits.get(trait, 0) for trait in self.rules.own_traits}

    def _build(self, traits: dict[str, int]) -> Shape:
        zone, row = self.zone, np.zeros(1, self._type)
        for trait, value in traits.items():
            if trait == "vm_type":
                row["type"], row["demand"], row["supported"] = value, zone.demand[value], zone.supported[value]
            else:
                row[trait] = value
        if traits["colocation"] >= 0:
            row["avoids"] = zone.conflicts[traits["colocation"]]
        cluster_key = tuple(traits[t] for t in self.rules.cluster_traits)
        machine_key = tuple(traits[t] for t in self.rules.machine_traits)
        lots = tuple(traits[t] for t in self.rules.cluster_traits if t != "purpose")  # a tenant grows where it began
        plain = np.frombuffer(row.data, self._plain, count=1)
        amounts = tuple(map(tuple, row[0]["demand"].tolist()))
        return Shape(row, row[0], plain, traits, machine_key, cluster_key, lots, amounts)


def _find(name: str, known: tuple[str, ...], where: str, kind: str) -> int:
    """The index of a name, -1 for no name or any."""
    if not name or name == ANY:
        return -1
    if name not in known:
        raise UnknownName(where, kind, name, known)
    return known.index(name)
