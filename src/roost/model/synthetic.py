"""A made-up zone of any size, by seed: the hardware mix of a real one, and VM types that fit it.

Generations and how common they are: Protean (OSDI'20), Table 1. VM families, cores and memory: the A, D and G series
of the allocator slides. Everything else (memory, disk and network of a machine; disk, ssd and nic of a VM; which
generation supports which family) is chosen here so that no resource but cores is usually the scarce one.
"""

import numpy as np

from roost.model.errors import InvalidInput
from roost.model.zone import DEFAULT_BANDS, DEFAULT_RESOURCES, Generation, MachineGroup, VMType, Zone

MACHINES_PER_RACK = 40
RACKS_PER_CLUSTER = 25
CLUSTERS_PER_DATACENTER = 20
UPDATE_DOMAINS = 20
INFINIBAND_SHARE = 0.15  # of the clusters that can have it; the first of a generation always does

# name: machines in Protean's Table 1; cores, memory GiB, disk GiB, ssd GiB, nic Gbit/s; features
GENERATIONS: dict[str, tuple[int, tuple[int, ...], tuple[str, ...]]] = {
    "gen3": (7_295, (10, 96, 4_000, 0, 10), ()),
    "gen4": (34_208, (24, 224, 8_000, 2_000, 25), ("ssd",)),
    "gen5": (18_016, (40, 576, 8_000, 6_400, 40), ("ssd", "fast-cpu")),
    "gen6": (2_064, (48, 768, 8_000, 8_000, 50), ("ssd", "fast-cpu")),
}
# family: (generations, features each VM requires, disk GiB, ssd GiB and Gbit/s per core)
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...], int, int, float]] = {
    "A": (("gen3", "gen4", "gen5", "gen6"), (), 40, 0, 0.25),
    "D": (("gen4", "gen5", "gen6"), ("ssd",), 10, 50, 0.5),
    "G": (("gen5", "gen6"), ("ssd", "fast-cpu"), 10, 120, 0.75),
}
# type: cores, memory GiB
TYPES: dict[str, tuple[int, float]] = {
    "A0": (1, 0.768), "A1": (1, 1.75), "A2": (2, 3.5), "A3": (4, 7), "A4": (8, 14), "A5": (2, 14), "A6": (4, 28),
    "A7": (8, 56), "A8": (8, 56), "A9": (16, 112), "A10": (8, 56), "A11": (16, 112),
    "D1": (1, 3.5), "D2": (2, 7), "D3": (4, 14), "D4": (8, 28), "D11": (2, 14),
    "D12": (4, 28), "D13": (8, 56), "D14": (16, 112), "G1": (2, 28), "G2": (4, 56), "G3": (8, 112), "G4": (16, 224),
    "G5": (32, 448),
}  # fmt: skip
EXTRA_FEATURES = {"A8": "infiniband", "A9": "infiniband", "A10": "fast-cpu", "A11": "fast-cpu"}
# A-series VMs are sold by what they achieve, so newer and faster cores need to give less of themselves to one.
CORE_FACTOR = {("A", "gen5"): 0.9, ("A", "gen6"): 0.8}


def _amounts(*units: float) -> tuple[int, ...]:
    return tuple(r.amount(u, r.name) for r, u in zip(DEFAULT_RESOURCES, units, strict=True))


def standard_generations() -> list[Generation]:
    """The four generations of Protean's Table 1."""
    return [Generation(name, _amounts(*shape), features) for name, (_, shape, features) in GENERATIONS.items()]


def standard_vm_types() -> list[VMType]:
    """The A, D and G families, and for each generation a type that takes a whole machine."""
    types = []
    for name, (cores, memory) in TYPES.items():
        family = name[0]
        generations, features, disk, ssd, nic = FAMILIES[family]
        demand = {}
        for generation in generations:
            capacity = _amounts(*GENERATIONS[generation][1])
            given = cores * CORE_FACTOR.get((family, generation), 1.0)
            amounts = _amounts(given, memory, cores * disk, cores * ssd, cores * nic)
            if all(a <= c for a, c in zip(amounts, capacity, strict=True)):
                demand[generation] = amounts
        extra = (EXTRA_FEATURES[name],) if name in EXTRA_FEATURES else ()
        types.append(VMType(name, family, demand, (*features, *extra)))
    for name, (_, shape, _features) in GENERATIONS.items():
        types.append(VMType(f"Full-{name}", "Full", {name: _amounts(*shape)}))
    return types


def synthetic_zone(machines: int, seed: int) -> Zone:
    """Machines in homogeneous clusters; the seed decides which cluster has InfiniBand and how worn machines are."""
    if not isinstance(machines, int) or not 100 <= machines <= 200_000:
        raise InvalidInput("machines", f"is {machines!r}", "a synthetic zone has 100 to 200,000 machines")
    if not isinstance(seed, int) or seed < 0:
        raise InvalidInput("seed", f"is {seed!r}", "use a whole number from 0 on")
    rng = np.random.default_rng(seed)
    rack_size = MACHINES_PER_RACK if machines >= 1_000 else 10
    groups: list[MachineGroup] = []
    for clusters, (generation, size) in enumerate(_cluster_sizes(machines)):
        name, datacenter = f"c{clusters:03d}", f"dc{clusters // CLUSTERS_PER_DATACENTER + 1}"
        first = all(generation != group.generation for group in groups)
        infiniband = generation in ("gen4", "gen5") and (first or rng.random() < INFINIBAND_SHARE)
        for rack, start in enumerate(range(0, size, rack_size)):
            count = min(rack_size, size - start)
            groups.append(
                MachineGroup(
                    datacenter=datacenter,
                    cluster=name,
                    rack=f"{name}-r{rack:02d}",
                    generation=generation,
                    names=[f"{name}-r{rack:02d}-m{i:02d}" for i in range(count)],
                    update_domains=[(start + i) % UPDATE_DOMAINS for i in range(count)],
                    features=("infiniband",) if infiniband else (),
                )
            )
    zone = Zone(
        name=f"synthetic-{machines}-{seed}",
        resources=DEFAULT_RESOURCES,
        bands=DEFAULT_BANDS,
        generations=standard_generations(),
        vm_types=standard_vm_types(),
        groups=groups,
        conflicts=(("disk-heavy", "latency-critical"), ("licensed", "licensed")),
    )
    worn = rng.random(len(zone.machines))
    zone.machines["health"] = np.where(worn < 0.02, 60, np.where(worn < 0.07, 85, 100))
    zone.machines["failures"] = rng.poisson(np.where(worn < 0.02, 1.0, 0.02))
    zone.machines["versions_behind"] = rng.random(len(zone.machines)) < 0.1
    return zone


def _cluster_sizes(machines: int) -> list[tuple[str, int]]:
    """The generation and size of each cluster: shares as in Table 1, at least one cluster of each generation."""
    total = sum(count for count, _, _ in GENERATIONS.values())
    usual = MACHINES_PER_RACK * RACKS_PER_CLUSTER if machines >= 8_000 else max(20, machines // 8)
    wanted = {name: max(10, round(machines * count / total)) for name, (count, _, _) in GENERATIONS.items()}
    wanted["gen4"] += machines - sum(wanted.values())
    sizes = []
    for name, count in wanted.items():
        clusters = max(1, round(count / usual))
        sizes += [(name, count // clusters + (i < count % clusters)) for i in range(clusters)]
    return sizes
