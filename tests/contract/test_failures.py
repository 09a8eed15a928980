"""A machine that goes from ready to down has failed, whoever says so; what was counted fades."""

from __future__ import annotations

import pytest

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.operation import Answer, Operation
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.duties.fading import Fading
from roost.model.failures import HALF_LIFE
from roost.model.registry import FAILURES
from roost.model.request import VM, Request
from roost.model.rows import MachineState
from roost.rules.policy import Policy
from roost.store.contract import Proposal, Record, SetCondition, Store
from roost.store.recheck import Recheck
from tests.contract.conftest import Home
from tests.contract.tiny import asked, head, is_sound, names, place, register, remove

READY, DRAINING, DOWN, QUARANTINED = (int(state) for state in MachineState)
WEEK = 7 * 86_400.0


def said(key: str, at: float = 0.0, machine: str = "m1", **fields: int) -> Proposal:
    """What somebody says of a machine, at a time."""
    return SetCondition(key=key, request=asked(key), record=Record(agent="a", at=at), machine=machine, condition=fields)


def failures(store: Store, machine: str = "m1") -> int:
    """How many count."""
    return head(store).machines[machine].failures


def counted(store: Store) -> set[str]:
    """Machines of which something was counted."""
    return set(store.registry(FAILURES))


def test_each_time_a_machine_goes_from_ready_to_down_is_counted_once(store: Store, recheck: Recheck) -> None:
    group = [said("k1", state=DOWN), said("k2", state=DOWN), said("k3", state=READY), said("k4", state=DOWN)]
    outcomes = store.commit(group, recheck)
    assert names(outcomes) == ["committed"] * 4
    assert [outcome.changed for outcome in outcomes] == [True, False, True, True]  # type: ignore[union-attr]
    assert failures(store) == 2
    store.commit([said("k1", state=DOWN)], recheck)
    assert failures(store) == 2, "a key that was answered is not counted again"


@pytest.mark.parametrize("state", [DRAINING, QUARANTINED])
def test_a_machine_that_was_out_of_use_already_has_not_failed(store: Store, recheck: Recheck, state: int) -> None:
    store.commit([said("k1", state=state), said("k2", state=DOWN), said("k3", state=READY)], recheck)
    store.commit([said("k4", state=state), said("k5", state=READY)], recheck)
    assert failures(store) == 0
    assert not counted(store)


def test_a_failure_counts_for_half_a_life_and_each_of_several_for_less_than_the_next(
    store: Store, recheck: Recheck
) -> None:
    store.commit([said("k1", state=DOWN), said("k2", state=READY), said("k3", state=DOWN)], recheck)
    found = []
    for week in range(8):  # whatever is said of a machine, or nothing: its failures are as of then
        store.commit([said(f"later {week}", at=week * WEEK + 1.0)], recheck)
        found.append(failures(store))
    assert found == [2, 2, 1, 1, 1, 1, 0, 0]
    assert not counted(store)
    is_sound(store)


def test_a_failure_weighs_less_beside_a_later_one(store: Store, recheck: Recheck) -> None:
    store.commit([said("k1", state=DOWN), said("k2", state=READY)], recheck)
    store.commit([said("k3", at=0.9 * HALF_LIFE, state=DOWN)], recheck)
    assert failures(store) == 2
    store.commit([said("k4", at=1.1 * HALF_LIFE)], recheck)
    assert failures(store) == 1, "half of one and nine tenths of another"


def test_a_clock_that_goes_back_changes_nothing(store: Store, recheck: Recheck) -> None:
    store.commit([said("k1", at=1e9, state=DOWN), said("k2", at=5.0, state=READY)], recheck)
    store.commit([said("k3", at=5.0, state=DOWN)], recheck)
    assert failures(store) == 2
    store.commit([said("k4", at=1e9 + 0.9 * HALF_LIFE)], recheck)
    assert failures(store) == 1


