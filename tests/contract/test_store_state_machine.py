"""Whatever agents with outdated views do to a store, in whatever order, it stays what plain dictionaries say it is.

Each agent decides on a ledger that it last followed some time ago, so proposals are often late. They come in groups,
merged or strict, some again under the same key. Meanwhile the feed is trimmed, the store is opened anew or repaired.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import msgspec
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from roost.engine.recheck import CompiledRecheck
from roost.model.availability import AvailabilitySet
from roost.model.change import Entry, PlacedVM
from roost.model.inventory import MachineSpec
from roost.model.registry import THRESHOLD, WAITING
from roost.model.request import HOLD, UNCONSTRAINED, VM, Constraints, hold_of
from roost.model.thresholds import PURPOSES
from roost.model.waiting import Waiting
from roost.store.contract import (
    EXISTING,
    NO_PREMISE,
    Conflict,
    Decline,
    Mending,
    Move,
    Place,
    Premise,
    Proposal,
    Record,
    Round,
    SetCondition,
    Store,
    Victim,
)
from roost.store.ledger import Ledger
from tests.contract import obvious
from tests.contract.conftest import Home, Homes
from tests.contract.tiny import (
    BIG,
    CATALOGUE,
    MACHINES,
    PAIRS,
    SMALL,
    WHOLE,
    add,
    ask,
    condition,
    decline,
    machine,
    move,
    place,
    quarantine,
    recheck_of,
    register,
    release,
    remove,
    same,
)
from tests.property.effort import examples

CLUSTERS = (("c1", "old"), ("c2", "new"), ("c3", "old"), ("c3", "new"))  # the last may be of either generation
TOGETHER = Constraints(evict_together=True)
SETS = Constraints(sets={"db": AvailabilitySet(fault_domains=2)})
LASTING = 4  # machines that nobody removes, so that there is a zone at all times
KINDS_OF_VM = (
    SMALL,
    SMALL,
    BIG,
    WHOLE,
    VM("modern"),
    VM("small", priority="spot"),
    VM("big", priority="spot", requeue=True),
    VM("small", priority="scrap", requeue=True),
    VM("whole", priority="batch"),
    VM("whole", priority="scrap", requeue=True),
    VM("big", priority="batch"),
    VM("small", isolated=True),
    VM("small", colocation="loud"),
    VM("small", colocation="shy"),
    VM("small", colocation="single"),
)
any_index = st.integers(0, 63)
T = TypeVar("T")


@dataclass
class Agent:
    """Somebody who decides on what it has heard so far."""

    name: str
    ledger: Ledger
    waiting: list[Proposal] = field(default_factory=list)  # decided, not committed yet

    def recheck(self) -> CompiledRecheck:
        """The re-checked validators for the machines it knows."""
        return recheck_of(row.spec for row in self.ledger.machines.values())

    def pick(self, names: Sequence[str], which: int) -> str:
        """One of the names, or one that nobody has."""
        return sorted(names)[which % len(names)] if names else "m99"

    def find(self, vm: VM, which: int) -> str:
        """A machine with room for a VM, as far as the agent knows; any, if there is none."""
        names = sorted(self.ledger.machines)
        for i in range(len(names)):
            row = self.ledger.machines[names[(which + i) % len(names)]]
            demand = CATALOGUE.demand.get((vm.type, row.spec.generation))
            if demand and not row.state and not row.owner:
                taken = row.taken(len(demand))
                if all(t + d <= c for t, d, c in zip(taken, demand, row.spec.capacity, strict=True)):
                    return row.spec.name
        return names[which % len(names)]

    def find_crowded(self, vm: VM, which: int) -> str:
        """A machine where others have to give way to a VM, as far as the agent knows; any, if there is none."""
        names = sorted(self.ledger.machines)
        crowded = [name for name in names if any(self.in_the_way(name, vm)) and not self.ledger.machines[name].state]
        return (crowded or names)[which % len(crowded or names)]

    def in_the_way(self, machine: str, vm: VM) -> Iterator[str]:
        """Who has to give way to a VM on a machine, as far as the agent knows, from the lowest band on."""
        row = self.ledger.machines[machine]
        accounts = self.ledger.accounts
        if (vm.type, row.spec.generation) not in CATALOGUE.demand:
            return
        pairs = zip(row.taken(accounts.resources), accounts.demand(vm, row), row.spec.capacity, strict=True)
        short = [taken + need - capacity for taken, need, capacity in pairs]
        below = [
            (name, there)
            for name, there in self.ledger.vms.items()
            if there.machine == machine and accounts.band(there.spec) > accounts.band(vm)
        ]
        for name, there in sorted(below, key=lambda each: -accounts.band(each[1].spec)):
            demand = accounts.demand(there.spec, row)
            if any(amount > 0 and need > 0 for amount, need in zip(short, demand, strict=True)):
                short = [amount - need for amount, need in zip(short, demand, strict=True)]
                yield name
                if hold_of(name) in self.ledger.vms:
                    yield hold_of(name)

    def victim(self, name: str) -> Victim:
        """A VM that is to give way."""
        row = self.ledger.vms[name]
        return Victim(row.tenant, PlacedVM(name, row.spec, row.machine), self.ledger.tenants[row.tenant].stamp)

    def premise(self, told: str, tenant: str) -> Premise:
        """What somebody may rest on who has heard as much as the agent; or that there is no such tenant."""
        known = self.ledger.tenants.get(tenant)
        same = Premise(generation=known.stamp if known else 0)
        return {"new": Premise(generation=0), "there": EXISTING, "same": same}.get(told, NO_PREMISE)

    def waiting_of(self, tenant: str) -> list[str]:
        """The VMs of a tenant that wait, as far as the agent knows."""
        waiting = {name: value for (kind, name), value in self.ledger.registry.items() if kind == WAITING}
        return [name for name, value in waiting.items() if msgspec.json.decode(value, type=Waiting).tenant == tenant]


# ----------------------------------------------------------------------------------------------- what an agent may want


class Wish(Protocol):
    """Something that an agent may want."""

    def decide(self, agent: Agent, key: str) -> Proposal:
        """What the agent makes of it, with what it knows."""


@dataclass(frozen=True)
class ToPlace:
    """VMs for a tenant; their names are free, as far as the agent knows."""

    tenant: int
    vms: Sequence[tuple[VM, int]]
    constraints: Constraints
    name: int
    told: str

    def decide(self, agent: Agent, key: str) -> Proposal:
        tenant = f"t{self.tenant}"
        free = [f"v{i % 24}" for i in range(self.name, self.name + 24) if f"v{i % 24}" not in agent.ledger.vms]
        names = free or [f"v{i}" for i in range(24)]
        known = agent.ledger.tenants.get(tenant)
        where = tuple(
            PlacedVM(name, vm, agent.find(vm, which)) for name, (vm, which) in zip(names, self.vms, strict=False)
        )
        return place(
            key,
            tenant,
            where,
            premise=agent.premise(self.told, tenant),
            constraints=known.constraints if known else self.constraints,
            stamp=known.stamp if known else 0,
            seen={each.machine: agent.ledger.machines[each.machine].version for each in where},
        )


@dataclass(frozen=True)
class ToEvict:
    """VMs on machines where others have to give way: those who must, or one too few or too many, or any at all."""

    tenant: int
    vms: Sequence[tuple[VM, int]]
    constraints: Constraints
    name: int
    how: str
    which: int

    def decide(self, agent: Agent, key: str) -> Proposal:
        ledger, tenant = agent.ledger, f"t{self.tenant}"
        names = [f"v{i % 24}" for i in range(self.name, self.name + 24) if f"v{i % 24}" not in ledger.vms]
        where = tuple(
            PlacedVM(name, vm, agent.find_crowded(vm, which))
            for name, (vm, which) in zip(names or ["v0"], self.vms, strict=False)
        )
        gone = list(dict.fromkeys(name for each in where for name in agent.in_the_way(each.machine, each.spec)))
        there = sorted(ledger.vms)
        if self.how == "too few":
            gone = gone[1:]
        elif self.how in ("too many", "any") and there:
            gone = [*(gone if self.how == "too many" else ()), there[self.which % len(there)]]
        elif self.how == "together":
            losing = {ledger.vms[name].tenant for name in gone}
            gone = [name for name in there if ledger.vms[name].tenant in losing]
        known = ledger.tenants.get(tenant)
        return place(
            key,
            tenant,
            where,
            constraints=known.constraints if known else self.constraints,
            stamp=known.stamp if known else 0,
            victims=[agent.victim(name) for name in gone],
            grace=30.0,
            seen={each.machine: ledger.machines[each.machine].version for each in where},
        )


@dataclass(frozen=True)
class ToPlaceAgain:
    """A VM that had to give way and waits, as far as the agent knows; or one that does not."""

    which: int
    where: int

    def decide(self, agent: Agent, key: str) -> Proposal:
        waiting = sorted(name for kind, name in agent.ledger.registry if kind == WAITING)
        if not waiting:
            return place(key, "t0", {f"v{self.which % 24}": "m1"}, requeued=True)
        name = waiting[self.which % len(waiting)]
        asked = msgspec.json.decode(agent.ledger.registry[WAITING, name], type=Waiting)
        known = agent.ledger.tenants.get(asked.tenant)
        return place(
            key,
            asked.tenant,
            {name: agent.find(asked.spec, self.where)},
            asked.spec,
            constraints=known.constraints if known else asked.constraints,
            stamp=known.stamp if known else 0,
            requeued=True,
        )


@dataclass(frozen=True)
class ToHeal:
    """A VM of a machine that is not ready, as far as the agent knows, or any; with what is held for it, or without."""

    which: int
    where: int

    def decide(self, agent: Agent, key: str) -> Proposal:
        ledger = agent.ledger
        lost = [name for name, row in ledger.vms.items() if ledger.machines[row.machine].state]
        names = [name for name in (lost or ledger.vms) if not name.endswith(HOLD)]
        if not names:
            return place(key, "t0", {"v0": "m1"}, leaving=[PlacedVM("v0", SMALL, "m2")])
        name = agent.pick(names, self.which)
        row, hold = ledger.vms[name], ledger.vms.get(hold_of(name))
        leaving = [PlacedVM(name, row.spec, row.machine)]
        if hold is not None and self.where % 4:
            leaving.append(PlacedVM(hold_of(name), hold.spec, hold.machine))
        target = hold.machine if hold is not None and self.where % 2 else agent.find(row.spec, self.where)
        known = ledger.tenants[row.tenant]
        return place(
            key,
            row.tenant,
            {name: target},
            row.spec,
            constraints=known.constraints,
            stamp=known.stamp,
            leaving=leaving,
            record=Record(agent="a", purpose="healing"),
            seen={target: ledger.machines[target].version},
        )


@dataclass(frozen=True)
class ToRelease:
    """Some of a tenant's VMs, or all; with all that wait, or nothing but those."""

    which: int
    everything: bool
    told: str

    def decide(self, agent: Agent, key: str) -> Proposal:
        vms = agent.ledger.vms
        tenant = f"t{self.which % 5}"
        waiting = agent.waiting_of(tenant)
        if self.everything and waiting and tenant not in agent.ledger.tenants:
            return release(key, tenant, (), waiting=waiting)
        if not vms:
            return release(key, "nobody", {"v0": "m1"})
        tenant = vms[agent.pick(list(vms), self.which)].tenant
        members = tuple(PlacedVM(name, row.spec, row.machine) for name, row in vms.items() if row.tenant == tenant)
        premise = agent.premise(self.told, tenant)
        if self.everything:
            stamp, waiting = agent.ledger.tenants[tenant].stamp, agent.waiting_of(tenant)
            return release(key, tenant, members, premise=premise, stamp=stamp, waiting=waiting)
        return release(key, tenant, members[: 1 + self.which % 2], premise=premise)


