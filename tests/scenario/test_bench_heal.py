"""What `roost bench heal` claims of healing is counted as it should be."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.bench.heal import KEPT, Site, bench_heal, healed_twice
from roost.duties.healing import healing_key
from roost.model.request import VM, Constraints, Request
from roost.model.zone import Zone
from roost.traces.outages import Outage
from roost.wiring import open_store


@pytest.fixture
def site() -> Iterator[Site]:
    """A hundred machines without VMs, in racks of ten."""
    zone = Zone.synthetic(100, seed=1)
    made = Site(zone, open_store("memory:", create=zone))
    yield made
    made.agent.close()


def place(site: Site, vms: int = 1, constraints: Constraints | None = None) -> list[int]:
    """VMs of one tenant; returns their machines."""
    request = Request("t", [VM("A2", f"vm{i}", generation="gen4") for i in range(vms)], constraints)
    (answer,) = site.agent.run(site.agent.submit(PlaceVMs(request)))
    return [site.zone.machine_index[each.machine] for each in answer.placements]


def leave(site: Site, machines: set[int]) -> None:
    """No other machines take VMs from now on."""
    site.set("draining", [m for m in range(len(site.zone.machines)) if m not in machines])


def rack_of(site: Site, machine: int) -> list[int]:
    """The machines of a rack."""
    racks = site.zone.machines["rack"]
    return np.flatnonzero(racks == racks[machine]).tolist()


def test_every_cluster_keeps_machines_for_growth_and_for_healing(site: Site) -> None:
    assert KEPT.new > KEPT.scale_out > KEPT.healing == 0
    assert {tuple(row) for row in site.agent.allocator.view.clusters["thresholds"].tolist()} == {KEPT.row}


def test_what_is_kept_from_new_deployments_is_room_for_a_vm_that_waits(site: Site) -> None:
    (home,) = place(site)
    leave(site, {home, *rack_of(site, home)[: KEPT.new]})
    site.set("down", [home])
    assert site.could_be_healed() == 1
    site.heal()
    assert not site.healer.waiting


def test_room_that_the_tenant_itself_rules_out_is_none(site: Site) -> None:
    stays, fails = place(site, 2, Constraints(min_fault_domains=2))
    leave(site, {fails, *rack_of(site, stays)})
    site.set("down", [fails])
    site.heal()
    assert site.could_be_healed() == 0
    assert len(site.healer.waiting) == 1
    site.set("ready", [m for m in rack_of(site, fails) if m != fails])
    assert site.could_be_healed() == 1


def test_nothing_stays_changed_by_asking_what_could_be_healed(site: Site) -> None:
    site.set("down", place(site))
    before = site.agent.allocator.view.machines.copy()
    site.could_be_healed()
    assert (site.agent.allocator.view.machines == before).all()
    site.agent.check_invariants()


def test_a_vm_that_is_lost_again_is_healed_again_but_not_twice(site: Site) -> None:
    site.set("down", place(site))
    for _ in range(3):
        site.heal()
        site.set("down", [site.agent.allocator.vms["vm0"].machine])
    assert site.healer.counts.healed == 3
    assert healed_twice(site.store) == 0


def test_a_vm_that_healing_places_again_though_its_machine_works_was_healed_twice(site: Site) -> None:
    site.set("down", place(site))
    site.heal()
    agent = site.agent
    agent.run(agent.submit(ReleaseVMs("t")))
    agent.run(agent.submit(PlaceVMs(Request("t", [VM("A2", "vm0")])), healing_key()))
    assert healed_twice(site.store) == 1


def test_outages_are_replayed_from_the_utilisation_that_was_asked_for() -> None:
    outages = [Outage(hour * 3_600.0, (hour + 5) * 3_600.0, node) for hour, node in enumerate((3, 90, 3, 150))]
    rack, replayed = bench_heal(200, 0.6, 1, outages)
    assert "a rack of 10 machines of 200" in rack["what"]
    assert 0.6 <= replayed["utilisation_at_first"] < 0.63
    assert replayed["vms_healed"] > 0
    assert [replayed[what] for what in ("healed_twice", "lost", "waited_though_a_machine_had_room")] == [0, 0, 0]
