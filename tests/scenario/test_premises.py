"""An agent that has not heard yet answers as one that has, does not spin, and deletes what there is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from roost.agent.agent import Agent
from roost.agent.courier import ThreadCourier
from roost.agent.operation import Answer, Operation
from roost.agent.past import recall
from roost.agent.ticket import Ticket
from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.model.change import PlacedVM
from roost.model.errors import StoreUnavailable
from roost.model.registry import WAITING
from roost.model.request import VM, Constraints, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.store.codec import Codec, encode
from roost.store.contract import Store
from roost.store.feed import Feed
from roost.wiring import open_agent, open_store, recorded_policy
from tests.property.cramped import NAMES, POLICY, ZONE
from tests.property.interleaved import HeldCourier

AGAIN = VM("eight", priority="iron", requeue=True)  # fills a machine, gives way to anything, and comes back


class Two:
    """Two agents on one store; what one does the other hears only when it is told to."""

    def __init__(self) -> None:
        self.store: Store = open_store("memory:", create=ZONE)
        self.couriers = [HeldCourier(self.store) for _ in range(2)]
        self.first, self.second = (
            Agent(self.store, courier, POLICY, f"agent {i}", now=lambda: 1.0) for i, courier in enumerate(self.couriers)
        )

    def courier(self, agent: Agent) -> HeldCourier:
        """Who carries for an agent."""
        return self.couriers[agent is self.second]

    def hear(self) -> None:
        """Both hear all that there is, and know what the store knows."""
        for agent in (self.first, self.second):
            self.courier(agent).look()
            agent.step()
        check_invariants(self.store)
        for agent in (self.first, self.second):
            agent.check_invariants()

    def do(self, agent: Agent, operation: Operation, key: str = "") -> Answer:
        """What an agent answers, who hears of its own commits and of nothing else, unless it asks."""
        ticket = agent.submit(operation, key)
        return self.end(agent, ticket)

    def end(self, agent: Agent, ticket: Ticket) -> Answer:
        """Let an agent go on until something is answered."""
        courier = self.courier(agent)
        for _ in range(10):
            agent.step()
            if ticket.answer is not None:
                return ticket.answer
            if not courier.out:
                courier.look()  # it waits for its own commit
            courier.commit()
        raise AssertionError("it was never answered")


@pytest.fixture
def two() -> Two:
    """Both know tenant t, with a VM on some machine."""
    found = Two()
    assert found.do(found.first, PlaceVMs(Request("t", [VM("one")]), generation=0)).ok
    found.hear()
    return found


def test_what_another_did_under_the_same_key_is_answered_as_done(two: Two) -> None:
    """One asks the store, which has not done it; another does it; the first hears of both before it looks again."""
    assert two.do(two.first, PlaceVMs(Request("u", [VM("one")]), generation=0)).ok
    ticket, courier = two.second.submit(ReleaseVMs("u"), "key"), two.courier(two.second)
    two.second.step()  # it has not heard of the tenant, and asks
    courier.commit()
    assert two.do(two.first, ReleaseVMs("u"), "key").ok
    courier.look()
    answer = two.end(two.second, ticket)
    assert (answer.status, answer.replayed) == ("done", True), answer


def grown(generation: int | None = None, name: str = "") -> PlaceVMs:
    """Tenant t is to have another VM."""
    return PlaceVMs(Request("t", [VM("one", name)]), generation, existing=True)


def stamp(two: Two) -> int:
    """The generation of tenant t."""
    known = two.store.tenant("t")
    return known.stamp if known else 0


def test_a_tenant_that_another_agent_has_created_exists(two: Two) -> None:
    two.do(two.first, PlaceVMs(Request("u", [VM("one", "a")]), generation=0))
    answer = two.do(two.second, PlaceVMs(Request("u", [VM("one", "b")]), generation=0))
    assert (answer.status, answer.code, answer.retries) == ("invalid", "roost.outdated", 0)
    assert answer.detail == "generation: tenant u exists; scale it out, or choose another name"
    two.hear()
    assert [name for name, row in two.store.load().vms.items() if row.tenant == "u"] == ["a"]


def test_a_generation_that_another_agent_has_replaced_is_outdated(two: Two) -> None:
    seen = stamp(two)
    assert two.do(two.first, grown(seen)).ok
    answer = two.do(two.second, grown(seen))
    assert (answer.status, answer.code, answer.retries) == ("invalid", "roost.outdated", 0)
    assert answer.detail.startswith(f"generation: tenant t is at generation {stamp(two)}, not {seen}")
    two.hear()


@pytest.mark.parametrize(
    "operation",
    [grown(), ReleaseVMs("t"), ReleaseVMs("t", ("t/0",)), MoveVM("t", "t/0", NAMES[0]), HealVMs("t", ("t/0",))],
    ids=["grow", "delete", "scale in", "move", "heal"],
)
def test_a_tenant_that_another_agent_has_deleted_is_not_found(two: Two, operation: Operation) -> None:
    home = two.store.load().vms["t/0"].machine
    assert two.do(two.first, SetMachine(home, "down")).ok
    two.hear()
    assert two.do(two.first, ReleaseVMs("t")).ok
    answer = two.do(two.second, operation)
    assert (answer.status, answer.code, answer.where) == ("invalid", "roost.unknown_name", "tenant")
    assert answer.retries <= 1
    two.hear()
    assert not two.store.load().vms


def test_a_vm_that_another_agent_has_released_is_not_found(two: Two) -> None:
    two.do(two.first, grown())
    two.hear()
    assert two.do(two.first, ReleaseVMs("t", ("t/0",))).ok
    for operation, where in ((ReleaseVMs("t", ("t/0",)), "vms[0]"), (MoveVM("t", "t/0", NAMES[0]), "vm")):
        answer = two.do(two.second, operation)
        assert (answer.status, answer.code, answer.where) == ("invalid", "roost.unknown_name", where)
        assert answer.retries <= 1
    two.hear()


def test_a_machine_that_another_agent_has_changed_is_outdated(two: Two) -> None:
    seen = two.store.load().machines[NAMES[0]].version
    assert two.do(two.first, SetMachine(NAMES[0], health=50)).ok
    answer = two.do(two.second, SetMachine(NAMES[0], health=60, generation=seen))
    assert (answer.status, answer.code, answer.retries) == ("invalid", "roost.outdated", 0)
    two.hear()


def test_a_rehearsal_is_refused_for_what_only_the_store_knows(two: Two) -> None:
    seen = stamp(two)
    assert two.do(two.first, grown(seen)).ok
    ticket, proposal = two.second.rehearse(grown(seen))
    assert proposal is not None
    (outcome,) = two.store.commit([proposal], two.second.recheck, dry=True)
    two.second.conclude(ticket, outcome)
    assert ticket.answer is not None
    assert (ticket.answer.status, ticket.answer.code) == ("invalid", "roost.outdated")


# --------------------------------------------------------------------------------------------------------- deleting


@pytest.mark.parametrize("vms", [1, 3], ids=["all of it gives way", "some of it gives way"])
def test_a_tenant_that_gives_way_meanwhile_is_deleted_with_all_that_waits(two: Two, vms: int) -> None:
    two.do(two.first, ReleaseVMs("t"))
    two.do(two.first, PlaceVMs(Request("low", [AGAIN] * vms)))
    two.hear()
    filled = [PlaceVMs(Request(f"high {i}", [VM("eight")])) for i in range(len(NAMES) - vms + 1)]
    assert all(two.do(two.first, each).ok for each in filled)
    assert len(two.store.registry(WAITING)) == 1
    answer = two.do(two.second, ReleaseVMs("low"))
    assert (answer.status, answer.detail) == ("done", "")
    assert two.store.tenant("low") is None
    assert not two.store.registry(WAITING)
    two.hear()
    gone = two.do(two.first, ReleaseVMs("low"))
    assert (gone.status, gone.code) == ("invalid", "roost.unknown_name")


def test_a_tenant_of_which_all_waits_is_deleted_by_one_who_has_not_heard_of_the_last_of_it(two: Two) -> None:
    """It waits already, when another agent creates it anew; and that has to give way, too."""
    two.do(two.first, ReleaseVMs("t"))
    fill = PlaceVMs(Request("high", [VM("eight")] * len(NAMES)))
    two.do(two.first, PlaceVMs(Request("low", [msgspec.structs.replace(AGAIN, name="one")])))
    two.do(two.first, fill)
    two.hear()
    two.do(two.first, ReleaseVMs("high"))
    two.do(two.first, PlaceVMs(Request("low", [msgspec.structs.replace(AGAIN, name="two")])))
    two.do(two.first, fill)
    assert set(two.store.registry(WAITING)) == {"one", "two"}
    assert two.do(two.second, ReleaseVMs("low")).ok
    assert not two.store.registry(WAITING)
    two.hear()


def test_a_tenant_is_deleted_with_what_others_placed_before_the_agents_own(two: Two) -> None:
    """The agent knows the stamp of its own VM, and nothing of what was placed just before that."""
    assert two.do(two.second, grown(name="theirs")).ok
    ticket = two.first.submit(grown(name="mine"))
    two.first.step()
    two.couriers[0].commit()
    two.first.step()
    assert ticket.answer is not None
    assert ticket.answer.ok
    assert "theirs" not in two.first.allocator.vms, "it has not heard of it"
    assert two.do(two.first, ReleaseVMs("t")).ok
    assert not two.store.load().vms
    two.hear()


def test_what_an_agent_was_answered_is_a_generation_to_go_on_from(two: Two) -> None:
    assert two.do(two.second, grown(name="theirs")).ok
    answer = two.do(two.first, grown(name="mine"))
    assert answer.generation == stamp(two)
    assert two.do(two.first, grown(answer.generation)).ok
    two.hear()


# -------------------------------------------------------------------------------------------------------- being told


class Deaf:
    """A way to a store that brings nothing of its feed until somebody has insisted a few times."""

    def __init__(self, store: Store, times: int) -> None:
        self._store, self.times = store, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def changes(self, since: int, limit: int = 1_000, *, patient: bool = False) -> Feed:
        """Nothing, until then."""
        if self.times:
            self.times -= patient
            raise StoreUnavailable("away")
        return self._store.changes(since, limit, patient=patient)


@pytest.mark.parametrize("times", [1, 3])
def test_nobody_is_told_that_something_is_not_there_before_all_news_are_heard(times: int) -> None:
    store = open_store("memory:", create=ZONE)
    deaf: Any = Deaf(store, times)
    agent, other = Agent(deaf, ThreadCourier(deaf), POLICY, "agent"), open_agent(store, POLICY)
    assert other.run(other.submit(PlaceVMs(Request("t", [VM("one")]))))[0].ok
    (answer,) = agent.run(agent.submit(grown()))
    assert answer.ok, answer
    agent.close()
    other.close()


OPERATIONS: Sequence[Operation] = (
    PlaceVMs(Request("t", [VM("one")] * 2), existing=True),
    PlaceVMs(Request("high", [VM("eight")] * 3)),
    ReleaseVMs("t", ("t/1",)),
    ReleaseVMs("t"),
    MoveVM("t", "t/0", NAMES[0]),
    MoveVM("t", "t/0", NAMES[0], "hold"),
    SetMachine(NAMES[0], "down", health=40),
)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: type(each).__name__)
def test_whatever_is_asked_again_is_answered_as_the_first_time(operation: Operation) -> None:
    store = open_store("memory:", create=ZONE)
    agent = open_agent(store, POLICY)
    begin = PlaceVMs(Request("t", [VM("one", priority="iron", requeue=True)] * 2))
    assert agent.run(agent.submit(begin))[0].ok
    (first,) = agent.run(agent.submit(operation, "key"))
    assert first.ok, first
    for more in (ReleaseVMs("high"), PlaceVMs(Request("t", [VM("one")])), SetMachine(NAMES[0], health=30)):
        agent.run(agent.submit(more))
    assert agent.allocator.tenants["t"].stamp != first.generation
    (again,) = agent.run(agent.submit(operation, "key"))
    assert (again.status, again.replayed) == ("done", True)
    for told in ("placements", "evicted", "short", "generation"):
        assert getattr(again, told) == getattr(first, told), told
    agent.close()


# ---------------------------------------------------------------------------------------------------- what is recorded


def test_a_decision_is_recorded_in_few_words_however_large_its_tenant_is() -> None:
    """And is explained as it was made, all the same: where its VMs were is in the tables, undone to that revision."""
    store = open_store("memory:", create=Zone.synthetic(300, seed=1))
    agent = open_agent(store, Policy.default(), seed=3)
    spread = Constraints(min_fault_domains=3, max_per_rack=400)
    grow = PlaceVMs(Request("large", [VM("A1")]))
    assert agent.run(agent.submit(PlaceVMs(Request("large", [VM("A1")] * 10, spread))))[0].ok
    sizes = {}
    for vms in (10, 1_500):
        ticket = agent.submit(grow, f"at {vms}")
        agent.step()
        assert ticket.decision is not None
        then = ticket.decision.explanation
        agent.run(ticket)
        assert agent.run(agent.submit(PlaceVMs(Request("large", [VM("A1")] * 1_489))))[0].ok
        decided = store.decided(f"at {vms}")
        assert decided is not None
        sizes[vms] = sum(len(str(column)) for column in Codec.decided_values(decided))
        assert recall(store, f"at {vms}", recorded_policy).explanation == then
    assert sizes[1_500] < sizes[10] + 50 < 1_500
    agent.close()


def test_what_was_recorded_at_length_is_still_read() -> None:
    """As it was written before: with the machine of every VM of the tenant."""
    record = '{"agent":"a","round":3,"homes":["m1","m2"],"set_homes":{"db":["m3"]}}'
    placed = (PlacedVM("a", VM("one"), "m1"),)
    decided = Codec.decided(("k", "committed", "{}", record, encode(placed)))
    assert (decided.record.agent, decided.record.round, decided.record.generation) == ("a", 3, 0)
    assert decided.placed == placed