@dataclass(frozen=True)
class ToMove:
    """A VM to another machine, as far as the agent knows: in whichever step comes next, or at once, or to no avail."""

    which: int
    where: int
    told: str

    def decide(self, agent: Agent, key: str) -> Proposal:
        vms = agent.ledger.vms
        if not (movable := [name for name in vms if not name.endswith(HOLD)]):
            return move(key, "nobody", PlacedVM("v0", SMALL, "m1"), "m2")
        name = agent.pick(movable, self.which)
        row, hold = vms[name], vms.get(hold_of(name))
        target = hold.machine if hold else agent.find(row.spec, self.where)
        known, there = agent.ledger.tenants[row.tenant], agent.ledger.machines.get(target)
        return move(
            key,
            row.tenant,
            PlacedVM(name, row.spec, row.machine),
            target,
            held=hold is not None,
            hold=self.where % 5 < 3 if hold is None else self.where % 5 == 0,
            premise=agent.premise(self.told, row.tenant),
            constraints=known.constraints,
            stamp=known.stamp,
            seen={target: there.version} if there else {},
        )


@dataclass(frozen=True)
class ToTell:
    """How a machine is, perhaps only if it is as the agent knows it; or whether a cluster is closed."""

    which: int
    value: int
    guarded: bool

    def decide(self, agent: Agent, key: str) -> Proposal:
        if self.value > 5:
            return quarantine(key, agent.pick(list(agent.ledger.clusters), self.which), self.value > 7)
        name = agent.pick(list(agent.ledger.machines), self.which)
        if self.value > 3:
            known = agent.ledger.machines.get(name)
            version = known.version if known and self.guarded else None
            return condition(key, name, version, health=10 * self.value, failures=self.value)
        return condition(key, name, state=self.value % 3)


