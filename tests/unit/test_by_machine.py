"""VMs by machine: those of a whole zone that are taken over, and those that come and go."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any

import msgspec

from roost.engine.shape import Shape
from roost.model.change import PlacedVM
from roost.model.request import VM, Constraints
from roost.placing.books import Books, RunningVM, Tenant
from roost.placing.by_machine import ByMachine

VM_LIMITS = Constraints(max_per_machine=2)
SHAPE: Any = object.__new__(Shape)


def running(name: str, machine: int, tenant: str = "t") -> RunningVM:
    """A VM on a machine."""
    return RunningVM(PlacedVM(name, VM("small"), f"m{machine}"), tenant, machine, SHAPE)


def test_vms_are_found_by_machine_in_the_order_in_which_they_came() -> None:
    """Whether they were taken over or came later, on machines that were asked for before or not."""
    draw = random.Random(1)
    for vms in (0, 1, 2, 500):
        books, expected = ByMachine(), dict[int, list[RunningVM]]()
        taken_over = [running(f"v{i}", draw.randrange(60)) for i in range(vms)]
        books.stock(taken_over)
        for vm in taken_over:
            expected.setdefault(vm.machine, []).append(vm)
        for i in range(200):
            machine = draw.randrange(100)
            there = expected.setdefault(machine, [])
            if there and draw.random() < 0.5:
                books.strike(there.pop(draw.randrange(len(there))))
            else:
                there.append(running(f"w{i}", machine))
                books.enter(there[-1])
        for machine in range(100):
            assert [id(vm) for vm in books.on(machine)] == [id(vm) for vm in expected.get(machine, [])]


class Followed(msgspec.Struct, weakref=True):
    """What stands in for a VM of which one can tell when it is forgotten."""

    machine: int


def test_what_is_gone_is_not_kept() -> None:
    vms: list[Any] = [Followed(0), Followed(0), Followed(1)]
    books = ByMachine()
    books.stock(vms)
    gone = weakref.ref(vms[0])
    books.strike(vms.pop(0))
    books.strike(running("never there", 0))
    gc.collect()
    assert gone() is None


def test_a_vm_that_gets_its_name_back_is_on_its_machine_once() -> None:
    """Two tenants had VMs of the same name for a while."""
    books = Books()
    ours, theirs = running("v", 1, "ours"), running("v", 1, "theirs")
    books.enter(ours)
    books.enter(theirs, named=False)
    books.strike(ours, theirs)
    assert books.running_on([1]) == {1: [theirs]}
    books.strike(theirs)
    assert books.running_on([1]) == {1: []}


def test_books_begin_with_what_a_zone_holds() -> None:
    """A tenant that nobody has told of asks for nothing."""
    books, vms = Books(), {vm.name: vm for vm in (running("a", 1), running("b", 2), running("c", 2, "other"))}
    known = Tenant(VM_LIMITS, stamp=7)
    books.stock({"t": known}, dict(vms))
    assert books.vms == vms
    assert books.tenants["t"] is known
    assert (books.tenants["t"].vms, books.tenants["t"].stamp) == ({"a": vms["a"], "b": vms["b"]}, 7)
    assert books.tenants["other"].vms == {"c": vms["c"]}
    books.strike(vms["b"])
    books.strike(vms["c"])
    assert books.tenants.keys() == {"t"}
    assert books.running_on([0, 1, 2]) == {0: [], 1: [vms["a"]], 2: []}
