"""The heart of every commit, without I/O: fresh rows in, outcomes and what to write out.

A store reads the rows that a group of proposals needs, under its own locks, calls `settle`, and writes the result in
the same transaction. So there is one opinion on what may be committed, whatever the rows are kept in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from roost.model.change import ConditionChange, Entry, Eviction, Placed, QuarantineChange, Registered
from roost.model.errors import InvalidInput, UnknownName
from roost.model.failures import KIND as FAILURES
from roost.model.failures import NONE, read_entry
from roost.model.inventory import check_spec
from roost.model.request import HOLD, Constraints, hold_of
from roost.model.rows import OCCUPIED, MachineState
from roost.model.waiting import WAITING, Waiting
from roost.model.zone import CONDITION
from roost.store.contract import (
    LARGEST_GROUP,
    AddMachines,
    Ask,
    Bench,
    Committed,
    Conflict,
    Decided,
    Decline,
    Move,
    Outcome,
    Place,
    Proposal,
    Reason,
    Recheck,
    Register,
    Rejected,
    Release,
    RemoveMachines,
    Replayed,
    SetCondition,
    SetQuarantine,
    StandingRecheck,
)
from roost.store.ledger import STARTING, Accounts, ClusterRow, MachineRow, TenantRow, VMRow

Decidable = Place | Release | Move | SetCondition | SetQuarantine | AddMachines | RemoveMachines | Register | Decline
LIMITS = {"state": len(MachineState) - 1, "health": 100, "failures": 2**15 - 1, "versions_behind": 2**15 - 1}


class Needs(msgspec.Struct, eq=False):
    """The names of the rows that a group of proposals touches, each list in the order in which it is locked."""

    keys: list[str]
    machines: list[str]
    tenants: list[str]
    vms: list[str]
    clusters: bool  # all of them, or none
    registry: list[tuple[str, str]]


def needs_of(group: Sequence[Proposal]) -> Needs:
    """What has to be read before a group can be settled."""
    if len(group) > LARGEST_GROUP:
        raise InvalidInput("group", f"has {len(group)} proposals", f"commit at most {LARGEST_GROUP} together")
    machines: set[str] = set()
    tenants: set[str] = set()
    vms: set[str] = set()
    registry: set[tuple[str, str]] = set()
    clusters = False
    for proposal in group:
        if isinstance(proposal, Place | Release):
            tenants.add(proposal.tenant)
            for each in proposal.placed if isinstance(proposal, Place) else proposal.released:
                machines.add(each.machine)
                vms.add(each.vm)
            if isinstance(proposal, Release):
                vms.update([hold_of(each.vm) for each in proposal.released])
                registry.update((WAITING, vm) for vm in proposal.waiting)
                if proposal.eviction is not None:
                    registry.update((WAITING, each.vm) for each in proposal.released)
            elif proposal.victims or proposal.requeued or proposal.leaving:
                for each in proposal.leaving:
                    machines.add(each.machine)
                    vms.update((each.vm, hold_of(each.vm)))
                for victim in proposal.victims:
                    tenants.add(victim.tenant)
                    machines.add(victim.vm.machine)
                    vms.update((victim.vm.vm, hold_of(victim.vm.vm)))
                    registry.add((WAITING, victim.vm.vm))
                registry.update((WAITING, each.vm) for each in proposal.placed)
        elif isinstance(proposal, Move):
            tenants.add(proposal.tenant)
            machines.update((proposal.vm.machine, proposal.machine))
            vms.update((proposal.vm.vm, hold_of(proposal.vm.vm)))
        elif isinstance(proposal, SetCondition):
            machines.add(proposal.machine)
            registry.add((FAILURES, proposal.machine))
        elif isinstance(proposal, SetQuarantine):
            clusters = True
        elif isinstance(proposal, AddMachines | RemoveMachines):
            clusters = True
            machines.update(m if isinstance(m, str) else m.name for m in proposal.machines)
            if isinstance(proposal, RemoveMachines):
                registry.update((FAILURES, name) for name in proposal.machines)
        elif isinstance(proposal, Register):
            registry.add((proposal.kind, proposal.name))
    keys = [proposal.key for proposal in group]
    return Needs(keys, sorted(machines), sorted(tenants), sorted(vms), clusters, sorted(registry))


def first_stamp(revision: int) -> int:
    """Stamps for the group that follows a revision: a group has fewer proposals than lie between two of these."""
    return (revision + 1) * LARGEST_GROUP


class Facts(msgspec.Struct, eq=False):
    """The freshest rows, those of `Needs` that exist. Settling changes them."""

    known: Mapping[str, Decided]
    machines: dict[str, MachineRow]
    tenants: dict[str, TenantRow]
    vms: dict[str, VMRow]
    clusters: dict[str, ClusterRow]
    registry: dict[tuple[str, str], str]


class Settlement(msgspec.Struct, eq=False):
    """What came of a group, and what is to be written. Rows that are to go are None."""

    outcomes: list[Outcome] = []
    entries: list[Entry] = []
    decided: dict[str, Decided] = {}
    machines: dict[str, MachineRow | None] = {}
    added: set[str] = set()  # of the machines, those that are new
    tenants: dict[str, TenantRow | None] = {}
    vms: dict[str, VMRow | None] = {}
    freed: set[str] = set()  # names of VMs that ran before and are released; others may have them
    clusters: dict[str, ClusterRow | None] = {}
    registry: dict[tuple[str, str], str | None] = {}


class _Lost(Exception):
    """A race was lost: caught where the proposal began."""

    def __init__(self, reason: Reason, detail: str, machines: Sequence[str] = (), stamp: int | None = None) -> None:
        self.reason, self.detail, self.machines, self.stamp = reason, detail, machines, stamp


def settle(
    group: Sequence[Proposal],
    facts: Facts,
    accounts: Accounts,
    recheck: Recheck | StandingRecheck,
    first_stamp: int,
    strict: bool = False,
) -> Settlement:
    """Settle proposals in order, each on what those before it left. Stamps count up from the first one."""
    return _Desk(facts, accounts, recheck.bench(list(facts.machines.values())), first_stamp, strict).settle(group)


class _Desk:
    """One group being settled."""

    def __init__(self, facts: Facts, accounts: Accounts, bench: Bench, first_stamp: int, strict: bool) -> None:
        self.facts, self.accounts, self.bench, self.strict = facts, accounts, bench, strict
        self.stamp = first_stamp
        self.started = {name: row.version for name, row in facts.machines.items()} if strict else {}
        self.result = Settlement()
        self.lost: list[tuple[int, Sequence[str]]] = []  # conflicts, and the machines to show as they are at the end

    def settle(self, group: Sequence[Proposal]) -> Settlement:
        result = self.result
        for i, proposal in enumerate(group):
            answered = result.decided.get(proposal.key) or self.facts.known.get(proposal.key)
            try:
                if answered and (answered.outcome == "committed" or answered.request != proposal.request):
                    result.outcomes.append(_replay(answered, proposal))
                elif isinstance(proposal, Ask):
                    result.outcomes.append(Committed(changed=False))
                elif isinstance(proposal, Decline):
                    self._decide(proposal, outcome="declined")
                    result.outcomes.append(Committed(changed=False))
                else:
                    result.outcomes.append(SETTLERS[type(proposal)](self, proposal))
            except _Lost as lost:
                self.lost.append((i, lost.machines))
                result.outcomes.append(Conflict(lost.reason, lost.detail, (), lost.stamp))
            except InvalidInput as error:
                result.outcomes.append(Rejected(error))
            self.stamp += 1
        for i, names in self.lost:
            rows = tuple(self.facts.machines[name].copy() for name in names if name in self.facts.machines)
            result.outcomes[i] = msgspec.structs.replace(result.outcomes[i], machines=rows)
        return result

    def _decide(
        self, proposal: Decidable, generation: int = 0, outcome: Literal["committed", "declined"] = "committed"
    ) -> None:
        """Remember what came of a key, so that it is answered alike when it is asked for again."""
        placed = proposal.placed if isinstance(proposal, Place) else ()
        record = proposal.record
        self.result.decided[proposal.key] = Decided(
            key=proposal.key,
            outcome=outcome,
            request=proposal.request,
            record=msgspec.structs.replace(record, generation=generation) if generation else record,
            placed=placed,
        )

    def _enter(self, proposal: Decidable, **changes: Any) -> None:
        """What a proposal changed goes into the feed, with who asked for it and when."""
        record = proposal.record
        self.result.entries.append(Entry(key=proposal.key, by=record.by, at=record.at, **changes))

    def _touch(self, name: str, versions: dict[str, int]) -> MachineRow:
        """A machine row that this proposal changes, under its next version."""
        row = self.facts.machines[name]
        if name not in versions:
            row.version += 1
            versions[name] = row.version
            self.result.machines[name] = row
        return row

    # ----------------------------------------------------------------------------------------------- tenants

    def place(self, proposal: Place) -> Outcome:
        facts, bench, tenant = self.facts, self.bench, proposal.tenant
        if not tenant or not proposal.placed:
            raise InvalidInput("proposal", "names no tenant or no VM", "name both")
        known = facts.tenants.get(tenant)
        now = known.stamp if known else 0
        self._check_premise(proposal, now)
        self._check_tenant(proposal, known)
        touched = dict.fromkeys(each.machine for each in proposal.placed)
        for name in touched:
            if name not in facts.machines:
                raise _Lost("machine", f"machine {name} is no more")
            if self.strict and self.started.get(name) != proposal.seen.get(name):
                raise _Lost("stale", f"machine {name} has changed", tuple(touched))
        if proposal.requeued:
            for each in proposal.placed:
                if (WAITING, each.vm) not in facts.registry:
                    raise _Lost("gone", f"VM {each.vm} waits no longer", stamp=now)
        leaving = self._check_leaving(proposal, now) if proposal.leaving else ()
        left = {each.vm for each in leaving}
        if proposal.victims:
            self._check_victims(proposal)
        tried: list[Placed] = []
        names: set[str] = set()
        kept = bench.keep(each.machine for each in leaving)
        for each in leaving:
            bench.remove(each.machine, each.spec, tenant)
        try:
            for each in self._highest_first(proposal.placed):
                if (each.vm in facts.vms and each.vm not in left) or each.vm in names:
                    raise _Lost("name", f"a VM {each.vm} runs already", stamp=now)
                # As its own priority sees the machine, so with the victims there.
                if problem := bench.place(each.machine, each.spec, tenant):
                    raise _Lost("room", f"machine {each.machine}: {problem}", tuple(touched))
                tried.append(each)
                names.add(each.vm)
            if self.accounts.bands > 1 or proposal.victims:
                self._check_evicted(proposal, touched)
        except (_Lost, InvalidInput):
            for again in reversed(tried):
                bench.remove(again.machine, again.spec, tenant)
            bench.put_back(kept)
            raise
        eviction = self._eviction(proposal) if proposal.victims else None
        own = self._evict(proposal, eviction) if eviction else ()
        versions: dict[str, int] = {}
        self._take_off((*leaving, *own), tenant, versions)
        self._put_on(proposal.placed, tenant, versions)
        count = (known.vms if known else 0) + len(proposal.placed) - len(own) - len(leaving)
        row = TenantRow(proposal.constraints, self.stamp, count)
        facts.tenants[tenant] = self.result.tenants[tenant] = row
        self._decide(proposal, self.stamp)
        self._enter(
            proposal,
            tenant=tenant,
            constraints=proposal.constraints,
            before=now,
            after=self.stamp,
            placed=proposal.placed,
            released=(*leaving, *own),
            eviction=eviction if own else None,
            registered=(*self._wait(own, tenant, proposal.constraints, proposal), *self._wait_no_longer(proposal)),
            versions=versions,
        )
        return Committed(versions, self.stamp, before=now)

    def _check_leaving(self, proposal: Place, stamp: int) -> tuple[Placed, ...]:
        """VMs are where the proposal says, on machines that are not ready, with what is held for them."""
        vms, machines = self.facts.vms, self.facts.machines
        names = {each.vm for each in proposal.leaving}
        if len(names) < len(proposal.leaving):
            raise InvalidInput("leaving", "repeat themselves", "name each once")
        for each in proposal.leaving:
            there = vms.get(each.vm)
            if there is None or there.tenant != proposal.tenant:
                raise _Lost("gone", f"tenant {proposal.tenant} runs no VM {each.vm}", stamp=stamp)
            if there.machine != each.machine or there.spec != each.spec:
                raise _Lost("tenant", f"VM {each.vm} is another one by now", stamp=stamp)
            if not each.vm.endswith(HOLD) and machines[each.machine].state == MachineState.READY:
                raise _Lost("gone", f"machine {each.machine} of VM {each.vm} is ready again", stamp=stamp)
            if (hold := hold_of(each.vm)) in vms and hold not in names:
                raise _Lost("tenant", f"room is held for VM {each.vm} by now", stamp=stamp)
        return tuple([self._as_it_runs(each) for each in proposal.leaving])

    # --------------------------------------------------------------------------------------------- giving way

    def _highest_first(self, placed: Sequence[Placed]) -> Sequence[Placed]:
        """In the order of priority: each must fit beside all that is not below it, also of its own request. Else one
        that takes what is free could make VMs of its own band give way to a higher one that comes with it.
        """
        if len(placed) == 1 or self.accounts.bands == 1:
            return placed
        return sorted(placed, key=lambda each: self.accounts.band(each.spec))

    def _check_victims(self, proposal: Place) -> None:
        """Victims are as the proposal says, and what is held for them is among them."""
        vms, names = self.facts.vms, {victim.vm.vm for victim in proposal.victims}
        where = tuple(dict.fromkeys(victim.vm.machine for victim in proposal.victims))
        if len(names) < len(proposal.victims) or names & {each.vm for each in proposal.leaving}:
            raise InvalidInput("victims", "repeat themselves, or leave anyway", "name each once")
        for victim in proposal.victims:
            there = vms.get(victim.vm.vm)
            if there is None or (there.tenant, there.machine, there.spec) != (
                victim.tenant, victim.vm.machine, victim.vm.spec,
            ):  # fmt: skip
                raise _Lost("victims", f"VM {victim.vm.vm} no longer runs on {victim.vm.machine}", where)
            if (hold := hold_of(victim.vm.vm)) in vms and hold not in names:
                raise _Lost("victims", f"room is held for VM {victim.vm.vm} by now", where)
            owner = self.facts.tenants[victim.tenant]
            if owner.constraints.evict_together and owner.stamp != victim.stamp:
                raise _Lost("victims", f"tenant {victim.tenant} has other VMs by now, which go together", where)

    def _check_evicted(self, proposal: Place, touched: Iterable[str]) -> None:
        """With the victims gone, everything has room; of lower priority, and none of them could have stayed."""
        accounts, machines = self.accounts, self.facts.machines
        room: dict[str, list[int]] = {}
        highest: dict[str, int] = {}
        for name in touched:
            room[name] = self._room(name)
        for each in proposal.placed:
            demand, band = accounts.demand(each.spec, machines[each.machine]), accounts.band(each.spec)
            room[each.machine] = [left - need for left, need in zip(room[each.machine], demand, strict=True)]
            highest[each.machine] = min(band, highest.get(each.machine, band))
        for gone in (*proposal.leaving, *(victim.vm for victim in proposal.victims)):
            if (left := room.get(gone.machine)) is not None:
                demand = accounts.demand(gone.spec, machines[gone.machine])
                room[gone.machine] = [has + need for has, need in zip(left, demand, strict=True)]
        for name, left in room.items():
            if min(left) < 0:
                raise _Lost("room", f"machine {name}: {OCCUPIED}", tuple(room))
        if proposal.victims:
            self._check_needed(proposal, room, highest)

    def _room(self, machine: str) -> list[int]:
        """What nobody holds of a machine, by resource."""
        row = self.facts.machines[machine]
        return [has - used for has, used in zip(row.spec.capacity, row.taken(self.accounts.resources), strict=True)]

    def _check_needed(self, proposal: Place, room: Mapping[str, Sequence[int]], highest: Mapping[str, int]) -> None:
        """Each victim is of lower priority than what comes to its machine, and would not fit beside it; or it belongs
        to one that does: as what is held for it. Of VMs that go together, not all could have stayed.
        """
        accounts, facts = self.accounts, self.facts
        top = min(accounts.band(each.spec) for each in proposal.placed)
        # By tenant, VM and machine, what would have to fit; no VM: all those of the tenant.
        taken: dict[tuple[str, str, str], list[int]] = {}
        for victim in proposal.victims:
            vm, band = victim.vm, accounts.band(victim.vm.spec)
            if band <= top:
                raise InvalidInput("victims", f"VM {vm.vm} is not of lower priority", "leave it out")
            if vm.machine in room and band > highest[vm.machine]:
                together = facts.tenants[victim.tenant].constraints.evict_together
                amounts = taken.setdefault((victim.tenant, "" if together else vm.vm, vm.machine), [])
                demand = accounts.demand(vm.spec, facts.machines[vm.machine])
                amounts[:] = [a + b for a, b in zip(amounts, demand, strict=True)] if amounts else demand
        needed = {
            (tenant, name)
            for (tenant, name, machine), amounts in taken.items()
            if any(need > has for need, has in zip(amounts, room[machine], strict=True))
        }
        for victim in proposal.victims:
            tenant, name = victim.tenant, victim.vm.vm
            if needed.isdisjoint(((tenant, ""), (tenant, name), (tenant, name.removesuffix(HOLD)))):
                raise _Lost("victims", f"VM {name} need not give way", tuple(room))

    def _eviction(self, proposal: Place) -> Eviction:
        band = min(self.accounts.band(each.spec) for each in proposal.placed)
        return Eviction(tenant=proposal.tenant, priority=self.accounts.catalogue.bands[band], grace=proposal.grace)

    def _evict(self, proposal: Place, eviction: Eviction) -> tuple[Placed, ...]:
        """Take the victims off their machines, an entry for each tenant; those of the placed VMs' own are returned."""
        facts, by_tenant = self.facts, dict[str, list[Placed]]()
        for victim in proposal.victims:
            self.bench.remove(victim.vm.machine, victim.vm.spec, victim.tenant)
            by_tenant.setdefault(victim.tenant, []).append(self._as_it_runs(victim.vm))
        own = tuple(by_tenant.pop(proposal.tenant, ()))
        for tenant, gone in by_tenant.items():
            versions: dict[str, int] = {}
            self._take_off(gone, tenant, versions)
            known_tenant = facts.tenants[tenant]
            rest = self._fewer(tenant, known_tenant, len(gone))
            self._enter(
                proposal,
                tenant=tenant,
                constraints=known_tenant.constraints,
                before=known_tenant.stamp,
                after=self.stamp if rest else 0,
                released=tuple(gone),
                eviction=eviction,
                registered=self._wait(gone, tenant, known_tenant.constraints, proposal),
                versions=versions,
            )
        return own

    def _wait(
        self, gone: Sequence[Placed], tenant: str, constraints: Constraints, proposal: Place | Release
    ) -> tuple[Registered, ...]:
        """Those of the evicted VMs that want to be placed again wait for that, where everybody sees it."""
        changes = []
        for each in gone:
            if each.spec.requeue and not each.vm.endswith(HOLD):
                waiting = Waiting(
                    tenant=tenant,
                    spec=each.spec,
                    constraints=constraints,
                    since=proposal.record.at,
                    cause=proposal.key,
                )
                changes.append(self._change_entry((WAITING, each.vm), msgspec.json.encode(waiting).decode()))
        return tuple(changes)

    def _wait_no_longer(self, proposal: Place) -> tuple[Registered, ...]:
        if not proposal.requeued:
            return ()
        return tuple(self._change_entry((WAITING, each.vm), None) for each in proposal.placed)

    def release(self, proposal: Release) -> Outcome:
        facts, tenant = self.facts, proposal.tenant
        if not tenant or not (proposal.released or proposal.waiting):
            raise InvalidInput("proposal", "names no tenant or no VM", "name both")
        known = facts.tenants.get(tenant)
        self._check_premise(proposal, known.stamp if known else 0)
        if not proposal.released:
            return self._wait_for_nothing(proposal, known)
        if known is None:
            raise _Lost("gone", f"tenant {tenant} has no VMs", stamp=0)
        if proposal.stamp is not None:
            all_of_it = len(proposal.released) == known.vms or proposal.eviction is not None  # those may be fewer
            if proposal.stamp != known.stamp or not all_of_it:
                raise _Lost("tenant", f"tenant {tenant} has other VMs by now", stamp=known.stamp)
        names: set[str] = set()
        for each in proposal.released:
            there = facts.vms.get(each.vm)
            if there is None or each.vm in names or there.tenant != tenant:
                # Who releases a VM with what is held for it may try again without that.
                reason: Reason = "tenant" if there is None and each.vm.endswith(HOLD) else "gone"
                raise _Lost(reason, f"tenant {tenant} runs no VM {each.vm}", stamp=known.stamp)
            if there.machine != each.machine or there.spec != each.spec:
                raise _Lost("tenant", f"VM {each.vm} is another one by now", stamp=known.stamp)
            names.add(each.vm)
        for each in proposal.released:
            if (hold := hold_of(each.vm)) in facts.vms and hold not in names:
                raise _Lost("tenant", f"room is held for VM {each.vm} by now", stamp=known.stamp)
        released = tuple([self._as_it_runs(each) for each in proposal.released])
        versions: dict[str, int] = {}
        for each in released:
            self.bench.remove(each.machine, each.spec, tenant)
        self._take_off(released, tenant, versions)
        stamp = self.stamp if self._fewer(tenant, known, len(proposal.released)) else 0
        self._decide(proposal, stamp)
        evicted = released if proposal.eviction is not None else ()
        self._enter(
            proposal,
            tenant=tenant,
            constraints=known.constraints,
            before=known.stamp,
            after=stamp,
            released=released,
            eviction=proposal.eviction,
            registered=(*self._give_up(proposal), *self._wait(evicted, tenant, known.constraints, proposal)),
            versions=versions,
        )
        return Committed(versions, stamp)

    def _wait_for_nothing(self, proposal: Release, known: TenantRow | None) -> Outcome:
        """A tenant of which nothing runs is deleted: all of it waits, and waits no longer."""
        changes = self._give_up(proposal) if known is None else ()
        if len(changes) < len(set(proposal.waiting)):
            for change in changes:
                self._change_entry((change.kind, change.name), change.before)
            stamp = known.stamp if known else 0
            raise _Lost("tenant", f"not all VMs of tenant {proposal.tenant} wait still", stamp=stamp)
        self._decide(proposal)
        self._enter(proposal, registered=changes)
        return Committed()

    def _give_up(self, proposal: Release) -> tuple[Registered, ...]:
        """Those of a tenant that is deleted are not placed again."""
        registry, changes = self.facts.registry, []
        for vm in dict.fromkeys(proposal.waiting):
            value = registry.get((WAITING, vm))
            if value is not None and msgspec.json.decode(value, type=Waiting).tenant == proposal.tenant:
                changes.append(self._change_entry((WAITING, vm), None))
        return tuple(changes)

    def move(self, proposal: Move) -> Outcome:
        facts, tenant, vm, target = self.facts, proposal.tenant, proposal.vm, proposal.machine
        known = facts.tenants.get(tenant)
        self._check_premise(proposal, known.stamp if known else 0)
        if known is None:
            raise _Lost("gone", f"tenant {tenant} has no VMs", stamp=0)
        self._check_moving(proposal, known)
        if proposal.hold if proposal.held else vm.machine == target:  # so it is already
            self._decide(proposal, known.stamp)
            return Committed(stamp=known.stamp, changed=False)
        self._check_tenant(proposal, known)
        if target not in facts.machines:
            raise _Lost("machine", f"machine {target} is no more")
        if self.strict and self.started.get(target) != proposal.seen.get(target):
            raise _Lost("stale", f"machine {target} has changed", (target,))
        test = self.bench.replace if proposal.held else self.bench.place
        if problem := test(target, vm.spec, tenant):
            raise _Lost("room", f"machine {target}: {problem}", (target,))
        demand = self.accounts.demand(vm.spec, facts.machines[target])
        if not proposal.held and any(need > left for need, left in zip(demand, self._room(target), strict=True)):
            self.bench.remove(target, vm.spec, tenant)
            raise _Lost("room", f"machine {target}: {OCCUPIED}", (target,))
        since = facts.vms[vm.vm].since
        hold = Placed(hold_of(vm.vm), vm.spec, target, since)
        released: tuple[Placed, ...] = ()
        placed = (hold,)
        if not proposal.hold:
            self.bench.remove(vm.machine, vm.spec, tenant)
            here = Placed(vm.vm, vm.spec, vm.machine, since)
            released, placed = (here, hold) if proposal.held else (here,), (Placed(vm.vm, vm.spec, target, since),)
        versions: dict[str, int] = {}
        self._take_off(released, tenant, versions)
        self._put_on(placed, tenant, versions)
        count = known.vms + len(placed) - len(released)
        facts.tenants[tenant] = self.result.tenants[tenant] = TenantRow(known.constraints, self.stamp, count)
        self._decide(proposal, self.stamp)
        self._enter(
            proposal,
            tenant=tenant,
            constraints=known.constraints,
            before=known.stamp,
            after=self.stamp,
            placed=placed,
            released=released,
            versions=versions,
        )
        return Committed(versions, self.stamp)

    def _check_moving(self, proposal: Move, known: TenantRow) -> None:
        """The VM is where the proposal says, and what is held for it, too."""
        tenant, vm, vms = proposal.tenant, proposal.vm, self.facts.vms
        there = vms.get(vm.vm)
        if there is None or there.tenant != tenant:
            raise _Lost("gone", f"tenant {tenant} runs no VM {vm.vm}", stamp=known.stamp)
        if there.machine != vm.machine or there.spec != vm.spec:
            raise _Lost("tenant", f"VM {vm.vm} is another one by now", stamp=known.stamp)
        held, hold = VMRow(tenant, proposal.machine, vm.spec) if proposal.held else None, vms.get(hold_of(vm.vm))
        if (hold and msgspec.structs.replace(hold, since=0.0)) != held:
            raise _Lost("tenant", f"what is held for VM {vm.vm} is another by now", stamp=known.stamp)

    def _check_premise(self, proposal: Place | Release | Move, stamp: int) -> None:
        """What whoever asks was told of the tenant is still so, whatever the agent knows."""
        if not proposal.premise.holds(stamp):
            state = f"is at generation {stamp} by now" if stamp else "has no VMs by now"
            raise _Lost("premise", f"tenant {proposal.tenant} {state}", stamp=stamp)

    def _check_tenant(self, proposal: Place | Move, known: TenantRow | None) -> None:
        """The tenant is as the proposal knows it, as far as that matters."""
        tenant, now = proposal.tenant, known.stamp if known else 0
        if known and known.constraints != proposal.constraints:
            raise _Lost("tenant", f"tenant {tenant} has other constraints by now", stamp=now)
        if now != proposal.stamp and (self.strict or proposal.constraints.on_places):
            raise _Lost("tenant", f"tenant {tenant} has other VMs by now", stamp=now)

    def _as_it_runs(self, vm: Placed) -> Placed:
        """A VM that is where a proposal says, with all that the store knows of it."""
        there = self.facts.vms[vm.vm]
        return Placed(vm.vm, there.spec, there.machine, there.since)

    def _fewer(self, tenant: str, known: TenantRow, gone: int) -> int:
        """A tenant has fewer VMs; says how many are left. Without any it is no more."""
        rest = known.vms - gone
        if rest:
            self.facts.tenants[tenant] = self.result.tenants[tenant] = TenantRow(known.constraints, self.stamp, rest)
        else:
            del self.facts.tenants[tenant]
            self.result.tenants[tenant] = None
        return rest

    def _put_on(self, placed: Sequence[Placed], tenant: str, versions: dict[str, int]) -> None:
        """The rows have these VMs."""
        for each in placed:
            self.accounts.put(self._touch(each.machine, versions), each.spec, tenant, 1)
            self.facts.vms[each.vm] = self.result.vms[each.vm] = VMRow.of(tenant, each)

    def _take_off(self, released: Sequence[Placed], tenant: str, versions: dict[str, int]) -> None:
        """The rows no longer have these VMs."""
        for each in released:
            self.accounts.put(self._touch(each.machine, versions), each.spec, tenant, -1)
            del self.facts.vms[each.vm]
            if each.vm not in self.result.vms:
                self.result.freed.add(each.vm)
            self.result.vms[each.vm] = None

    # ---------------------------------------------------------------------------------- machines and clusters

    def set_condition(self, proposal: SetCondition) -> Outcome:
        row = self.facts.machines.get(proposal.machine)
        if row is None:
            raise UnknownName("machine", "machine", proposal.machine, None)
        _check_condition(proposal.condition)
        if proposal.version is not None and row.version != proposal.version:
            raise _Lost("premise", f"machine {proposal.machine} has changed", (proposal.machine,), row.version)
        said, counted = self._count_failures(proposal, row)
        changes = []
        versions: dict[str, int] = {}
        for name, value in said.items():
            if getattr(row, name) != value:
                self._touch(proposal.machine, versions)
                changes.append(ConditionChange(proposal.machine, name, getattr(row, name), value))
                setattr(row, name, value)
                self.bench.set_condition(proposal.machine, name, value)
        if changes or counted:
            self._enter(proposal, conditions=tuple(changes), registered=counted, versions=versions)
        self._decide(proposal, versions.get(proposal.machine, 0))
        return Committed(versions, changed=bool(changes or counted))

    def _count_failures(
        self, proposal: SetCondition, row: MachineRow
    ) -> tuple[Mapping[str, int], tuple[Registered, ...]]:
        """A machine that goes from ready to down has failed, whoever says so; one that drains or is quarantined was out
        of use already. What was counted fades; what somebody says of failures stands, and nothing was counted then.
        """
        said, place = dict(proposal.condition), (FAILURES, proposal.machine)
        value = self.facts.registry.get(place)
        now = before = read_entry(value)
        if "failures" in said:
            now = NONE
        else:
            faded = before.faded(proposal.record.at)
            failed = row.state == MachineState.READY and said.get("state") == MachineState.DOWN
            if failed:
                faded = faded.one_more()
            if failed or faded.number != before.number:
                now = faded
                counted = row.failures - before.number + now.number
                said["failures"] = min(max(0, counted), LIMITS["failures"])
        if now.entry == value:
            return said, ()
        return said, (self._change_entry(place, now.entry),)

    def set_quarantine(self, proposal: SetQuarantine) -> Outcome:
        cluster = self.facts.clusters.get(proposal.cluster)
        if cluster is None:
            raise UnknownName("cluster", "cluster", proposal.cluster, None)
        if changed := cluster.quarantined != proposal.quarantined:
            change = QuarantineChange(proposal.cluster, cluster.quarantined, proposal.quarantined)
            self._recount(proposal.cluster, msgspec.structs.replace(cluster, quarantined=proposal.quarantined))
            self._enter(proposal, quarantines=(change,))
        self._decide(proposal)
        return Committed(changed=changed)

    def add_machines(self, proposal: AddMachines) -> Outcome:
        facts = self.facts
        new: dict[str, ClusterRow] = {}
        names: set[str] = set()
        for spec in proposal.machines:
            check_spec(spec, self.accounts.catalogue)
            if spec.name in facts.machines or spec.name in names:
                raise InvalidInput(f"machine {spec.name}", "is there already", "names must differ")
            if spec.name in self.result.machines:
                raise InvalidInput(f"machine {spec.name}", "was removed in the same transaction", "add it later")
            cluster = new.get(spec.cluster) or facts.clusters.get(spec.cluster)
            if cluster and (cluster.datacenter, cluster.generation) != (spec.datacenter, spec.generation):
                was = f"{cluster.generation} in {cluster.datacenter}"
                raise InvalidInput(
                    f"machine {spec.name}", f"does not match cluster {spec.cluster}, which is {was}", "use another one"
                )
            names.add(spec.name)
            cluster = cluster or ClusterRow(spec.datacenter, spec.generation, 0)
            new[spec.cluster] = msgspec.structs.replace(cluster, machines=cluster.machines + 1)
        for name, condition in proposal.conditions.items():
            if name not in names:
                raise InvalidInput("conditions", f"speak of {name}, which is not added", "leave it out")
            _check_condition(condition)
        if not proposal.machines:
            raise InvalidInput("machines", "are none", "name at least one")
        changes = []
        for spec in proposal.machines:
            row = facts.machines[spec.name] = self.accounts.new_row(spec)
            self.result.machines[spec.name] = row
            self.result.added.add(spec.name)
            for field_, value in proposal.conditions.get(spec.name, {}).items():
                changes.append(ConditionChange(spec.name, field_, STARTING[field_], value))
                setattr(row, field_, value)
        for name, cluster in new.items():
            self._recount(name, cluster)
        self._decide(proposal)
        self._enter(proposal, added=proposal.machines, conditions=tuple(changes))
        return Committed()

    def remove_machines(self, proposal: RemoveMachines) -> Outcome:
        facts = self.facts
        for name in proposal.machines:
            if name not in facts.machines:
                raise UnknownName("machine", "machine", name, None)
            if count := facts.machines[name].vms:
                raise InvalidInput(f"machine {name}", f"runs {count} VMs", "drain it and release them first")
            if name in self.result.added:
                raise InvalidInput(f"machine {name}", "was added in the same transaction", "remove it later")
        if not proposal.machines or len(set(proposal.machines)) < len(proposal.machines):
            raise InvalidInput("machines", "are none, or repeat themselves", "name each once")
        if sum(cluster.machines for cluster in facts.clusters.values()) == len(proposal.machines):
            raise InvalidInput("machines", "are all that the zone has", "leave at least one")
        specs, changes, reopened, forgotten = [], [], [], []
        versions: dict[str, int] = {}
        for name in proposal.machines:
            row = facts.machines.pop(name)
            if (FAILURES, name) in facts.registry:
                forgotten.append(self._change_entry((FAILURES, name), None))
            versions[name] = row.version + 1
            specs.append(row.spec)
            changes += [
                ConditionChange(name, field_, getattr(row, field_), start)
                for field_, start in STARTING.items()
                if getattr(row, field_) != start
            ]
            self.result.machines[name] = None
            cluster = facts.clusters[row.spec.cluster]
            if cluster.machines == 1 and cluster.quarantined:
                reopened.append(QuarantineChange(row.spec.cluster, True, False))
            self._recount(row.spec.cluster, msgspec.structs.replace(cluster, machines=cluster.machines - 1))
        self._decide(proposal)
        self._enter(
            proposal,
            removed=tuple(specs),
            conditions=tuple(changes),
            quarantines=tuple(reopened),
            registered=tuple(forgotten),
            versions=versions,
        )
        return Committed()

    def _recount(self, name: str, cluster: ClusterRow) -> None:
        if cluster.machines:
            self.facts.clusters[name] = self.result.clusters[name] = cluster
        else:
            del self.facts.clusters[name]
            self.result.clusters[name] = None

    # -------------------------------------------------------------------------------------------- the registry

    def register(self, proposal: Register) -> Outcome:
        place, value = (proposal.kind, proposal.name), proposal.value
        if not all(place):
            raise InvalidInput("proposal", "names no kind or no entry of the registry", "name both")
        now = self.facts.registry.get(place)
        if proposal.guarded and now != proposal.expected:
            raise _Lost("registry", f"{proposal.kind} {proposal.name} has another value by now")
        if changed := now != value:
            self._enter(proposal, registered=(self._change_entry(place, value),))
        self._decide(proposal)
        return Committed(changed=changed)

    def _change_entry(self, place: tuple[str, str], value: str | None) -> Registered:
        now = self.facts.registry.get(place)
        self.result.registry[place] = value
        if value is None:
            del self.facts.registry[place]
        else:
            self.facts.registry[place] = value
        return Registered(*place, now, value)


def _replay(answered: Decided, proposal: Proposal) -> Outcome:
    if answered.request != proposal.request:
        problem = f"{proposal.key!r} was used for another request"
        return Rejected(InvalidInput("key", problem, "use a new key for a new request"))
    return Replayed(answered)


def _check_condition(condition: Mapping[str, int]) -> None:
    for name, value in condition.items():
        if name not in CONDITION:
            raise UnknownName("condition", "condition of a machine", name, CONDITION)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= LIMITS[name]:
            raise InvalidInput(name, f"is {value!r}", f"use a whole number from 0 to {LIMITS[name]:,}")


SETTLERS: dict[type, Callable[[_Desk, Any], Outcome]] = {
    Place: _Desk.place,
    Release: _Desk.release,
    Move: _Desk.move,
    SetCondition: _Desk.set_condition,
    SetQuarantine: _Desk.set_quarantine,
    AddMachines: _Desk.add_machines,
    RemoveMachines: _Desk.remove_machines,
    Register: _Desk.register,
}
