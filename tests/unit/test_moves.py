"""A running VM is brought to another machine, step by step or at once, by agents that may not know everything yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import pytest

from roost.agent.agent import Agent
from roost.agent.operation import Answer, Operation
from roost.agent.past import recall
from roost.agent.verbs.cluster import SetCluster
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.model.availability import AvailabilitySet
from roost.model.errors import InvalidInput
from roost.model.request import VM, Constraints, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.contract import Store
from roost.wire.basics import MoveStepName
from roost.wiring import open_agent, open_store
from tests.property.interleaved import HeldCourier

ZONE = Zone.synthetic(100)
POLICY = Policy.default()
HOME = "c001"  # a cluster of three racks
MACHINES = [name for name in ZONE.machine_names if name.startswith(HOME)]
HERE, THERE, ELSEWHERE, FULL = MACHINES[:4]
WHOLE = "Full-gen4"  # a VM as large as one of these machines


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent on a zone in memory; tenant web runs one VM, web/0, on the machine HERE."""
    agent = open_agent(open_store("memory:", create=ZONE), POLICY, "one")
    assert run(agent, PlaceVMs(Request("web", [VM("D2", cluster=HOME)]))).ok
    bring(agent, "web", "web/0", HERE)
    yield agent
    agent.close()


def run(agent: Agent, operation: Operation, key: str = "") -> Answer:
    """What comes of an operation; the copy agrees with the store afterwards."""
    (answer,) = agent.run(agent.submit(operation, key))
    agent.check_invariants()
    return answer


def bring(agent: Agent, tenant: str, vm: str, machine: str) -> None:
    """A VM to where a test wants it."""
    answer = run(agent, MoveVM(tenant, vm, machine))
    assert answer.ok, answer.detail


def where(agent: Agent) -> dict[str, str]:
    """Every VM and its machine, as the store has them."""
    return {name: row.machine for name, row in agent.store.load().vms.items()}


def step(name: MoveStepName, machine: str = THERE) -> MoveVM:
    """A step of the move of web/0."""
    return MoveVM("web", "web/0", machine, name)


# -------------------------------------------------------------------------------------------------------------- steps


def test_a_move_holds_its_target_and_is_finished(agent: Agent) -> None:
    assert run(agent, step("hold")).ok
    assert where(agent) == {"web/0": HERE, "web/0~hold": THERE}
    assert run(agent, step("finish")).ok
    assert where(agent) == {"web/0": THERE}


def test_a_move_is_cancelled(agent: Agent) -> None:
    run(agent, step("hold"))
    assert run(agent, step("cancel")).ok
    assert where(agent) == {"web/0": HERE}


def test_a_move_happens_at_once(agent: Agent) -> None:
    assert run(agent, step("whole")).ok
    assert where(agent) == {"web/0": THERE}


@pytest.mark.parametrize(
    ("before", "again"),
    [
        (["hold"], "hold"),
        (["hold", "finish"], "finish"),
        (["whole"], "whole"),
        (["hold", "cancel"], "cancel"),
        ([], "cancel"),
    ],
)
def test_a_step_that_was_done_is_done_again_and_changes_nothing(
    agent: Agent, before: list[MoveStepName], again: MoveStepName
) -> None:
    """Under another key: whoever goes on with a plan may have forgotten the first."""
    for name in before:
        assert run(agent, step(name)).ok
    revision, stamp = agent.store.head(), agent.store.load().tenants["web"].stamp
    answer = run(agent, step(again))
    assert (answer.status, answer.generation, answer.replayed) == ("done", stamp, False)
    assert agent.store.head() == revision


@pytest.mark.parametrize("name", ["hold", "whole", "finish"])
def test_what_is_there_already_need_not_move(agent: Agent, name: MoveStepName) -> None:
    revision = agent.store.head()
    assert run(agent, step(name, HERE)).ok
    assert agent.store.head() == revision


def test_a_key_is_moved_once(agent: Agent) -> None:
    run(agent, step("whole"), "k")
    run(agent, step("whole", ELSEWHERE))
    assert run(agent, step("whole"), "k").replayed
    assert where(agent) == {"web/0": ELSEWHERE}