@dataclass(frozen=True)
class ToAdd:
    """Machines, known or not, in a cluster that fits or not."""

    numbers: Sequence[int]
    where: tuple[str, str]

    def decide(self, agent: Agent, key: str) -> Proposal:
        specs = [machine(f"m{LASTING + number}", *self.where) for number in self.numbers]
        return add(key, *specs, conditions={specs[0].name: {"health": 80}} if len(specs) > 1 else {})


@dataclass(frozen=True)
class ToRemove:
    """Machines that are empty, as far as the agent knows."""

    which: int
    count: int

    def decide(self, agent: Agent, key: str) -> Proposal:
        empty = sorted(n for n, row in agent.ledger.machines.items() if not row.vms and int(n[1:]) > LASTING)
        return remove(key, *(empty[self.which % len(empty) :][: self.count] if empty else ["m9"]))


@dataclass(frozen=True)
class ToRegister:
    """Another value for an entry of the registry, or none; perhaps only if it is as the agent knows it."""

    name: str
    value: str | None
    guarded: bool

    def decide(self, agent: Agent, key: str) -> Proposal:
        if self.guarded:
            return register(key, self.name, self.value, expected=agent.ledger.registry.get(("quota", self.name)))
        return register(key, self.name, self.value)


@dataclass(frozen=True)
class ToKeep:
    """So many machines of a cluster empty, or as many as the zone says, which is none."""

    cluster: str
    kept: Sequence[int]

    def decide(self, agent: Agent, key: str) -> Proposal:
        kept = dict(zip(PURPOSES, sorted(self.kept, reverse=True), strict=False))
        return register(key, self.cluster, json.dumps(kept) if kept else None, kind=THRESHOLD)


