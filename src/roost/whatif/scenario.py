"""What-if questions about the machines of a zone, each answered by doing it to a copy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count, islice

import msgspec

from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.machines import AddMachines, RemoveMachines
from roost.agent.verbs.place import PlaceVMs
from roost.engine.ruleset import PolicySplit
from roost.model.errors import InvalidInput, UnknownName
from roost.model.inventory import MachineSpec
from roost.model.request import HOLD, VM, Request
from roost.model.zone import CONDITION
from roost.rules.policy import Policy
from roost.store.ledger import Ledger
from roost.whatif.measures import Measures, measure, type_mix
from roost.whatif.trial_zone import Homeless, TrialZone, ZoneState, unspread

CHUNK = 256  # VMs that are asked for at once, to find out how many fit
MOST_RACKS = 10_000


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """What comes of a change."""

    question: str
    answer: str  # in a sentence
    before: ZoneState
    after: ZoneState
    displaced: int = 0  # VMs that had to leave their machines
    healed: int = 0  # those of them that found another one
    homeless: tuple[Homeless, ...] = ()  # those that did not
    gave_way: int = 0  # VMs elsewhere that had to, to those of a higher priority
    came_back: int = 0  # of these, those that run again elsewhere, as they had asked for
    unspread: tuple[str, ...] = ()  # tenants that are in fewer fault domains than they ask for, because of it


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How many more VMs of a type fit."""

    question: str
    answer: str
    type: str
    wanted: int | None  # None: as many as fit
    placed: int
    gave_way: int  # VMs of a lower priority that would have to
    came_back: int  # of these, those that would run again elsewhere, as they had asked for
    stopped_by: str  # why the next one found no machine; empty if all that were wanted fit
    before: ZoneState
    after: ZoneState


class Repacked(msgspec.Struct, frozen=True, kw_only=True):
    """The zone's VMs placed anew, by one policy, in one order."""

    policy: str
    seed: int
    measures: Measures
    refused: int  # VMs that found no machine or had to give way, and those asked for with them


# ------------------------------------------------------------------------------------------------------- machines


def machines_where(ledger: Ledger, **wanted: str) -> list[str]:
    """The machines of a rack, cluster or generation: `rack="c000-r01"`."""
    ((what, name),) = wanted.items()
    known = {getattr(row.spec, what) for row in ledger.machines.values()}
    if name not in known:
        raise UnknownName(what, what, name, known)
    return [machine for machine, row in ledger.machines.items() if getattr(row.spec, what) == name]


def share_of_machines(ledger: Ledger, share: float, seed: int) -> list[str]:
    """So many machines, drawn at random."""
    if not 0 < share <= 1:
        raise InvalidInput("share", f"is {share}", "use a share of the machines above 0, up to 1")
    names = sorted(ledger.machines)
    return random.Random(seed).sample(names, max(1, round(share * len(names))))


def lose(ledger: Ledger, policy: Policy | PolicySplit, machines: Sequence[str], what: str) -> Effect:
    """Machines fail, all at once; their VMs are healed elsewhere as far as there is room."""

    def fail(trial: TrialZone) -> tuple[Homeless, ...]:
        lost = trial.vms_on(machines)
        trial.do(*(SetMachine(machine, state="down") for machine in machines))
        trial.rest()
        return trial.homeless(lost)

    return _changed(ledger, policy, f"lose {what}", machines, fail, "find another machine", "find none")


def remove(ledger: Ledger, policy: Policy | PolicySplit, machines: Sequence[str], what: str) -> Effect:
    """Machines are taken out of the zone; their VMs go elsewhere first, and those that cannot are gone with them."""
    take_out = partial(_take_out, machines)
    return _changed(ledger, policy, f"remove {what}", machines, take_out, "can be moved", "have nowhere to go")


def _take_out(machines: Sequence[str], trial: TrialZone) -> tuple[Homeless, ...]:
    there = trial.vms_on(machines)
    trial.clear(machines)
    homeless = trial.homeless(there)
    trial.release_all(machines)
    trial.do(RemoveMachines(tuple(machines)))
    trial.rest()
    return homeless


def add_racks(ledger: Ledger, policy: Policy | PolicySplit, like: str, racks: int) -> Effect:
    """More racks in a cluster, like those that it has."""
    new = _racks_like(ledger, like, racks)
    question = f"add {_racks(racks)} to {like}"
    return _changed(ledger, policy, question, (), partial(_add, new), "", "")


