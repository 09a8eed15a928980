"""What waits for room costs nothing until something changed that may help it, however much of it there is."""

from __future__ import annotations

import time

import msgspec
import pytest

from roost.agent.agent import Agent
from roost.agent.operation import Operation
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.duties.requeue import Requeue
from roost.duties.turns import LEAST as LEAST_SECONDS
from roost.duties.turns import LONGEST_PAUSE, SAVED, SHARE
from roost.model.registry import WAITING
from roost.model.request import UNCONSTRAINED, VM, Constraints, Request
from roost.model.waiting import Waiting
from roost.rules.policy import Policy
from roost.wiring import open_agent, open_store
from tests.property.zones import TINY, ClusterPlan, build

FAST = Policy.named("fast")
OLD, NEW = 2, 2  # machines
WAITING_VM = VM("whole", priority="low", requeue=True)  # fits nowhere but on a machine of its own
SPREAD = Constraints(max_per_machine=1)
MOST_TRIES = SHARE * SAVED / LEAST_SECONDS  # in vain, a second


class Desk:
    """An agent on four machines that are full, what places again through it, and a clock."""

    def __init__(self, waiting: int, constraints: Constraints = UNCONSTRAINED, spec: VM = WAITING_VM) -> None:
        zone = build(TINY, (ClusterPlan(0, 0, (OLD,)), ClusterPlan(1, 0, (NEW,))))
        self.agent: Agent = open_agent(open_store("memory:", create=zone), FAST)
        self.now, self.tries, self.runs = 0.0, 0, 0
        self.do(*(PlaceVMs(Request(f"full-{i}", (VM("whole", generation="old"),))) for i in range(OLD)))
        self.do(PlaceVMs(Request("new", (VM("big", generation="new"),) * NEW, SPREAD)))
        self.do(*(self.waits(f"w{i}/0", constraints, spec) for i in range(waiting)))
        rehearse = self.agent.rehearse

        def counted(operation: Operation, key: str = "", by: str = "") -> object:
            self.tries += 1
            return rehearse(operation, key, by)

        self.agent.rehearse = counted  # type: ignore[method-assign, assignment]
        self.requeue = Requeue(self.agent, lambda: self.now)
        self.turn()

    def waits(self, vm: str, constraints: Constraints, spec: VM) -> SetEntry:
        """A VM had to give way, and waits."""
        waiting = Waiting(tenant=vm.partition("/")[0], spec=spec, constraints=constraints, since=1.0, cause="c")
        return SetEntry(WAITING, vm, msgspec.json.encode(waiting).decode())

    def do(self, *operations: Operation) -> None:
        """All of it is done."""
        for answer in self.agent.run(*map(self.agent.submit, operations)):
            assert answer.ok, answer

    def turn(self, seconds: float = 1.0) -> int:
        """Time passes; how often something was tried meanwhile."""
        before = self.tries
        self.now += seconds
        for _ in range(3):
            self.requeue.step(self.now)
            self.agent.step()
        return self.tries - before

    def churn(self) -> None:
        """A VM comes and goes, which leaves no more room than before."""
        self.runs += 1
        name = f"c{self.runs}"
        self.do(PlaceVMs(Request(name, (VM("small", generation="new"),))))
        self.do(ReleaseVMs(name))


def seconds_of(desk: Desk) -> float:
    """The least that coming and going takes."""
    found = []
    for _ in range(5):
        began = time.process_time()
        for _ in range(20):
            desk.churn()
            desk.turn(0.05)
        found.append(time.process_time() - began)
    return min(found)


@pytest.mark.parametrize("constraints", [UNCONSTRAINED, SPREAD], ids=["plain", "constrained"])
def test_coming_and_going_takes_as_long_with_thousands_that_wait_as_with_none(constraints: Constraints) -> None:
    alone, beside = Desk(0), Desk(5_000, constraints)
    assert beside.requeue.waiting == 5_000
    assert seconds_of(beside) < 4 * seconds_of(alone), "it was a hundred times as long when all were looked through"


def test_room_that_is_freed_where_it_helps_nobody_lets_nobody_be_tried() -> None:
    desk = Desk(50, spec=msgspec.structs.replace(WAITING_VM, generation="old"))
    assert desk.turn() == 0
    for _ in range(20):
        desk.churn()  # on machines of another generation
        assert desk.turn() == 0


def test_of_thousands_that_are_alike_one_try_tells_of_all() -> None:
    desk = Desk(2_000)
    for _ in range(10):
        desk.churn()
        assert desk.turn() == 1


def test_whoever_wants_more_than_a_machine_is_not_tried_while_there_is_none_at_all() -> None:
    desk = Desk(2_000, SPREAD)
    for _ in range(10):
        desk.churn()
        assert desk.turn() == 0


def test_room_for_one_brings_one_back_however_many_wait() -> None:
    for constraints in (UNCONSTRAINED, SPREAD):
        desk = Desk(2_000, constraints)
        desk.do(ReleaseVMs("full-0"))
        desk.turn()
        for _ in range(int(2_000 / MOST_TRIES) + 2):
            desk.turn()
        assert len([name for name in desk.agent.store.load().vms if name.startswith("w")]) == 1
        assert desk.requeue.waiting == 1_999


def test_those_who_are_tried_in_vain_again_and_again_wait_ever_longer_and_others_do_not() -> None:
    """There is a machine for each, but not on the terms of its tenant: it must be in two racks, and there is one."""
    desk = Desk(0)
    desk.do(ReleaseVMs("full-0"))
    spread = Constraints(min_fault_domains=2, evict_together=True)
    old = VM("small", priority="low", requeue=True, generation="old")
    desk.do(*(desk.waits(f"w{i}/{j}", spread, old) for i in range(4) for j in range(2)))
    tries = []
    for _ in range(5 * int(LONGEST_PAUSE)):
        desk.do(PlaceVMs(Request("c", (VM("small", generation="old"),))))
        desk.do(ReleaseVMs("c"))
        tries.append(desk.turn())
    assert sum(tries[:2]) >= 4, "each has its turn at once"
    assert sum(tries[-int(LONGEST_PAUSE) :]) <= 8, "and in the end once in a while"
    desk.do(SetMachine(desk.agent.allocator.zone.machine_names[0], health=99))
    assert desk.turn() >= 4, "unless something opened"


def test_tries_in_vain_of_a_second_are_so_many_however_many_wait() -> None:
    desk = Desk(0)
    desk.do(ReleaseVMs("full-0"))
    spread = Constraints(min_fault_domains=2, evict_together=True)
    old = VM("small", priority="low", requeue=True, generation="old")
    desk.do(*(desk.waits(f"w{i}/{j}", spread, old) for i in range(500) for j in range(2)))
    tries = [desk.turn() for _ in range(7)]
    assert max(tries) <= MOST_TRIES + 1
    assert sum(tries) == 500, "all have their turn"
