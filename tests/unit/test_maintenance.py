"""How the VMs of an update domain are taken away in waves, and what becomes of machines whatever happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.client import Client, ServiceProblem
from roost.client.lease import Lease
from roost.client.maintenance import DomainDone, Walk
from roost.client.waves import groups_of, most_at_once, portion
from roost.model.availability import AvailabilitySet
from roost.model.request import Constraints
from roost.wire.evictions import EvictionDone
from roost.wire.healing import HealedVM, HealingResult, HealingWish, UnhealedVM, YetToUpdate
from roost.wire.machines import MachineChange, MachineLine, MachineView
from roost.wire.problems import Problem
from roost.wire.tenants import TenantView, VMView
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


def waves(vms: list[VMView], known: dict[str, TenantView], down: set[str]) -> list[list[VMView]]:
    """The VMs wave by wave, as long as any may go."""
    wave, later = portion(vms, groups_of(known.values(), down))
    return [wave, *waves(later, known, down)] if wave else []


@settings(max_examples=examples(200))
@given(tenants(), st.booleans())
def test_every_vm_goes_once_and_no_wave_takes_too_much_of_a_set(known: dict[str, TenantView], is_down: bool) -> None:
    here = [vm for tenant in known.values() for vm in tenant.vms if vm.machine == "here"]
    there = Counter((vm.tenant, vm.set) for tenant in known.values() for vm in tenant.vms if vm.machine == "there")
    found = waves(here, known, {"there"} if is_down else set())
    totals = Counter((vm.tenant, vm.set) for tenant in known.values() for vm in tenant.vms)
    gone = [vm.vm for wave in found for vm in wave]
    assert len(gone) == len(set(gone))
    needed = 0
    for group, number in Counter((vm.tenant, vm.set) for vm in here).items():
        constraints = known[group[0]].constraints
        wanted = constraints.sets[group[1]].update_domains if group[1] else constraints.min_update_domains
        allowed = max(0, most_at_once(totals[group], wanted) - there[group] * is_down)
        portions = [Counter((vm.tenant, vm.set) for vm in wave)[group] for wave in found]
        assert all(each <= allowed for each in portions)
        assert sum(portions) == (number if allowed else 0), "all of them go, unless as many as may be are gone already"
        needed = max(needed, -(-number // allowed) if allowed else 0)
    assert len(found) == needed, "and there are no more waves than the most constrained set needs"


def test_of_ten_vms_over_ten_update_domains_none_may_go_while_one_is_down() -> None:
    vms = [VMView(vm=f"w/{i}", tenant="w", type="T", machine=f"m{i}", set="web") for i in range(10)]
    wish = Constraints(sets={"web": AvailabilitySet(update_domains=10)})
    groups = groups_of([TenantView(tenant="w", generation=1, constraints=wish, vms=vms)], {"m9"})
    assert portion(vms[:1], groups) == ([], vms[:1])
    assert groups["w", "web"].why_not == (
        "1 of 10 VMs of set web of w are on machines that are down, and no more than 1 may be gone at once"
    )


# ------------------------------------------------------------------------------------------------------------ the walk


def refusal(code: str) -> ServiceProblem:
    """What the service says if it says no."""
    return ServiceProblem(Problem(type="", title="No", status=400, detail=code, code=f"roost.{code}", retryable=False))


class Desk:
    """A service of a few machines: which state they are in, and what was done to them, in order."""

    def __init__(self) -> None:
        self.states = {"m0": "ready", "m1": "ready", "m2": "down", "m3": "ready"}
        self.domain = {"m0": 0, "m1": 0, "m2": 0, "m3": 1}
        self.homes = {"web/0": "m0", "web/1": "m1", "web/2": "m3"}
        self.generations = dict.fromkeys(self.states, 1)
        self.behind = dict.fromkeys(self.states, 2)
        self.later = list[YetToUpdate | None]()  # by healing: the machines that were to have VMs last
        self.wish = Constraints(min_update_domains=3)
        self.stuck: set[str] = set()
        self.refused: set[str] = set()  # "m0 ready": what cannot be done to machines
        self.log: list[str] = []

    def _described(self, name: str) -> dict[str, Any]:
        return {
            "machine": name, "cluster": "c", "rack": "r", "datacenter": "d", "hardware": "h", "health": 100,
            "state": self.states[name], "vms": len(self.vms(name)), "update_domain": self.domain[name],
            "generation": self.generations[name], "capacity": {}, "free": {},
        }  # fmt: skip

    def machines(self, cluster: str = "", state: str = "") -> Iterator[MachineLine]:
        return (MachineLine(**self._described(name)) for name, now in self.states.items() if state in ("", now))

    def get_machine(self, name: str) -> MachineView:
        if name not in self.states:
            raise refusal("not_found")
        behind = self.behind.get(name, 0)
        return MachineView(
            **self._described(name), features=(), failures=0, versions_behind=behind, running=self.vms(name)
        )

    def vms(self, machine: str) -> list[VMView]:
        return [
            VMView(vm=vm, tenant="web", type="T", machine=home) for vm, home in self.homes.items() if home == machine
        ]

    def get_vm(self, name: str) -> VMView:
        if name not in self.homes:
            raise refusal("not_found")
        return VMView(vm=name, tenant="web", type="T", machine=self.homes[name])

    def get_tenant(self, name: str) -> TenantView:
        if not self.homes:
            raise refusal("not_found")
        vms = [vm for machine in self.states for vm in self.vms(machine)]
        return TenantView(tenant=name, generation=1, constraints=self.wish, vms=vms)

    def change_machine(self, machine: str, change: MachineChange, if_match: int | None = None) -> None:
        if if_match not in (None, self.generations[machine]):
            raise refusal("outdated")
        if f"{machine} {change.state}" in self.refused:
            raise refusal("internal")
        if change.versions_behind is not None:
            self.behind[machine] = change.versions_behind
        if change.state:
            self.become(machine, change.state)

    def become(self, machine: str, state: str) -> None:
        """Whoever says so."""
        self.states[machine] = state
        self.generations[machine] += 1
        self.log.append(f"{machine} {state}")

    def update(self, machine: str) -> str:
        self.log.append(f"{machine} updated")
        return ""

    def heal(self, wish: HealingWish) -> HealingResult:
        self.later.append(wish.later)
        if any(vm not in self.homes for vm in wish.vms):
            raise refusal("not_found")
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


class Large(Desk):
    """One machine more, which is tried out first as it is empty."""

    def __init__(self) -> None:
        super().__init__()
        self.states["a0"], self.domain["a0"], self.generations["a0"], self.behind["a0"] = "ready", 0, 1, 2


class Had:
    """A hold on the zone, for as long as nobody takes over."""

    def __init__(self, left: Iterable[str] = ()) -> None:
        self.left, self.told, self.lost = set(left), list[tuple[str, ...]](), False

    def check(self) -> None:
        if self.lost:
            raise refusal("conflict")

    def tell(self, _domain: int, machines: Iterable[str]) -> None:
        self.check()
        self.told.append(tuple(machines))

    def settled(self, machines: Iterable[str]) -> None:
        self.left.difference_update(machines)


def walk(desk: Desk, lease: Had | None = None, **more: Any) -> DomainDone:
    """What comes of the first domain."""
    options: dict[str, Any] = {"at_once": 1, "max_failures": 3, **more}
    return Walk(cast(Client, desk), cast(Lease, lease or Had()), **options).run(0)


def test_a_domain_is_drained_emptied_wave_by_wave_updated_and_in_use_again() -> None:
    desk, pauses = Desk(), list[float]()
    done = walk(desk, update=desk.update, pause=9.0, sleep=pauses.append)
    assert desk.log == [
        "m0 draining", "web/0 moved", "m0 updated", "m0 ready", "m1 draining", "web/1 moved", "m1 updated", "m1 ready",
    ]  # fmt: skip
    assert (done.machines, done.updated, done.moved, done.waves, done.whole) == (2, 2, 2, 2, True)
    assert done.left_alone == ("m2",)
    assert pauses == [9.0], "between the two waves"


def test_a_machine_that_was_updated_is_current_and_others_are_as_they_were() -> None:
    desk = Large()
    desk.stuck = {"web/1"}
    walk(desk, update=lambda machine: "disk is full" if machine == "m0" else "")
    assert desk.behind == {"a0": 0, "m0": 2, "m1": 2, "m2": 2, "m3": 2}


def test_a_walk_that_updates_nothing_makes_no_machine_current() -> None:
    desk = Desk()
    assert walk(desk).updated == 2
    assert set(desk.behind.values()) == {2}


def test_a_machine_of_which_others_say_otherwise_is_current_once_it_was_updated() -> None:
    desk = Desk()

    def update(machine: str) -> str:
        desk.become(machine, "down")
        return ""

    walk(desk, update=update)
    assert desk.states["m0"] == "down"
    assert desk.behind["m0"] == 0


def test_machines_that_are_yet_to_be_updated_and_do_not_drain_are_to_have_vms_last() -> None:
    desk = Large()
    desk.homes["web/0"] = "a0"
    desk.homes["web/9"] = "m0"
    Walk(cast(Client, desk), cast(Lease, Had()), at_once=1, max_failures=3, cluster="c").run(0, later=(4, 3))
    first, *others = [(wish.update_domains, wish.cluster) for wish in desk.later if wish]
    assert first == ((0, 3, 4), "c"), "while one is tried out, the others of its domain are in use"
    assert set(others) == {((3, 4), "c")}
    alone = Desk()
    walk(alone)
    assert [wish.update_domains if wish else None for wish in alone.later] == [(0,), None], "nothing comes later"


def test_a_machine_that_cannot_be_emptied_is_not_updated_and_told() -> None:
    desk = Desk()
    desk.stuck = {"web/1"}
    done = walk(desk, update=desk.update)
    assert "m1 updated" not in desk.log
    assert desk.states == {"m0": "ready", "m1": "ready", "m2": "down", "m3": "ready"}
    assert (done.updated, done.whole) == (1, False)
    assert [(each.vm, each.machine, each.why) for each in done.unmoved] == [("web/1", "m1", "nowhere to go")]


def test_a_machine_whose_update_fails_is_quarantined() -> None:
    desk = Large()
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


# --------------------------------------------------------------------------------------- what others do meanwhile


@pytest.mark.parametrize("state", ["down", "quarantined", "ready"])
def test_a_machine_of_which_others_say_otherwise_meanwhile_is_left_alone(state: str) -> None:
    desk = Large()

    def update(machine: str) -> str:
        if machine == "m0":
            desk.become("m1", state)
        return desk.update(machine)

    done = walk(desk, update=update)
    assert desk.log[-3:] == [f"m1 {state}", "m0 updated", "m0 ready"]
    assert desk.states["m1"] == state
    assert done.left_alone == ("m1", "m2")
    assert (done.machines, done.updated, done.whole) == (2, 2, True)


def test_a_machine_that_goes_down_while_it_is_updated_stays_down() -> None:
    desk = Desk()

    def update(machine: str) -> str:
        desk.become("m0", "down")
        return ""

    walk(desk, update=update)
    assert (desk.states["m0"], desk.states["m1"]) == ("down", "ready")


def test_a_machine_that_goes_down_just_before_it_is_drained_is_left_alone() -> None:
    class Late(Desk):
        def machines(self, cluster: str = "", state: str = "") -> Iterator[MachineLine]:
            listed = list(super().machines(cluster, state))
            self.states["m1"] = "down"
            return iter(listed)

    desk = Late()
    done = walk(desk, update=desk.update)
    assert "m1 draining" not in desk.log
    assert desk.states["m1"] == "down"
    assert done.left_alone == ("m1", "m2")


def test_a_machine_that_changes_between_look_and_change_is_looked_at_again() -> None:
    class Busy(Desk):
        looks = 0

        def get_machine(self, name: str) -> MachineView:
            found = super().get_machine(name)
            self.looks += 1
            if self.looks < 5:
                self.generations[name] += 1  # a VM came or went
            return found

    desk = Busy()
    assert walk(desk, update=desk.update, sleep=lambda _: None).updated == 2
    assert desk.states["m0"] == desk.states["m1"] == "ready"


def test_a_machine_on_which_something_still_runs_is_not_updated() -> None:
    class Late(Large):
        def heal(self, wish: HealingWish) -> HealingResult:
            self.homes["web/9"] = "m1"  # decided before anybody knew that it drains
            return super().heal(wish)

    desk = Late()
    done = walk(desk, update=desk.update)
    assert "m1 updated" not in desk.log
    assert desk.states["m1"] == "ready"
    assert [(each.vm, each.machine) for each in done.unmoved] == [("web/9", "m1")]


def test_a_failed_update_is_quarantined_even_if_the_walk_is_interrupted_then() -> None:
    desk, warnings = Large(), list[str]()

    def update(machine: str) -> str:
        if machine == "a0":
            return ""
        if machine == "m0":
            return "disk is full"
        assert desk.states["m0"] == "quarantined", "as soon as that is known"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        walk(desk, update=update, warn=warnings.append)
    assert (desk.states["m0"], desk.states["m1"]) == ("quarantined", "ready")
    assert warnings == ["the update failed on m0: disk is full"]


def test_a_machine_that_cannot_be_used_again_is_told_and_the_others_are() -> None:
    desk = Desk()
    desk.refused = {"m0 ready"}
    done = walk(desk)
    assert (desk.states["m0"], desk.states["m1"]) == ("draining", "ready")
    assert [(each.machine, each.why) for each in done.unsettled] == [("m0", "No: internal")]
    assert not done.whole


def test_who_is_interrupted_is_warned_of_machines_that_cannot_be_used_again() -> None:
    class Interrupted(Desk):
        def heal(self, wish: HealingWish) -> HealingResult:
            raise KeyboardInterrupt

    desk, warnings = Interrupted(), list[str]()
    desk.refused = {"m0 ready"}
    with pytest.raises(KeyboardInterrupt):
        walk(desk, warn=warnings.append)
    assert (desk.states["m0"], desk.states["m1"]) == ("draining", "ready")
    assert warnings == ["m0 stays as it is: No: internal"]


def test_a_machine_that_can_neither_be_updated_nor_quarantined_is_not_used_again() -> None:
    desk = Large()
    desk.refused = {"m0 quarantined"}
    done = walk(desk, update=lambda machine: "disk is full" if machine == "m0" else "")
    assert (desk.states["m0"], desk.states["m1"]) == ("draining", "ready")
    assert [each.machine for each in done.failed] == [each.machine for each in done.unsettled] == ["m0"]


def test_a_machine_that_is_removed_meanwhile_is_no_matter() -> None:
    desk = Desk()

    def update(machine: str) -> str:
        desk.states.pop("m1", None)
        return ""

    done = walk(desk, update=update)
    assert desk.states["m0"] == "ready"
    assert (done.left_alone, done.whole) == (("m1", "m2"), True)


@pytest.mark.parametrize("gone", [{"web/0"}, {"web/1"}, {"web/0", "web/1"}, {"web/0", "web/1", "web/2"}])
@pytest.mark.parametrize("when", ["get_tenant", "machines", "heal"])
@pytest.mark.parametrize("domains", [0, 3])
def test_vms_that_are_released_meanwhile_are_skipped(gone: set[str], when: str, domains: int) -> None:
    desk = Desk()
    desk.wish = Constraints(min_update_domains=domains)  # with 3 each VM is asked for by itself
    act = getattr(desk, when)

    def release(*args: Any, **kwargs: Any) -> Any:
        if "m1 draining" in desk.log:
            desk.homes = {vm: home for vm, home in desk.homes.items() if vm not in gone}
        return act(*args, **kwargs)

    setattr(desk, when, release)
    done = walk(desk, update=desk.update)
    assert (done.updated, done.unmoved) == (2, ())
    assert set(desk.homes.values()) <= {"m3"}
    assert desk.states == {"m0": "ready", "m1": "ready", "m2": "down", "m3": "ready"}


def test_a_vm_that_is_released_while_it_is_healed_keeps_no_machine_from_being_updated() -> None:
    class Racing(Desk):
        def heal(self, wish: HealingWish) -> HealingResult:
            result = super().heal(wish)
            self.homes.pop("web/1", None)
            return result

    desk = Racing()
    desk.stuck = {"web/1"}
    assert walk(desk, update=desk.update).updated == 2


def test_vms_stay_while_as_many_of_their_set_as_may_be_are_down() -> None:
    desk = Desk()
    desk.homes["web/2"] = "m2"
    done = walk(desk, update=desk.update)
    assert "m0 updated" not in desk.log
    assert desk.homes == {"web/0": "m0", "web/1": "m1", "web/2": "m2"}
    assert (desk.states["m0"], desk.states["m1"]) == ("ready", "ready")
    why = "1 of 3 VMs of web are on machines that are down, and no more than 1 may be gone at once"
    assert [(each.vm, each.machine, each.why) for each in done.unmoved] == [("web/0", "m0", why), ("web/1", "m1", why)]
    assert (done.moved, done.waves, done.whole) == (0, 0, False)


def test_before_each_wave_it_is_looked_who_is_down() -> None:
    desk = Desk()

    def fail(_: float) -> None:
        desk.homes["web/0"] = "m2"  # where it went is down now

    done = walk(desk, update=desk.update, pause=1.0, sleep=fail)
    assert [each.vm for each in done.unmoved] == ["web/1"]
    assert (done.moved, done.updated) == (1, 1)


def test_vms_of_a_machine_that_goes_down_while_it_is_emptied_are_left_to_healing() -> None:
    desk = Desk()
    done = walk(desk, update=desk.update, pause=1.0, sleep=lambda _: desk.become("m1", "down"))
    assert desk.homes["web/1"] == "m1"
    assert (done.moved, done.updated, done.unmoved, done.left_alone) == (1, 1, (), ("m1", "m2"))


# ----------------------------------------------------------------------------------------- what goes wrong, and stops


def fails(machine: str) -> str:
    """An update that does not work anywhere."""
    return f"no update for {machine}"


def test_an_update_that_does_not_work_is_found_out_on_one_machine_and_the_others_are_left_as_they_are() -> None:
    desk = Large()
    done = walk(desk, update=fails)
    assert desk.log == ["a0 draining", "a0 quarantined"]
    assert [each.machine for each in done.failed] == ["a0"]
    assert done.untouched == ("m0", "m1")
    assert (done.machines, done.updated, done.whole) == (1, 0, False)


def test_a_machine_that_cannot_be_emptied_tells_nothing_of_the_update_so_the_next_is_tried_out() -> None:
    desk = Desk()
    desk.stuck = {"web/0"}
    done = walk(desk, update=fails)
    assert [each.machine for each in done.failed] == ["m1"]
    assert desk.states["m0"] == "ready"


@pytest.mark.parametrize("most", [1, 2])
def test_after_so_many_failures_no_more_updates_are_begun_and_machines_are_in_use(most: int) -> None:
    desk, begun = Large(), list[str]()
    desk.states.update({f"n{i}": "ready" for i in range(5)})
    desk.domain.update({f"n{i}": 0 for i in range(5)})
    desk.generations.update({f"n{i}": 1 for i in range(5)})

    def update(machine: str) -> str:
        begun.append(machine)
        return "" if machine == "a0" else "disk is full"

    done = walk(desk, update=update, max_failures=most)
    assert len(done.failed) == most
    assert begun == ["a0", *(each.machine for each in done.failed)]
    assert (done.machines, done.updated, len(done.untouched)) == (1 + most, 1, 7 - most)
    assert {desk.states[name] for name in done.untouched} == {"ready"}
    assert not done.whole


def test_failures_add_up_over_the_domains_of_a_walk() -> None:
    desk = Desk()
    desk.domain["m1"] = 1
    walker = Walk(cast(Client, desk), cast(Lease, Had()), update=fails, max_failures=2, at_once=1)
    walker.run(0)
    assert not walker.stopped
    walker.run(1)
    assert walker.stopped


# ----------------------------------------------------------------------------------------------- one walk at a time


def test_whoever_takes_over_knows_which_machines_may_be_draining_before_they_are() -> None:
    lease = Had()
    walk(Desk(), lease)
    assert lease.told == [("m0",), (), ("m1",), ()]


def test_what_another_walk_left_draining_is_walked_and_what_others_drained_is_not() -> None:
    desk = Desk()
    desk.states.update(m0="draining", m1="draining")
    done = walk(desk, Had(["m0", "m3"]), update=desk.update)
    assert (desk.states["m0"], desk.states["m1"]) == ("ready", "draining")
    assert (done.updated, done.left_alone) == (1, ("m1", "m2"))


def test_a_walk_from_which_another_took_over_touches_nothing_more() -> None:
    desk, lease, warnings = Large(), Had(), list[str]()

    def update(machine: str) -> str:
        lease.lost = machine == "m0"
        return desk.update(machine)

    with pytest.raises(ServiceProblem, match="conflict"):
        walk(desk, lease, update=update, warn=warnings.append)
    assert desk.log[-1] == "m0 updated"
    assert (desk.states["m0"], desk.states["m1"]) == ("draining", "draining")
    assert "m0 stays as it is: No: conflict" in warnings


# ---------------------------------------------------------------------------------------------------------- evicting


def test_vms_of_a_priority_are_evicted_given_time_to_finish_and_not_moved() -> None:
    class Evicting(Desk):
        def vms(self, machine: str) -> list[VMView]:
            return [
                msgspec.structs.replace(vm, priority="spot" if vm.vm == "web/0" else "regular")
                for vm in super().vms(machine)
            ]

        def evict(self, vms: Sequence[str]) -> EvictionDone:
            for vm in vms:
                del self.homes[vm]
                self.log.append(f"{vm} evicted")
            return EvictionDone(evicted=vms, grace=30.0)

    desk, pauses = Evicting(), list[float]()
    done = walk(desk, update=desk.update, evict="spot", sleep=pauses.append)
    assert desk.log[:3] == ["m0 draining", "web/0 evicted", "m0 updated"]
    assert (done.evicted, done.moved, done.updated) == (1, 1, 2)
    assert pauses == [30.0]