def replace_racks(ledger: Ledger, policy: Policy | PolicySplit, cluster: str, racks: int, generation: str) -> Effect:
    """Racks of a cluster give way to as many machines of another generation, in a new cluster beside it."""
    machines_where(ledger, cluster=cluster)
    known = [g.name for g in ledger.catalogue.generations]
    if generation not in known:
        raise UnknownName("generation", "generation", generation, known)
    there = _racks_of(ledger, cluster)
    if not 0 < racks <= len(there):
        raise InvalidInput("racks", f"is {racks}", f"{cluster} has 1 to {len(there)} to replace")
    old = [spec for rack in list(there.values())[-racks:] for spec in rack]
    new = [_of_generation(ledger, spec, generation) for spec in old]

    machines = [spec.name for spec in old]

    def exchange(trial: TrialZone) -> tuple[Homeless, ...]:
        _add(new, trial)
        return _take_out(machines, trial)

    question = f"replace {_racks(racks)} of {cluster} by {generation}"
    return _changed(ledger, policy, question, machines, exchange, "can be moved", "have nowhere to go")


def _changed(
    ledger: Ledger,
    policy: Policy | PolicySplit,
    question: str,
    machines: Sequence[str],
    change: Callable[[TrialZone], tuple[Homeless, ...]],
    good: str,
    bad: str,
) -> Effect:
    """Change a zone, and compare. `change` says which VMs of some machines have nowhere to go."""
    trial = TrialZone(ledger, policy)
    trial.rest()
    before, wishes, displaced = trial.state(), unspread(trial.store.load()), trial.vms_on(machines)
    trial.gave_way.clear()
    homeless = change(trial)
    after, gave_way = trial.state(), trial.gave_way - displaced.keys()
    effect = Effect(
        question=question,
        answer="",
        before=before,
        after=after,
        displaced=len(displaced),
        healed=len(displaced) - len(homeless),
        homeless=homeless,
        gave_way=len(gave_way),
        came_back=sum(map(trial.runs, gave_way)),
        unspread=tuple(sorted(unspread(trial.store.load()) - wishes)),
    )
    return msgspec.structs.replace(effect, answer=_sentence(effect, good, bad))


def _sentence(effect: Effect, good: str, bad: str) -> str:
    before, after, parts = effect.before, effect.after, []
    if effect.displaced:
        parts.append(f"of {effect.displaced:,} VMs {effect.healed:,} {good}, {len(effect.homeless):,} {bad}")
    elif good:
        parts.append("no VM runs there")
    if effect.gave_way:
        parts.append(_giving_way(effect.gave_way, effect.came_back))
    if effect.unspread:
        parts.append(f"{len(effect.unspread):,} tenants are in fewer fault domains than they ask for")
    parts.append(f"utilisation goes from {before.utilisation:.1%} to {after.utilisation:.1%}")
    if full := [name for name, room in after.room.items() if not room and before.room[name]]:
        parts.append(f"there is no room left for {', '.join(full)}")
    if opened := [name for name, room in after.room.items() if room and not before.room[name]]:
        parts.append(f"there is room for {', '.join(opened)}")
    return "; ".join(parts)


def _giving_way(number: int, came_back: int) -> str:
    said = "1 VM of a lower priority gives way" if number == 1 else f"{number:,} VMs of a lower priority give way"
    return f"{said} ({came_back:,} of {number:,} to another machine)" if came_back else said


def _add(machines: Sequence[MachineSpec], trial: TrialZone) -> tuple[Homeless, ...]:
    trial.do(AddMachines(tuple(machines)))
    trial.rest()
    return ()


def _racks(number: int) -> str:
    return "1 rack" if number == 1 else f"{number:,} racks"


def _racks_of(ledger: Ledger, cluster: str) -> dict[str, list[MachineSpec]]:
    """The racks of a cluster in the order of their names."""
    found: dict[str, list[MachineSpec]] = {}
    for name in sorted(machines_where(ledger, cluster=cluster)):
        spec = ledger.machines[name].spec
        found.setdefault(spec.rack, []).append(spec)
    return dict(sorted(found.items()))


def _racks_like(ledger: Ledger, cluster: str, racks: int) -> list[MachineSpec]:
    """New racks, each a copy of one that a cluster has, under names that nobody has."""
    if not 0 < racks <= MOST_RACKS:
        raise InvalidInput("racks", f"is {racks}", f"use 1 to {MOST_RACKS:,}")
    models = list(_racks_of(ledger, cluster).values())
    found = []
    for number in range(racks):
        rack = f"{cluster}-new{number:02d}"
        for i, spec in enumerate(models[number % len(models)]):
            found.append(msgspec.structs.replace(spec, name=f"{rack}-m{i:02d}", rack=rack))
    if taken := next((spec.name for spec in found if spec.name in ledger.machines), ""):
        raise InvalidInput(
            "racks", f"the zone has a machine {taken} already", "rename it, or ask about another cluster"
        )
    return found


