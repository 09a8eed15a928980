"""Whatever is simulated: nothing is over capacity, everybody leaves in time, and what was counted adds up."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.model.registry import WAITING
from roost.model.request import HOLD, Constraints
from roost.model.rows import MachineState
from roost.sim.experiment import Agents, Faults, Latency, Maintenance, Migrations, PolicyChange
from roost.sim.simulation import Simulation
from roost.store.audit import check_invariants
from roost.store.contract import Committed, Move, Place, Proposal, Release
from tests.property.effort import examples
from tests.property.zones import TINY
from tests.scenario.simulated import KINDS, NEVER, Ask, Seen, Watched, machines, rows, simulation, workload

CAPACITY = {generation.name: generation.capacity for generation in TINY.generations}
DEMAND = {kind.name: kind.demand for kind in TINY.vm_types}
A_MICROSECOND = 2e-6  # waiting times are cut to whole ones
LONG = 120.0  # after which all is done

lifetimes = st.sampled_from([0.0, 0.01, 1.0, 4.0, 15.0, NEVER])
latencies = st.builds(
    Latency,
    hit_ms=st.sampled_from([0.0, 20.0]),
    miss_ms=st.sampled_from([0.0, 20.0, 300.0]),
    hit_ratio=st.sampled_from([None, 0.5]),
    commit_ms=st.sampled_from([0.0, 7.0, 200.0]),
    feed_ms=st.sampled_from([0.0, 20.0, 900.0]),
)


@st.composite
def asked(draw: st.DrawFn) -> list[Ask]:
    """Requests of a few tenants, often at one moment; some with constraints."""
    times = sorted(draw(st.lists(st.integers(0, 60).map(lambda n: n * 0.25), min_size=2, max_size=25)))
    vms = st.lists(st.tuples(st.sampled_from(KINDS), lifetimes), min_size=1, max_size=3)
    found = []
    for number, at in enumerate(times):
        picky = draw(st.integers(0, 5)) == 0
        tenant = f"picky-{number}" if picky else draw(st.sampled_from(["", "a", "b"]))
        band = draw(st.sampled_from(["", "", "low"]))
        found.append(Ask(at, draw(vms), tenant, Constraints(max_per_machine=1) if picky else None, band))
    return found


@st.composite
def agents(draw: st.DrawFn) -> Agents:
    """Few, of all kinds."""
    strict = draw(st.booleans())
    return Agents(
        count=draw(st.integers(1, 3)),
        group=draw(st.sampled_from([1, 2, 8])),
        pipeline=1 if strict else draw(st.integers(1, 2)),
        retries=draw(st.sampled_from([0, 1, 20])),
        top=draw(st.sampled_from([1, 100])),
        strict=strict,
    )


faults = st.builds(
    Faults,
    mtbf=st.sampled_from([None, None, 20.0, 60.0]),
    rack_mtbf=st.sampled_from([None, None, 40.0]),
    repair=st.sampled_from([0.5, 5.0, 30.0]),
    maintenance=st.sampled_from(
        [(), (), (Maintenance(at=3, lasts=6, share=0.5), Maintenance(at=5, lasts=9, cluster="c0"))]
    ),
)


migrations = st.builds(
    Migrations,
    at=st.sampled_from([0.5, 3.0]),
    every=st.sampled_from([None, 2.0]),
    budget=st.sampled_from([0.2, 1.0]),
    copy=st.sampled_from([0.0, 0.7]),
    at_once=st.sampled_from([1, 5]),
)


@settings(max_examples=examples(50))
@given(
    asks=asked(),
    zone=st.sampled_from([(1, 0), (2, 0), (2, 2), (3, 1)]),
    agents=agents(),
    latency=latencies,
    faults=faults,
    fill=st.sampled_from([0.0, 0.0, 0.4]),
    change=st.booleans(),
    migrations=st.none() | migrations,
    drain=st.booleans(),
    requeue=st.booleans(),
    seed=st.integers(0, 5),
)
def test_whatever_happens_the_books_are_right(
    asks: list[Ask],
    zone: tuple[int, int],
    agents: Agents,
    latency: Latency,
    faults: Faults,
    fill: float,
    change: bool,
    migrations: Migrations | None,
    drain: bool,
    requeue: bool,
    seed: int,
) -> None:
    what: dict[str, Any] = {"agents": agents, "latency": latency, "faults": faults, "sample": 1.5}
    what["until"] = asks[-1].at + (LONG if drain else 0.3)
    what["migrations"], what["requeue"] = migrations, requeue
    what["policy_changes"] = (PolicyChange(at=4, policy="spread"),) if change else ()
    if fill and any(0 < stay < NEVER for each in asks for _, stay in each.vms):
        what["fill"] = fill
    made = simulation(workload(asks), machines(*zone), seed=seed, **what)
    watched = Watched.of(made)
    never_over_capacity(watched)
    counts_add_up(watched, len(asks))
    check_invariants(made.store)
    if made.quiet:
        tracker_equals_ledger(made)
        states_are_told(made)
        assert made.world.open == 0
    if faults.mtbf is None and faults.rack_mtbf is None and "fill" not in what and not evictions_of(watched):
        everybody_leaves_in_time(watched, drained=drain)


def evictions_of(watched: Watched) -> int:
    """VMs that had to give way."""
    return sum(
        len(proposal.victims)
        for commit in watched.commits
        for proposal, outcome in zip(commit.proposals, commit.outcomes, strict=True)
        if isinstance(proposal, Place) and isinstance(outcome, Committed)
    )


def never_over_capacity(watched: Watched) -> None:
    """After each commit, by what was committed alone."""
    zone = watched.simulation.zone
    generations = [generation.name for generation in TINY.generations]
    of = {name: generations[int(zone.machines["generation"][i])] for i, name in enumerate(zone.machine_names)}
    used = {name: [0, 0] for name in of}
    for commit in watched.commits:
        for proposal, outcome in zip(commit.proposals, commit.outcomes, strict=True):
            if not isinstance(outcome, Committed):
                continue
            for machine, kind, sign in changes_of(proposal) if outcome.changed else ():
                for r in range(2):
                    used[machine][r] += sign * DEMAND[kind][of[machine]][r]
                    assert 0 <= used[machine][r] <= CAPACITY[of[machine]][r]


def changes_of(proposal: Proposal) -> list[tuple[str, str, int]]:
    """What a proposal puts on machines and takes off: machine, type, 1 or -1."""
    if isinstance(proposal, Move):
        kind, off = proposal.vm.spec.type, (proposal.vm.machine, proposal.vm.spec.type, -1)
        on = [] if proposal.held and not proposal.hold else [(proposal.machine, kind, 1)]
        return on if proposal.hold else [*on, off]
    if isinstance(proposal, Place):
        gone = [(victim.vm.machine, victim.vm.spec.type, -1) for victim in proposal.victims]
        gone += [(each.machine, each.spec.type, -1) for each in proposal.leaving]
        return gone + [(each.machine, each.spec.type, 1) for each in proposal.placed]
    released = proposal.released if isinstance(proposal, Release) else ()
    return [(each.machine, each.spec.type, -1) for each in released]


def counts_add_up(watched: Watched, arrived: int) -> None:
    """Each request that arrived has one answer, or none yet."""
    result, log = watched.tables, rows(watched.tables)
    answers = [seen for seen in watched.answers if isinstance(seen.operation, PlaceVMs | HealVMs)]
    asked = [seen for seen in answers if seen.answer.ok or not is_of_duties(seen)]
    assert len(asked) == len(log)
    own = [row["request"] for row in log if row["request"] >= 0]
    assert len(own) == len(set(own))
    assert sum(result.rates["arrivals"].to_list()) == arrived
    assert len(own) <= arrived
    assert watched.simulation.world.open == arrived - len(own)
    by_status = {status: sum(row["status"] == status for row in log) for status in ("placed", "declined", "gave_up")}
    invalid = sum(row["status"] == "invalid" for row in log)
    assert sum(by_status.values()) + invalid == len(log)
    assert invalid == 0
    last = result.timeline["time_s"].to_list()[-1]
    for status, number in by_status.items():
        late = sum(row["status"] == status and row["time_s"] + row["latency_s"] > last + 1e-9 for row in log)
        assert sum(result.timeline[status].to_list()) == number - late
    assert all(row["latency_s"] >= row["queued_s"] - 1e-6 >= -1e-6 for row in log)
    displaced, *became = (result.summary[f"vms_{what}"] for what in ("displaced", "healed", "returned", "unhealed"))
    assert displaced == sum(each or 0 for each in became)
    assert all((each or 0) >= 0 for each in became)


def is_of_duties(seen: Seen) -> bool:
    """Whether nobody outside asked for it."""
    return isinstance(seen.operation, HealVMs) or (isinstance(seen.operation, PlaceVMs) and seen.operation.requeued)


def tracker_equals_ledger(made: Simulation) -> None:
    """What was counted is what the store holds, machine by machine, and VM by VM."""
    ledger = made.store.load()
    counted = made.tracker.used_of()
    used = np.zeros_like(counted)
    for row in ledger.vms.values():
        machine = made.zone.machine_index[row.machine]
        generation = int(made.zone.machines["generation"][machine])
        used[machine] += made.zone.demand[made.zone.vm_type_index[row.spec.type], generation]
    assert counted.tolist() == used.tolist()
    guests = made.guests.by_name.values()
    known = sorted((each.name, made.zone.machine_names[each.machine]) for each in guests if not each.waits)
    assert known == sorted((name, row.machine) for name, row in ledger.vms.items())
    assert sorted(each.name for each in guests if each.waits) == sorted(
        name for kind, name in ledger.registry if kind == WAITING
    )
    down = {name for name, row in ledger.machines.items() if row.state == MachineState.DOWN}
    lost = sorted(name for name, row in ledger.vms.items() if row.machine in down and not name.endswith(HOLD))
    assert sorted(each.name for each in guests if each.lost_at is not None) == lost
    assert made.tracker.lost == len(lost)
    assert made.tracker.waiting == sum(each.waits for each in guests)


def states_are_told(made: Simulation) -> None:
    """The store knows which machines are down."""
    ledger = made.store.load()
    assert [ledger.machines[name].state for name in made.zone.machine_names] == made.faults.state


def everybody_leaves_in_time(watched: Watched, *, drained: bool) -> None:
    """VMs are taken off when their time is over, by when that was asked for; none but those whose time is over."""
    made, due = watched.simulation, []
    answers = (seen for seen in watched.answers if isinstance(seen.operation, PlaceVMs))
    for seen, number in zip(answers, made.tracker.requests["request"], strict=True):
        if seen.answer.ok:
            low, high = made.workload.first[number : number + 2].tolist()
            due += [seen.at + stay for stay in made.workload.lifetime[low:high].tolist() if stay < NEVER]
    asked = [
        proposal.record.at - proposal.record.waited_us / 1e6
        for commit in watched.commits
        for proposal, outcome in zip(commit.proposals, commit.outcomes, strict=True)
        if isinstance(proposal, Release) and isinstance(outcome, Committed)
        for _ in proposal.released
    ]
    over = sorted(at for at in due if at <= made.until)
    assert not drained or len(asked) == len(over)
    if any(isinstance(seen.operation, ReleaseVMs) and not seen.answer.ok for seen in watched.answers):
        return  # an agent that did not know better was asked again, later
    for at in sorted(asked):
        while over and over[0] < at - A_MICROSECOND:
            over.pop(0)
        assert over
        assert over.pop(0) <= at + A_MICROSECOND
