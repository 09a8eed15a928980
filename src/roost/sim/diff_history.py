"""Two policies on what a store's feed tells: the same requests again, from the same beginning.

Each placement of the feed is asked of the policies on the zone as the feed had it just before. Then all requests are
replayed under each policy alone, which goes its own way. There is one who decides, so nobody loses a race. Requests
that were declined then are not in the feed, and moves are no policy's placements: both are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import cached_property
from statistics import fmean

import msgspec

from roost.agent.replica import Replica
from roost.model.change import Entry
from roost.model.errors import InvalidInput
from roost.model.request import HOLD, Placement, Request
from roost.model.thresholds import Purpose
from roost.placing.allocator import Allocator
from roost.placing.arms import Arm
from roost.placing.books import RunningVM
from roost.placing.contrast import Contrast
from roost.placing.decision import Decision
from roost.placing.gang import Trial, closed_units
from roost.placing.seating import seating
from roost.placing.zone_copy import Usage
from roost.rules.policy import Policy
from roost.sim.diff import Diff
from roost.sim.differences import DifferenceLog, PolicyDifferences
from roost.sim.result import RunResult
from roost.store.columns import ZoneColumns
from roost.store.contract import Record, Store
from roost.store.history import entries_between, ledger_at
from roost.store.ledger import Ledger

SAMPLES = 500
RECORDED = "recorded"
ARMS_KEPT = 8  # of policies that decided, and seeds they decided with
Progress = Callable[[str], None]  # what is being done


class StoreHistory:
    """What happened at a store since a revision, or since its machines last changed if that is later."""

    def __init__(self, store: Store, since: int | None = None) -> None:
        self.store = store
        last, trimmed = store.head()
        if since is not None and not trimmed <= since <= last:
            raise InvalidInput("--since", f"is {since}", f"the feed goes from {trimmed:,} to {last:,}")
        numbered = list(entries_between(store, trimmed if since is None else since, last))
        changed = [number for number, entry in numbered if entry.reshapes]
        self.since, self.until = max([*changed, trimmed if since is None else since]), last
        self.entries = [entry for number, entry in numbered if number > self.since]
        if not any(map(is_placement, self.entries)):
            raise InvalidInput(
                "--store", f"nothing was placed from revision {self.since:,} to {last:,}", "compare on a workload"
            )

    @cached_property
    def ledger(self) -> Ledger:
        """The zone at the beginning."""
        return ledger_at(self.store, self.since)

    def __str__(self) -> str:
        placed = sum(map(is_placement, self.entries))
        return f"{placed:,} placements of revisions {self.since + 1:,} to {self.until:,}"


def is_placement(entry: Entry) -> bool:
    """Whether a policy decided it."""
    return bool(entry.placed) and not entry.released and not entry.placed[0].vm.endswith(HOLD)


def diff_history(
    history: StoreHistory,
    first: Policy | None,
    second: Policy,
    seeds: int,
    policy_of: Callable[[str], Policy],
    progress: Progress = lambda _: None,
) -> Diff:
    """`first` None: what was recorded, by policies that `policy_of` finds; then only the second is replayed alone."""
    progress(f"Asking {second.name}")
    found = _ask(history, first, second) if first else _ask_about_recorded(history, second, policy_of)
    alone = [policy for policy in (first, second) if policy is not None]
    results = []
    if first is None:
        once = _replay(history, second, 1, recorded=True)
        results = [replace(once, seed=seed) for seed in range(1, seeds + 1)]
    for policy in alone:
        for seed in range(1, seeds + 1):
            progress(f"Replaying {policy.name}, seed {seed}")
            results.append(_replay(history, policy, seed))
    return Diff(first.name if first else RECORDED, second.name, str(history), found, results)


# -------------------------------------------------------------------------------------------------------------- asking


def _ask(history: StoreHistory, first: Policy, second: Policy) -> PolicyDifferences:
    """Let the first policy decide each request, and the second look; then go on as the feed did."""
    replica, log = Replica(ZoneColumns.of(history.ledger), first), DifferenceLog(second)
    allocator = replica.allocator
    for entry in history.entries:
        if is_placement(entry):
            log.clock = _standing(entry)
            if (decision := _decide(allocator, entry)) is not None:
                log.look(decision)
                for placement in decision.placements:
                    allocator.release(placement.vm)
        replica.apply(entry)
    return log.found


def _standing(entry: Entry) -> Callable[[], float]:
    return lambda: entry.at


def _decide(allocator: Allocator, entry: Entry) -> Decision | None:
    """What a policy makes of a request of the feed; None if it makes no sense to it."""
    constraints = None if entry.tenant in allocator.tenants else entry.constraints
    try:
        return allocator.allocate(Request(entry.tenant, [each.spec for each in entry.placed], constraints))
    except InvalidInput:
        return None


def _ask_about_recorded(history: StoreHistory, second: Policy, policy_of: Callable[[str], Policy]) -> PolicyDifferences:
    replica, log = Replica(ZoneColumns.of(history.ledger), second), DifferenceLog(second)
    recorded = _Recorded(history.store, replica.allocator, second, policy_of)
    for entry in history.entries:
        if not is_placement(entry) or (decision := recorded.before(entry)) is None:
            replica.apply(entry)
            continue
        replica.apply(entry)
        log.clock = _standing(entry)
        log.look_with(recorded.contrast, decision)
    return log.found


class _Recorded:
    """Decisions as they are recorded."""

    contrast: Contrast  # with the policy that made the last one

    def __init__(self, store: Store, allocator: Allocator, second: Policy, policy_of: Callable[[str], Policy]) -> None:
        self._store, self._allocator, self._second, self._policy_of = store, allocator, second, policy_of
        self._seeds: dict[tuple[str, int], int] = {}
        self._contrasts: dict[tuple[str, int], Contrast] = {}

    def before(self, entry: Entry) -> Decision | None:
        """The decision that an entry tells of, just before it is applied; None if it was no policy's choice."""
        decided, allocator = self._store.decided(entry.key), self._allocator
        if decided is None or decided.record.avoiding or decided.record.sought:
            return None
        record, index = decided.record, allocator.zone.machine_index
        arm = self._arm(record)
        request = Request(entry.tenant, [each.spec for each in entry.placed], entry.constraints)
        order = record.order or tuple(range(len(request.vms)))
        shapes = allocator.shapes_of(request, arm, Purpose[record.purpose.upper()])
        beside = seating(entry.constraints, request.vms, self._running(entry.tenant))
        trial = Trial(
            order=order,
            shapes=shapes,
            seating=beside,
            machines=tuple(index[entry.placed[i].machine] for i in order),
            refused=closed_units(arm.engine, shapes, order, beside, record.refused),
            tried=record.refused,
            rungs=record.rungs,
        )
        placements = tuple(Placement(each.vm, each.spec.type, each.machine) for each in entry.placed)
        at = allocator.view.revision
        return Decision(request, entry.constraints, placements, trial, at, at, arm, allocator)

    def _running(self, tenant: str) -> Collection[RunningVM]:
        known = self._allocator.tenants.get(tenant)
        return known.vms.values() if known else ()

    def _arm(self, record: Record) -> Arm:
        """The policy that decided, with the lots of its agent."""
        if (seed := self._seeds.get((record.agent, record.round))) is None:
            seen = self._store.round(record.agent, record.round)
            seed = self._seeds[record.agent, record.round] = seen.seed if seen else 0
        if (known := self._contrasts.get((record.policy, seed))) is None:
            if len(self._contrasts) >= ARMS_KEPT:
                self._contrasts.clear()
            known = Contrast(self._allocator, self._second, seed)
            known.decided_by = self._allocator.arm_for(self._policy_of(record.policy), seed)
            self._contrasts[record.policy, seed] = known
        self.contrast = known
        assert known.decided_by is not None
        return known.decided_by


