"""An agent's own copy of what a store holds, which runs ahead of the store's feed. The hardest file of the house.

An agent must not wait for the store: while one round of placements is being committed, it decides the next, and that
must not put two VMs where one fits. So a placement is on the copy from the moment it is decided, long before anybody
knows whether the store takes it. Meanwhile others commit, too, and what they did reaches the copy late, by the feed,
or early, as fresh rows that come with a lost race. At any moment, then,

    rows of the copy  =  the store at `revision`                          what the feed has brought
                      +  own placements beyond that (`ahead`)             decided here, the feed has not brought them
                      except machines learnt from a conflict (`adopted`)  as the store had them then, + own in flight

A placement of the agent's own goes this way:

    decided ──▶ ASSUMED ──committed──▶ CONFIRMED ──the feed brings it──▶ one of many: it is in `revision`
                   │                       versions and stamp are known;
                   │                       nobody else's change can be missed
                   ├──conflict, rejected──▶ TAKEN BACK: exactly as if it had never been; fresh rows are adopted
                   └──nobody knows: store away──▶ TAKEN BACK: if it was committed all the same, the feed brings it

- *Assume* writes into rows and books at once. VMs that give way to it, or are placed elsewhere by it, leave the rows
  at once, too, but stay in the books (`leaving`) until the feed says that they are gone: they may yet stay.
- *Confirm* changes nothing that is decided by. It remembers the versions that the store gave to the machines. If a
  version is the next one after the one known here, nobody else's change lies between, and that machine is as new as
  the store's.
- *Take back* undoes one placement out of many, in any order. That works as rows are sums: whatever was added can be
  subtracted, whoever else added something meanwhile. (Who owns an isolated machine is therefore a sum, too.)
- *Adopt* believes rows that came with a conflict. They are newer than the feed, so the feed's entries up to that
  version must not be applied to them again: they change the books only. `adopted` says for which machines, and up to
  which version.
- *Follow* applies the feed. An entry of the agent's own is known already, so it only moves the revision, if the round
  is plain: its entries are the placements that were assumed and nothing else. It has to wait until the store has
  answered the round (`settled`), else the copy would not know whether to count it.

Two names can collide: the agent names a VM as somebody else did, who was faster. Then the other's VM stands aside
(`shadowed`) until the agent's own is refused, as it will be, and takes the name.

What is broken here shows in tests/property/test_agents_agree_with_the_store.py: it delays commits and news in every
way, and compares each copy with the store, row by row. See decision 13.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from roost.agent.agreed import Agreed
from roost.agent.in_bulk import InBulk
from roost.agent.loading import running_of, tenants_of
from roost.agent.relief import Relief
from roost.engine.choice import BEST, Choice
from roost.engine.recheck import rows_from, rows_of
from roost.engine.ruleset import PolicySplit, RulePolicy
from roost.engine.selection import CacheLimits
from roost.engine.tenant import NOWHERE
from roost.engine.view import View
from roost.model.change import Entry
from roost.model.errors import InvariantBroken
from roost.model.inventory import machine_specs, zone_of
from roost.model.request import UNCONSTRAINED, Constraints, Request
from roost.model.rows import MachineState
from roost.model.thresholds import Purpose
from roost.model.zone import CONDITION
from roost.placing.allocator import Allocator
from roost.placing.books import RunningVM
from roost.placing.decision import Decision
from roost.placing.search import Search
from roost.store.columns import ZoneColumns
from roost.store.contract import Victim
from roost.store.feed import FeedRow
from roost.store.ledger import MachineRow


class Ahead(msgspec.Struct, eq=False, gc=False):
    """What an agent placed for one request, before the feed brought it."""

    tenant: str
    constraints: Constraints
    vms: tuple[RunningVM, ...]
    victims: tuple[RunningVM, ...]
    left: tuple[RunningVM, ...]  # the same VMs where they were, and what was held for them
    created: int  # what the tenant's counter of names was
    versions: Mapping[str, int] | None = None  # of its machines, once it is committed


@dataclass(slots=True)
class RoundAhead:
    """The placements of one round by position; `settled` when the store has answered."""

    placed: dict[int, Ahead] = field(default_factory=dict)
    settled: bool = False
    plain: bool = True  # the round's entries in the feed are these placements and nothing else


class Replica:
    """A copy of a zone that follows a store's feed and may run ahead of it."""

    def __init__(
        self,
        loaded: ZoneColumns,
        policy: RulePolicy | PolicySplit,
        seed: int = 0,
        *,
        limits: CacheLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        zone = zone_of(loaded.catalogue, loaded.machines.spec)
        self.revision = loaded.revision
        self.allocator = allocator = Allocator(zone, policy, seed, limits=limits, clock=clock)
        self.relief = Relief(len(zone.clusters))  # whatever may give room to VMs that found none
        at = {spec.name: i for i, spec in enumerate(loaded.machines.spec)}
        machines = loaded.machines.take([at[name] for name in zone.machine_names])
        allocator.view.restock(rows_from(zone, machines, allocator.numbers))
        for c, name in enumerate(zone.cluster_names):
            if loaded.clusters[name].quarantined:
                allocator.view.set_quarantine(c, True)
        allocator.stock(tenants_of(loaded.tenants), running_of(allocator, loaded.vms))
        # By machine row: the version that the feed brought last, and the one learnt from a conflict.
        self.fed = list(machines.version)
        self.adopted: dict[int, int] = {}
        self.ahead: dict[int, RoundAhead] = {}  # by round
        # VMs of others whose names the agent has given to VMs ahead of the feed. When the feed gets there, they are
        # gone, or else the agent's own are refused.
        self.shadowed: dict[str, RunningVM] = {}
        # Those that give way to what was placed ahead of the feed, or were placed elsewhere, stay in the books until it
        # says so, too.
        self.leaving = allocator.leaving
        self._agreed = Agreed(loaded.registry, allocator, self.relief)
        self.registry, self.waiting = self._agreed.registry, self._agreed.waiting
        self.reshaped = False  # the zone has other machines by now: load it anew
        self._in_bulk = InBulk(self)

    def seen(self, machine: int) -> int:
        """The version of a machine that the copy knows."""
        return max(self.fed[machine], self.adopted.get(machine, 0))

    @property
    def view(self) -> View:
        """The rows."""
        return self.allocator.view

    # ------------------------------------------------------------------------------------------- running ahead

    def place(
        self,
        request: Request,
        round_: int,
        position: int,
        choice: Choice = BEST,
        at: float = 0.0,
        purpose: Purpose | None = None,
        leaving: Sequence[RunningVM] = (),
        search: Search | None = None,
        aside: NDArray[np.int64] = NOWHERE,
    ) -> Decision:
        """Place a request here and now, ahead of the feed; MustWait is raised if what would have to go is unclear."""
        known = self.allocator.tenants.get(request.tenant)
        created = known.created if known else 0
        decision = self.allocator.decide(request, choice, at, self.unclear, leaving, purpose, search, aside)
        if vms := decision.running:
            ahead = Ahead(request.tenant, decision.constraints, vms, decision.victims, tuple(leaving), created)
            self.ahead[round_].placed[position] = ahead
            for each in (*decision.victims, *leaving):
                self.leaving[each.name] = each
        if vms and leaving:
            names = {vm.name for vm in vms}
            self.shadowed.update((each.name, each) for each in leaving if each.name in names)
        return decision

    def unclear(self, vm: RunningVM) -> bool:
        """Whether the store may know a VM otherwise: it is leaving, its machine is, or it is not committed yet."""
        if vm.name in self.leaving or vm.machine in self.adopted:
            return True
        return any(
            vm in ahead.vms for each in self.ahead.values() if not each.settled for ahead in each.placed.values()
        )

    def victims(self, round_: int, position: int) -> tuple[Victim, ...]:
        """What gives way to something that was placed ahead of the feed."""
        tenants, victims = self.allocator.tenants, self.ahead[round_].placed[position].victims
        return tuple(Victim(vm.tenant, vm.placed, tenants[vm.tenant].stamp) for vm in victims)

    def take_back(self, round_: int, position: int) -> None:
        """Undo a placement that was not committed, exactly."""
        ahead = self.ahead[round_].placed.pop(position)
        for vm in reversed(ahead.vms):
            self.view.remove(vm.machine, vm.shape)
            self._relieve(vm.machine)
            self.allocator.strike(vm, heir=self.shadowed.pop(vm.name, None))
        for each in (*ahead.victims, *ahead.left):
            if self.leaving.get(each.name) is each:  # else the feed has taken it away meanwhile
                del self.leaving[each.name]
                self.view.place(each.machine, each.shape)
        if tenant := self.allocator.tenants.get(ahead.tenant):
            tenant.created = ahead.created

    def confirm(self, round_: int, position: int, versions: Mapping[str, int], before: int, stamp: int) -> None:
        """A placement is committed; the feed will bring it. Its tenant has a stamp instead of the one before."""
        ahead = self.ahead[round_].placed[position]
        ahead.versions = versions
        index, fed, adopted = self.allocator.zone.machine_index, self.fed, self.adopted
        for name, version in versions.items():
            machine = index[name]
            seen = self.seen(machine) if adopted else fed[machine]
            if version == seen + 1:  # nobody else's change lies between
                fed[machine] = version
        tenant = self.allocator.tenants[ahead.tenant]
        if tenant.stamp == before:
            tenant.stamp, tenant.constraints = stamp, ahead.constraints
        else:  # somebody's change lies between: who has the stamp must know all VMs, so the feed is to bring it
            self.ahead[round_].plain = False

    def adopt(self, rows: Iterable[MachineRow], round_: int) -> None:
        """Believe rows that came with a conflict of a round, unless the feed has brought newer ones."""
        index, view, numbers = self.allocator.zone.machine_index, self.view, self.allocator.numbers
        for row in rows:
            machine = index.get(row.spec.name)
            if machine is None or self.seen(machine) >= row.version or self._leaves(machine, round_):
                continue
            view.adopt(machine, rows_of(self.allocator.zone, [row], numbers))
            self._relieve(machine)
            for number, later in self.ahead.items():
                if number > round_:  # not committed yet, so not in the row
                    for ahead in later.placed.values():
                        for vm in ahead.vms:
                            if vm.machine == machine:
                                view.place(machine, vm.shape)
            self.adopted[machine] = row.version

    def _leaves(self, machine: int, round_: int) -> bool:
        """Whether a VM of a machine leaves it in a later round: whether a fresh row has it nobody can tell."""
        return bool(self.leaving) and any(
            each.machine == machine and each.name in self.leaving
            for number, later in self.ahead.items()
            if number > round_
            for ahead in later.placed.values()
            for each in (*ahead.victims, *ahead.left)
        )

    def beyond(self) -> tuple[tuple[int, int], ...]:
        """(round, position) of each placement that runs ahead of the feed."""
        if not self.ahead:
            return ()
        return tuple((number, position) for number, each in self.ahead.items() for position in each.placed)

    def adopted_rows(self) -> tuple[MachineRow, ...]:
        """The machines learnt from conflicts, as the view has them now."""
        if not self.adopted:
            return ()
        machines = list(self.adopted)
        return holdings_of(self.allocator, machines, [self.adopted[m] for m in machines])

    # --------------------------------------------------------------------------------------------- following

    def follow(self, row: FeedRow, agent: str = "", *, more: bool = False) -> bool:
        """Apply what a row of the feed brings, unless it is the agent's own and the store's answer is still to come.

        `more`: others follow at once, and then `flush`; until then nobody looks at what others placed or released.
        """
        if row.last <= self.revision:
            return True
        if row.first > self.revision + 1:
            raise InvariantBroken(f"the feed goes from revision {self.revision} to {row.first}")
        own = self.ahead.get(row.round) if row.agent == agent else None
        if own is not None and not own.settled:
            return False
        if own is not None:
            if not own.plain:
                self._apply_row(row, own)
            self._caught_up(row.round)
        elif row.first <= self.revision or not self._in_bulk.add_row(row):
            self._apply_row(row, None)
        self.revision = row.last
        if not more:
            self.flush()
        return True

    def flush(self) -> None:
        """Let the rows have all that was followed."""
        self._in_bulk.flush()

    def _apply_row(self, row: FeedRow, own: RoundAhead | None) -> None:
        """Entry by entry, those that are news."""
        self.flush()
        for number, entry in enumerate(row.entries, row.first):
            if number > self.revision:
                self._apply(entry, own)

    def _caught_up(self, round_: int) -> None:
        """The feed has brought everything of a round."""
        own, index, fed = self.ahead.pop(round_), self.allocator.zone.machine_index, self.fed
        for ahead in own.placed.values():
            for name, version in (ahead.versions or {}).items():
                machine = index[name]
                if version > fed[machine]:
                    fed[machine] = version
                if self.adopted:
                    self._passed(machine, version)

    def _passed(self, machine: int, version: int) -> None:
        if self.adopted.get(machine, version + 1) <= version:
            del self.adopted[machine]

    def passes(self, machine: int, version: int) -> bool:
        """The feed brings a machine of some version; whether its row has that already, as it came with a conflict."""
        known = self.adopted.get(machine, -1)
        self._passed(machine, version)
        return version <= known

    def has_left(self, running: RunningVM) -> bool:
        """The feed releases a VM; whether it is off the rows already, as it was to give way or to go elsewhere."""
        if self.leaving.get(running.name) is not running:
            return False
        del self.leaving[running.name]
        return True

    def apply(self, entry: Entry) -> None:
        """Let a copy that runs not ahead be as it is after the next entry."""
        self._apply(entry, None)
        self.revision += 1

    def _apply(self, entry: Entry, own: RoundAhead | None) -> None:
        """Let the copy be as it is after an entry. Of its own placements only the books' stamps are news."""
        allocator, view, index = self.allocator, self.view, self.allocator.zone.machine_index
        if entry.reshapes:
            self.reshaped = True
            return
        if entry.registered:
            for each in entry.registered:
                self._agreed.register(each)
        mine = own is not None and bool(entry.placed) and any(a.tenant == entry.tenant for a in own.placed.values())
        fed, adopted = self.fed, self.adopted
        news = {}
        for name, version in entry.versions.items():
            machine = index[name]
            news[name] = not mine and (not adopted or version > adopted.get(machine, -1))
            if version > fed[machine]:
                fed[machine] = version
        known = allocator.tenants.get(entry.tenant)
        for placed in entry.released:
            running = self.strike(placed.vm, placed.machine)
            if not self.has_left(running) and news[placed.machine]:
                view.remove(running.machine, running.shape)
            self._relieve(running.machine)
        if known is not None and entry.placed:
            allocator.tenants[entry.tenant] = known  # its only VM has moved: it is the same tenant still
        if not mine:
            for placed in entry.placed:
                spec, name = placed.spec, placed.machine
                machine, shape = index[name], allocator.running_shape(spec, entry.tenant)
                if news[name]:
                    view.place(machine, shape)
                self.enter(RunningVM(placed, entry.tenant, machine, shape))
        if known is not None and known.constraints != UNCONSTRAINED:
            self.relief.change(entry.tenant)
        for change in entry.conditions:
            if news[change.machine]:
                view.set_field(index[change.machine], change.field, change.after)
            if change.field != "state" or change.after == MachineState.READY:
                self.relief.open(int(view.machines[index[change.machine]]["cluster"]))
        for shut in entry.quarantines:
            cluster = allocator.zone.cluster(shut.cluster)
            view.set_quarantine(cluster, shut.after)
            self.relief.open(cluster)
        if (tenant := allocator.tenants.get(entry.tenant)) and entry.after > tenant.stamp:
            tenant.stamp, tenant.constraints = entry.after, entry.constraints
        if self.adopted:
            for name, version in entry.versions.items():
                self._passed(index[name], version)

    def _relieve(self, machine: int) -> None:
        """Something is on a machine no longer. Of one that is down that helps nobody."""
        row = self.view.machines[machine]
        if row["state"] != MachineState.DOWN:
            self.relief.free(int(row["cluster"]))

    def relieve(self, machines: NDArray[np.int64]) -> None:
        """The same of many."""
        rows = self.view.machines
        up = machines[rows["state"][machines] != MachineState.DOWN]
        for cluster in sorted(set(rows["cluster"][up].tolist())):
            self.relief.free(cluster)

    def strike(self, vm: str, machine: str) -> RunningVM:
        """Strike a VM from the books that the feed releases; says which."""
        running = self.shadowed.pop(vm, None) or self.allocator.vms.get(vm)
        if running is None or running.placed.machine != machine:
            raise InvariantBroken(f"the feed releases VM {vm}, which is not on {machine}")
        self.allocator.strike(running)
        return running

    def enter(self, running: RunningVM) -> None:
        """Write somebody's VM into the books, under its name unless the agent has given that to a VM of its own."""
        own = self.allocator.vms.get(running.name)
        if own is None:
            self.allocator.enter(running)
            return
        self.shadowed[running.name] = running
        if own.tenant != running.tenant:
            self.allocator.enter(running, named=False)


def holdings_of(allocator: Allocator, machines: Sequence[int], versions: Sequence[int]) -> tuple[MachineRow, ...]:
    """Rows of a view as a store would have them."""
    zone, rows = allocator.zone, allocator.view.machines[list(machines)]
    specs = machine_specs(zone, machines)
    owners = allocator.numbers.names()
    # `free` of a band is what is left by it and the bands above, so a band's own use is the difference.
    left = np.concatenate([rows["capacity"][:, None, :], rows["free"]], axis=1)
    used = (left[:, :-1] - left[:, 1:]).reshape(len(rows), -1).tolist()
    classes = rows["classes"][:, : len(zone.classes)].tolist()
    owned = [owners[number] for number in rows["owner"].tolist()]
    condition = [rows[name].tolist() for name in CONDITION]
    columns = (specs, used, classes, rows["vms"].tolist(), owned, *condition, versions)
    return tuple(MachineRow(*values) for values in zip(*columns, strict=True))
