"""The validators marked for re-check, on rows that an authority hands over: the same compiled functions, at commit."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.engine.kernel.compiler import compile_rules
from roost.engine.kernel.native import Direct
from roost.engine.ruleset import RuleSet
from roost.engine.shape import Shapes
from roost.model.columns import Holding, MachineColumns
from roost.model.errors import InvalidInput
from roost.model.inventory import MachineSpec, machine_specs
from roost.model.request import VM
from roost.model.zone import CONDITION, Zone

MOST_NUMBERS = 100_000  # tenants remembered by number
UNKNOWN = -1  # the version of a row that was about to change, or never made


class TenantNumbers(dict[str, int]):
    """A number for each tenant that holds machines in isolation, as rows have them. Never zero, never used again.

    A tenant that has none gets one when it is asked for.
    """

    def __init__(self) -> None:
        super().__init__({"": 0})
        self._last = 0

    def __missing__(self, tenant: str) -> int:
        self._last += 1
        self[tenant] = self._last
        return self._last

    def peek(self, tenant: str) -> int:
        """A tenant's number, or the one it would get."""
        return self.get(tenant, self._last + 1)

    def names(self) -> dict[int, str]:
        """The tenants by number."""
        return {number: tenant for tenant, number in self.items()}

    def only(self, tenants: Container[str], numbers: Container[int]) -> None:
        """Forget all but these; a tenant that comes back is another one."""
        for name in [name for name, number in self.items() if number and name not in tenants and number not in numbers]:
            del self[name]


def rows_of(zone: Zone, holdings: Sequence[Holding], numbers: TenantNumbers) -> NDArray[np.void]:
    """Machine rows as rules read them, from what an authority holds; of a machine that the zone lacks, nonsense."""
    return rows_from(zone, MachineColumns.of(holdings), numbers)


def rows_from(zone: Zone, machines: MachineColumns, numbers: TenantNumbers) -> NDArray[np.void]:
    """The same from columns."""
    index = zone.machine_index
    at = [index.get(spec.name, -1) for spec in machines.spec]
    if not at:
        return zone.machines[:0].copy()
    rows = zone.machines[at]
    bands, resources = rows["free"].shape[1:]
    used = np.array(machines.used, np.int32).reshape(-1, bands, resources)
    rows["capacity"] = [spec.capacity for spec in machines.spec]
    rows["free"] = rows["capacity"][:, None, :] - np.cumsum(used, axis=1)
    rows["vms"] = machines.vms
    rows["owner"] = [numbers[owner] for owner in machines.owner]
    rows["isolated"] = np.where(rows["owner"] > 0, rows["vms"], 0)  # who holds a machine shares it with nobody
    rows["owners"] = rows["owner"].astype(np.int64) * rows["isolated"]
    if zone.classes:
        rows["classes"] = machines.classes
    for field in CONDITION:
        rows[field] = getattr(machines, field)
    return rows


def _positions(zone: Zone, holdings: Sequence[Holding]) -> dict[str, int]:
    """Where each stands in the list, but for those that the zone lacks, or knows as another one by the same name."""
    if not holdings:
        return {}
    specs = [holding.spec for holding in holdings]
    known = machine_specs(zone, [zone.machine_index.get(spec.name, -1) for spec in specs])  # -1: of another name
    return {spec.name: i for i, (spec, mine) in enumerate(zip(specs, known, strict=True)) if _same(spec, mine)}


def _same(spec: MachineSpec, mine: MachineSpec) -> bool:
    """Whether two describe the same machine, in whatever order its features are: hardware, and where it stands.

    So what a rule of clusters said of it, or of what it has, still holds if it is the same at the commit.
    """
    if spec.features != mine.features and sorted(spec.features) == sorted(mine.features):
        spec = msgspec.structs.replace(spec, features=mine.features)
    return spec == mine


class RecheckArm:
    """One set of rules, compiled, and the shapes it knows."""

    def __init__(self, zone: Zone, rules: RuleSet) -> None:
        self.rules, self.kernel = rules, compile_rules(rules, zone)
        self.admit, self.dismiss = Direct(self.kernel.admit), Direct(self.kernel.dismiss)
        self.shapes = Shapes(zone, rules)
        self.numbers = rules.numbers(zone)


def _only(_tenant: str) -> int:
    return 0


class CompiledRecheck:
    """Tests placements at commit, for one zone and one set of rules, or two that share the tenants."""

    def __init__(self, zone: Zone, *rules: RuleSet, arm_of: Callable[[str], int] = _only) -> None:
        """`arm_of`: which of the sets a tenant's VMs are decided by."""
        self.zone, self.arm_of = zone, arm_of
        self.arms = [RecheckArm(zone, each) for each in rules]
        self.numbers = TenantNumbers()

    def on(self, rows: Sequence[Holding]) -> RecheckedRows:
        """Test placements on these rows."""
        self._forget_numbers()
        return RecheckedRows(self, rows_of(self.zone, rows, self.numbers), _positions(self.zone, rows))

    def standing(self) -> RememberingRecheck:
        """The same for one authority: it remembers what rows look like."""
        return RememberingRecheck(self)

    def _forget_numbers(self) -> None:
        """Begin anew with the numbers of tenants, once there are too many."""
        if len(self.numbers) > MOST_NUMBERS:
            self.numbers = TenantNumbers()
            for arm in self.arms:
                arm.shapes = Shapes(self.zone, arm.rules)


