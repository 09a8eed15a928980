"""What a what-if question is answered is what then happens, if it is done through the service's own path.

The same lots are drawn on both sides: a service that has just started, and the copy that is asked. What is told of the
zone afterwards is counted here anew, from what the store holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.machines import RemoveMachines
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.duties.healing import together, vms_on
from roost.model.request import HOLD, VM, Request
from roost.model.zone import Zone
from roost.store.ledger import Ledger
from roost.store.snapshot import decode_snapshot, encode_snapshot
from roost.whatif.measures import Measures
from roost.whatif.plan import PlanTerms
from roost.whatif.planner import plan_moves
from roost.whatif.scenario import Effect, lose, more, remove
from tests.oracle.moves import broken
from tests.oracle.plain import ladder
from tests.property.effort import examples
from tests.property.requests import layouts
from tests.property.served import Served, served
from tests.property.zones import MIDDLE, TINY, build, policy

READY, DOWN = 0, 2
POLICIES = ("default", MIDDLE)
few = settings(max_examples=examples(12))


@st.composite
def sites(draw: st.DrawFn, steps: int = 10) -> tuple[Zone, Served]:
    """A zone, and the service that serves it."""
    zone = build(TINY, draw(layouts(TINY, clusters=(1, 3))), draw(st.sampled_from((None, 1))))
    return zone, draw(served(TINY, zone, policy(draw(st.sampled_from(POLICIES))), steps))


def asked(service: Served) -> Ledger:
    """What a question is asked about: the service's snapshot, as it comes from there."""
    return decode_snapshot(encode_snapshot(service.ledger()))


# ----------------------------------------------------------------------------------------------------- counting anew


def running(ledger: Ledger) -> dict[str, str]:
    """Where each VM runs that does."""
    return {
        name: vm.machine
        for name, vm in ledger.vms.items()
        if ledger.machines[vm.machine].state != DOWN and not name.endswith(HOLD)
    }


def check_measures(said: Measures, ledger: Ledger) -> None:
    """What is said of a zone is so."""
    up = {name: row.spec for name, row in ledger.machines.items() if row.state != DOWN}
    held: dict[str, int] = {}
    for vm in ledger.vms.values():
        if vm.machine in up:
            cores = ledger.catalogue.demand[vm.spec.type, up[vm.machine].generation][0]
            held[vm.machine] = held.get(vm.machine, 0) + cores
    used = sum(held.values())
    assert said.vms == len(running(ledger))
    assert (said.machines, said.machines_down) == (len(ledger.machines), len(ledger.machines) - len(up))
    assert (said.machines_in_use, said.empty_machines) == (len(held), len(up) - len(held))
    assert said.utilisation == pytest.approx(used / max(1, sum(spec.capacity[0] for spec in up.values())))
    assert said.density == pytest.approx(used / max(1, sum(up[machine].capacity[0] for machine in held)))


def broken_wishes(ledger: Ledger, *, where: dict[str, str]) -> set[tuple[str, str, str]]:
    """By tenant and availability set, what VMs that are there do not keep to."""
    homes: dict[tuple[str, str], list[Any]] = {}
    for name, machine in where.items():
        vm = ledger.vms[name]
        homes.setdefault((vm.tenant, vm.spec.set), []).append(ledger.machines[machine].spec)
    return {
        (tenant, of_set, what)
        for (tenant, of_set), there in homes.items()
        for what in broken(ladder(ledger.tenants[tenant].constraints, of_set)[0], there)
    }


def unspread(ledger: Ledger) -> set[str]:
    """Tenants that run in fewer fault domains than they ask for."""
    found = broken_wishes(ledger, where=running(ledger))
    return {tenant for tenant, _, what in found if what == "min_fault_domains"}


# ----------------------------------------------------------------------------------------------------------- the claims


def as_many_more_are_placed(data: st.DataObject) -> None:
    zone, service = data.draw(sites(6))
    vm_type = data.draw(st.sampled_from(TINY.asked))
    priority = data.draw(st.sampled_from(("", "", "", *zone.bands[1:])))
    wanted = data.draw(st.one_of(st.none(), st.none(), st.integers(1, 12)))
    before = asked(service)
    said = more(before, service.policy, vm_type, wanted, priority)
    placed = 0
    while wanted is None or placed < wanted:
        answer = service.do(PlaceVMs(Request(f"new-{placed}", [VM(vm_type, priority=priority)])))
        if not answer.ok:
            break
        placed += 1
    assert said.placed == placed
    assert bool(said.stopped_by) == (wanted is None or placed < wanted)
    service.wait()
    after = service.ledger()
    gone = service.evicted(before.revision)
    assert (said.gave_way, said.came_back) == (len(gone), len(gone & running(after).keys()))
    check_measures(said.before, before)
    check_measures(said.after, after)


def lost_and_healed(data: st.DataObject) -> None:
    zone, service = data.draw(sites())
    machines = data.draw(lost(zone))
    before = asked(service)
    said = lose(before, service.policy, machines, "some")
    for machine in machines:
        assert service.do(SetMachine(machine, "down")).ok
    service.wait()
    check_effect(said, machines, before, service)


