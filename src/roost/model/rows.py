"""The row types of a zone: what one machine, rack or cluster is, in memory.

Rows are NumPy records, so that rules read them by name (`machine.free[band][resource]`) both compiled and uncompiled.
How many resources, bands, anti-colocation classes and VM types there are comes from the zone file, so the types are
built when a zone is loaded. Amounts are integers in the smallest unit. A machine row is about two cache lines.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from roost.model.thresholds import Purpose

CACHE_LINE = 64
PACKINGS = 5  # kinds of machines, by how soon they are filled: to the brim, three by what is left, and empty ones


class MachineState(IntEnum):
    """What a machine may be used for. Only ready machines take new VMs."""

    READY = 0
    DRAINING = 1
    DOWN = 2
    QUARANTINED = 3


def machine_type(bands: int, resources: int, classes: int) -> np.dtype[np.void]:
    """One machine. `free[b]` is capacity less what bands at or above `b` hold: a band sees lower bands' VMs as free."""
    return _padded(
        [
            ("free", np.int32, (bands, resources)),
            ("capacity", np.int32, (resources,)),
            ("vms", np.int32),
            ("owner", np.int32),  # the tenant that holds the machine in isolation, 0 for none
            # How many of the VMs are isolated, and the sum of their tenants' numbers: all are of one tenant, the owner,
            # unless a copy runs ahead of the truth; but adding and taking away come out right in any order.
            ("isolated", np.int32),
            ("owners", np.int64),
            ("features", np.int32),  # bit set of hardware capabilities
            ("rack", np.int32),
            ("cluster", np.int16),
            ("datacenter", np.int16),
            ("update_domain", np.int16),
            ("versions_behind", np.int16),  # host environments released since the one it runs
            ("failures", np.int16),  # failures of late, each of which weighs less as time goes by: see `failures`
            ("state", np.int8),
            ("health", np.int8),  # 100 is perfect, 0 is broken
            ("generation", np.int8),
            ("classes", np.int16, (max(classes, 1),)),  # VMs of each anti-colocation class
        ]
    )


def _padded(fields: list[Any]) -> np.dtype[np.void]:
    """A row that fills whole cache lines, so that reading one never touches a line of its neighbour."""
    packed = np.dtype(fields, align=True)
    names = list(packed.names or ())
    return np.dtype(
        {
            "names": names,
            "formats": [packed[name] for name in names],
            "offsets": [packed.fields[name][1] for name in names] if packed.fields else [],
            "itemsize": -(-packed.itemsize // CACHE_LINE) * CACHE_LINE,
            "aligned": True,
        }
    )


def rack_type(bands: int, resources: int) -> np.dtype[np.void]:
    """One rack: sums over its machines, as each band sees them. `free` and `empty` count ready machines only."""
    return _padded(
        [
            ("capacity", np.int64, (resources,)),
            ("used", np.int64, (bands, resources)),  # by the band and those above it
            ("free", np.int64, (bands, resources)),
            ("cluster", np.int32),
            ("first", np.int32),  # its machines are rows first … first + machines - 1
            ("machines", np.int32),
            ("vms", np.int32),
            ("empty", np.int32, (bands,)),  # machines without a VM of the band or one above it
        ]
    )


def cluster_type(bands: int, resources: int, vm_types: int) -> np.dtype[np.void]:
    """One cluster: homogeneous hardware, sums over its machines, and which VM types it takes."""
    return _padded(
        [
            ("capacity", np.int64, (resources,)),
            ("used", np.int64, (bands, resources)),
            ("free", np.int64, (bands, resources)),
            ("first", np.int32),
            ("machines", np.int32),
            ("first_rack", np.int32),
            ("racks", np.int32),
            ("vms", np.int32),
            ("empty", np.int32, (bands,)),
            ("index", np.int32),
            ("datacenter", np.int16),
            ("generation", np.int8),
            ("quarantined", np.int8),
            ("thresholds", np.int32, (len(Purpose),)),  # empty machines that are kept, by purpose of a request
            ("features", np.int32),
            ("supports", np.int8, (vm_types,)),
            ("demands", np.int32, (vm_types, resources)),  # what a VM of each type takes here
            ("per_demand", np.float32, (vm_types, resources)),  # one over that; 0 for nothing
            ("takes", np.float32, (vm_types,)),  # the share of a machine, its resources weighed by how scarce they are
        ]
    )


def foresight_type(bands: int, vm_types: int) -> np.dtype[np.void]:
    """What is foreseen for a zone, beside its rows."""
    return np.dtype(
        [
            ("arrivals", np.float32, (bands, vm_types)),  # of each type in an hour, at priorities above each band
            # How many of each type find room on machines filled before those of a packing; the last: empty ones.
            ("ahead", np.float32, (vm_types, PACKINGS)),
        ],
        align=True,
    )


OCCUPIED = "held by lower-priority VMs"  # why something has no room that makes nobody give way
