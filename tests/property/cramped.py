"""Zones of a few machines and four bands, in which hardly anything finds room unless something else gives way."""

from __future__ import annotations

from roost.model.zone import Generation, MachineGroup, Resource, VMType, Zone
from roost.rules.policy import Policy

BANDS = ("gold", "silver", "bronze", "iron")
SIZES = {"one": (1, 2), "two": (2, 1), "three": (3, 3), "five": (5, 2), "tall": (1, 9), "eight": (8, 16)}


def zone(machines: int) -> Zone:
    """A zone of so many machines, each in a rack of its own."""
    return Zone(
        name="z",
        resources=(Resource("cores", "cores", 1), Resource("memory", "GiB", 1)),
        bands=BANDS,
        generations=(Generation("only", (8, 16)),),
        vm_types=tuple(VMType(name, "s", {"only": size}) for name, size in SIZES.items()),
        groups=tuple(
            MachineGroup(
                datacenter="d", cluster="c", rack=f"r{i}", generation="only", names=(f"m{i}",), update_domains=[0]
            )
            for i in range(machines)
        ),
    )


ZONE = zone(3)
NAMES = tuple(ZONE.machine_names)
POLICY = Policy.parse(
    """
name: plain
machines: {validators: [is_ready, has_room, respects_isolation], preferences: [best_fit]}
tenants: [max_per_machine, min_fault_domains]
"""
)