@dataclass(frozen=True)
class ToDecline:
    """Nothing: it noted that it did not find a place."""

    def decide(self, agent: Agent, key: str) -> Proposal:
        return decline(key)


told = st.sampled_from(("",) * 5 + ("new", "there", "same", "same"))
to_place = st.builds(
    ToPlace,
    tenant=st.integers(0, 4),
    vms=st.lists(st.tuples(st.sampled_from(KINDS_OF_VM), any_index), min_size=1, max_size=3),
    constraints=st.sampled_from((UNCONSTRAINED, UNCONSTRAINED, PAIRS, TOGETHER, SETS)),
    name=st.integers(0, 23),
    told=told,
)
to_evict = st.builds(
    ToEvict,
    tenant=st.integers(0, 4),
    vms=st.lists(st.tuples(st.sampled_from(KINDS_OF_VM), any_index), min_size=1, max_size=3),
    constraints=st.sampled_from((UNCONSTRAINED, UNCONSTRAINED, PAIRS, TOGETHER, SETS)),
    name=st.integers(0, 23),
    how=st.sampled_from(("who must",) * 5 + ("too few", "too many", "any", "together", "together")),
    which=any_index,
)
to_place_again = st.builds(ToPlaceAgain, which=any_index, where=any_index)
to_heal = st.builds(ToHeal, which=any_index, where=any_index)
to_release = st.builds(ToRelease, which=any_index, everything=st.booleans(), told=told)
to_move = st.builds(ToMove, which=any_index, where=any_index, told=told)
to_reshape = st.one_of(
    st.builds(
        ToAdd,
        numbers=st.lists(st.integers(1, 5), min_size=1, max_size=2),
        where=st.sampled_from(CLUSTERS),
    ),
    st.builds(ToRemove, which=any_index, count=st.integers(1, 3)),
)
to_register = st.builds(
    ToRegister, name=st.sampled_from("xyz"), value=st.sampled_from((None, "1", "2")), guarded=st.booleans()
)
to_keep = st.builds(ToKeep, cluster=st.sampled_from(("c1", "c2", "c3")), kept=st.lists(st.integers(0, 4), max_size=3))
to_tell = st.builds(ToTell, which=any_index, value=st.integers(0, 9), guarded=st.booleans())


