"""An explanation is worked out a step at a time, of the zone as it was at the first one, whoever places meanwhile."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from roost import VM, Allocator, Constraints, Policy, Request, Zone
from roost.engine.explain import Explanation
from roost.engine.selection import Engine
from roost.engine.steps import CutShort, Steps, finish
from roost.model.availability import AvailabilitySet
from roost.placing import gang
from roost.placing.rehearsal import Rehearsal

APART = Constraints(max_per_rack=1, max_per_machine=1)


@pytest.fixture
def allocator() -> Allocator:
    """A zone with a few VMs on its machines."""
    made = Allocator(Zone.synthetic(200, seed=1), Policy.named("fast"), seed=1)
    for i in range(60):
        made.allocate(Request(f"t{i}", [VM("A2")] * (1 + i % 3)))
    return made


def too_many(allocator: Allocator) -> Request:
    """More VMs than there are racks, one in each."""
    return Request("spread", [VM("A0")] * (len(allocator.zone.racks) + 1), APART)


def cut_after(work: Steps[Explanation], steps: int) -> Explanation:
    for _ in range(steps):
        next(work)
    with pytest.raises(StopIteration) as done:
        work.throw(CutShort())
    found: Explanation = done.value.value
    return found


def test_between_two_steps_only_so_many_vms_are_placed(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    assign = Mock(side_effect=Engine.assign, autospec=True)
    monkeypatch.setattr(Engine, "assign", lambda *given: assign(*given))
    counts, before = [], 0
    for _ in allocator.explaining(Request("many", [VM("A0")] * 400)):
        counts.append(assign.call_count - before)
        before = assign.call_count
    assert sum(counts) >= 400
    assert max(counts) <= gang.STEP


def test_what_others_place_between_the_steps_changes_nothing(allocator: Allocator) -> None:
    request = too_many(allocator)
    at_once = allocator.explain(request)
    assert at_once.failure == "tenant_constraint"
    assert any(remedy.kind == "constraint" for remedy in at_once.remedies)
    work = allocator.explaining(request)
    found = None
    for i in range(10_000):
        try:
            next(work)
        except StopIteration as done:
            found = done.value
            break
        allocator.allocate(Request(f"meanwhile-{i}", [VM("A1")]))
        if (name := f"t{i % 60}/0") in allocator.vms:
            allocator.release(name)
    assert found == at_once


def test_a_past_decision_has_remedies_though_others_were_placed_since(allocator: Allocator) -> None:
    decision = allocator.allocate(too_many(allocator))
    now = decision.explanation
    assert now.remedies
    for i in range(20):
        allocator.allocate(Request(f"since-{i}", [VM("A1")]))
    assert decision.explanation.remedies == now.remedies


def test_a_decision_is_explained_by_what_its_tenant_wanted_then(allocator: Allocator) -> None:
    wanted = Constraints(sets={"db": AvailabilitySet(fault_domains=3)})
    assert allocator.allocate(Request("later-gone", [VM("A0", set="db")] * 3, wanted)).ok
    declined = allocator.allocate(Request("later-gone", [VM("A11", set="db")] * 1_500))
    at_once = declined.explanation
    for name in [*allocator.tenants["later-gone"].vms]:
        allocator.release(name)
    assert declined.explanation == at_once


def test_nobody_is_told_to_free_a_vm_that_has_gone_since(allocator: Allocator) -> None:
    for i in range(10_000):  # until not even a small one fits
        if not allocator.allocate(Request(f"fill-{i}", [VM("A11")])).ok:
            break
    full = allocator.allocate(Request("late", [VM("A11")]))
    assert not full.ok
    work = full.explaining()
    next(work)
    gone = [name for name in allocator.vms if name.startswith("fill-")]
    for name in gone[: len(gone) // 2]:
        allocator.release(name)
    for remedy in finish(work).remedies:
        assert all(vm in allocator.vms for vm in remedy.vms)


def test_what_is_cut_short_says_so_and_tells_what_it_has(allocator: Allocator) -> None:
    decision = allocator.allocate(too_many(allocator))
    whole = decision.explanation
    assert not whole.cut_short
    steps = sum(1 for _ in decision.explaining())
    for after in range(steps - 5, steps):
        found = cut_after(decision.explaining(), after)
        assert found.cut_short
        assert set(found.remedies) <= set(whole.remedies)
        assert found.reasons == whole.reasons
        assert "was cut short" in str(found)


def test_what_is_cut_short_before_there_is_a_reason_has_nothing_to_tell(allocator: Allocator) -> None:
    work = allocator.allocate(too_many(allocator)).explaining()
    next(work)
    with pytest.raises(CutShort):
        work.throw(CutShort())


def test_without_remedies_nothing_is_tried(allocator: Allocator, monkeypatch: pytest.MonkeyPatch) -> None:
    decision = allocator.allocate(too_many(allocator))
    assign = Mock()
    monkeypatch.setattr(Engine, "assign", assign)
    found = finish(decision.explaining(remedied=False))
    assert (found.remedies, found.cut_short, found.failure) == ((), False, "tenant_constraint")
    assert not assign.called


def test_a_copy_of_the_past_knows_which_machines_have_changed_since(allocator: Allocator) -> None:
    decision = allocator.allocate(too_many(allocator))
    engine, shapes = allocator.engine, allocator.shapes
    machines = list(range(len(allocator.zone.machines)))
    for i in range(5):
        allocator.allocate(Request(f"since-{i}", [VM("A1")]))
    past = allocator.view.at(decision.before)
    rehearsal = Rehearsal(engine, shapes, allocator.view.at(decision.before), decision.after)
    for i in range(5, 10):  # under numbers that undoing has given to machines of the copy
        allocator.allocate(Request(f"since-{i}", [VM("A1")]))
    same = rehearsal.unchanged(machines, allocator.view)
    differ = [m for m in machines if past.machines[m]["vms"] != allocator.view.machines[m]["vms"]]
    assert differ
    assert not set(differ) & set(same)
    assert len(same) > len(machines) / 2
