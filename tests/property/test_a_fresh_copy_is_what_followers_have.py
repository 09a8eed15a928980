"""A copy that is loaded now is the same as one that has followed all along: rows, books, tenants, and what waits."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from roost.agent.agreement import check_against
from roost.agent.replica import Replica
from roost.agent.settings import AgentSettings
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from tests.property import cramped
from tests.property.effort import examples
from tests.property.interleaved import Company, replayed
from tests.property.test_agents_agree_with_the_store import ACTIONS

ZONE = Zone.synthetic(100, seed=1)


def said(vm: RunningVM, owners: dict[int, str]) -> tuple[Any, ...]:
    """All that the books say of a VM, but for what it once asked of its machine; tenants by name, not by number."""
    held = [vm.shape.traits[trait] for trait in ("vm_type", "priority", "colocation")]
    return vm.placed, vm.tenant, vm.machine, held, owners[vm.shape.traits["isolation"]], vm.shape.amounts


def books_of(allocator: Allocator) -> dict[str, Any]:
    """What a copy knows of VMs and tenants, however it came to know it."""
    owners = allocator.numbers.names()
    machines = range(len(allocator.zone.machines))
    return {
        "vms": {name: said(vm, owners) for name, vm in allocator.vms.items()},
        "there": {m: {vm.name for vm in vms} for m, vms in allocator.running_on(machines).items()},
        "giving way": [{vm.name for vm in allocator.giving_way(m)} for m in machines],
        "tenants": {n: (t.constraints, t.stamp, t.vms.keys()) for n, t in allocator.tenants.items()},
        "reserved": allocator.reserved,
        "leaving": allocator.leaving,
    }


def rows_of_copy(replica: Replica) -> dict[str, Any]:
    """What its rows say, by name where numbers are the copy's own."""
    rows, owners = replica.view.machines, replica.allocator.numbers.names()
    own = ("owner", "owners")
    said = {name: rows[name].tolist() for name in rows.dtype.names or () if name not in own}
    said["owned"] = [owners[number] for number in rows["owner"].tolist()]
    for kind, of in (("racks", replica.view.racks), ("clusters", replica.view.clusters)):
        said |= {f"{kind} {name}": of[name].tolist() for name in of.dtype.names or ()}
    return said


def check_fresh(company: Company) -> None:
    """A fresh copy agrees with the store and with every copy that has followed."""
    fresh = Replica(company.store.columns(), company.policy)
    check_against(fresh, company.store.load())
    for agent in company.agents:
        replica = agent.replica
        assert books_of(replica.allocator) == books_of(fresh.allocator)
        assert dict(replica.registry) == dict(fresh.registry)
        if not replica.adopted:
            assert rows_of_copy(replica) == rows_of_copy(fresh)
            assert replica.fed == fresh.fed


@settings(max_examples=examples(20))
@given(actions=ACTIONS, seed=st.integers(0, 2**16), group=st.sampled_from([1, 4, 32]))
def test_a_fresh_copy_is_what_followers_have(actions: list[tuple[str, int]], seed: int, group: int) -> None:
    """With isolated tenants, machines that are down, constraints, shut clusters and thresholds."""
    company = Company(ZONE, seed, settings=AgentSettings(pipeline=2, group=group))
    replayed(actions, company)
    company.finish()
    check_fresh(company)


@settings(max_examples=examples(20))
@given(actions=ACTIONS, seed=st.integers(0, 2**16))
def test_a_fresh_copy_is_what_followers_have_where_four_bands_fight(actions: list[tuple[str, int]], seed: int) -> None:
    """With VMs that gave way and wait for room."""
    company = Company(cramped.ZONE, seed, policy=cramped.POLICY, types=tuple(cramped.SIZES), bands=cramped.BANDS)
    replayed(actions, company)
    company.finish()
    check_fresh(company)