class RememberingRecheck:
    """A re-check that remembers the rows it made, by their versions: to make them takes longer than to test them."""

    def __init__(self, recheck: CompiledRecheck) -> None:
        self._recheck = CompiledRecheck(recheck.zone, *(arm.rules for arm in recheck.arms), arm_of=recheck.arm_of)
        self._rows = recheck.zone.machines.copy()
        self._specs: list[MachineSpec | None] = [None] * len(self._rows)
        self._versions = [UNKNOWN] * len(self._rows)
        self._numbers = self._recheck.numbers  # that the rows are in

    def on(self, rows: Sequence[Holding]) -> RecheckedRows:
        """Test placements on these rows, one group at a time."""
        self._recheck._forget_numbers()
        if self._numbers is not self._recheck.numbers:
            self._numbers, self._versions = self._recheck.numbers, [UNKNOWN] * len(self._rows)
        index, specs, versions = self._recheck.zone.machine_index, self._specs, self._versions
        positions: dict[str, int] = {}
        changed: list[Holding] = []
        for holding in rows:
            spec = holding.spec
            at = index.get(spec.name)
            if at is not None and specs[at] is spec and versions[at] == holding.version:
                positions[spec.name] = at
                versions[at] = UNKNOWN  # until it is known what comes of it
            else:
                changed.append(holding)
        if changed:
            positions |= self._make(changed)
        return RecheckedRows(self._recheck, self._rows, positions)

    def _make(self, holdings: Sequence[Holding]) -> dict[str, int]:
        """Write the rows of these machines anew, of those that the zone has; returns the position of each."""
        zone = self._recheck.zone
        known = _positions(zone, holdings)
        holdings = [holding for holding in holdings if holding.spec.name in known]
        positions = {holding.spec.name: zone.machine_index[holding.spec.name] for holding in holdings}
        at = list(positions.values())
        self._rows[at] = rows_of(zone, holdings, self._numbers)
        for i, holding in zip(at, holdings, strict=True):
            self._specs[i], self._versions[i] = holding.spec, UNKNOWN
        return positions

    def written(self, rows: Iterable[Holding]) -> None:
        """These rows, of those that were tested last, are now what came of that."""
        index, specs = self._recheck.zone.machine_index, self._specs
        for holding in rows:
            if (at := index.get(holding.spec.name)) is not None and specs[at] is holding.spec:
                self._versions[at] = holding.version


class RecheckedRows:
    """The rows of one commit: each placement is tested on what those before it left."""

    def __init__(self, recheck: CompiledRecheck, rows: NDArray[np.void], positions: Mapping[str, int]) -> None:
        self.recheck, self.rows, self._at = recheck, rows, positions
        self._only = recheck.arms[0] if len(recheck.arms) == 1 else None

    def place(self, machine: str, vm: VM, tenant: str) -> str | None:
        """Put a VM on a machine if every validator agrees; else the reason of the first that does not."""
        at = self._at.get(machine)
        if at is None:
            return "not known here yet"
        recheck, arm = self.recheck, self._only or self._arm_of(tenant)
        try:
            shape = arm.shapes.of(vm, recheck.numbers[tenant] if vm.isolated else 0)
        except InvalidInput as error:  # decided by other rules, or for another zone
            return str(error)
        failure: int = arm.admit.call(self.rows, at, shape.row, shape.plain, arm.numbers)
        if failure < 0:
            return None
        detail = int(arm.kernel.machine_detail(self.rows[at], shape.record, failure))
        return arm.rules.validators[failure].reason(recheck.zone, detail)

    def replace(self, machine: str, vm: VM, tenant: str) -> str | None:
        """Test a VM on a machine that holds the same for it, without that. The row is the same afterwards."""
        at = self._at.get(machine)
        if at is None:
            return "not known here yet"
        before = self.rows[at].copy()
        self.remove(machine, vm, tenant)
        problem = self.place(machine, vm, tenant)
        if problem:
            self.rows[at] = before
        return problem

    def remove(self, machine: str, vm: VM, tenant: str) -> None:
        """Take a VM off a machine."""
        if (at := self._at.get(machine)) is not None:
            recheck, arm = self.recheck, self._only or self._arm_of(tenant)
            shape = arm.shapes.of_running(vm, recheck.numbers[tenant] if vm.isolated else 0)
            arm.dismiss.call(self.rows, at, shape.plain)

    def keep(self, machines: Iterable[str]) -> dict[int, np.void]:
        """Machines as they are."""
        return {at: self.rows[at].copy() for name in machines if (at := self._at.get(name)) is not None}

    def put_back(self, kept: Mapping[int, np.void]) -> None:
        """Let machines be as they were when they were kept."""
        for at, row in kept.items():
            self.rows[at] = row

    def set_condition(self, machine: str, field: str, value: int) -> None:
        """A machine's condition changed."""
        if (at := self._at.get(machine)) is not None:
            self.rows[field][at] = value

    def has_rule(self, rule: str, tenant: str) -> bool:
        """Whether the policy that decides for a tenant has a rule of this name."""
        return rule in self._arm_of(tenant).rules.names

    def _arm_of(self, tenant: str) -> RecheckArm:
        """What decides for a tenant."""
        return self.recheck.arms[self.recheck.arm_of(tenant)]
