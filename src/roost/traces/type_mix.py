"""Which VM types are asked for, and how often: Tables 2 and 3 of Protean (OSDI'20) at once.

Table 2 gives the shares of types A to M, without their names and cores; Table 3 the shares of cores. So cores had to
be found for the letters, the same in both zones, such that no number of cores is asked for more often than Table 3
says. An exhaustive search finds 152,840 ways. In all of them J has 2 cores and K has 4; C has 1 in two of three. What
a number of cores still lacks is made up by types beyond the letters. Each of those must stay below 2 % in both zones,
or Table 2 would list it. 14 ways need the fewest types that synthetic zones lack, which is six; of these, this one was
taken because in it large VMs are what Protean says of them: H and M, which zone 2 asks for much more often, take half
a machine or nearly all of one.

    cores   Table 3        letters                        they have       others lack
        1   17.1   27.0    A C D                          11.8   21.4     5.3   5.6    3 types of their own
        2   37.4   52.4    B F I J                        32.8   47.0     4.6   5.4    1 of a synthetic zone, 2 of own
        4   32.0   10.5    E K L                          26.7    6.2     5.3   4.3    2 of a synthetic zone, 1 of own
        8    8.9    4.5    G                               0.6    3.1     8.3   1.4    6 of a synthetic zone
    >= 10    4.3    2.6    H                               0.8    2.2     3.5   0.4    3 of a synthetic zone
    >= 20    0.3    3.1    M                               0.0    2.2     0.3   0.9    2 whole machines

Letters stand for types that synthetic zones have, and most others do too. Synthetic zones have too few small types, so
six are added: `X2-8` has 2 cores and 8 GiB. Every type carries what it takes, for zones that do not know it by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from roost.model.errors import UnknownName
from roost.model.synthetic import standard_vm_types
from roost.model.zone import DEFAULT_RESOURCES, Resource, VMType, Zone
from roost.traces.workload import ANY, WorkloadType

if TYPE_CHECKING:
    from numpy.typing import NDArray

ZONES = ("zone1", "zone2")
# Table 2. Letter: the type it stands for, its cores, percent of the VMs in zone 1 and in zone 2.
LETTERS: dict[str, tuple[str, int, float, float]] = {
    "A": ("A0", 1, 4.6, 0.1),
    "B": ("A5", 2, 3.5, 3.6),
    "C": ("A1", 1, 6.5, 12.9),
    "D": ("D1", 1, 0.7, 8.4),
    "E": ("D12", 4, 1.9, 3.7),
    "F": ("D11", 2, 3.2, 4.4),
    "G": ("D4", 8, 0.6, 3.1),
    "H": ("D14", 16, 0.8, 2.2),
    "I": ("A2", 2, 2.4, 7.4),
    "J": ("D2", 2, 23.7, 31.6),
    "K": ("D3", 4, 21.3, 2.1),
    "L": ("A3", 4, 3.5, 0.4),
    "M": ("G5", 32, 0.0, 2.2),
}
# Table 3. Cores: percent of the VMs in zone 1 and in zone 2. 16 and 32 stand for 10 to 19, and for 20 or more.
CORES: dict[int, tuple[float, float]] = {
    1: (17.1, 27.0),
    2: (37.4, 52.4),
    4: (32.0, 10.5),
    8: (8.9, 4.5),
    16: (4.3, 2.6),
    32: (0.3, 3.1),
}
# The others, by cores; they share evenly what is left.
OTHERS: dict[int, tuple[str, ...]] = {
    1: ("X1-1", "X1-2", "X1-4"),
    2: ("G1", "X2-4", "X2-8"),
    4: ("A6", "G2", "X4-16"),
    8: ("A4", "A7", "A8", "A10", "D13", "G3"),
    16: ("A9", "A11", "G4"),
    32: ("Full-gen4", "Full-gen5"),
}
# What the six types take that synthetic zones do not have: GiB of disk and of ssd, Gbit/s, per core.
OWN_PER_CORE = (40.0, 0.0, 0.25)


@dataclass(frozen=True)
class TypeMix:
    """Types and how likely each is asked for; the likelihoods sum up to 1."""

    types: Sequence[WorkloadType]
    resources: Sequence[str]
    weights: NDArray[np.float64]

    @property
    def mean_cores(self) -> float:
        """Of a VM."""
        at = self.resources.index("cores")
        return float(self.weights @ [max(d[at] for d in t.demand.values()) for t in self.types])


def protean_mix(zone: str) -> TypeMix:
    """Types with the shares of Table 2 and cores with the shares of Table 3."""
    column = zone_column(zone)
    shares = {name: percents[column] for name, _, *percents in LETTERS.values()}
    for cores, percents in CORES.items():
        left = percents[column] - sum(shares[name] for name, size, *_ in LETTERS.values() if size == cores)
        shares |= dict.fromkeys(OTHERS[cores], left / len(OTHERS[cores]))
    standard = {vm_type.name: vm_type for vm_type in standard_vm_types()}
    types = [_carried(standard[n], DEFAULT_RESOURCES) if n in standard else _own(n) for n in shares]
    return _mix(types, DEFAULT_RESOURCES, shares)


def zone_mix(zone: Zone, like: str) -> TypeMix:
    """Types that a zone offers, with the shares of Table 3; among those of like cores, small memory is more common."""
    column = zone_column(like)
    cores, memory = (_position(zone.resources, name) for name in ("cores", "memory"))
    by_cores: dict[int, list[tuple[float, WorkloadType]]] = {}
    for vm_type in zone.vm_types:
        if vm_type.family == "Full" or not vm_type.demand:
            continue
        carried = _carried(vm_type, zone.resources)
        largest = carried.demand[ANY]
        rarity = largest[memory] * (1 + 4 * len(vm_type.requires))
        by_cores.setdefault(min(CORES, key=lambda c: abs(c - largest[cores])), []).append((rarity, carried))
    types, shares = [], {}
    for number, found in by_cores.items():
        falling = 1.0 / np.arange(1, len(found) + 1)
        for share, (_, each) in zip(falling / falling.sum(), sorted(found, key=_rarity_and_name), strict=True):
            types.append(each)
            shares[each.name] = CORES[number][column] * float(share)
    return _mix(types, zone.resources, shares)


def zone_column(zone: str) -> int:
    """Where a zone's figures are in the tables."""
    if zone not in ZONES:
        raise UnknownName("mix", "mix", zone, ZONES)
    return ZONES.index(zone)


def _mix(types: Sequence[WorkloadType], resources: Sequence[Resource], shares: Mapping[str, float]) -> TypeMix:
    weights = np.array([shares[t.name] for t in types])
    return TypeMix(types, [r.name for r in resources], weights / weights.sum())


def _carried(vm_type: VMType, resources: Sequence[Resource]) -> WorkloadType:
    """With the most that it takes on any hardware, in the units people write."""
    largest = map(max, zip(*vm_type.demand.values(), strict=True))
    return WorkloadType(vm_type.name, {ANY: tuple(a / r.per_unit for a, r in zip(largest, resources, strict=True))})


def _own(name: str) -> WorkloadType:
    """A type that is named after its cores and memory."""
    cores, memory = map(float, name.removeprefix("X").split("-"))
    return WorkloadType(name, {ANY: (cores, memory, *(cores * each for each in OWN_PER_CORE))})


def _position(resources: Sequence[Resource], name: str) -> int:
    """Of a resource; the first if there is none of that name."""
    return next((i for i, r in enumerate(resources) if r.name == name), 0)


def _rarity_and_name(entry: tuple[float, WorkloadType]) -> tuple[float, str]:
    return entry[0], entry[1].name