def test_a_tenant_whose_only_vm_moved_is_the_same_tenant(agent: Agent) -> None:
    """It keeps its constraints, its generation grows, and its next VM gets the next name."""
    run(agent, PlaceVMs(Request("pair", [VM("D2", cluster=HOME)] * 2, Constraints(max_per_machine=1))))
    run(agent, ReleaseVMs("pair", ("pair/0",)))
    before = agent.store.load().tenants["pair"]
    target = next(name for name in MACHINES if name not in where(agent).values())
    answer = run(agent, MoveVM("pair", "pair/1", target))
    after = agent.store.load().tenants["pair"]
    assert (after.constraints, after.vms) == (before.constraints, 1)
    assert before.stamp < after.stamp == answer.generation
    (more,) = run(agent, PlaceVMs(Request("pair", [VM("D2")]))).placements
    assert more.vm == "pair/2"


@pytest.mark.parametrize("state", ["down", "draining", "quarantined"])
def test_a_vm_leaves_a_machine_that_takes_no_new_ones(
    agent: Agent, state: Literal["down", "draining", "quarantined"]
) -> None:
    run(agent, SetMachine(HERE, state))
    assert run(agent, step("whole")).ok


def test_who_releases_a_vm_releases_what_is_held_for_it(agent: Agent) -> None:
    run(agent, PlaceVMs(Request("web", [VM("D2")])))
    run(agent, step("hold"))
    assert run(agent, ReleaseVMs("web", ("web/0",))).ok
    assert list(where(agent)) == ["web/1"]
    bring(agent, "web", "web/1", HERE)
    run(agent, MoveVM("web", "web/1", THERE, "hold"))
    assert run(agent, ReleaseVMs("web", ("web/1~hold",))).ok
    assert where(agent) == {"web/1": HERE}
    run(agent, MoveVM("web", "web/1", THERE, "hold"))
    assert run(agent, ReleaseVMs("web", ("web/1", "web/1~hold"))).ok
    assert where(agent) == {}


def test_decisions_before_and_after_a_move_are_explained_as_they_were(agent: Agent) -> None:
    told = {}
    steps: dict[str, MoveStepName] = {"before": "whole", "while": "hold", "after": "finish"}
    for key, moved in steps.items():
        ticket = agent.submit(PlaceVMs(Request(key, [VM("D2", cluster=HOME)])), key)
        agent.run(ticket)
        assert ticket.decision is not None
        told[key] = ticket.decision.explanation
        assert run(agent, step(moved, ELSEWHERE if moved == "whole" else THERE)).ok
    for key, explanation in told.items():
        assert recall(agent.store, key, lambda _: POLICY).explanation == explanation


# ------------------------------------------------------------------------------------------------------------ refusals

NONSENSE: dict[str, tuple[list[MoveVM], MoveVM, str, str]] = {
    "a tenant that nobody knows": ([], MoveVM("wob", "web/0", THERE), "roost.unknown_name", "tenant"),
    "a VM that nobody knows": ([], MoveVM("web", "web/9", THERE), "roost.unknown_name", "vm"),
    "a VM of somebody else": ([], MoveVM("web", "other/0", THERE), "roost.unknown_name", "vm"),
    "a machine that nobody knows": ([], step("whole", "nowhere"), "roost.unknown_name", "machine"),
    "what is held instead of the VM": (
        [step("hold")], MoveVM("web", "web/0~hold", ELSEWHERE), "roost.invalid_input", "vm",
    ),
    "the end of what was not begun": ([], step("finish"), "roost.invalid_input", "step"),
    "the end of a move elsewhere": ([step("hold")], step("finish", ELSEWHERE), "roost.invalid_input", "machine"),
    "no more of a move elsewhere": ([step("hold")], step("cancel", ELSEWHERE), "roost.invalid_input", "machine"),
    "a second target": ([step("hold")], step("hold", ELSEWHERE), "roost.invalid_input", "machine"),
    "a whole move while one is under way": ([step("hold")], step("whole"), "roost.invalid_input", "step"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "operation", "code", "about"), NONSENSE.values(), ids=NONSENSE)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    agent: Agent, before: list[MoveVM], operation: MoveVM, code: str, about: str
) -> None:
    run(agent, PlaceVMs(Request("other", [VM("D2")])))
    for each in before:
        assert run(agent, each).ok
    state = where(agent)
    answer = run(agent, operation)
    assert (answer.status, answer.code, answer.where) == ("invalid", code, about), answer.detail
    assert where(agent) == state