def often(*weighted: tuple[int, st.SearchStrategy[T]]) -> st.SearchStrategy[T]:
    """One of the strategies, each so often."""
    return st.sampled_from([each for weight, each in weighted for _ in range(weight)]).flatmap(lambda each: each)


wishes: st.SearchStrategy[Wish] = often(
    (7, to_place),
    (6, to_evict),
    (1, to_place_again),
    (3, to_release),
    (3, to_move),
    (2, to_heal),
    (2, to_tell),
    (2, to_reshape),
    (2, to_register),
    (2, to_keep),
    (1, st.builds(ToDecline)),
)


# ------------------------------------------------------------------------------------------------------ what may happen


class Event(Protocol):
    """Something that may happen to a zone."""

    def happen(self, zone: Zone) -> None:
        """It does."""


@dataclass(frozen=True)
class Work:
    """An agent hears of some changes, decides on what it knows, and commits it in any order, or later."""

    who: int
    hears: int
    wanted: Sequence[Wish]
    how: str
    order: int

    def happen(self, zone: Zone) -> None:
        agent, door = zone.agents[self.who], zone.door(self.who)
        for _ in range(self.hears):
            feed = door.changes(agent.ledger.revision, 2)
            if feed.reload:
                agent.ledger = door.load()
            for _, entry in feed.after(agent.ledger.revision):
                agent.ledger.apply(entry)
        agent.waiting += [wish.decide(agent, zone.new_key()) for wish in self.wanted]
        if self.how != "later":
            group, agent.waiting = agent.waiting, []
            random.Random(self.order).shuffle(group)
            zone.commit(agent, group, self.how == "strict", door)


