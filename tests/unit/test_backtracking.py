"""What the search over every way to place some VMs takes for the same."""

import numpy as np

from roost.model.request import VM, Constraints, Request
from roost.model.zone import Generation, MachineGroup, Resource, VMType, Zone
from roost.placing.allocator import Allocator
from roost.placing.backtracking import Labels
from roost.placing.search import Search
from roost.rules.policy import Policy

RACKS, IN_EACH = 6, 5
SIZES = {"one": 1, "two": 2, "four": 4, "eight": 8}  # as many types as other tests' zones have: kernels are shared


def allocator() -> Allocator:
    """Racks of empty machines that are all alike."""
    groups = tuple(
        MachineGroup(
            datacenter="d", cluster="c", rack=f"r{r}", generation="only",
            names=tuple(f"r{r}-m{i}" for i in range(IN_EACH)), update_domains=[0] * IN_EACH,
        )
        for r in range(RACKS)
    )  # fmt: skip
    zone = Zone(
        name="z", resources=(Resource("cores", "cores", 1), Resource("memory", "GiB", 1)), bands=("regular", "spot"),
        generations=(Generation("only", (8, 8)),), groups=groups,
        vm_types=tuple(VMType(name, "s", {"only": (size, size)}) for name, size in SIZES.items()),
    )  # fmt: skip
    return Allocator(zone, Policy.named("fast"))


def test_machines_that_differ_in_nothing_but_their_rack_have_one_label() -> None:
    view = allocator().view
    first, second = Labels(view, []), Labels(view, [])
    assert len(np.unique(first.machines)) == len(np.unique(first.racks)) == 1
    assert np.array_equal(first.machines, second.machines)
    assert len(np.unique(Labels(view, [7]).machines)) == 3  # the one, others in its rack, all others


def test_one_vm_too_many_is_declined_in_a_single_short_turn() -> None:
    """Seven VMs, one to a rack, in six racks: with machines alike tried once there are a handful of ways."""
    where, search = allocator(), Search(in_turn=500)
    request = Request("t", (VM("one"),) * (RACKS + 1), Constraints(max_per_rack=1))
    assert not where.decide(request, search=search).ok
    assert not search.unfinished