def test_what_somebody_says_of_failures_stands_and_what_is_counted_later_comes_on_top(
    store: Store, recheck: Recheck
) -> None:
    store.commit([said("k1", state=DOWN), said("k2", failures=1)], recheck)
    assert not counted(store), "it was said: nothing of it was counted"
    store.commit([said("k3", at=100 * HALF_LIFE), said("k4", at=100 * HALF_LIFE, state=READY)], recheck)
    assert failures(store) == 1
    store.commit([said("k5", at=100 * HALF_LIFE, state=DOWN)], recheck)
    assert failures(store) == 2
    store.commit([said("k6", at=102 * HALF_LIFE)], recheck)
    assert failures(store) == 1
    store.commit([said("k7", state=READY), said("k8", state=DOWN, failures=0)], recheck)
    assert failures(store) == 0, "who says how many there are has counted this one"


def test_what_was_counted_is_known_after_a_restart_and_in_the_feed(home: Home, store: Store, recheck: Recheck) -> None:
    store.commit([said("k1", state=DOWN), said("k2", state=READY)], recheck)
    store = store if home.kind == "memory" else home.reopen()
    store.commit([said("k3", state=DOWN)], recheck)
    assert failures(store) == 2
    assert [c.field for _, entry in store.changes(0).after(0) for c in entry.conditions if c.machine == "m1"] == [
        "state", "failures", "state", "state", "failures",
    ]  # fmt: skip
    is_sound(store)


def test_a_machine_that_is_removed_takes_its_failures_along(store: Store, recheck: Recheck) -> None:
    store.commit([said("k1", state=DOWN)], recheck)
    store.commit([remove("k2", "m1")], recheck)
    assert not counted(store)
    is_sound(store)


def test_a_dry_run_counts_nothing(store: Store, recheck: Recheck) -> None:
    store.commit([said("k1", state=DOWN), place("k2", "t", {"a": "m2"})], recheck, dry=True)
    assert (failures(store), counted(store)) == (0, set())


def test_an_entry_that_makes_no_sense_counts_for_nothing(store: Store, recheck: Recheck) -> None:
    store.commit([register("k0", "m1", "what?", kind=FAILURES), said("k1", state=DOWN)], recheck)
    assert failures(store) == 1


# -------------------------------------------------------------------------------------------------------------- agents


class Office:
    """Two agents on one store, and a clock that all of them look at."""

    def __init__(self, home: Home) -> None:
        self.time = 1e9
        self.agents = [self._agent(home.store, "one"), self._agent(home.another(), "other")]
        self.fading = [Fading(agent, self.now) for agent in self.agents]

    def now(self) -> float:
        """What time it is."""
        return self.time

    def _agent(self, store: Store, name: str) -> Agent:
        return Agent(store, InlineCourier(store), Policy.default(), name, now=self.now)

    def do(self, operation: Operation) -> Answer:
        """By the first of them; the other hears of it."""
        (answer,) = self.agents[0].run(self.agents[0].submit(operation))
        self._work()
        return answer

    def later(self, seconds: float) -> list[int]:
        """So much time passes, and all have looked; what each knows of m1's failures."""
        self.time += seconds
        for fading in self.fading:
            fading.step(self.time)
        self._work()
        found = [(agent.replica.view.machines, agent.allocator.zone.machine("m1")) for agent in self.agents]
        return [int(rows["failures"][at]) for rows, at in found]

    def _work(self) -> None:
        for agent in self.agents * 2:
            while agent.step() or not agent.idle:
                pass


def test_every_agent_learns_of_a_failure_and_that_it_fades_and_only_one_of_them_has_to_say_so(
    home: Home, store: Store
) -> None:
    office = Office(home)
    office.do(SetMachine("m1", state="down"))
    office.do(SetMachine("m1", state="ready"))
    assert office.later(0.99 * HALF_LIFE) == [1, 1]
    before = head(store).revision
    assert office.later(0.02 * HALF_LIFE) == [0, 0]
    assert head(store).revision == before + 1
    assert office.later(HALF_LIFE) == [0, 0]
    assert head(store).revision == before + 1
    for agent in office.agents:
        agent.check_invariants()


def test_a_machine_that_failed_gets_what_comes_later_than_those_that_did_not(home: Home, store: Store) -> None:
    office = Office(home)
    for name in ("m1", "m2", "m3", "m5", "m6", "m7", "m8"):
        office.do(SetMachine(name, state="down"))
        office.do(SetMachine(name, state="ready"))
    wish = PlaceVMs(Request("t", (VM("whole", cluster="c1"),)))
    assert [each.machine for each in office.do(wish).placements] == ["m4"]