DECLINED: dict[str, tuple[list[Operation], str, str]] = {
    "a machine that is down": ([SetMachine(THERE, "down")], THERE, "is_ready"),
    "a machine of a cluster in quarantine": ([SetCluster(HOME, True)], THERE, "not_quarantined"),
    "a machine of another cluster than it asks for": ([], "c002-r00-m00", "in_cluster"),
    "a machine that is not well": ([SetMachine(THERE, health=1)], THERE, "healthy_enough"),
    "a machine that is full": (
        [PlaceVMs(Request("big", [VM(WHOLE, cluster=HOME)])), MoveVM("big", "big/0", FULL)],
        FULL,
        "has_room",
    ),
}


@pytest.mark.parametrize("name", ["hold", "whole"])
@pytest.mark.parametrize(("before", "target", "rule"), DECLINED.values(), ids=DECLINED)
def test_a_target_that_the_policy_would_not_choose_is_declined(
    agent: Agent, before: list[Operation], target: str, rule: str, name: MoveStepName
) -> None:
    for each in before:
        assert run(agent, each).ok
    state = where(agent)
    answer = run(agent, step(name, target), "k")
    assert answer.status == "declined"
    assert f"machine {target} cannot have web/0: " in answer.detail
    assert f"({rule})" in answer.detail
    assert where(agent) == state
    decided = agent.store.decided("k")
    assert decided is not None
    assert decided.outcome == "declined"


def test_a_target_that_went_down_meanwhile_is_declined_and_stays_held(agent: Agent) -> None:
    run(agent, step("hold"))
    run(agent, SetMachine(THERE, "down"))
    assert run(agent, step("finish")).status == "declined"
    assert where(agent) == {"web/0": HERE, "web/0~hold": THERE}
    assert run(agent, step("cancel")).ok


def test_a_tenants_constraints_count_the_vm_only_where_it_goes(agent: Agent) -> None:
    """Two VMs that may not share a machine: one goes anywhere but to the other, also with room held for it."""
    apart = Constraints(max_per_machine=1, max_fault_domains=2, min_fault_domains=2)
    run(agent, PlaceVMs(Request("two", [VM("D2", cluster=HOME)] * 2, apart)))
    one, other = where(agent)["two/0"], where(agent)["two/1"]
    racks = ZONE.machines["rack"]
    free = [m for m in MACHINES if m not in (one, other, HERE)]
    near = next(m for m in free if racks[ZONE.machine(m)] == racks[ZONE.machine(one)])
    assert "(max_per_machine)" in run(agent, MoveVM("two", "two/0", other)).detail
    beside = next(m for m in free if racks[ZONE.machine(m)] == racks[ZONE.machine(other)])
    assert "(min_fault_domains)" in run(agent, MoveVM("two", "two/0", beside)).detail
    for name in ("hold", "hold", "finish", "finish"):
        answer = run(agent, MoveVM("two", "two/0", near, name))
        assert answer.ok, answer.detail
    bring(agent, "two", "two/0", one)


