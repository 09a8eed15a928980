"""Every number and name in an explanation is what slow and obvious code finds, whether asked for before or after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.engine.explain import Explanation, WhyNot
from roost.model.errors import InvalidInput
from roost.model.request import VM, Constraints, Request
from roost.model.rows import MachineState
from roost.model.thresholds import Purpose, Thresholds
from roost.placing.allocator import Allocator
from roost.placing.decision import Decision
from tests.oracle.plain import PlainAllocator, Wish, ladder
from tests.property.effort import examples
from tests.property.explained import apply, check_explanation, check_why_not, lesser
from tests.property.requests import constraints, gangs, layouts, members, rarely, thresholds, vms
from tests.property.world import Checked, World, replace_vms
from tests.property.zones import COLUMNS, MIDDLE, STANDARD, TINY, Shape, build, policy

TRIED: tuple[tuple[Shape, str], ...] = (
    (STANDARD, "default"),
    (STANDARD, "dense"),
    (STANDARD, "spread"),
    (STANDARD, "fast"),
    (TINY, MIDDLE),
    (TINY, COLUMNS),
)
each_policy = pytest.mark.parametrize(("shape", "rules"), TRIED, ids=[policy(rules).name for _, rules in TRIED])


def used_world(data: st.DataObject, shape: Shape, rules: str, steps: int = 12) -> World:
    """A zone with a past: requests, releases, and what operators do."""
    zone = build(shape, data.draw(layouts(shape, clusters=(1, 5))), data.draw(st.none() | st.integers(0, 3)))
    world = World(zone, policy(rules), data.draw(st.integers(0, 3)))
    for step in range(data.draw(st.integers(0, steps))):
        happens: str = data.draw(
            st.sampled_from(("request", "request", "request", "release", "state", "health", "close", "keep"))
        )
        which = data.draw(st.integers(0, 99))
        if happens == "request":
            world.allocate(any_request(data, world, shape, f"t{step}"))
        elif happens == "release" and world.allocator.vms:
            names = sorted(world.allocator.vms)
            world.release(names[which % len(names)])
        elif happens == "state":
            world.set_state(which % len(zone.machines), data.draw(st.sampled_from(MachineState)))
        elif happens == "health":
            world.set_health(which % len(zone.machines), data.draw(st.sampled_from((0, 29, 50, 100))))
        elif happens == "close":
            world.quarantine(which % len(zone.clusters), which % 3 == 0)
        elif happens == "keep":
            keep(data, world, which % len(zone.clusters))
    return world


def keep(data: st.DataObject, world: World, cluster: int) -> None:
    """An operator has a cluster keep some empty machines."""
    world.set_thresholds(cluster, data.draw(thresholds(int(world.zone.clusters["machines"][cluster]))))


def any_request(data: st.DataObject, world: World, shape: Shape, tenant: str) -> Request:
    """A request of a new tenant, at times for VMs that stay together, or the scale-out of one that is there."""
    own = world.allocator.policy.rules.own_traits
    if data.draw(rarely):
        alike = VM(data.draw(st.sampled_from(shape.asked)), traits={"x": 1, "y": 0} if own else {})
        together = Constraints(colocate=data.draw(st.sampled_from(("rack", "rack", "cluster", "datacenter"))))
        return Request(tenant, (alike,) * data.draw(st.integers(2, 4)), together)
    gang = data.draw(gangs(vms(shape, world.zone, bool(own)), most=4))
    known = data.draw(st.sampled_from(("", "", *sorted(world.allocator.tenants))))
    if known:
        return Request(known, data.draw(members(gang, world.allocator.tenants[known].constraints)))
    wanted = data.draw(constraints())
    return Request(tenant, data.draw(members(gang, wanted)), wanted)


def without_remedies(explanation: Explanation) -> Explanation:
    """What must not depend on when it is asked."""
    return replace(explanation, remedies=())


def explained_vm(checked: Checked) -> tuple[int, int]:
    """The VM that is explained unless another is asked for, and when its turn was."""
    trial = checked.decision.trial
    vm = trial.failed_vm if trial.failed_vm is not None else 0
    return vm, trial.order.index(vm)


@each_policy
@given(data=st.data())
@settings(max_examples=examples(60))
def test_an_explanation_foretells_the_decision_and_says_what_the_oracle_says(
    shape: Shape, rules: str, data: st.DataObject
) -> None:
    world = used_world(data, shape, rules)
    request = any_request(data, world, shape, "asks")
    foretold = {i: explain_or_none(world.allocator, request, i) for i in range(len(request.vms))}
    default = world.allocator.explain(request)
    reasons_against = [world.allocator.why_not(request, name) for name in world.zone.machine_names]
    checked = world.allocate(request)
    order, final = checked.decision.trial.order, checked.final
    for at, i in enumerate(order):
        explanation = foretold[i]
        if at >= len(final.answers):
            assert explanation is None, "a VM that was never tried was explained"
            continue
        assert explanation is not None
        assert (explanation.vm, explanation.vm_type) == (i, request.vms[i].type)
        check_explanation(world, explanation, final.answers[at], dict(enumerate(final.machines)).get(at))
    vm, at = explained_vm(checked)
    explained = foretold[vm]
    assert explained is not None
    assert without_remedies(default) == without_remedies(explained)
    assert without_remedies(checked.decision.explanation) == without_remedies(default)
    chosen = final.machines[at] if at < len(final.machines) else None
    for m, found in enumerate(reasons_against):
        check_why_not(world, found, final.answers[at], chosen, m)
    world.check()


def explain_or_none(allocator: Allocator, request: Request, vm: int) -> Explanation | None:
    """The explanation of one VM, None if an earlier one finds no machine."""
    try:
        return allocator.explain(request, vm)
    except InvalidInput:
        return None


@each_policy
@given(data=st.data())
@settings(max_examples=examples(30))
def test_a_decision_explained_later_is_explained_as_it_would_have_been_at_once(
    shape: Shape, rules: str, data: st.DataObject
) -> None:
    world = used_world(data, shape, rules, steps=5)
    made = []
    for i in range(data.draw(st.integers(1, 8))):
        decision = world.allocate(any_request(data, world, shape, f"late{i}")).decision
        made.append((decision, without_remedies(decision.explanation), losers(decision, world)))
        which = data.draw(st.integers(0, 99))
        if which % 4 == 0 and world.allocator.vms:
            world.release(sorted(world.allocator.vms)[which % len(world.allocator.vms)])
        if which % 4 == 1:
            world.set_state(which % len(world.zone.machines), MachineState(which // 4 % 4))
        if which % 4 == 2:
            world.set_health(which % len(world.zone.machines), which)
        if which % 4 == 3:
            world.quarantine(which % len(world.zone.clusters), which % 2 == 0)
            keep(data, world, which % len(world.zone.clusters))
    for decision, at_once, lost_at_once in made:
        assert without_remedies(decision.explanation) == at_once
        assert losers(decision, world) == lost_at_once
    world.check()


def losers(decision: Decision, world: World) -> list[WhyNot]:
    """Why each machine did not get the VM."""
    return [decision.why_not(name) for name in world.zone.machine_names]


# ------------------------------------------------------------------------------------------------------ refusals


def empty_zone_has_a_place(world: World, request: Request, vm: int, purpose: Purpose) -> bool:
    """Whether the zone would take one VM, alone and free of constraints, if nothing ran and nothing was worn."""
    fresh = PlainAllocator(world.zone, world.oracle.rules)
    fresh.healths = dict.fromkeys(range(len(world.zone.machines)), 100)
    wish = Wish(request.vms[vm], request.tenant, purpose=purpose)
    answer = fresh.answer(wish, range(len(world.zone.clusters)))
    return bool(answer.valid)


def check_failure(world: World, request: Request, checked: Checked) -> None:
    """The one word for a refusal is true of it."""
    found, (vm, at) = checked.decision.explanation, explained_vm(checked)
    with lifted(world, request, checked):
        *_, wish = world.wishes(request, checked.decision.constraints, checked.decision.trial.order, at)
        answer = world.answer(replace(wish, refused=checked.final.refused, purpose=checked.decision.purpose))
    if answer.valid:
        assert found.failure == "threshold"
    elif any(bound is not None and bound.rule.kind == "tenant" for bound in answer.failures):
        assert found.failure == "tenant_constraint"
    elif not empty_zone_has_a_place(world, request, vm, checked.decision.purpose):
        assert found.failure == "mistake"
    else:
        assert found.failure == ("fragmented" if fits_in_sum(world, request, vm, checked) else "no_capacity")


@contextmanager
def lifted(world: World, request: Request, checked: Checked) -> Iterator[None]:
    """When it was the turn of the VM that found no machine, but no cluster keeps empty machines."""
    trial, kept = checked.decision.trial, world.oracle.thresholds
    world.oracle.thresholds = dict.fromkeys(range(len(world.zone.clusters)), Thresholds())
    for i, machine in zip(trial.order, trial.machines, strict=False):
        world.oracle.place(f"earlier {i}", request.vms[i], request.tenant, machine)
    yield
    for i, _ in zip(trial.order, trial.machines, strict=False):
        world.oracle.remove(f"earlier {i}")
    world.oracle.thresholds = kept


def fits_in_sum(world: World, request: Request, vm: int, checked: Checked) -> bool:
    """Whether the machines that lack nothing but room have enough of each resource together."""
    wish = Wish(request.vms[vm], request.tenant, purpose=checked.decision.purpose)
    with lifted(world, request, checked):
        answer = world.oracle.answer(wish, range(len(world.zone.clusters)), ignored=("has_room",))
    rows = [answer.rows.machines[m] for m in answer.valid]
    return bool(rows) and all(
        sum(row.free[answer.vm.priority][r] for row in rows) >= max(answer.vm.demand[row.generation][r] for row in rows)
        for r in range(len(world.zone.resources))
    )


@each_policy
@given(data=st.data())
@settings(max_examples=examples(60))
def test_the_word_for_a_refusal_is_true(shape: Shape, rules: str, data: st.DataObject) -> None:
    world = used_world(data, shape, rules)
    for i in range(3):
        request = any_request(data, world, shape, f"asks{i}")
        checked = world.allocate(request)
        if not checked.decision.ok:
            check_failure(world, checked.decision.request, checked)


@each_policy
@given(data=st.data())
@settings(max_examples=examples(60))
def test_a_remedy_makes_the_request_fit(shape: Shape, rules: str, data: st.DataObject) -> None:
    world = used_world(data, shape, rules)
    for i in range(3):
        request = any_request(data, world, shape, f"asks{i}")
        decision = world.allocate(request).decision
        if decision.ok:
            continue
        for remedy in decision.explanation.remedies:
            other = world.replayed()
            wanted = apply(remedy, other, request)
            assert other.allocate(wanted).ok, f"refused although we would {remedy}"
            other.check_invariants()


@each_policy
@given(data=st.data())
@settings(max_examples=examples(60))
def test_a_constraint_or_pin_that_alone_keeps_one_vm_out_is_always_among_the_remedies(
    shape: Shape, rules: str, data: st.DataObject
) -> None:
    world = used_world(data, shape, rules)
    for i in range(4):
        request = any_request(data, world, shape, f"asks{i}")
        request = msgspec.structs.replace(request, vms=request.vms[:1])
        decision = world.allocate(request).decision
        if decision.ok:
            continue
        (vm,) = decision.request.vms
        of_set = vm.set
        wish = Wish(vm, request.tenant, ladder(decision.constraints, of_set)[-1], purpose=decision.purpose)
        expected = {
            text
            for text, rest in lesser(decision.constraints, of_set)
            if world.answer(replace(wish, constraints=ladder(rest, of_set)[-1])).valid
        } | {
            f"take any {pin}, not only {getattr(wish.vm, pin)}"
            for pin in ("datacenter", "cluster", "generation")
            if getattr(wish.vm, pin) and world.answer(replace(wish, vm=anywhere(pin, vm, decision.constraints))).valid
        }
        found = decision.explanation.remedies
        assert {str(r) for r in found if r.kind in ("constraint", "pin")} == expected
        lifts = [c for c in range(len(world.zone.clusters)) if fits_without_threshold(world, wish, c)]
        assert any(r.kind == "threshold" for r in found) == bool(lifts)


def anywhere(pin: str, vm: VM, constraints: Constraints) -> VM:
    """The VM if it asks for any datacenter, cluster or generation; where it is silent, what its tenant wants holds."""
    (vm,) = replace_vms(Request("t", (msgspec.structs.replace(vm, **{pin: "*"}),)), constraints).vms
    return msgspec.structs.replace(vm, **{pin: ""})


def fits_without_threshold(world: World, wish: Wish, cluster: int) -> bool:
    """Whether the one cluster's thresholds are what keeps a VM out."""
    kept = world.oracle.thresholds
    world.oracle.thresholds = kept | {cluster: Thresholds()}
    fits = bool(world.answer(wish).valid)
    world.oracle.thresholds = kept
    return fits
