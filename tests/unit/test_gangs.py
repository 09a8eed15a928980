"""Gangs: all VMs or none, whatever happens in between."""

from pathlib import Path

import numpy as np
import pytest

from roost import VM, Allocator, Constraints, InvalidInput, Policy, Request, Zone
from roost.engine.choice import AmongBest, Favourite
from roost.engine.selection import CacheLimits, Engine
from tests.property.operators import set_machine_state

HALF = """\
name: half
clusters: {validators: [type_supported]}
machines: {validators: [has_features, has_room, evicts_nobody, respects_isolation]}
tenants: [colocate_rack, max_per_machine, max_per_rack]
"""


@pytest.fixture
def allocator() -> Allocator:
    return Allocator(Zone.synthetic(200, seed=1), Policy.named("fast"), seed=1)


@pytest.fixture(scope="module")
def half() -> Policy:
    return Policy.parse(HALF)


def rows(allocator: Allocator) -> list[bytes]:
    return [table.tobytes() for table in (allocator.view.machines, allocator.view.racks, allocator.view.clusters)]


def test_a_gang_that_does_not_fit_leaves_no_trace(allocator: Allocator) -> None:
    before = rows(allocator)
    decision = allocator.allocate(Request("t", [VM("Full-gen4")] * 300))
    assert not decision.ok
    assert decision.placements == ()
    assert rows(allocator) == before
    assert not allocator.tenants


def test_co_located_vms_find_the_one_place_that_holds_them_all(allocator: Allocator) -> None:
    zone = allocator.zone
    rack = zone.racks[-1]
    for m in range(len(zone.machines)):  # leave one machine in each rack, but two in the last
        first = int(zone.racks[zone.machines[m]["rack"]]["first"])
        if m != first and m != int(rack["first"]) + 1:
            set_machine_state(allocator, zone.machine_names[m], "down")
    whole = f"Full-{zone.generations[zone.machines[int(rack['first'])]['generation']].name}"
    decision = allocator.allocate(Request("t", [VM(whole)] * 2, Constraints(colocate="rack")))
    assert decision.ok
    assert {zone.machines[zone.machine(p.machine)]["rack"] for p in decision.placements} == {len(zone.racks) - 1}
    explained = decision.explanation
    assert explained.machine == decision.placements[decision.trial.order[0]].machine
    assert explained.tied >= 1


def test_a_failed_search_for_a_common_place_can_still_be_explained(allocator: Allocator) -> None:
    decision = allocator.allocate(Request("t", [VM("A0")] * 60, Constraints(colocate="rack", max_per_machine=1)))
    assert not decision.ok
    assert "machines are available" in decision.explanation.summary


def test_a_constraint_value_that_no_rule_enforces_is_refused(half: Policy) -> None:
    allocator = Allocator(Zone.synthetic(100, seed=1), half)
    with pytest.raises(InvalidInput, match=r"constraints\.colocate: policy half has no rule for it"):
        allocator.allocate(Request("t", [VM("A1")] * 3, Constraints(colocate="cluster")))
    assert allocator.allocate(Request("t", [VM("A1")] * 3, Constraints(colocate="rack"))).ok


@pytest.mark.parametrize(
    ("vm", "what"),
    [
        (VM("A1", cluster="c001"), "cluster"),
        (VM("A1", generation="gen4"), "generation"),
        (VM("A1", colocation="licensed"), "colocation"),
    ],
)
def test_a_wish_that_no_rule_of_the_policy_reads_is_refused(half: Policy, vm: VM, what: str) -> None:
    allocator = Allocator(Zone.synthetic(100, seed=1), half)
    with pytest.raises(InvalidInput, match=f"{what}: no rule of the policy reads it"):
        allocator.allocate(Request("t", [vm]))


def test_a_type_takes_no_room_where_it_cannot_run() -> None:
    bare = Policy.parse("name: bare\nmachines: {validators: [has_features, has_room, evicts_nobody]}\n")
    allocator = Allocator(Zone.synthetic(100, seed=1), bare)
    decision = allocator.allocate(Request("t", [VM("G5")] * 40))
    for machine in decision.trial.machines:
        assert allocator.zone.machines[machine]["generation"] in (2, 3)
    allocator.check_invariants()


class Interrupted(BaseException):
    """Stands for a signal."""


