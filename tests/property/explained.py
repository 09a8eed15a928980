"""What an explanation must say, worked out from the oracle's answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from roost.engine.explain import CANDIDATES, Explanation, WhyNot
from roost.engine.ruleset import BoundRule
from roost.model.request import ANY, Constraints, Request
from roost.model.rows import MachineState
from roost.model.thresholds import Thresholds
from roost.placing.allocator import Allocator
from tests.oracle.plain import Answer, Key
from tests.property.operators import set_thresholds
from tests.property.world import World

Funnel = list[tuple[str, str, str, int, int]]


def funnel(answer: Answer) -> Funnel:
    """Every rule in order: how many clusters or machines entered, how many it kept."""
    rules, stages = answer.rules, []
    left = list(range(len(answer.rows.clusters)))
    for bound in rules.cluster_validators:
        kept = [c for c in left if answer.cluster_failures[c] is not bound]
        stages.append((bound.rule.name, "validator", "cluster", len(left), len(kept)))
        left = kept
    left = [m for m, row in enumerate(answer.rows.machines) if answer.cluster_failures[row.cluster] is None]
    for bound in (*rules.validators, *rules.tenant_rules):
        kept = [m for m in left if answer.failures[m] is not bound]
        kind = "tenant" if bound.rule.kind == "tenant" else "validator"
        stages.append((bound.rule.name, kind, "machine", len(left), len(kept)))
        left = kept
    kept = answer.candidates
    others = set(answer.valid) - set(kept)
    spares = rules.preferences[0].rule.spares and set(kept) - answer.overfilling and others & answer.overfilling
    label = f"best {rules.top_clusters} clusters{' where nobody gives way' if spares else ''}"
    stages.append((label, "selection", "machine", len(left), len(kept)))
    for i, bound in enumerate(rules.preferences):
        left = kept
        lowest = min((answer.keys[m][i] for m in left), default=0)
        kept = [m for m in left if answer.keys[m][i] == lowest]
        stages.append((bound.rule.name, "preference", "machine", len(left), len(kept)))
    return stages


def reasons(world: World, answer: Answer) -> Counter[tuple[str, str]]:
    """How many machines each rule refuses first, and the words for it."""
    refused = ((m, bound) for m, bound in enumerate(answer.failures) if bound is not None)
    return Counter((bound.rule.name, reason(world, bound, answer, m)) for m, bound in refused)


def reason(world: World, bound: BoundRule, answer: Answer, m: int) -> str:
    """What people are told when a rule refuses a machine."""
    machine, vm = answer.rows.machines[m], answer.vm
    if answer.of_set and bound.rule.kind == "tenant":
        return f"{bound.rule.reason} for set {answer.of_set}"
    if bound.rule.detail is None:
        return bound.rule.reason
    detail = bound.rule.detail(machine, vm)
    words = {"insufficient {resource}": [r.name for r in world.zone.resources],
             "machine {state}": [s.name.lower() for s in MachineState],
             "cluster keeps its empty machines from {purpose}": ["new deployments", "scale-outs", "healing"],
             }[bound.rule.reason]  # fmt: skip
    return bound.rule.reason.format(resource=words[detail], state=words[detail], purpose=words[detail])


def first_difference(rules: Sequence[BoundRule], a: Key, b: Key) -> str | None:
    """The first preference in which two keys differ."""
    return next((bound.rule.name for bound, x, y in zip(rules, a, b, strict=True) if x != y), None)


def check_explanation(world: World, found: Explanation, answer: Answer, machine: int | None) -> None:
    """An explanation says what the oracle knows, of the machine that was chosen or of why none was."""
    names, rules = world.zone.machine_names, answer.rules
    assert found.machines == len(names)
    assert found.valid == len(answer.valid)
    assert [(s.rule, s.kind, s.level, s.entered, s.kept) for s in found.funnel] == funnel(answer)
    assert Counter({(r.rule, r.text): r.machines for r in found.reasons}) == reasons(world, answer)
    assert len({(r.rule, r.text) for r in found.reasons}) == len(found.reasons)
    assert sum(r.machines for r in found.reasons) + found.valid == len(names)
    if machine is None:
        assert (found.machine, found.candidates, found.tied, found.decided_by) == (None, (), 0, None)
        return
    assert found.machine == names[machine] == found.candidates[0].machine
    assert found.failure is None
    if found.sought:  # it need not be the best
        assert (found.decided_by, answer.failures[machine]) == (None, None)
        return
    best = answer.keys[machine]
    assert found.tied == sum(answer.keys[m] == best for m in answer.candidates)
    assert found.as_good == as_good(answer, machine)
    worse = [m for m in answer.candidates if answer.keys[m] > best]
    by = first_difference(rules.preferences, best, answer.keys[worse[0]]) if worse else None
    assert found.decided_by == (by if found.as_good == 1 else None)
    if found.as_good > 1:
        worse = [m for m in answer.candidates if m != machine]
    listed = [world.zone.machine(c.machine) for c in found.candidates]
    others = worse or [m for m in answer.candidates if m != machine]
    assert listed[0] == machine
    assert len(set(listed)) == len(listed) == 1 + min(CANDIDATES - 1, len(others))
    assert [answer.keys[m] for m in listed[1:]] == [answer.keys[m] for m in others][: len(listed) - 1]
    for m, candidate in zip(listed, found.candidates, strict=True):
        assert [s.rule for s in candidate.scores] == [b.rule.name for b in rules.preferences]
        assert tuple(s.score for s in candidate.scores) == answer.scores[m]
        assert tuple(s.bucket for s in candidate.scores) == answer.keys[m]


def as_good(answer: Answer, chosen: int | None) -> int:
    """Among how many machines it was chosen by who has to give way; 1 if nobody has to on the chosen one."""
    return len(answer.as_good) if chosen in answer.overfilling else 1


def check_why_not(world: World, found: WhyNot, answer: Answer, chosen: int | None, machine: int) -> None:
    """Each machine but the chosen one is out for the reason that the oracle finds first."""
    names, rules = world.zone.machine_names, answer.rules
    assert found.machine == names[machine]
    assert found.winner == (names[chosen] if chosen is not None else None)
    failure, cluster = answer.failures[machine], answer.rows.machines[machine].cluster
    if machine == chosen:
        assert (found.verdict, found.rule) == ("chosen", None)
    elif failure is not None:
        assert (found.verdict, found.rule) == ("refused", failure.rule.name)
        assert found.reason == reason(world, failure, answer, machine)
    elif found.verdict == "not_sought":
        assert found.rule is None
    elif cluster not in answer.chosen:
        last = answer.cluster_keys[answer.chosen[-1]]
        by = first_difference(rules.cluster_preferences, last, answer.cluster_keys[cluster])
        assert (found.verdict, found.rule) == ("cluster_not_selected", by)
        assert world.zone.cluster_names[cluster] in found.reason
    elif as_good(answer, chosen) > 1 and machine in answer.as_good:
        assert (found.verdict, found.rule) == ("lost", None)
    else:
        assert chosen is not None
        lost_by = first_difference(rules.preferences, answer.keys[chosen], answer.keys[machine])
        assert (found.verdict, found.rule) == ("lost" if lost_by else "drawn", lost_by)


def apply(remedy: Any, allocator: Allocator, request: Request) -> Request:
    """Do what a remedy says, to the allocator or to the request."""
    if remedy.kind == "free":
        for name in remedy.vms:
            assert allocator.zone.machine_names[allocator.vms[name].machine] == remedy.machine
            allocator.release(name)
        return request
    if remedy.kind == "threshold":
        (cluster,) = (name for name in allocator.zone.cluster_names if f"cluster {name}, " in remedy.text)
        set_thresholds(allocator, cluster, Thresholds())
        return request
    if remedy.kind == "pin":
        (pin,) = (p for p in ("datacenter", "cluster", "generation") if f"any {p}," in remedy.text)
        return msgspec.structs.replace(
            request, vms=tuple(msgspec.structs.replace(vm, **{pin: ANY}) for vm in request.vms)
        )
    tenant = allocator.tenants.get(request.tenant)
    constraints = tenant.constraints if tenant else request.constraints
    assert constraints is not None
    options = dict(option for of_set in ("", *constraints.sets) for option in lesser(constraints, of_set))
    rest = options[remedy.text]
    if tenant:
        tenant.constraints = rest
        return request
    return msgspec.structs.replace(request, constraints=rest)


def lesser(constraints: Constraints, of_set: str) -> Iterator[tuple[str, Constraints]]:
    """The ways in which a tenant can ask for less of VMs in a set, or in none, in words."""
    if not of_set:
        if not constraints.best_effort:
            for name, value in constraints.named.items():
                yield f"drop the constraint {name} = {value}", without(constraints, name)
        return
    wanted = constraints.sets[of_set]
    if wanted.best_effort:
        return
    options = {f"let set {of_set} do its best (best_effort)": msgspec.structs.replace(wanted, best_effort=True)}
    if wanted.fault_domains and wanted.update_domains:
        for name in ("fault_domains", "update_domains"):
            text = f"drop {name} = {getattr(wanted, name)} of set {of_set}"
            options[text] = msgspec.structs.replace(wanted, **{name: 0})
    for text, less in options.items():
        yield text, msgspec.structs.replace(constraints, sets={**constraints.sets, of_set: less})


def without(constraints: Constraints, name: str) -> Constraints:
    """The same constraints, but one."""
    nothing: Any = "" if name == "colocate" else 0
    return msgspec.structs.replace(constraints, **{name: nothing})
