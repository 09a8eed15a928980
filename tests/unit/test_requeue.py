"""VMs that had to give way come back under their names, once, as soon as there is room."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from roost.agent.agent import Agent
from roost.agent.operation import Answer, Operation
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.api.json_lines import operation_of
from roost.duties.requeue import Requeue
from roost.model.availability import AvailabilitySet
from roost.model.errors import InvalidInput
from roost.model.registry import WAITING
from roost.model.request import VM, Constraints, Request
from roost.rules.policy import Policy
from roost.store.memory import MemoryStore
from roost.wiring import open_agent, open_store
from tests.unit.test_evicting import PLAIN, zone

POLICY = Policy.parse(PLAIN)
PATIENCE = 5.0  # seconds


class Desk:
    """An agent on one machine of eight cores, what places again through it, and a clock."""

    def __init__(self, agent: Agent) -> None:
        self.agent, self.now = agent, 0.0
        self.tries: list[tuple[str, ...]] = []
        self.requeue = Requeue(agent, lambda: self.now, self._note, patience=PATIENCE)

    def _note(self, ticket: object) -> None:
        self.tries.append(tuple(vm.name for vm in ticket.operation.request.vms))  # type: ignore[attr-defined]

    def do(self, operation: Operation, key: str = "") -> Answer:
        """What came of something."""
        (answer,) = self.agent.run(self.agent.submit(operation, key))
        return answer

    def place(self, tenant: str, kind: str, band: str, count: int = 1, **more: object) -> Answer:
        """Place VMs that want to come back."""
        constraints = more.pop("constraints", None)
        vm = VM(kind, priority=band, requeue=True, **more)  # type: ignore[arg-type]
        answer = self.do(PlaceVMs(Request(tenant, (vm,) * count, constraints)))  # type: ignore[arg-type]
        assert answer.ok, answer
        return answer

    def turn(self, seconds: float = PATIENCE) -> list[tuple[str, ...]]:
        """Some time passes; what was tried meanwhile."""
        self.tries.clear()
        self.now += seconds
        for _ in range(20):
            self.requeue.step(self.now)
            self.agent.step()
        self.agent.check_invariants()
        return list(self.tries)

    @property
    def running(self) -> set[str]:
        """What the store says runs."""
        return set(self.agent.store.load().vms)

    @property
    def waiting(self) -> set[str]:
        """What the store says waits."""
        return set(self.agent.store.registry(WAITING))


@pytest.fixture
def desk() -> Iterator[Desk]:
    """On a store in memory."""
    agent = open_agent(open_store("memory:", create=zone()), POLICY)
    yield Desk(agent)
    agent.close()


def test_a_vm_that_gave_way_comes_back_under_its_name_when_there_is_room(desk: Desk) -> None:
    desk.place("batch", "four", "iron", 2)
    assert [each.vm for each in desk.place("shop", "four", "gold").evicted] == ["batch/0"]
    assert desk.waiting == {"batch/0"}
    assert desk.turn() == []  # there is no room, which the copy knows
    desk.do(ReleaseVMs("shop"))
    assert desk.turn() == [("batch/0",)]
    assert (desk.running, desk.waiting) == ({"batch/0", "batch/1"}, set())
    assert desk.turn() == []


def test_nothing_is_tried_again_until_something_changed_that_may_help(desk: Desk) -> None:
    desk.place("batch", "eight", "iron")
    desk.place("shop", "eight", "gold")
    desk.turn()
    rounds = desk.agent._number
    for _ in range(10):
        desk.turn()
    assert desk.agent._number == rounds
    desk.do(SetMachine("m0", health=90))
    desk.turn()
    assert desk.agent._number > rounds
    assert not desk.agent.store.decided("requeue")


def test_vms_without_a_wish_to_come_back_do_not(desk: Desk) -> None:
    desk.do(PlaceVMs(Request("batch", (VM("eight", priority="iron"),))))
    desk.place("shop", "eight", "gold")
    desk.do(ReleaseVMs("shop"))
    assert desk.turn() == []
    assert desk.waiting == set()


def test_the_highest_band_comes_back_first_then_whoever_waits_longest(desk: Desk) -> None:
    desk.place("iron", "four", "iron")
    desk.place("silver", "four", "silver")
    desk.place("first", "four", "gold")
    desk.place("second", "four", "gold")
    assert desk.waiting == {"iron/0", "silver/0"}
    desk.do(ReleaseVMs("first"))
    desk.turn()
    assert desk.running == {"second/0", "silver/0"}


def test_of_vms_that_are_alike_one_is_tried_at_a_time(desk: Desk) -> None:
    desk.place("batch", "one", "iron", 8)
    desk.place("shop", "eight", "gold")
    desk.do(ReleaseVMs("shop"))
    desk.place("small", "four", "gold")
    assert len(desk.turn()) == 4
    assert len(desk.running) == 5
    assert len(desk.waiting) == 4


def test_a_name_that_was_taken_meanwhile_is_dropped_and_blocks_nobody(desk: Desk) -> None:
    desk.place("batch", "four", "iron", 2)
    desk.place("shop", "eight", "gold")
    desk.do(ReleaseVMs("shop"))
    desk.do(PlaceVMs(Request("batch", (VM("two", name="batch/0", priority="gold"),))))
    desk.turn()
    assert (desk.running, desk.waiting) == ({"batch/0", "batch/1"}, set())
    assert desk.agent.store.load().vms["batch/0"].spec.type == "two"


def test_a_tenant_that_is_deleted_does_not_come_back(desk: Desk) -> None:
    desk.place("batch", "four", "iron", 2)
    desk.place("other", "one", "silver", 4)
    desk.place("shop", "four", "gold")
    assert desk.waiting == {"batch/0", "batch/1"}
    desk.do(ReleaseVMs("other", ("other/0",)))
    assert desk.waiting == {"batch/0", "batch/1"}
    desk.do(ReleaseVMs("shop"))
    desk.place("batch", "one", "gold")
    desk.do(ReleaseVMs("batch"))
    assert desk.waiting == set()
    desk.turn()
    assert desk.running == {"other/1", "other/2", "other/3"}


def test_a_tenant_of_which_all_vms_wait_is_deleted_like_any_other(desk: Desk) -> None:
    desk.place("batch", "four", "iron", 2)
    desk.place("shop", "eight", "gold")
    assert (desk.waiting, desk.running) == ({"batch/0", "batch/1"}, {"shop/0"})
    desk.do(ReleaseVMs("batch"))
    assert desk.waiting == set()
    desk.do(ReleaseVMs("shop"))
    desk.turn()
    assert desk.running == set()


def test_nobody_comes_back_only_to_give_way_to_one_that_waits_too(desk: Desk) -> None:
    """After the first of silver there would be room for the one of iron, but then not for the second of silver."""
    desk.place("iron", "five", "iron")
    desk.place("silver", "three", "silver", 2)
    desk.place("shop", "eight", "gold")
    assert desk.waiting == {"iron/0", "silver/0", "silver/1"}
    desk.do(ReleaseVMs("shop"))
    before, _ = desk.agent.store.head()
    desk.turn()
    assert (desk.running, desk.waiting) == ({"silver/0", "silver/1"}, {"iron/0"})
    assert not [entry for _, entry in desk.agent.store.changes(before).after(before) if entry.eviction]


def test_a_tenant_that_wants_its_vms_in_certain_places_gets_them_back_together() -> None:
    agent = open_agent(open_store("memory:", create=zone(2)), POLICY)
    desk = Desk(agent)
    desk.place("pair", "eight", "iron", 2, constraints=Constraints(max_per_machine=1, evict_together=True))
    desk.place("shop", "eight", "gold", 2)
    assert desk.waiting == {"pair/0", "pair/1"}
    desk.do(ReleaseVMs("shop", ("shop/0",)))
    assert desk.turn() == []
    desk.do(ReleaseVMs("shop"))
    assert desk.turn() == [("pair/0", "pair/1")]
    assert agent.store.load().tenants["pair"].constraints.evict_together
    agent.close()


def test_a_vm_comes_back_to_a_tenant_that_has_other_constraints_by_now(desk: Desk) -> None:
    desk.place("batch", "four", "iron")
    desk.place("shop", "eight", "gold")
    desk.do(ReleaseVMs("shop"))
    other = Constraints(max_per_machine=5)
    desk.do(PlaceVMs(Request("batch", (VM("one", name="batch/new"),), other)))
    assert desk.turn() == [("batch/0",)]
    assert desk.agent.store.load().tenants["batch"].constraints == other


def test_vms_come_back_into_their_set_with_its_terms() -> None:
    agent = open_agent(open_store("memory:", create=zone(2)), Policy.named("fast"))
    desk, sets = Desk(agent), Constraints(sets={"db": AvailabilitySet(fault_domains=2, best_effort=True)})
    desk.place("pair", "eight", "iron", 2, set="db", constraints=sets)
    desk.place("shop", "eight", "gold", 2)
    assert desk.waiting == {"pair/0", "pair/1"}
    desk.do(ReleaseVMs("shop"))
    assert desk.turn() == [("pair/0", "pair/1")]
    ledger = agent.store.load()
    assert (ledger.tenants["pair"].constraints, ledger.vms["pair/0"].spec.set) == (sets, "db")
    agent.close()


def test_a_vm_whose_set_is_no_more_is_dropped_and_blocks_nobody() -> None:
    agent = open_agent(open_store("memory:", create=zone()), Policy.named("fast"))
    desk, sets = Desk(agent), Constraints(sets={"db": AvailabilitySet(fault_domains=2)})
    desk.place("batch", "four", "iron", set="db", constraints=sets)
    desk.place("other", "four", "iron")
    desk.place("shop", "eight", "gold")
    desk.do(ReleaseVMs("shop"))
    desk.do(PlaceVMs(Request("batch", (VM("one", name="batch/new"),))))
    desk.turn()
    assert (desk.running, desk.waiting) == ({"batch/new", "other/0"}, set())
    agent.close()


def test_agents_that_try_at_once_place_it_once() -> None:
    store = open_store("memory:", create=zone())
    assert isinstance(store, MemoryStore)
    desks = [Desk(open_agent(store, POLICY, f"agent-{i}")) for i in range(3)]
    desks[0].place("batch", "four", "iron", 2)
    desks[0].place("shop", "eight", "gold")
    desks[0].do(ReleaseVMs("shop"))
    for _ in range(10):
        for desk in desks:
            desk.now += PATIENCE
            desk.requeue.step(desk.now)
        for desk in desks:
            desk.agent.step()
    assert set(store.load().vms) == {"batch/0", "batch/1"}
    assert store.registry(WAITING) == {}
    placed = [entry for row in store.changes(0).rows for entry in row.entries if entry.placed and entry.by == "requeue"]
    assert len(placed) == 2
    for desk in desks:
        desk.agent.step()
        desk.agent.check_invariants()
        desk.agent.close()


def test_another_agent_goes_on_where_one_ended(desk: Desk) -> None:
    desk.place("batch", "eight", "iron")
    desk.place("shop", "eight", "gold")
    desk.do(ReleaseVMs("shop"))
    heir = Desk(open_agent(desk.agent.store, POLICY))
    assert heir.turn() == [("batch/0",)]
    revision = heir.agent.replica.revision
    desk.turn()
    assert desk.turn() == []
    assert desk.agent.replica.revision == revision
    heir.agent.close()


def test_nobody_from_outside_can_say_that_vms_waited() -> None:
    line = {"do": "place", "request": {"tenant": "t", "vms": [{"type": "one"}]}, "requeued": True}
    with pytest.raises(InvalidInput, match="requeued"):
        operation_of(line)


def test_a_past_return_can_be_explained(desk: Desk) -> None:
    from roost.agent.past import recall

    desk.place("batch", "eight", "iron")
    desk.place("shop", "eight", "gold")
    desk.do(ReleaseVMs("shop"))
    desk.turn()
    (key,) = (each.key for each in desk.agent.store.decisions() if each.record.by == "requeue")
    assert recall(desk.agent.store, key, lambda _: POLICY).explanation.machine == "m0"


@pytest.mark.parametrize("restarted", [False, True], ids=["by the feed", "after a restart"])
def test_nobody_is_given_the_name_of_a_vm_that_waits(desk: Desk, restarted: bool) -> None:
    """Also if its tenant has no other VM, so that all its numbers are free again."""
    desk.place("batch", "eight", "iron")
    desk.place("shop", "one", "gold")
    if restarted:
        desk = Desk(open_agent(desk.agent.store, POLICY))
    assert [each.vm for each in desk.place("batch", "one", "iron").placements] == ["batch/1"]
    mixed = (VM("one", "mine", "iron"), VM("one", priority="iron"))
    assert [each.vm for each in desk.do(PlaceVMs(Request("batch", mixed))).placements] == ["mine", "batch/2"]
    for tenant, vms in (("shop", ()), ("batch", ("batch/1", "batch/2", "mine"))):
        desk.do(ReleaseVMs(tenant, vms))
    desk.turn()
    assert (desk.running, desk.waiting) == ({"batch/0"}, set())
