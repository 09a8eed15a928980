"""A zone in plain dictionaries, kept by somebody who knows no tables, locks or feeds: what a store must agree with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

import msgspec

from roost.model.change import PlacedVM
from roost.model.inventory import MachineSpec
from roost.model.registry import FAILURES, THRESHOLD, WAITING
from roost.model.request import HOLD, VM, Constraints, hold_of
from roost.model.waiting import Waiting
from roost.store.contract import (
    Ask,
    Commission,
    Committed,
    Conflict,
    Decline,
    Decommission,
    Move,
    Outcome,
    Place,
    Proposal,
    Register,
    Rejected,
    Release,
    Replayed,
    SetCondition,
    SetQuarantine,
    Victim,
)
from roost.store.ledger import Ledger
from tests.contract.tiny import CATALOGUE

AS_NEW = {"state": 0, "health": 100, "failures": 0, "versions_behind": 0}
APART = ({"loud", "shy"},)  # classes that keep apart; "single" does from itself


class Zone:
    """Which VM is where, and what each machine can hold."""

    def __init__(self) -> None:
        self.machines: dict[str, MachineSpec] = {}
        self.conditions: dict[str, dict[str, int]] = {}
        self.versions: dict[str, int] = {}
        self.closed: set[str] = set()
        self.vms: dict[str, tuple[str, str, VM]] = {}  # tenant, machine, what it is
        self.constraints: dict[str, Constraints] = {}  # of the tenants that have VMs
        self.stamps: dict[str, int] = {}
        self.used_stamps: set[tuple[str, int]] = set()
        self.registry: dict[tuple[str, str], str | None] = {}
        self.evicted: dict[str, set[str]] = {}  # by the key of what was placed: the VMs that gave way
        self.done: dict[str, Proposal] = {}
        self.generations: dict[str, int] = {}  # by key: what was answered
        self.declined: dict[str, Decline] = {}

    # ------------------------------------------------------------------------------------------ what must come of it

    def settle(
        self, group: Iterable[Proposal], outcomes: Iterable[Outcome], strict: bool, known: Mapping[str, MachineSpec]
    ) -> None:
        """Each outcome was called for; what is committed is done here, too. `known`: the machines the agent knows."""
        versions, before = dict(self.versions), set(self.machines)
        for proposal, outcome in zip(group, outcomes, strict=True):
            if proposal.key in self.done:
                first = self.done[proposal.key]
                if first.request != proposal.request:
                    assert isinstance(outcome, Rejected)
                else:
                    assert isinstance(outcome, Replayed)
                    assert outcome.decided.outcome == "committed"
                    assert outcome.decided.placed == (first.placed if isinstance(first, Place) else ())
                    assert outcome.decided.record.generation == self.generations[proposal.key]
                continue
            if proposal.key in self.declined and self.declined[proposal.key].request != proposal.request:
                assert isinstance(outcome, Rejected)
                continue
            new = self.machines.keys() - before
            match proposal:
                case Place() | Release() | Move() if not self._as_told(proposal):
                    assert _name(outcome) == "premise", outcome
                    assert isinstance(outcome, Conflict)
                    assert outcome.stamp == self.stamps.get(proposal.tenant, 0)
                case Place():
                    problems = self._problems(proposal, versions if strict else None, known, new)
                    gone = {each.vm for each in proposal.leaving} | {each.vm.vm for each in proposal.victims}
                    problems |= self._why_keep_empty(proposal.record.purpose, proposal.placed, gone)
                    assert _name(outcome) in (problems or {"committed"}), (outcome, problems)
                case Release():
                    problems = self._why_not_release(proposal)
                    assert _name(outcome) in (problems or {"committed"}), (outcome, problems)
                case Move():
                    problems = self._why_not_move(proposal, versions if strict else None, known, new)
                    assert _name(outcome) in (problems or {"committed"}), (outcome, problems)
                case Commission():
                    gone = {spec.name for spec in proposal.machines} & (before - self.machines.keys())
                    if not (gone and isinstance(outcome, Rejected)):  # what a group removes it need not add again
                        assert isinstance(outcome, Committed) == self._can_add(proposal.machines)
                case Decommission():
                    if not (new & set(proposal.machines) and isinstance(outcome, Rejected)):  # nor the reverse
                        assert isinstance(outcome, Committed) == self._can_remove(proposal.machines)
                case SetCondition():
                    version = self.versions.get(proposal.machine)
                    told = "committed" if proposal.version in (None, version) else "premise"
                    assert _name(outcome) == (told if proposal.machine in self.machines else "rejected")
                case SetQuarantine():
                    assert isinstance(outcome, Committed) == (proposal.cluster in self._clusters())
                case Register():
                    now = self.registry.get((proposal.kind, proposal.name))
                    refused = proposal.guarded and now != proposal.expected
                    assert _name(outcome) == ("registry" if refused else "committed")
                case Decline() | Ask():
                    assert outcome == Committed(changed=False)
            if isinstance(outcome, Committed):
                self._do(proposal, outcome)

    def _as_told(self, proposal: Place | Release | Move) -> bool:
        """Whether a tenant is as whoever asks was told."""
        there, told = proposal.tenant in self.constraints, proposal.premise
        if told.existing and not there:
            return False
        return told.generation is None or told.generation == (self.stamps[proposal.tenant] if there else 0)

    def _problems(
        self, proposal: Place, versions: Mapping[str, int] | None, known: Mapping[str, MachineSpec], new: set[str]
    ) -> set[str]:
        """All that speaks against a placement; `versions`, if the commit is strict, are those before the group."""
        problems = self._why_not_leave(proposal)
        tenant, machines = proposal.tenant, {each.machine for each in proposal.placed}
        names = {each.vm for each in proposal.leaving}
        left = {name: self.vms.pop(name) for name in names & self.vms.keys()}  # they are gone before others come
        if self.constraints.get(tenant, proposal.constraints) != proposal.constraints:
            problems.add("tenant")
        if proposal.stamp != self.stamps.get(tenant, 0) and (versions is not None or proposal.constraints.on_places):
            problems.add("tenant")
        if machines - self.machines.keys():
            problems.add("machine")
        if versions is not None and any(versions.get(name) != proposal.seen.get(name) for name in machines):
            problems.add("stale")
        vms = [each.vm for each in proposal.placed]
        if len(set(vms)) < len(vms) or self.vms.keys() & set(vms):
            problems.add("name")
        if proposal.requeued and any(self.registry.get((WAITING, vm)) is None for vm in vms):
            problems.add("gone")
        for name in machines & self.machines.keys():
            stranger = name not in known or _what(known[name]) != _what(self.machines[name]) or name in new
            if stranger or self.conditions[name]["state"] != 0 or not self._takes(name, proposal):
                problems.add("room")
        problems |= self._why_not_evict(proposal)
        self.vms.update(left)
        return problems

    def _why_not_leave(self, proposal: Place) -> set[str]:
        """All that speaks against taking VMs off machines that are not ready."""
        problems: set[str] = set()
        names = [each.vm for each in proposal.leaving]
        if len(set(names)) < len(names) or set(names) & {victim.vm.vm for victim in proposal.victims}:
            problems.add("rejected")
        for each in proposal.leaving:
            tenant, machine, spec = self.vms.get(each.vm, ("", "", each.spec))
            if tenant != proposal.tenant:
                problems.add("gone")
            elif (machine, spec) != (each.machine, each.spec):
                problems.add("tenant")
            elif not each.vm.endswith(HOLD) and self.conditions[machine]["state"] == 0:
                problems.add("gone")
            if hold_of(each.vm) in self.vms.keys() - set(names):
                problems.add("tenant")
        return problems

    def _takes(self, machine: str, proposal: Place) -> bool:
        """Whether a machine can run what comes to it: beside what is not below it, and, without the victims, at all."""
        more = [(proposal.tenant, each.spec) for each in proposal.placed if each.machine == machine]
        gone = {victim.vm.vm for victim in proposal.victims}
        stays = [(tenant, vm) for name, (tenant, on, vm) in self.vms.items() if on == machine and name not in gone]
        if not self._holds(machine, [*stays, *more]):
            return False
        runs = [(tenant, vm) for tenant, on, vm in self.vms.values() if on == machine] + more
        for band in {_band(vm) for _, vm in more}:
            if not self._holds(machine, [(tenant, vm) for tenant, vm in runs if _band(vm) <= band]):
                return False
        return _get_along(runs)

    def _why_not_evict(self, proposal: Place) -> set[str]:
        """All that speaks against making these victims give way."""
        problems: set[str] = set()
        victims = proposal.victims
        if not victims:
            return problems
        names = [victim.vm.vm for victim in victims]
        if len(set(names)) < len(names):
            problems.add("rejected")
        if any(_band(victim.vm.spec) <= min(_band(each.spec) for each in proposal.placed) for victim in victims):
            problems.add("rejected")
        for victim in victims:
            as_it_runs = self.vms.get(victim.vm.vm) == (victim.tenant, victim.vm.machine, victim.vm.spec)
            held = hold_of(victim.vm.vm) in self.vms.keys() - set(names)
            if not as_it_runs or held or not self._must_go(victim, proposal):
                problems.add("victims")
            known = self.constraints.get(victim.tenant)
            if known is not None and known.evict_together and victim.stamp != self.stamps[victim.tenant]:
                problems.add("victims")  # there may be others that go with it
        return problems

    def _must_go(self, victim: Victim, proposal: Place) -> bool:
        """Whether a machine could not hold what comes to it if this victim stayed, or those that it goes with."""
        tenant, name = victim.tenant, victim.vm.vm
        names = {victim.vm.vm for victim in proposal.victims}
        if name.endswith(HOLD) and name.removesuffix(HOLD) in names:
            owner = next(each for each in proposal.victims if each.vm.vm == name.removesuffix(HOLD))
            if self._must_go(owner, proposal):
                return True
        together = self.constraints[tenant].evict_together
        spared = [each.vm for each in proposal.victims if each.vm.vm == name or (together and each.tenant == tenant)]
        for machine in {each.machine for each in proposal.placed} & self.machines.keys():
            come = [(proposal.tenant, each.spec) for each in proposal.placed if each.machine == machine]
            below = [
                (tenant, each.spec)
                for each in spared
                if each.machine == machine and _band(each.spec) > min(_band(vm) for _, vm in come)
            ]
            stays = [(of, vm) for each, (of, on, vm) in self.vms.items() if on == machine and each not in names]
            if below and not self._holds(machine, [*stays, *come, *below]):
                return True
        return False

    def _holds(self, machine: str, runs: Iterable[tuple[str, VM]]) -> bool:
        """Whether a machine has room for just these."""
        spec = self.machines[machine]
        demands = [CATALOGUE.demand.get((vm.type, spec.generation)) for _, vm in runs]
        if None in demands:
            return False
        return all(
            sum(demand[i] for demand in demands if demand) <= capacity for i, capacity in enumerate(spec.capacity)
        )

    def _bears(self, machine: str) -> bool:
        """Whether a machine can run what it runs."""
        runs = [(tenant, vm) for tenant, on, vm in self.vms.values() if on == machine]
        return self._holds(machine, runs) and _get_along(runs)

    def _why_not_release(self, proposal: Release) -> set[str]:
        """All that speaks against a release."""
        problems = set()
        tenant = proposal.tenant
        if not proposal.released:  # all of it waits
            waits = set(proposal.waiting) <= self._waiting_of(tenant)
            return set() if waits and tenant not in self.constraints else {"tenant"}
        if tenant not in self.constraints or len({each.vm for each in proposal.released}) < len(proposal.released):
            problems.add("gone")
        if proposal.stamp is not None:
            members = {name for name, (owner, _, _) in self.vms.items() if owner == tenant}
            if proposal.stamp != self.stamps.get(tenant) or members != {each.vm for each in proposal.released}:
                problems.add("tenant")
        for each in proposal.released:
            if self.vms.get(each.vm, ("",))[0] != tenant:
                problems.add("tenant" if each.vm.endswith("~hold") else "gone")
            elif self.vms[each.vm] != (tenant, each.machine, each.spec):
                problems.add("tenant")
            if hold_of(each.vm) in self.vms.keys() - {other.vm for other in proposal.released}:
                problems.add("tenant")
        return problems

    def _waiting_of(self, tenant: str) -> set[str]:
        """The VMs of a tenant that wait for room."""
        waiting = {name: value for (kind, name), value in self.registry.items() if kind == WAITING and value}
        return {name for name, value in waiting.items() if msgspec.json.decode(value, type=Waiting).tenant == tenant}

    def _why_not_move(
        self, proposal: Move, versions: Mapping[str, int] | None, known: Mapping[str, MachineSpec], new: set[str]
    ) -> set[str]:
        """All that speaks against a move, or against holding room: the same as against a placement without the hold."""
        tenant, vm, hold = proposal.tenant, proposal.vm, hold_of(proposal.vm.vm)
        if tenant not in self.constraints or self.vms.get(vm.vm, ("",))[0] != tenant:
            return {"gone"}
        held = (tenant, proposal.machine, vm.spec) if proposal.held else None
        if self.vms[vm.vm] != (tenant, vm.machine, vm.spec) or self.vms.get(hold) != held:
            return {"tenant"}
        if _moved_already(proposal):
            return set()
        place = Place(
            key=proposal.key,
            request=b"",
            record=proposal.record,
            tenant=tenant,
            constraints=proposal.constraints,
            stamp=proposal.stamp,
            placed=(PlacedVM("nobody", vm.spec, proposal.machine),),
            seen=proposal.seen,
        )
        without = self.vms.pop(hold, None)
        problems = self._problems(place, versions, known, new)
        if without:
            self.vms[hold] = without
        return problems | self._why_keep_empty("healing", place.placed, set() if proposal.hold else {vm.vm, hold})

    def _why_keep_empty(self, purpose: str, coming: Iterable[PlacedVM], gone: set[str]) -> set[str]:
        """What takes machines that are kept empty from it is refused; what lower bands take does not count."""
        taken = {each.machine for each in coming if not _band(each.spec)}
        for cluster, machines in self._clusters().items():
            empty = {spec.name for spec in machines if self._is_empty(spec.name)}
            left = {spec.name for spec in machines if self._is_empty(spec.name, gone)} - taken
            least = json.loads(self.registry.get((THRESHOLD, cluster)) or "{}").get(purpose, 0)
            if least and len(left) < min(least, len(empty)):
                return {"threshold"}
        return set()

    def _is_empty(self, machine: str, without: Iterable[str] = ()) -> bool:
        """Whether a machine is ready and nobody of the highest band is on it, nor anybody in isolation."""
        runs = [vm for name, (_, on, vm) in self.vms.items() if on == machine and name not in without]
        return self.conditions[machine]["state"] == 0 and all(_band(vm) and not vm.isolated for vm in runs)

    def _clusters(self) -> dict[str, list[MachineSpec]]:
        clusters: dict[str, list[MachineSpec]] = {}
        for spec in self.machines.values():
            clusters.setdefault(spec.cluster, []).append(spec)
        return clusters

    def _can_add(self, machines: tuple[MachineSpec, ...]) -> bool:
        names = {spec.name for spec in machines}
        together = [*self.machines.values(), *machines]
        alike = {(spec.cluster, spec.generation, spec.datacenter) for spec in together}
        fresh = bool(names) and len(names) == len(machines) and not names & self.machines.keys()
        return fresh and len(alike) == len({spec.cluster for spec in together})

    def _can_remove(self, names: tuple[str, ...]) -> bool:
        busy = {machine for _, machine, _ in self.vms.values()}
        return 0 < len(set(names)) == len(names) and not set(names) & busy and set(names) <= self.machines.keys()

    # ----------------------------------------------------------------------------------------------------- doing it

    def _do(self, proposal: Proposal, outcome: Committed) -> None:
        if isinstance(proposal, Ask):
            return
        if isinstance(proposal, Decline):
            self.declined[proposal.key] = proposal
            return
        self.done[proposal.key] = proposal
        of_machine = proposal.machine if isinstance(proposal, SetCondition) else ""
        self.generations[proposal.key] = outcome.versions.get(of_machine, outcome.stamp)
        match proposal:
            case Place():
                self._place(proposal, outcome)
            case Release():
                for vm in self._waiting_of(proposal.tenant) & set(proposal.waiting):
                    self.registry[WAITING, vm] = None
                for each in proposal.released:
                    del self.vms[each.vm]
                if proposal.released:
                    self._touch(proposal.released, proposal.tenant, outcome)
            case Move():
                self._move(proposal, outcome)
            case SetCondition():
                self._set_condition(proposal, outcome)
            case SetQuarantine():
                assert outcome.changed == ((proposal.cluster in self.closed) != proposal.quarantined)
                (self.closed.add if proposal.quarantined else self.closed.discard)(proposal.cluster)
            case Commission():
                for spec in proposal.machines:
                    self.machines[spec.name], self.versions[spec.name] = spec, 0
                    self.conditions[spec.name] = AS_NEW | dict(proposal.conditions.get(spec.name, {}))
            case Decommission():
                for name in proposal.machines:
                    del self.machines[name], self.versions[name], self.conditions[name]
                    self.registry[FAILURES, name] = None
                self.closed &= self._clusters().keys()
            case Register():
                assert outcome.changed == (self.registry.get((proposal.kind, proposal.name)) != proposal.value)
                self.registry[proposal.kind, proposal.name] = proposal.value

    def _set_condition(self, proposal: SetCondition, outcome: Committed) -> None:
        """One that was ready and is down has failed once more; no time passes here. What is said of failures stands."""
        machine, place = proposal.machine, (FAILURES, proposal.machine)
        before, counted = dict(self.conditions[machine]), self.registry.get(place)
        self.conditions[machine].update(proposal.condition)
        if "failures" in proposal.condition:
            self.registry[place] = None
        elif before["state"] == 0 and self.conditions[machine]["state"] == 2:
            self.conditions[machine]["failures"] += 1
            weight = 1 + (json.loads(counted)["weight"] if counted else 0.0)
            self.registry[place] = f'{{"weight":{weight},"at":0.0}}'
        changed = self.conditions[machine] != before
        assert outcome.changed == (changed or self.registry.get(place) != counted)
        self.versions[machine] += changed

    def _place(self, proposal: Place, outcome: Committed) -> None:
        """Victims go, tenant by tenant, and wait if they want to; then the rest comes."""
        gone: dict[str, list[PlacedVM]] = {}
        for victim in proposal.victims:
            gone.setdefault(victim.tenant, []).append(victim.vm)
            del self.vms[victim.vm.vm]
            assert victim.vm.vm not in self.evicted.setdefault(proposal.key, set()), "twice for one placement"
            self.evicted[proposal.key].add(victim.vm.vm)
            if victim.vm.spec.requeue and not victim.vm.vm.endswith(HOLD):
                waiting = Waiting(
                    tenant=victim.tenant,
                    spec=victim.vm.spec,
                    constraints=self.constraints[victim.tenant],
                    since=proposal.record.at,
                    cause=proposal.key,
                )
                self.registry[WAITING, victim.vm.vm] = msgspec.json.encode(waiting).decode()
        own = gone.pop(proposal.tenant, [])
        for each in proposal.leaving:
            del self.vms[each.vm]
        for tenant, vms in gone.items():
            for machine in {vm.machine for vm in vms}:
                self.versions[machine] += 1
            self._stamp(tenant, outcome.stamp if self._has_vms(tenant) else 0)
        for each in proposal.placed:
            self.vms[each.vm] = (proposal.tenant, each.machine, each.spec)
            if proposal.requeued:
                self.registry[WAITING, each.vm] = None
        self.constraints[proposal.tenant] = proposal.constraints
        self._touch((*proposal.placed, *own, *proposal.leaving), proposal.tenant, outcome)

    def _move(self, proposal: Move, outcome: Committed) -> None:
        tenant, vm = proposal.tenant, proposal.vm
        target = PlacedVM(vm.vm, vm.spec, proposal.machine)
        assert outcome.changed == (not _moved_already(proposal))
        if not outcome.changed:
            assert (outcome.versions, outcome.stamp) == ({}, self.stamps[tenant])
        elif proposal.hold:
            self.vms[hold_of(vm.vm)] = (tenant, proposal.machine, vm.spec)
            self._touch((target,), tenant, outcome)
        else:
            self.vms.pop(hold_of(vm.vm), None)
            self.vms[vm.vm] = (tenant, proposal.machine, vm.spec)
            self._touch((vm, target), tenant, outcome)

    def _touch(self, vms: tuple[PlacedVM, ...], tenant: str, outcome: Committed) -> None:
        """Machines have another version, the tenant has another stamp, or is gone."""
        machines = {each.machine for each in vms}
        for name in machines:
            self.versions[name] += 1
        assert outcome.versions == {name: self.versions[name] for name in machines}
        self._stamp(tenant, outcome.stamp)

    def _has_vms(self, tenant: str) -> bool:
        return any(owner == tenant for owner, _, _ in self.vms.values())

    def _stamp(self, tenant: str, stamp: int) -> None:
        """The tenant has another stamp, or is gone."""
        if self._has_vms(tenant):
            assert (tenant, stamp) not in self.used_stamps, "who knows the tenant as it was could not tell"
            self.used_stamps.add((tenant, stamp))
            self.stamps[tenant] = stamp
        else:
            assert stamp == 0
            del self.constraints[tenant]
            self.stamps.pop(tenant, None)

    # --------------------------------------------------------------------------------------------------- looking back

    def agrees_with(self, ledger: Ledger) -> None:
        """The ledger says the same, nothing is lost or there twice, and no machine has more than it bears."""
        assert {name: (row.tenant, row.machine, row.spec) for name, row in ledger.vms.items()} == self.vms
        assert {name: row.spec for name, row in ledger.machines.items()} == self.machines
        for name, row in ledger.machines.items():
            assert self._bears(name)
            assert row.version == self.versions[name]
            assert {field: getattr(row, field) for field in AS_NEW} == self.conditions[name]
        sizes = {name: len(machines) for name, machines in self._clusters().items()}
        assert {name: row.machines for name, row in ledger.clusters.items()} == sizes
        assert {name for name, row in ledger.clusters.items() if row.quarantined} == self.closed
        assert ledger.registry == {place: value for place, value in self.registry.items() if value is not None}
        counts: dict[str, int] = {}
        for tenant, _, _ in self.vms.values():
            counts[tenant] = counts.get(tenant, 0) + 1
        assert {name: (row.constraints, row.stamp, row.vms) for name, row in ledger.tenants.items()} == {
            name: (self.constraints[name], self.stamps[name], count) for name, count in counts.items()
        }


def _band(vm: VM) -> int:
    """Of a VM's priority: 0 is the highest."""
    return CATALOGUE.bands.index(vm.priority) if vm.priority else 0


def _get_along(runs: Iterable[tuple[str, VM]]) -> bool:
    """Whether VMs, each with its tenant, may share a machine."""
    runs = list(runs)
    if len({(tenant, vm.isolated) for tenant, vm in runs}) > 1 and any(vm.isolated for _, vm in runs):
        return False
    classes = [vm.colocation for _, vm in runs]
    return classes.count("single") < 2 and not any(pair <= set(classes) for pair in APART)


def _moved_already(proposal: Move) -> bool:
    """Whether nothing is left to do, if all is as the proposal says."""
    return proposal.hold if proposal.held else proposal.vm.machine == proposal.machine


def _what(spec: MachineSpec) -> tuple[object, ...]:
    """What a machine is and where it stands: one that was built anew elsewhere under its name is another one."""
    place = spec.datacenter, spec.cluster, spec.rack, spec.update_domain
    return *place, spec.generation, sorted(spec.features), tuple(spec.capacity)


def _name(outcome: Outcome) -> str:
    return outcome.reason if isinstance(outcome, Conflict) else type(outcome).__name__.lower()
