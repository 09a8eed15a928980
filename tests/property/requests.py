"""Requests of all kinds, as Hypothesis strategies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from roost.model.availability import AvailabilitySet
from roost.model.request import ON_PLACES, VM, Constraints
from roost.model.thresholds import Thresholds
from roost.model.zone import Zone
from tests.property.zones import ClusterPlan, Shape

rarely = st.integers(0, 5).map(lambda n: n == 5)


def layouts(
    shape: Shape, clusters: tuple[int, int] = (1, 4), racks: tuple[int, int] = (1, 3), machines: int = 3
) -> st.SearchStrategy[Any]:
    """So many clusters, racks in each, and up to so many machines in those."""
    features = sorted(
        {f for g in shape.generations for f in g.features} | {f for t in shape.vm_types for f in t.requires}
    )
    plan = st.builds(
        ClusterPlan,
        generation=st.integers(0, len(shape.generations) - 1),
        datacenter=st.integers(0, 2),
        racks=st.lists(st.integers(1, machines), min_size=racks[0], max_size=racks[1]).map(tuple),
        features=st.lists(st.sampled_from(features), max_size=1).map(tuple) if features else st.just(()),
        excluded=st.lists(st.sampled_from(shape.asked), max_size=1).map(tuple),
    )
    return st.lists(plan, min_size=clusters[0], max_size=clusters[1]).map(tuple)


@st.composite
def vms(draw: st.DrawFn, shape: Shape, zone: Zone, traits: bool = False) -> VM:
    """A VM, usually without much ado."""

    def sometimes(names: Any) -> str:
        return str(draw(st.sampled_from(list(names)))) if names and draw(rarely) else ""

    own = st.fixed_dictionaries({"x": st.integers(-2, 3), "y": st.integers(0, 2)})
    return VM(
        type=draw(st.sampled_from(shape.asked)),
        priority=draw(st.sampled_from(("", *zone.bands))),
        isolated=draw(rarely),
        colocation=draw(st.sampled_from(("", "", *zone.classes))),
        requires=tuple(filter(None, (sometimes(zone.features),))),
        datacenter=sometimes(zone.datacenters),
        cluster=sometimes(zone.cluster_names),
        generation=sometimes(g.name for g in zone.generations),
        traits=draw(own) if traits else {},
    )


def often(usual: Sequence[VM], other: st.SearchStrategy[VM]) -> st.SearchStrategy[VM]:
    """One of a few usual VMs most of the time, so that what is cached for them is used again."""
    return st.sampled_from((*usual, *usual, None)).flatmap(lambda vm: other if vm is None else st.just(vm))


@st.composite
def gangs(draw: st.DrawFn, one: st.SearchStrategy[VM], most: int = 6) -> tuple[VM, ...]:
    """Several VMs, often all alike."""
    if draw(st.booleans()):
        return (draw(one),) * draw(st.integers(1, most))
    return tuple(draw(st.lists(one, min_size=1, max_size=most)))


@st.composite
def constraints(draw: st.DrawFn, fewest: int = 0) -> Constraints | None:
    """None, or any that make sense together."""
    fields = st.sampled_from((*ON_PLACES, "evict_together", "best_effort", "sets"))
    names = draw(st.lists(fields, min_size=fewest, max_size=3, unique=True))
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "colocate": st.sampled_from(("rack", "cluster", "datacenter")),
        "evict_together": st.just(True),
        "best_effort": st.just(True),
        "sets": st.dictionaries(st.sampled_from(("db", "web")), availability_sets, min_size=1),
    }
    values: dict[str, Any] = {name: draw(kinds.get(name, st.integers(1, 3))) for name in names}
    if values.get("colocate") == "rack":
        values.pop("min_fault_domains", None)
    if "max_fault_domains" in values and "min_fault_domains" in values:
        values["max_fault_domains"] = max(values["max_fault_domains"], values["min_fault_domains"])
    if not values.keys() & set(ON_PLACES):
        values.pop("best_effort", None)
    return Constraints(**values) if values else None


domains = st.integers(0, 3)
availability_sets = (
    st.tuples(domains, domains, st.booleans())
    .filter(lambda wanted: wanted[0] or wanted[1])
    .map(lambda wanted: AvailabilitySet(fault_domains=wanted[0], update_domains=wanted[1], best_effort=wanted[2]))
)


@st.composite
def members(draw: st.DrawFn, gang: tuple[VM, ...], wanted: Constraints | None) -> tuple[VM, ...]:
    """The same VMs, in availability sets of their tenant or in none."""
    if wanted is None or not wanted.sets:
        return gang
    names = st.sampled_from(("", *wanted.sets, *wanted.sets))
    return tuple(msgspec.structs.replace(vm, set=draw(names)) for vm in gang)


def some_thresholds(machines: int) -> st.SearchStrategy[Thresholds]:
    """Some that a cluster of so many machines can have."""
    kept = st.lists(st.integers(0, min(4, machines)), min_size=3, max_size=3).map(lambda n: sorted(n, reverse=True))
    return kept.map(lambda n: Thresholds(new=n[0], scale_out=n[1], healing=n[2]))


def thresholds(machines: int) -> st.SearchStrategy[Thresholds]:
    """None mostly, or some that a cluster of so many machines can have."""
    return st.one_of(st.just(Thresholds()), some_thresholds(machines))
