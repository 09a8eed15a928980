"""How the VMs of an update domain are taken away in waves, and what becomes of machines whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.client import Client
from roost.client.maintenance import DomainDone, Walk, most_at_once, waves
from roost.model.availability import AvailabilitySet
from roost.model.request import Constraints
from roost.wire import HealedVM, HealingResult, HealingWish, MachineChange, MachineLine, TenantView, UnhealedVM, VMView
from tests.property.effort import examples


def test_no_more_vms_may_be_gone_at_once_than_one_update_domain_holds() -> None:
    # The slides' ten web servers that want 90 %: one of ten; three that keep a quorum: one of three.
    assert most_at_once(10, 10) == 1
    assert most_at_once(3, 3) == 1
    assert most_at_once(10, 4) == 3
    assert most_at_once(2, 5) == 1
    assert most_at_once(7, 0) == 7


@st.composite
def tenants(draw: st.DrawFn) -> dict[str, TenantView]:
    """Tenants with and without sets, on machines anywhere."""
    found = {}
    for name in ("a", "b", "c")[: draw(st.integers(1, 3))]:
        sets = {s: AvailabilitySet(update_domains=draw(st.integers(1, 5)), best_effort=True) for s in ("x", "y")}
        wish = Constraints(min_update_domains=draw(st.integers(0, 4)), sets=sets if draw(st.booleans()) else {})
        places = st.tuples(st.sampled_from(("", "x", "y") if wish.sets else ("",)), st.sampled_from(("here", "there")))
        vms = [
            VMView(vm=f"{name}/{i}", tenant=name, type="T", machine=machine, set=of)
            for i, (of, machine) in enumerate(draw(st.lists(places, max_size=12)))
        ]
        found[name] = TenantView(tenant=name, generation=1, constraints=wish, vms=vms)
    return found


@settings(max_examples=examples(200))
@given(tenants())
def test_every_vm_goes_once_and_no_wave_takes_too_much_of_a_set(known: dict[str, TenantView]) -> None:
    here = [vm for tenant in known.values() for vm in tenant.vms if vm.machine == "here"]
    found = list(waves(here, known))
    assert sorted(vm.vm for wave in found for vm in wave) == sorted(vm.vm for vm in here)
    totals = Counter((vm.tenant, vm.set) for tenant in known.values() for vm in tenant.vms)
    needed = 0
    for group, number in Counter((vm.tenant, vm.set) for vm in here).items():
        constraints = known[group[0]].constraints
        wanted = constraints.sets[group[1]].update_domains if group[1] else constraints.min_update_domains
        most = max(Counter((vm.tenant, vm.set) for vm in wave)[group] for wave in found)
        assert most <= most_at_once(totals[group], wanted)
        needed = max(needed, -(-number // most_at_once(totals[group], wanted)))
    assert len(found) == needed, "and there are no more waves than the most constrained set needs"


# ------------------------------------------------------------------------------------------------------------ the walk


class Desk:
    """A service of a few machines: which state they are in, and what was done to them, in order."""

    def __init__(self) -> None:
        self.states = {"m0": "ready", "m1": "ready", "m2": "down", "m3": "ready"}
        self.domain = {"m0": 0, "m1": 0, "m2": 0, "m3": 1}
        self.homes = {"web/0": "m0", "web/1": "m1", "web/2": "m3"}
        self.stuck: set[str] = set()
        self.log: list[str] = []

    def machines(self, cluster: str = "") -> Iterator[MachineLine]:
        for name, state in self.states.items():
            here = sum(home == name for home in self.homes.values())
            yield MachineLine(
                machine=name, cluster="c", rack="r", datacenter="d", hardware="h", state=state, health=100, vms=here,
                update_domain=self.domain[name], generation=0, capacity={}, free={},
            )  # fmt: skip

    def vms(self, machine: str) -> list[VMView]:
        return [
            VMView(vm=vm, tenant="web", type="T", machine=home) for vm, home in self.homes.items() if home == machine
        ]

    def get_tenant(self, name: str) -> TenantView:
        vms = [vm for machine in self.states for vm in self.vms(machine)]
        return TenantView(tenant=name, generation=1, constraints=Constraints(min_update_domains=3), vms=vms)

    def change_machine(self, machine: str, change: MachineChange) -> None:
        assert change.state
        self.states[machine] = change.state
        self.log.append(f"{machine} {change.state}")

    def update(self, machine: str) -> str:
        self.log.append(f"{machine} updated")
        return ""

    def heal(self, wish: HealingWish) -> HealingResult:
        healed, waiting = [], []
        for vm in wish.vms:
            said: dict[str, Any] = {"vm": vm, "tenant": "web", "type": "T", "priority": ""}
            if vm in self.stuck:
                waiting.append(UnhealedVM(**said, machine=self.homes[vm], why="nowhere to go"))
            else:
                healed.append(HealedVM(**said, source=self.homes[vm], machine="m3", key="k"))
                self.homes[vm] = "m3"
                self.log.append(f"{vm} moved")
        return HealingResult(healed=healed, waiting=waiting)


def walk(desk: Desk, **more: Any) -> DomainDone:
    """What comes of the first domain."""
    return Walk(cast(Client, desk), at_once=1, **more).run(0)


def test_a_domain_is_drained_emptied_wave_by_wave_updated_and_in_use_again() -> None:
    desk, pauses = Desk(), list[float]()
    done = walk(desk, update=desk.update, pause=9.0, sleep=pauses.append)
    assert desk.log == [
        "m0 draining", "m1 draining", "web/0 moved", "web/1 moved", "m0 updated", "m1 updated", "m0 ready", "m1 ready",
    ]  # fmt: skip
    assert (done.machines, done.updated, done.moved, done.waves, done.whole) == (2, 2, 2, 2, True)
    assert done.left_alone == ("m2",)
    assert pauses == [9.0], "between the two waves"


def test_a_machine_that_cannot_be_emptied_is_not_updated_and_told() -> None:
    desk = Desk()
    desk.stuck = {"web/1"}
    done = walk(desk, update=desk.update)
    assert "m1 updated" not in desk.log
    assert desk.states == {"m0": "ready", "m1": "ready", "m2": "down", "m3": "ready"}
    assert (done.updated, done.whole) == (1, False)
    assert [(each.vm, each.machine, each.why) for each in done.unmoved] == [("web/1", "m1", "nowhere to go")]


def test_a_machine_whose_update_fails_is_quarantined() -> None:
    desk = Desk()
    done = walk(desk, update=lambda machine: "disk is full" if machine == "m0" else "")
    assert desk.states["m0"] == "quarantined"
    assert desk.states["m1"] == "ready"
    assert [(each.machine, each.why) for each in done.failed] == [("m0", "disk is full")]
    assert not done.whole


def test_whoever_is_interrupted_leaves_no_machine_out_of_use() -> None:
    desk = Desk()

    def interrupted(machine: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walk(desk, update=interrupted)
    assert desk.states == {"m0": "ready", "m1": "ready", "m2": "down", "m3": "ready"}
