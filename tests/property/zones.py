"""Small zones of a few fixed shapes, so that kernels are shared, and the policies that are tried on them.

The shape of a zone is its numbers of bands, resources, classes, VM types and generations; its layout is anything else.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from roost.model.synthetic import standard_generations, standard_vm_types
from roost.model.zone import DEFAULT_BANDS, DEFAULT_RESOURCES, Generation, MachineGroup, Resource, VMType, Zone
from roost.rules.policy import Policy


@dataclass(frozen=True, eq=False)
class Shape:
    """What kernels depend on, and which of its VM types are worth asking for."""

    name: str
    resources: tuple[Resource, ...]
    bands: tuple[str, ...]
    generations: tuple[Generation, ...]
    vm_types: tuple[VMType, ...]
    conflicts: tuple[tuple[str, str], ...] = ()
    asked: tuple[str, ...] = ()

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(self.name)  # in Hypothesis' reports


STANDARD = Shape(
    name="standard",
    resources=DEFAULT_RESOURCES,
    bands=DEFAULT_BANDS,
    generations=tuple(standard_generations()),
    vm_types=tuple(standard_vm_types()),
    conflicts=(("disk-heavy", "latency-critical"), ("licensed", "licensed")),
    asked=("A1", "A3", "A4", "A7", "A8", "A10", "D3", "D13", "D14", "G3", "G5", "Full-gen3", "Full-gen4"),
)
TINY = Shape(
    name="tiny",
    resources=(Resource("cores", "cores", 1), Resource("memory", "GiB", 1)),
    bands=("high", "middle", "low", "lowest"),
    generations=(Generation("old", (4, 8)), Generation("new", (6, 6), ("fast",))),
    vm_types=(
        VMType("small", "s", {"old": (1, 1), "new": (1, 1)}),
        VMType("wide", "s", {"old": (2, 1), "new": (2, 1)}),
        VMType("tall", "s", {"old": (1, 3), "new": (1, 3)}),
        VMType("big", "b", {"old": (3, 6), "new": (2, 3)}),
        VMType("quick", "q", {"old": (2, 2), "new": (2, 2)}, ("fast",)),
        VMType("whole", "w", {"old": (4, 8), "new": (6, 6)}),
        VMType("only-new", "n", {"new": (3, 2)}),
    ),
    conflicts=(("loud", "shy"), ("single", "single")),
    asked=("small", "wide", "tall", "big", "quick", "whole", "only-new"),
)
SINGLE = Shape(
    name="single",
    resources=(Resource("cores", "cores", 1),),
    bands=("all",),
    generations=(Generation("only", (5,)),),
    vm_types=(VMType("one", "s", {"only": (1,)}), VMType("three", "s", {"only": (3,)})),
    asked=("one", "three"),
)


@dataclass(frozen=True)
class ClusterPlan:
    """One cluster: its generation and datacenter by index, and the size of each rack."""

    generation: int
    datacenter: int
    racks: tuple[int, ...]
    features: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()


@cache
def build(shape: Shape, plans: tuple[ClusterPlan, ...], wear: int | None = None) -> Zone:
    """A zone of some shape and layout. `wear` is the seed of how worn its machines are; None: all are perfect."""
    groups, excluded = [], {}
    for c, plan in enumerate(plans):
        excluded[f"c{c}"] = plan.excluded
        for r, size in enumerate(plan.racks):
            groups.append(
                MachineGroup(
                    datacenter=f"dc{plan.datacenter}",
                    cluster=f"c{c}",
                    rack=f"c{c}r{r}",
                    generation=shape.generations[plan.generation].name,
                    names=[f"c{c}r{r}m{i}" for i in range(size)],
                    update_domains=[(r + i) % 3 for i in range(size)],
                    features=plan.features,
                )
            )
    zone = Zone(
        name=shape.name,
        resources=shape.resources,
        bands=shape.bands,
        generations=shape.generations,
        vm_types=shape.vm_types,
        groups=groups,
        conflicts=shape.conflicts,
        excluded=excluded,
    )
    if wear is not None:
        rng = np.random.default_rng(wear)
        size = len(zone.machines)
        zone.machines["health"] = rng.choice([20, 60, 85, 100], size, p=[0.05, 0.1, 0.15, 0.7])
        zone.machines["failures"] = rng.poisson(0.2, size)
        zone.machines["versions_behind"] = rng.integers(0, 3, size)
    return zone


CLUSTER_VALIDATORS = "[not_quarantined, type_supported, in_datacenter, in_cluster, in_generation, keeps_empty_machines]"
VALIDATORS = "is_ready, healthy_enough, has_features, has_room, respects_isolation, respects_anti_colocation"
TENANTS = """[max_per_machine, max_per_rack, min_fault_domains, max_fault_domains, fault_domain_skew,
  min_update_domains, update_domain_skew, colocate_rack, colocate_cluster, colocate_datacenter]"""
OWN = "tests.property.own_rules"

# Rack preferences between machine preferences, three continuous ones, and all 62 bits of the key in use.
MIDDLE = f"""
name: middle
top_clusters: 1
clusters:
  validators: {CLUSTER_VALIDATORS}
  preferences:
    - {{rule: emptier_first, buckets: 3}}
machines:
  validators: [{VALIDATORS}]
  preferences:
    - {{rule: healthy, buckets: 2}}
    - {{rule: rack_with_empty_machines, buckets: 3}}
    - best_fit
    - least_used_rack
    - {{rule: non_empty, buckets: 1}}
    - {{rule: fewer_vms, most: 7, buckets: 131071}}
tenants: {TENANTS}
"""
# Derived columns with traits of their own, needed by validators, preferences and each other; two clusters at most.
COLUMNS = f"""
name: columns
top_clusters: 2
clusters:
  validators: {CLUSTER_VALIDATORS}
  preferences:
    - {{rule: "{OWN}:liked", buckets: 2}}
    - {{rule: older_generation_first, buckets: 1}}
machines:
  validators: [{VALIDATORS}, "{OWN}:bearable", "{OWN}:accepts", {{rule: below_vm_limit, max_vms: 3}}]
  preferences:
    - {{rule: unlikely_to_fail, buckets: 3}}
    - {{rule: "{OWN}:pulled", buckets: 4}}
    - {{rule: least_used_rack, buckets: 4}}
    - {{rule: "{OWN}:cosy", buckets: 3}}
tenants: {TENANTS}
"""


def own_policy(name: str, *preferences: str, module: str = OWN) -> str:
    """A policy of the fewest validators and some preferences of one's own."""
    listed = "\n".join(f'    - {{rule: "{module}:{preference}", buckets: 2}}' for preference in preferences)
    return f"name: {name}\nmachines:\n  validators: [has_room, evicts_nobody]\n  preferences:\n{listed}\n"


TABLE_4 = own_policy("table-4", "rule_1", "rule_2")


@cache
def policy(name_or_text: str) -> Policy:
    """A shipped policy by its name, or one from a text."""
    return Policy.parse(name_or_text) if "\n" in name_or_text else Policy.named(name_or_text)
