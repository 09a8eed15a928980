"""A copy of a zone that things are done to: a store in memory, and an agent that decides and commits as ever."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from roost.agent.allocator import Allocator
from roost.agent.operation import Answer, Operation, PlaceVMs, ReleaseVMs
from roost.agent.order import placing_order
from roost.engine.capacity import room_for
from roost.engine.ruleset import PolicySplit
from roost.model.errors import InvalidInput
from roost.model.request import HOLD, VM, Request
from roost.model.thresholds import Purpose
from roost.rules.policy import Policy
from roost.store.ledger import Ledger, TenantRow, VMRow
from roost.store.memory import MemoryStore
from roost.whatif.measures import Measures, measure, type_mix
from roost.wiring import open_agent

PATIENCE = 3_600.0  # seconds: the whole zone may be placed anew
EXPLAINED = 20  # kinds of VMs that find no machine are explained; each is a scan of the zone


class State(Measures, frozen=True, kw_only=True):
    """A zone at one moment, and what more would fit."""

    room: dict[str, int]  # by VM type: how many more fit, if nothing else came


class Homeless(msgspec.Struct, frozen=True):
    """A VM that found no machine, and why."""

    vm: str
    tenant: str
    type: str
    priority: str
    why: str


class Stage:
    """A zone where everything can be tried; the ledger it began with stays as it is."""

    def __init__(self, ledger: Ledger, policy: Policy | PolicySplit, seed: int = 0) -> None:
        self.store = MemoryStore(ledger.catalogue, ledger.copy())
        self._agent = open_agent(self.store, policy, "what-if", seed=seed)
        self._types = type_mix(self.allocator.zone, (vm.spec for vm in ledger.vms.values()))
        self._reasons: dict[bytes, str] = {}  # by what was asked for
        self.gave_way = 0  # VMs that had to, to a higher priority, since the beginning

    @property
    def allocator(self) -> Allocator:
        """What decides, on the agent's copy."""
        return self._agent.allocator

    def do(self, *operations: Operation) -> list[Answer]:
        """Do these, one after another."""
        tickets = [self._agent.submit(each, by="what-if") for each in operations]
        answers = self._agent.run(*tickets, seconds=PATIENCE)
        for answer in answers:
            if answer.status == "invalid":
                raise InvalidInput(answer.where or "what-if", answer.detail)
            self.gave_way += len(answer.evicted)
        return answers

    def state(self) -> State:
        """How full the zone is, and what more would fit."""
        found = measure(self.allocator, self._types)
        return State(**msgspec.structs.asdict(found), room=self.room())

    def room(self) -> dict[str, int]:
        """How many more of each type fit, if nothing else came; of those that the policy knows how to place."""
        arm, found = self.allocator.arms[0], {}
        for vm_type in self.allocator.zone.vm_types:
            try:
                found[vm_type.name] = room_for(arm.engine, arm.shapes.of(VM(vm_type.name), 0)).total
            except InvalidInput:
                continue
        return found

    def why_not(self, vm: VM, tenant: str) -> str:
        """Why a VM finds no machine, in one line. Asked of so many kinds of VMs only; then it says nothing."""
        known = self.store.tenant(tenant)
        wish = Request(tenant, [msgspec.structs.replace(vm, name="")], known.constraints if known else None)
        kind = msgspec.json.encode((wish.vms, wish.constraints))
        if kind not in self._reasons and len(self._reasons) < EXPLAINED:
            self._reasons[kind] = self.allocator.explain(wish, purpose=Purpose.HEALING).summary
        return self._reasons.get(kind, "")

    # ------------------------------------------------------------------------------------------- moving house

    def take_off(self, machines: Iterable[str]) -> dict[str, VMRow]:
        """Release all VMs of some machines; returns them. What was held for moves is released and forgotten."""
        wanted = set(machines)
        gone = {name: vm for name, vm in self.store.load().vms.items() if vm.machine in wanted}
        by_tenant: dict[str, list[str]] = {}
        for name, vm in gone.items():
            by_tenant.setdefault(vm.tenant, []).append(name)
        self.do(*(ReleaseVMs(tenant, tuple(names)) for tenant, names in by_tenant.items()))
        return {name: vm for name, vm in gone.items() if not name.endswith(HOLD)}

    def place_again(self, vms: dict[str, VMRow], tenants: dict[str, TenantRow]) -> list[Homeless]:
        """Place VMs that ran before, the highest priority first, a tenant's together if they can; returns the rest."""
        groups: dict[tuple[int, str], list[str]] = {}
        bands = self.allocator.zone.bands
        for name, vm in vms.items():
            band = bands.index(vm.spec.priority) if vm.spec.priority else 0
            groups.setdefault((band, vm.tenant), []).append(name)
        homeless: list[Homeless] = []
        for band in sorted({band for band, _ in groups}):
            here = [names for (other, _), names in groups.items() if other == band]
            homeless += self._place_groups(self._hardest_first(here, vms), vms, tenants)
        return homeless

    def _hardest_first(self, groups: Sequence[list[str]], vms: dict[str, VMRow]) -> list[list[str]]:
        shapes = [self.allocator.running_shape(vms[names[0]].spec, vms[names[0]].tenant) for names in groups]
        return [groups[i] for i in placing_order(self.allocator.zone, shapes)] if shapes else []

    def _place_groups(
        self, groups: Sequence[list[str]], vms: dict[str, VMRow], tenants: dict[str, TenantRow]
    ) -> list[Homeless]:
        def wish(names: Sequence[str]) -> PlaceVMs:
            tenant = vms[names[0]].tenant
            named = [msgspec.structs.replace(vms[name].spec, name=name) for name in names]
            return PlaceVMs(Request(tenant, named, tenants[tenant].constraints), healing=True)

        answers = self.do(*(wish(names) for names in groups))
        apart = [[name] for names, answer in zip(groups, answers, strict=True) if not answer.ok for name in names]
        answers = self.do(*(wish(single) for single in apart))
        homeless = []
        for (name,), answer in zip(apart, answers, strict=True):
            if not answer.ok:
                vm = vms[name]
                why = self.why_not(vm.spec, vm.tenant)
                homeless.append(Homeless(name, vm.tenant, vm.spec.type, vm.spec.priority, why))
        return homeless


def unspread(ledger: Ledger) -> set[str]:
    """Tenants that are in fewer fault domains (racks) than they, or their sets, ask for and have VMs for."""
    racks: dict[tuple[str, str], set[str]] = {}
    count: Counter[tuple[str, str]] = Counter()
    wished: dict[tuple[str, str], int] = {}
    for tenant, row in ledger.tenants.items():
        wished[tenant, ""] = row.constraints.min_fault_domains
        wished |= {(tenant, name): wanted.fault_domains for name, wanted in row.constraints.sets.items()}
    for name, vm in ledger.vms.items():
        part = vm.tenant, vm.spec.set
        if wished[part] and not name.endswith(HOLD):
            count[part] += 1
            racks.setdefault(part, set()).add(ledger.machines[vm.machine].spec.rack)
    return {part[0] for part, there in racks.items() if len(there) < min(wished[part], count[part])}