def removed(data: st.DataObject) -> None:
    zone, service = data.draw(sites())
    machines = data.draw(lost(zone).filter(lambda names: len(names) < len(zone.machine_names)))
    before = asked(service)
    said = remove(before, service.policy, machines, "some")
    for machine in machines:
        if before.machines[machine].state == READY:
            assert service.do(SetMachine(machine, "draining")).ok
    heal_now(service, machines)
    left = service.ledger()
    for name, vm in left.vms.items():
        if vm.machine in machines and not name.endswith(HOLD):
            assert service.do(ReleaseVMs(vm.tenant, (name,))).ok
    for name, vm in service.ledger().vms.items():
        if vm.machine in machines:  # held for others
            assert service.do(MoveVM(vm.tenant, name.removesuffix(HOLD), vm.machine, "cancel")).ok
    assert service.do(RemoveMachines(tuple(machines))).ok
    service.wait()
    check_effect(said, machines, before, service, left)


@st.composite
def lost(draw: st.DrawFn, zone: Zone) -> list[str]:
    """Some machines; mostly a rack."""
    racks = zone.machines["rack"].tolist()
    rack = draw(st.sampled_from(racks))
    of_rack = [name for name, there in zip(zone.machine_names, racks, strict=True) if there == rack]
    some = st.lists(st.sampled_from(zone.machine_names), min_size=1, max_size=4, unique=True)
    return draw(st.one_of(st.just(of_rack), some))


def heal_now(service: Served, machines: Sequence[str]) -> None:
    """What `roost heal now` asks for: the VMs of a tenant together, then each of those that were declined."""
    allocator = service.agent.allocator
    groups = together(vms_on(allocator, [allocator.zone.machine(name) for name in machines]))
    wishes = [HealVMs(group[0].tenant, tuple(vm.name for vm in group)) for group in groups]
    answers = service.at_once(wishes)
    declined = [wish for wish, answer in zip(wishes, answers, strict=True) if answer.status == "declined"]
    service.at_once([HealVMs(wish.tenant, (vm,)) for wish in declined if len(wish.vms) > 1 for vm in wish.vms])


def check_effect(
    said: Effect, machines: Sequence[str], before: Ledger, service: Served, left: Ledger | None = None
) -> None:
    """What was said of a change is how it is now; `left`: what was there before machines were removed."""
    after = service.ledger()
    displaced = {name for name, machine in running(before).items() if machine in machines}
    there = running(left or after)
    healed = {name for name in displaced if name in there and there[name] != before.vms[name].machine}
    assert (said.displaced, said.healed) == (len(displaced), len(healed))
    assert {vm.vm for vm in said.homeless} == displaced - healed
    assert all(vm.why for vm in said.homeless)
    gone = service.evicted(before.revision) - displaced
    assert (said.gave_way, said.came_back) == (len(gone), len(gone & running(after).keys()))
    assert set(said.unspread) == unspread(after) - unspread(before)
    check_measures(said.before, before)
    check_measures(said.after, after)


def carried_out(data: st.DataObject) -> None:
    _, service = data.draw(sites(16))
    before = asked(service)
    terms = PlanTerms(budget=data.draw(st.integers(1, 20)), isolated=data.draw(st.booleans()))
    plan = plan_moves(before, service.policy, terms)
    for move in plan.moves:
        assert before.vms[move.vm].machine == move.source
        for step in ("hold", "finish"):
            answer = service.do(MoveVM(move.tenant, move.vm, move.target, step))
            assert answer.ok, answer
    after, moved = service.ledger(), {move.vm: move.target for move in plan.moves}
    assert len(moved) == len(plan.moves)
    where = {name: vm.machine for name, vm in before.vms.items()}
    assert {name: vm.machine for name, vm in after.vms.items()} == where | moved
    assert {name: vm.spec for name, vm in after.vms.items()} == {name: vm.spec for name, vm in before.vms.items()}
    assert {name: row.state for name, row in after.machines.items()} == {
        name: row.state for name, row in before.machines.items()
    }
    emptied = {move.empties for move in plan.moves}
    assert len(emptied) == plan.emptied
    assert not emptied & {vm.machine for vm in after.vms.values()}
    assert broken_wishes(after, where=where | moved) <= broken_wishes(before, where=where)
    check_measures(plan.before, before)
    check_measures(plan.after, after)


# ------------------------------------------------------------------------------------------------------------ the tests


@given(data=st.data())
@settings(max_examples=examples(24))
def test_as_many_more_as_it_says_are_placed_and_not_one_more(data: st.DataObject) -> None:
    as_many_more_are_placed(data)


@given(data=st.data())
@few
def test_what_is_said_to_be_lost_and_healed_is_lost_and_healed(data: st.DataObject) -> None:
    lost_and_healed(data)


@given(data=st.data())
@few
def test_what_is_said_to_move_when_machines_are_removed_moves(data: st.DataObject) -> None:
    removed(data)


@given(data=st.data())
@few
def test_a_plan_is_carried_out_as_it_says_and_nothing_else_changes(data: st.DataObject) -> None:
    carried_out(data)


@pytest.mark.deep
@pytest.mark.parametrize("claim", [as_many_more_are_placed, lost_and_healed, removed, carried_out])
@given(data=st.data())
@settings(max_examples=examples(400))
def test_what_is_said_is_what_happens_in_many_zones(
    claim: Callable[[st.DataObject], None], data: st.DataObject
) -> None:
    claim(data)