@pytest.mark.parametrize("best_effort", [False, True])
def test_a_set_counts_its_own_vms_only_where_one_of_them_goes(agent: Agent, best_effort: bool) -> None:
    """VMs of another set, or of none, are no hindrance; and best effort does not gainsay an operator."""
    sets = {"db": AvailabilitySet(fault_domains=2, best_effort=best_effort), "web": AvailabilitySet(fault_domains=2)}
    vms = [VM("D2", cluster=HOME, set="db")] * 2 + [VM("D2", cluster=HOME, set="web"), VM("D2", cluster=HOME)]
    run(agent, PlaceVMs(Request("two", vms, Constraints(sets=sets))))
    other, lone = where(agent)["two/1"], where(agent)["two/2"]
    racks = ZONE.machines["rack"]
    beside = next(m for m in MACHINES if m != other and racks[ZONE.machine(m)] == racks[ZONE.machine(other)])
    answer = run(agent, MoveVM("two", "two/0", beside))
    if best_effort:
        assert answer.ok, answer.detail
    else:
        assert answer.detail.endswith("too few fault domains for set db (min_fault_domains)")
    bring(agent, "two", "two/3", lone)
    bring(agent, "two", "two/2", other)


def test_no_vm_may_be_called_as_what_is_held() -> None:
    with pytest.raises(InvalidInput, match=r"request.vms\[1\].name: 'a~hold' ends in ~hold"):
        Request("t", [VM("D2"), VM("D2", "a~hold")])


# --------------------------------------------------------------------------------------------------------------- races


class Late:
    """An agent that hears of others, and of what came of its own, only after it has committed something."""

    def __init__(self, store: Store) -> None:
        self.courier = HeldCourier(store)
        self.agent = Agent(store, self.courier, POLICY, "late")

    def run(self, operation: Operation) -> Answer:
        """What comes of an operation that is decided on what is known here already."""
        ticket = self.agent.submit(operation)
        while ticket.answer is None:
            self.agent.step()
            self.courier.commit()
            self.agent.step()
            self.courier.look()
        self.agent.step()
        self.agent.check_invariants()
        return ticket.answer


@pytest.fixture
def late(agent: Agent) -> Late:
    """Somebody on the same store, who knows how things are now."""
    return Late(agent.store)


def test_a_vm_that_was_released_meanwhile_is_neither_moved_nor_held_for(agent: Agent, late: Late) -> None:
    run(agent, PlaceVMs(Request("web", [VM("D2")])))
    run(agent, ReleaseVMs("web", ("web/0",)))
    before = where(agent)
    for name in ("hold", "whole"):
        answer = late.run(step(name))
        assert answer.status == "invalid"
        assert answer.code in ("roost.outdated", "roost.unknown_name")
    assert where(agent) == before


def test_a_vm_that_moved_meanwhile_goes_on_from_where_it_is(agent: Agent, late: Late) -> None:
    run(agent, step("whole", ELSEWHERE))
    answer = late.run(step("whole"))
    assert (answer.status, answer.retries) == ("done", 1)
    assert where(agent) == {"web/0": THERE}


def test_a_target_that_was_filled_meanwhile_is_declined(agent: Agent, late: Late) -> None:
    run(agent, PlaceVMs(Request("big", [VM(WHOLE, cluster=HOME)])))
    bring(agent, "big", "big/0", FULL)
    answer = late.run(step("whole", FULL))
    assert (answer.status, answer.retries) == ("declined", 1)
    assert "(has_room)" in answer.detail


def test_another_agent_ends_what_one_began(agent: Agent, late: Late) -> None:
    run(agent, step("hold"))
    late.courier.look()
    assert late.run(step("finish")).ok
    assert where(agent) == {"web/0": THERE}
    assert run(agent, step("finish")).ok


def test_who_has_not_heard_of_what_is_held_releases_it_all_the_same(agent: Agent, late: Late) -> None:
    run(agent, step("hold"))
    answer = late.run(ReleaseVMs("web", ("web/0",)))
    assert (answer.status, answer.retries) == ("done", 1)
    assert where(agent) == {}


def test_who_has_not_heard_that_a_move_was_cancelled_releases_the_vm(agent: Agent) -> None:
    run(agent, step("hold"))
    late = Late(agent.store)
    run(agent, step("cancel"))
    answer = late.run(ReleaseVMs("web", ("web/0",)))
    assert (answer.status, answer.retries) == ("done", 1)
    assert where(agent) == {}
