"""A copy of a zone that things are done to: a store in memory, an agent that decides and commits as ever, and what a
service does by itself: what is on machines that are down is healed, and what gave way and wants to comes back.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from roost.admission.standing import standings
from roost.agent.operation import Answer, Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.release import ReleaseVMs
from roost.duties.healing import vms_on
from roost.duties.healing_now import heal_now
from roost.duties.turns import LONGEST_PAUSE
from roost.duties.virtual import VirtualRoster
from roost.engine.capacity import room_for
from roost.engine.ruleset import PolicySplit
from roost.engine.steps import finish
from roost.model.errors import InvalidInput, InvariantBroken
from roost.model.request import HOLD, UNCONSTRAINED, VM
from roost.model.rows import MachineState
from roost.model.thresholds import PURPOSES, WORDS, Purpose
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.rules.policy import Policy
from roost.store.ledger import Ledger, VMRow
from roost.store.memory import MemoryStore
from roost.whatif.measures import Measures, measure, type_mix
from roost.wiring import open_agent

PATIENCE = 3_600.0  # seconds: the whole zone may be placed anew
EXPLAINED = 20  # kinds of VMs that find no machine are explained; each is a scan of the zone
TICK = 1.0  # seconds of a trial's own time, between two looks of its duties
QUIET = 10 * LONGEST_PAUSE  # seconds of it without a change, after which those that are still tried never find room


class ZoneState(Measures, frozen=True, kw_only=True):
    """A zone at one moment, and what more would fit."""

    room: dict[str, int]  # by VM type: how many more fit, if nothing else came


class Homeless(msgspec.Struct, frozen=True):
    """A VM that found no machine, and why."""

    vm: str
    tenant: str
    type: str
    priority: str
    why: str


class TrialZone:
    """A zone where everything can be tried; the ledger it began with stays as it is."""

    def __init__(self, ledger: Ledger, policy: Policy | PolicySplit, seed: int = 0, began: float | None = None) -> None:
        """`began`: the time of day at which all of this is, in seconds since 1970; else it is now."""
        self.store = MemoryStore(ledger.catalogue, ledger.copy())
        # Stands still while the agent thinks: no answer depends on how fast this computer is. It is the time of day,
        # too, so that VMs and failures are as old here as they are in the zone.
        self._now = time.time() if began is None else began
        clock = self._clock
        self._agent = open_agent(self.store, policy, "what-if", seed=seed, clock=clock, now=clock)
        self._types = type_mix(self.allocator.zone, (vm.spec for vm in ledger.vms.values()))
        self._reasons: dict[bytes, str] = {}  # by what was asked for
        self._duties = VirtualRoster(self._agent, clock, self._note)
        self.gave_way: set[str] = set()  # VMs that had to, to a higher priority, since the beginning

    def _clock(self) -> float:
        return self._now

    @property
    def allocator(self) -> Allocator:
        """What decides, on the agent's copy."""
        return self._agent.allocator

    def do(self, *operations: Operation) -> list[Answer]:
        """Do these, one after another; what makes no sense is refused."""
        answers = [ticket.answer for ticket in self._asked(*operations) if ticket.answer]
        for answer in answers:
            if answer.status == "invalid":
                raise InvalidInput(answer.where or "what-if", answer.detail)
        return answers

    def _asked(self, *operations: Operation) -> list[Ticket]:
        """All of them are answered."""
        tickets = [self._agent.submit(each, by="what-if") for each in operations]
        self._agent.run(*tickets, seconds=PATIENCE)
        for ticket in tickets:
            self._note(ticket)
        return tickets

    def _note(self, ticket: Ticket) -> None:
        if ticket.answer:
            self.gave_way.update(each.vm for each in ticket.answer.evicted)

    def rest(self) -> None:
        """Let what a service does by itself come to its end, tick by tick as there; no time is spent waiting.

        Whoever is tried again and again, as the policy does not know what it asks for, is not waited for for ever.
        """
        changed, revision = self._now, -1
        while self._now - changed < QUIET:
            self._duties.step(self._now)
            if self._duties.failing:
                raise InvariantBroken(f"duties failed: {self._duties.failing}")
            while not self._agent.idle:
                self._agent.step(TICK)
            self._agent.step()  # and hear of what was done last
            if self._duties.at_rest:
                return
            if self._agent.replica.revision != revision:
                changed, revision = self._now, self._agent.replica.revision
            self._now += TICK

    def state(self) -> ZoneState:
        """How full the zone is, and what more would fit."""
        found = measure(self.allocator, self._types)
        return ZoneState(**msgspec.structs.asdict(found), room=self.room())

    def room(self) -> dict[str, int]:
        """How many more of each type fit, if nothing else came; of those that the policy knows how to place."""
        arm, found = self.allocator.arms[0], {}
        for vm_type in self.allocator.zone.vm_types:
            try:
                found[vm_type.name] = room_for(arm.engine, arm.shapes.of(VM(vm_type.name), 0)).total
            except InvalidInput:
                continue
        return found

    def runs(self, vm: str) -> bool:
        """Whether a VM is on a machine that works."""
        row = self.store.vm(vm)
        machine = self.store.machine(row.machine) if row else None
        return machine is not None and machine.state != MachineState.DOWN

    def why_not(self, operation: Operation) -> str:
        """Why an operation finds no machine now, in one line, as a service explains it."""
        ticket, _ = self._agent.rehearse(operation, by="what-if")
        if ticket.decision is None or ticket.decision.ok:
            return ticket.answer.detail if ticket.answer else "it found none when it was tried"
        found = finish(ticket.decision.explaining(remedied=False))
        kept = _kept(self.allocator, ticket.decision.purpose) if found.failure == "threshold" else ""
        return f"{kept}{found.summary}"

    # ------------------------------------------------------------------------------------------- moving house

    def vms_on(self, machines: Iterable[str]) -> dict[str, VMRow]:
        """The VMs that run on some machines."""
        wanted, ledger = set(machines), self.store.load()
        wanted = {name for name in wanted if ledger.machines[name].state != MachineState.DOWN}
        return {n: vm for n, vm in ledger.vms.items() if vm.machine in wanted and not n.endswith(HOLD)}

    def clear(self, machines: Sequence[str]) -> None:
        """Bring the VMs of some machines elsewhere, as `roost machine drain` and `roost heal now` do."""
        zone, states = self.allocator.zone, self.allocator.view.machines["state"]
        rows = [zone.machine(name) for name in machines]
        ready = [name for name, row in zip(machines, rows, strict=True) if states[row] == MachineState.READY]
        self.do(*(SetMachine(name, state="draining") for name in ready))
        self._heal(vms_on(self.allocator, rows))

    def _heal(self, vms: Iterable[RunningVM]) -> None:
        """Place VMs elsewhere, those that find a machine. Some may have had to give way meanwhile."""
        healing = heal_now(vms)
        with suppress(StopIteration):
            wishes = next(healing)
            while True:
                wishes = healing.send(self._asked(*wishes))

    def release_all(self, machines: Iterable[str]) -> None:
        """Take off what is left on some machines, and what is held there."""
        wanted, by_tenant = set(machines), dict[str, list[str]]()
        for name, vm in self.store.load().vms.items():
            if vm.machine in wanted:
                by_tenant.setdefault(vm.tenant, []).append(name)
        self.do(*(ReleaseVMs(tenant, tuple(names)) for tenant, names in by_tenant.items()))

    def homeless(self, vms: Mapping[str, VMRow]) -> tuple[Homeless, ...]:
        """Those of some VMs that are still where they were, or nowhere, and why."""
        found = []
        for name, vm in vms.items():
            now = self.store.vm(name)
            if now is None or now.machine == vm.machine:
                why = self._why_homeless(name, vm) if now else "it had to give way to a higher priority"
                found.append(Homeless(name, vm.tenant, vm.spec.type, vm.spec.priority, why))
        return tuple(found)

    def _why_homeless(self, name: str, vm: VMRow) -> str:
        """Asked of so many kinds of VMs only; then it says nothing."""
        constraints = self.allocator.tenants[vm.tenant].constraints
        whose = "" if constraints == UNCONSTRAINED else vm.tenant
        kind = msgspec.json.encode((msgspec.structs.replace(vm.spec, name=""), whose))
        if kind not in self._reasons and len(self._reasons) < EXPLAINED:
            self._reasons[kind] = self.why_not(HealVMs(vm.tenant, (name,)))
        return self._reasons.get(kind, "")