@pytest.mark.parametrize("when", ["after the kernel placed", "after it was noted"])
def test_an_interrupt_leaves_no_half_tenant(allocator: Allocator, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    before, view = rows(allocator), allocator.view
    note, calls = view.note_placed, 0

    def interrupted(machine: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            if when == "after it was noted":
                note(machine)
            raise Interrupted
        note(machine)

    monkeypatch.setattr(view, "note_placed", interrupted)
    with pytest.raises(Interrupted):
        allocator.allocate(Request("t", [VM("A1")] * 5))
    monkeypatch.setattr(view, "note_placed", note)
    assert rows(allocator) == before
    assert allocator.allocate(Request("t", [VM("A1")] * 5)).ok
    allocator.check_invariants()


def test_names_made_for_vms_avoid_those_that_are_taken(allocator: Allocator) -> None:
    allocator.allocate(Request("sly", [VM("A0", name="victim/0")]))
    named = allocator.allocate(Request("victim", [VM("A0"), VM("A0", name="victim/2"), VM("A0")]))
    assert [p.vm for p in named.placements] == ["victim/1", "victim/2", "victim/3"]


def test_a_decision_can_be_asked_why_not_long_after(allocator: Allocator) -> None:
    decision = allocator.allocate(Request("t", [VM("D2", name="web")]))
    asked = {name: str(decision.why_not(name)) for name in allocator.zone.machine_names[:20]}
    for i in range(50):
        allocator.allocate(Request(f"later-{i}", [VM("D2")]))
    assert {name: str(decision.why_not(name)) for name in asked} == asked
    assert decision.why_not(decision.placements[0].machine).verdict == "chosen"


def test_a_placed_request_can_be_explained_again(allocator: Allocator) -> None:
    request = Request("t", [VM("D2", name="web")])
    allocator.allocate(request)
    assert allocator.explain(request).machine is not None


def test_a_tenant_of_thousands_grows_under_constraints(allocator: Allocator) -> None:
    first = allocator.allocate(Request("big", [VM("A0")] * 600, Constraints(max_per_machine=20)))
    assert first.ok
    assert allocator.allocate(Request("big", [VM("A0")])).ok
    homes = [vm.machine for vm in allocator.vms.values()]
    assert max(np.bincount(homes)) <= 20


@pytest.mark.parametrize("way", [AmongBest, Favourite])
@pytest.mark.parametrize("n", [-1, 0, 1, 1_001])
def test_a_choice_among_none_or_too_many_is_refused(way: type[AmongBest | Favourite], n: int) -> None:
    with pytest.raises(InvalidInput, match="choice"):
        way(n)


def test_a_seed_or_a_limit_out_of_range_is_refused() -> None:
    zone = Zone.synthetic(100)
    with pytest.raises(InvalidInput, match="seed"):
        Allocator(zone, Policy.named("fast"), seed=-1)
    with pytest.raises(InvalidInput, match=r"limits\.evaluations"):
        CacheLimits(evaluations=0)


def test_idle_time_is_used_until_everything_is_up_to_date(allocator: Allocator) -> None:
    for kind in ("A0", "A1", "D1"):
        allocator.allocate(Request(kind, [VM(kind)]))
    steps = 0
    while allocator.refresh():
        steps += 1
    assert 1 <= steps <= 3
    stale = Engine(allocator.view, allocator.policy.rules)
    assert stale.refresh() == 0


def test_a_policy_that_does_not_compile_is_refused_and_the_old_one_stays(allocator: Allocator, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "from roost.engine.rule import preference\n\n@preference()\ndef odd(machine, vm):\n    return machine.colour\n"
    )
    text = HALF.replace("respects_isolation]}", "respects_isolation], preferences: ['odd.py:odd']}")
    odd = Policy.parse(text, tmp_path / "policy.yaml")
    with pytest.raises(InvalidInput, match=r"rule odd \(.*odd.py:3\): cannot be compiled"):
        allocator.switch_policy(odd)
    assert allocator.policy.name == "fast"
    assert allocator.allocate(Request("t", [VM("A1")])).ok


def test_a_new_policy_decides_from_now_on_and_old_decisions_keep_their_reasons(allocator: Allocator) -> None:
    decision = allocator.allocate(Request("t", [VM("A1")]))
    explained = str(decision.explanation)
    allocator.switch_policy(Policy.named("spread"))
    assert str(decision.explanation) == explained
    later = allocator.allocate(Request("u", [VM("A1")]))
    assert {stage.rule for stage in later.explanation.funnel} >= {"emptiest", "fewer_vms"}
    allocator.release("t/0")
    allocator.check_invariants()