@dataclass(frozen=True)
class Insist:
    """An agent tries keys again: with the same request or another, or after it declined; or it only asks."""

    who: int
    which: Sequence[int]
    how: str

    def happen(self, zone: Zone) -> None:
        agent, group = zone.agents[self.who], list[Proposal]()
        for which in self.which:
            proposal = zone.tried[-1 - which % len(zone.tried)]
            if self.how == "found" and isinstance(proposal, Decline):
                where = {f"v{which % 24}": agent.find(SMALL, which)}
                group.append(place(proposal.key, "t0", where, request=proposal.request))
            elif self.how == "ask":
                group += [ask(proposal.key, proposal.request), proposal]
            elif self.how == "other":
                assert isinstance(proposal, msgspec.Struct)
                group.append(msgspec.structs.replace(proposal, request=b'{"asked":"something else"}'))
            else:
                group.append(proposal)
        zone.commit(agent, group, False, zone.door(self.who))


@dataclass(frozen=True)
class Rebuild:
    """An operator who knows everything replaces a machine by another of its name, or moves a VM, in one go or two."""

    which: int
    where: tuple[str, str]
    together: bool

    def happen(self, zone: Zone) -> None:
        operator, now = Agent("operator", zone.follower.copy()), zone.follower
        empty = sorted(n for n, row in now.machines.items() if not row.vms and int(n[1:]) > LASTING)
        first, second = zone.new_key(), zone.new_key()
        if self.which % 2 and now.vms:
            vm = operator.pick(list(now.vms), self.which)
            row = now.vms[vm]
            where = operator.find(row.spec, self.which)
            group = [
                release(first, row.tenant, {vm: row.machine}, row.spec),
                place(second, f"t{self.which % 5}", {vm: where}, row.spec),
            ]
        else:
            name = operator.pick(empty, self.which)
            group = [remove(first, name), add(second, machine(name, *self.where))]
        for part in [group] if self.together else [group[:1], group[1:]]:
            zone.commit(operator, part)


@dataclass(frozen=True)
class Restart:
    """An agent is started anew, or the store is, or both."""

    who: int
    everything: bool

    def happen(self, zone: Zone) -> None:
        if self.everything and zone.home.kind != "memory":
            zone.doors = [zone.home.reopen(), zone.home.another()]
        zone.agents[self.who].ledger = zone.door(self.who).load()
        zone.check()


@dataclass(frozen=True)
class Trim:
    """The feed is trimmed."""

    keep: int

    def happen(self, zone: Zone) -> None:
        before, zone.oldest = zone.oldest, zone.doors[0].trim(self.keep)
        assert before <= zone.oldest <= max(before, zone.follower.revision - self.keep)
        zone.check()


@dataclass(frozen=True)
class Repair:
    """The store is repaired, though it is sound: everybody has to load it anew."""

    def happen(self, zone: Zone) -> None:
        zone.doors[1].repair(lambda ledger: Mending(list(ledger.machines.values()), dict(ledger.tenants)))
        assert zone.doors[0].changes(zone.follower.revision).reload
        zone.base = zone.doors[0].load()
        assert list(zone.follower.differences(zone.base)) == []
        zone.follower, zone.entries, zone.oldest = zone.base.copy(), [], zone.base.revision
        zone.check()


who = st.integers(0, 2)
events: st.SearchStrategy[Event] = often(
    (
        14,
        st.builds(
            Work,
            who=who,
            hears=st.integers(0, 3),
            wanted=st.lists(wishes, min_size=1, max_size=6),
            how=st.sampled_from(("merge", "merge", "merge", "strict", "later")),
            order=any_index,
        ),
    ),
    (
        3,
        st.builds(
            Insist,
            who=who,
            which=st.lists(any_index, min_size=1, max_size=4),
            how=st.sampled_from(("same", "found", "other", "ask")),
        ),
    ),
    (3, st.builds(Rebuild, which=any_index, where=st.sampled_from(CLUSTERS), together=st.booleans())),
    (1, st.builds(Restart, who=who, everything=st.booleans())),
    (1, st.builds(Trim, keep=st.integers(0, 12))),
    (1, st.builds(Repair)),
)