def _kept(allocator: Allocator, purpose: Purpose) -> str:
    """Which machines are kept empty from what is asked for, and what for: the beginning of a sentence."""
    closed = [each for each in standings(allocator, {}) if PURPOSES[purpose] in each.reached]
    machines = sum(each.empty for each in closed)
    where = closed[0].cluster if len(closed) == 1 else f"{len(closed):,} clusters"
    later = " and ".join(WORDS[purpose + 1 :]) or "nobody"
    return f"{machines:,} machines of {where} are kept empty for {later}; "


def unspread(ledger: Ledger) -> set[str]:
    """Tenants that run in fewer fault domains (racks) than they, or their sets, ask for and have VMs for."""
    racks: dict[tuple[str, str], set[str]] = {}
    count: Counter[tuple[str, str]] = Counter()
    wished: dict[tuple[str, str], int] = {}
    for tenant, row in ledger.tenants.items():
        wished[tenant, ""] = row.constraints.min_fault_domains
        wished |= {(tenant, name): wanted.fault_domains for name, wanted in row.constraints.sets.items()}
    for name, vm in ledger.vms.items():
        part, machine = (vm.tenant, vm.spec.set), ledger.machines[vm.machine]
        if wished[part] and machine.state != MachineState.DOWN and not name.endswith(HOLD):
            count[part] += 1
            racks.setdefault(part, set()).add(machine.spec.rack)
    return {part[0] for part, there in racks.items() if len(there) < min(wished[part], count[part])}