def _of_generation(ledger: Ledger, old: MachineSpec, generation: str) -> MachineSpec:
    """A machine in the place of another one."""
    hardware = next(g for g in ledger.catalogue.generations if g.name == generation)
    return msgspec.structs.replace(
        old,
        name=f"{old.name}-{generation}",
        rack=f"{old.rack}-{generation}",
        cluster=f"{old.cluster}-{generation}",
        generation=generation,
        features=tuple(sorted(hardware.features)),
        capacity=hardware.capacity,
    )


# ----------------------------------------------------------------------------------------------------------- demand


def more(ledger: Ledger, policy: Policy | PolicySplit, vm_type: str, wanted: int | None, priority: str = "") -> Fit:
    """So many more VMs of a type, or as many as fit, each for itself: each is the first VM of a tenant of its own."""
    trial = TrialZone(ledger, policy)
    trial.allocator.zone.vm_type(vm_type, "type")
    trial.rest()
    trial.gave_way.clear()
    before, placed, declined = trial.state(), 0, None
    names = (name for i in count() if (name := f"what-if-{i}") not in ledger.tenants)
    wishes = (PlaceVMs(Request(name, [VM(vm_type, priority=priority)])) for name in islice(names, wanted))
    while declined is None and (asked := list(islice(wishes, CHUNK))):
        answers = trial.do(*asked)
        placed += sum(answer.ok for answer in answers)
        declined = next((each for each, answer in zip(asked, answers, strict=True) if not answer.ok), None)
    why = trial.why_not(declined) if declined else ""
    trial.rest()
    gave_way, came_back = len(trial.gave_way), sum(map(trial.runs, trial.gave_way))
    answer_ = f"{placed:,} more {vm_type} fit" if declined else f"all {placed:,} {vm_type} fit"
    if gave_way:
        answer_ += f", if {_giving_way(gave_way, came_back)}"
    return Fit(
        question=f"{'as many as fit' if wanted is None else f'{wanted:,}'} more {vm_type}",
        answer=f"{answer_}; the next one finds no machine: {why}" if declined else answer_,
        type=vm_type,
        wanted=wanted,
        placed=placed,
        gave_way=gave_way,
        came_back=came_back,
        stopped_by=why,
        before=before,
        after=trial.state(),
    )


# ----------------------------------------------------------------------------------------------------------- policy


def repack(ledger: Ledger, policy: Policy, seed: int) -> Repacked:
    """All tenants placed anew on the empty zone, each as a whole: by priority, then in an order drawn by the seed."""
    trial = TrialZone(_emptied(ledger), policy, seed)
    bands = trial.allocator.zone.bands
    vms: dict[str, list[VM]] = {}
    for name, row in ledger.vms.items():
        if not name.endswith(HOLD):
            vms.setdefault(row.tenant, []).append(msgspec.structs.replace(row.spec, name=name))
    tenants = sorted(vms)
    random.Random(seed).shuffle(tenants)
    tenants.sort(key=lambda tenant: min(bands.index(vm.priority or bands[0]) for vm in vms[tenant]))
    wishes = (PlaceVMs(Request(tenant, vms[tenant], ledger.tenants[tenant].constraints)) for tenant in tenants)
    answers = trial.do(*wishes)
    refused = sum(len(vms[tenant]) for tenant, answer in zip(tenants, answers, strict=True) if not answer.ok)
    types = type_mix(trial.allocator.zone, (row.spec for row in ledger.vms.values()))
    measures = measure(trial.allocator, types)
    return Repacked(policy=policy.name, seed=seed, measures=measures, refused=refused + len(trial.gave_way))


def _emptied(ledger: Ledger) -> Ledger:
    """The same machines, without anything on them."""
    empty = Ledger(ledger.catalogue, ledger.revision)
    empty.clusters, empty.registry = ledger.clusters.copy(), ledger.registry.copy()
    for name, row in ledger.machines.items():
        bare = empty.machines[name] = ledger.accounts.new_row(row.spec)
        for field in CONDITION:
            setattr(bare, field, getattr(row, field))
    return empty