class Zone(RuleBasedStateMachine):
    """A store, three agents who use it, and somebody with plain dictionaries who watches."""

    def __init__(self, homes: Homes) -> None:
        super().__init__()
        self.home: Home = homes.make()
        self.truth = obvious.Zone()
        self.keys = self.rounds = self.oldest = 0
        self.tried: list[Proposal] = []
        self.entries: list[Entry] = []
        self.base = self.follower = Ledger(CATALOGUE)

    @initialize(count=st.integers(LASTING, len(MACHINES)))
    def open(self, count: int) -> None:
        """The zone has a few machines, and everybody knows."""
        self.doors = [self.home.store, self.home.another()]
        self.follower = self.base.copy()
        first = Agent("first", Ledger(CATALOGUE))
        first.ledger.machines = {spec.name: self.base.accounts.new_row(spec) for spec in MACHINES}
        self.commit(first, [add("first", *MACHINES[:count])])
        self.agents = [Agent(f"agent{i}", self.doors[0].load()) for i in range(3)]

    def new_key(self) -> str:
        """One that nobody has used."""
        self.keys += 1
        return f"k{self.keys}"

    def door(self, agent: int) -> Store:
        """Agents use different stores, if there are several."""
        return self.doors[agent % len(self.doors)]

    @rule(event=events)
    def happen(self, event: Event) -> None:
        """One thing after the other. One rule for all, so that each example has something of everything."""
        event.happen(self)

    def commit(self, agent: Agent, group: list[Proposal], strict: bool = False, door: Store | None = None) -> None:
        """Commit a group, and look closely at what came of it."""
        known: dict[str, MachineSpec] = {name: row.spec for name, row in agent.ledger.machines.items()}
        self.rounds += 1
        seen = Round(agent=agent.name, number=self.rounds, revision=agent.ledger.revision)
        store = door or self.doors[0]
        outcomes = store.commit(group, agent.recheck(), strict=strict, round_=seen)
        self.tried += group
        self.truth.settle(group, outcomes, strict, known)
        self.check()
        for outcome, proposal in zip(outcomes, group, strict=True):
            if isinstance(outcome, Conflict) and outcome.machines:
                for row in outcome.machines:
                    assert row == self.follower.machines[row.spec.name]
                assert isinstance(proposal, Place | Move | SetCondition)
        assert store.round(agent.name, self.rounds) == seen

    def check(self) -> None:
        """Tables, feed and dictionaries agree, forwards and backwards, for whoever is at whatever revision."""
        for number, entry in self.doors[0].changes(self.follower.revision).after(self.follower.revision):
            assert number == self.follower.revision + 1
            self.follower.apply(entry)
            self.entries.append(entry)
        loaded = self.doors[-1].load()
        same(self.follower, loaded)
        assert list(loaded.check_invariants()) == []
        self.truth.agrees_with(loaded)
        for who, agent in enumerate(getattr(self, "agents", ())):
            feed = self.door(who).changes(agent.ledger.revision)
            if not feed.reload:
                ledger = agent.ledger.copy()
                for _, entry in feed.after(ledger.revision):
                    ledger.apply(entry)
                same(ledger, loaded)
        for entry in reversed(self.entries):
            loaded.undo(entry)
        same(self.base, loaded)

    def teardown(self) -> None:
        """The store is closed."""
        self.home.close()


def test_whatever_agents_with_outdated_views_do_the_store_is_what_it_should_be(homes: Homes) -> None:
    count = {"memory": 50, "sqlite": 25, "postgres": 20}[homes.kind]
    how = settings(
        max_examples=examples(count),
        stateful_step_count=25,
        phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),  # to explain takes too long here
        report_multiple_bugs=False,
    )
    run_state_machine_as_test(lambda: Zone(homes), settings=how)  # type: ignore[arg-type]