# ----------------------------------------------------------------------------------------------------------- replaying


def _replay(history: StoreHistory, policy: Policy, seed: int, *, recorded: bool = False) -> RunResult:
    """All requests again, by one policy alone; or as they were placed, whatever the policy."""
    import polars as pl

    replica = Replica(ZoneColumns.of(history.ledger), policy, seed)
    allocator = replica.allocator
    names: dict[str, str] = {}  # of VMs of the feed: what they are called here
    asked = placed = declined = 0
    samples: list[Usage] = []
    starts, ends = next(filter(is_placement, history.entries)).at, history.entries[-1].at
    for entry in history.entries:
        while len(samples) < SAMPLES and starts + len(samples) / SAMPLES * (ends - starts) < entry.at:
            samples.append(allocator.usage())
        if is_placement(entry):
            asked += len(entry.placed)
            if recorded:
                placed += len(entry.placed)
            else:
                decision = _decide(allocator, entry)
                given = decision.placements if decision else ()
                placed += len(given)
                declined += not given
                names |= {each.vm: "" for each in entry.placed}
                names |= {each.vm: mine.vm for each, mine in zip(entry.placed, given, strict=bool(given))}
        if recorded:
            replica.apply(entry)
            continue
        for each in entry.released if not entry.placed else ():  # else it moved, as it may not do here
            if (name := names.pop(each.vm, each.vm)) in allocator.vms:
                allocator.release(name)
        replica.apply(msgspec.structs.replace(entry, placed=(), released=()))
    samples.append(allocator.usage())
    return RunResult(
        name=RECORDED if recorded else policy.name,
        seed=seed,
        experiment={},
        facts={"repeatable": True},
        summary={
            "density": fmean(usage.packing_density for usage in samples),
            "utilisation": fmean(usage.utilisation for usage in samples),
            "empty_machines": fmean(usage.empty_machines for usage in samples),
            "fulfilment": placed / asked,
            "declined": declined,
        },
        timeline=pl.DataFrame(),
        rates=pl.DataFrame(),
        requests=pl.DataFrame(),
        timing={},
    )
