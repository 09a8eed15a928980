"""Why a machine was chosen, why none was, why not another one. Data first; `str()` renders it for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from roost.engine.funnel import Stage, as_good, chosen_clusters, cluster_stages, deciding, machine_stages, scores
from roost.engine.selection import Engine, Judgement
from roost.engine.shape import Shape
from roost.engine.steps import Steps
from roost.engine.tenant import TenantDesk
from roost.engine.view import View
from roost.model.request import Constraints, Request
from roost.model.rows import MachineState

CANDIDATES = 4
ASIDE = "yet to be updated"  # why a machine is set aside
Failure = Literal["mistake", "no_capacity", "fragmented", "tenant_constraint", "threshold"]
FAILURES: dict[Failure, str] = {
    "mistake": "the request can never fit: no machine of the zone would take it, even an empty one",
    "no_capacity": "there is not enough capacity left where it could run",
    "fragmented": "it would fit in sum, but no single machine has room",
    "tenant_constraint": "machines have room, but the tenant's own constraints exclude them",
    "threshold": "machines have room, but their clusters keep their empty machines from such requests",
}


@dataclass(frozen=True)
class Subject:
    """The VM to explain, and what stood before it: the tenant's VMs and the VMs of the request placed earlier."""

    request: Request
    vm: int
    shape: Shape
    of_set: str  # its availability set, if it is in one
    constraints: Constraints  # what it was held to
    waived: Sequence[str]  # what it was not held to, as no machine would have done
    homes: Sequence[int]  # machines of the VMs that count for it, those placed earlier by this request included
    remaining: int  # VMs of the request still to place that count for it, this one included
    refused: Sequence[int]  # units tried before and found too small for all of the request's VMs
    aside: NDArray[np.int64]  # machines that were not to have it, whatever the rules say
    earlier: Sequence[tuple[int, Shape]]
    chosen: int | None  # the machine it got
    sought: bool = False  # not because it is the best for this VM, but because only so all of them found one


@dataclass(frozen=True, slots=True)
class Reason:
    """Why so many machines are out."""

    text: str
    rule: str
    machines: int


@dataclass(frozen=True, slots=True)
class Score:
    """What one preference says of a machine: 0 is best."""

    rule: str
    score: float
    bucket: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine that could have it, and how each preference scores it."""

    machine: str
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class Remedy:
    """One change after which a refused request fits. `str()` completes the sentence 'it would fit if you …'."""

    kind: Literal["constraint", "pin", "threshold", "free"]
    text: str
    vms: tuple[str, ...] = ()  # to free
    machine: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Remedies:
    """What was found that makes a refused request fit, least first."""

    found: tuple[Remedy, ...] = ()
    cut_short: bool = False  # there was no time to try all


@dataclass(frozen=True)
class Explanation:
    """Everything about one choice."""

    tenant: str
    vm: int
    vm_type: str
    machine: str | None
    machines: int
    valid: int
    funnel: tuple[Stage, ...]
    reasons: tuple[Reason, ...]  # every machine that is not valid is in exactly one
    candidates: tuple[Candidate, ...]  # the chosen one, then the best of those it beat (if it beat none, of others)
    tied: int  # machines that every preference finds equal to the chosen one, itself included
    decided_by: str | None  # the preference that put the first candidate before the next best
    as_good: int = 1  # of the best machines, those that counted as good as one another, since others had to give way
    victims: tuple[str, ...] = ()  # VMs of lower priority that give way on the machine
    unnamed: int = 0  # and others, whose names are none of the reader's business
    failure: Failure | None = None
    remedies: tuple[Remedy, ...] = ()  # changes that would make it fit, least first
    cut_short: bool = False  # there may be more of these: there was no time to try all
    of_set: str = ""  # the VM's availability set
    waived: tuple[str, ...] = ()  # what it was not held to, as no machine would have done
    sought: bool = False  # each VM by itself on its best machine, not all would have found one

    def with_remedies(self, remedies: Remedies) -> Explanation:
        """The same, with what would make it fit."""
        return replace(self, remedies=remedies.found, cut_short=remedies.cut_short)

    def with_victims(self, victims: Sequence[str], unnamed: int = 0) -> Explanation:
        """The same, with what gives way."""
        return replace(self, victims=tuple(victims), unnamed=unnamed)

    @property
    def summary(self) -> str:
        """The one-line form."""
        if self.machine is not None and self.sought:
            why = "taken so that all VMs of the request find one"
            return f"{self.machine}: one of {self.valid:,} valid machines out of {self.machines:,}, {why}"
        if self.machine is not None:
            how = f"one of {self.tied:,} equally good" if self.tied > 1 else "the single best"
            if self.as_good > 1:
                how = f"what has to give way there costs least of the best {self.as_good:,}"
            ahead = f", ahead by {self.decided_by}" if self.decided_by else ""
            return f"{self.machine}: {how} of {self.valid:,} valid machines out of {self.machines:,}{ahead}"
        reasons = ", ".join(f"{r.machines:,} {r.text}" for r in self.reasons)
        return f"0/{self.machines:,} machines are available: {reasons}"

    def __str__(self) -> str:
        of_set = f" of set {self.of_set}" if self.of_set else ""
        lines = [f"{self.vm_type} for {self.tenant} (VM {self.vm}{of_set}): {self.summary}"]
        if self.failure:
            why = FAILURES[self.failure]
            if of_set:
                why = why.replace("the tenant's own constraints", f"the terms{of_set}")
            lines.append(f"  {self.failure.replace('_', ' ')}: {why}")
        if self.waived:
            lines.append(f"  best effort: no machine would have done with {', '.join(self.waived)}")
        lines += [f"  it would fit if you {remedy}" for remedy in self.remedies]
        if self.cut_short:
            lines.append("  (the search for what would make it fit was cut short)")
        if count := len(self.victims) + self.unnamed:
            others = [f"{self.unnamed:,} VM{'s'[: self.unnamed > 1]} of others"] if self.unnamed else []
            lines.append(f"  {', '.join([*self.victims, *others])} {'gives' if count == 1 else 'give'} way to it")
        return "\n".join([*lines, *self._funnel_lines(), *self._candidate_lines()])

    def _funnel_lines(self) -> Iterator[str]:
        """The rules that kept something out; how many rules had nothing to say."""
        width = max(len(stage.rule) for stage in self.funnel)
        for level in ("cluster", "machine"):
            stages = [stage for stage in self.funnel if stage.level == level and stage.entered]
            if not stages:
                continue
            yield f"  {stages[0].entered:,} {level}s"
            for stage in stages:
                if stage.kept < stage.entered:
                    yield f"    {stage.rule:<{width}}  {stage.entered:>7,} → {stage.kept:>7,}  {stage.kind}"
            if idle := sum(stage.kept == stage.entered for stage in stages):
                yield f"    ({idle} more kept all)"

    def _candidate_lines(self) -> Iterator[str]:
        """The first candidates side by side, in the preferences in which they differ; stars mark what decided."""
        if not self.candidates:
            return
        width = max(12, *(len(c.machine) for c in self.candidates)) + 2
        yield "  best candidates (score, bucket)"
        yield f"    {'':<26}" + "".join(f"{c.machine:>{width}}" for c in self.candidates)
        differ = False
        for i, first in enumerate(self.candidates[0].scores):
            if len({c.scores[i].score for c in self.candidates}) > 1:
                differ = True
                cells = (f"{f'{c.scores[i].score:.3f} /{c.scores[i].bucket:>2}':>{width}}" for c in self.candidates)
                yield f"  {'*' if first.rule == self.decided_by else ' '} {first.rule:<26}" + "".join(cells)
        if not differ:
            yield "    equal in every preference: drawn by lot"


@dataclass(frozen=True)
class WhyNot:
    """Why one machine was not chosen for a VM."""

    machine: str
    verdict: Literal["chosen", "refused", "cluster_not_selected", "lost", "drawn", "not_sought"]
    rule: str | None  # the deciding rule
    reason: str
    winner: str | None = None

    def __str__(self) -> str:
        return f"{self.machine}: {self.reason}"


def explaining(engine: Engine, view: View, subject: Subject) -> Steps[Explanation]:
    """Explain one VM's choice on a view of the moment just before it, a step at a time; the view is left alone.

    A view that others change meanwhile may be given: it is copied first of all.
    """
    scratch, desk = _stage(view, subject)
    yield
    judged = _judge(engine, scratch, subject, desk)
    yield
    chosen = chosen_clusters(engine, scratch, subject.shape, judged)
    valid = int((judged.verdicts < 0).sum())
    rules, names = engine.rules, view.zone.machine_names
    in_chosen = np.isin(scratch.machines["cluster"], chosen) & (judged.verdicts < 0)
    order = np.flatnonzero(in_chosen)[np.argsort(judged.keys[in_chosen], kind="stable")]
    tied, decided_by, alike = 0, None, 1
    listed: list[int] = []
    first = subject.chosen if subject.chosen is not None else (int(order[0]) if len(order) else None)
    if first is not None:
        mine = int(judged.keys[first])
        alike = as_good(rules, scratch, subject.shape, first, judged.keys[order])
        tied = int((judged.keys[order] == mine).sum())
        worse = order[judged.keys[order] > mine]
        if alike > 1:
            worse = order[order != first]
        elif len(worse) and not subject.sought:
            rule = deciding(rules.shifts, mine, int(judged.keys[worse[0]]))
            decided_by = rules.preferences[rule].rule.name if rule is not None else None
        equal = [m for m in order[: CANDIDATES + 1].tolist() if m != first]
        beaten = [] if subject.sought else worse[: CANDIDATES - 1].tolist()
        listed = [first, *(beaten or equal)][:CANDIDATES]
    yield
    failure = (yield from _failing(engine, scratch, subject, desk)) if subject.chosen is None else None
    return Explanation(
        tenant=subject.request.tenant,
        vm=subject.vm,
        vm_type=subject.request.vms[subject.vm].type,
        machine=names[subject.chosen] if subject.chosen is not None else None,
        machines=len(names),
        valid=valid,
        funnel=(*cluster_stages(engine, scratch, judged), *machine_stages(engine, scratch, judged, chosen)),
        reasons=_reasons(engine, scratch, judged, subject.of_set),
        candidates=tuple(_candidate(engine, scratch, subject.shape, m) for m in listed),
        tied=tied,
        decided_by=decided_by,
        as_good=alike,
        failure=failure,
        of_set=subject.of_set,
        waived=tuple(subject.waived),
        sought=subject.sought,
    )


def why_not(engine: Engine, view: View, subject: Subject, machine: int) -> WhyNot:
    """Why one machine does not get the VM: refused, its cluster not selected, or beaten by the winner."""
    scratch, desk = _stage(view, subject)
    judged = _judge(engine, scratch, subject, desk)
    rules, name, zone = engine.rules, view.zone.machine_names[machine], view.zone
    winner = zone.machine_names[subject.chosen] if subject.chosen is not None else None
    if machine == subject.chosen:
        return WhyNot(name, "chosen", None, "it was chosen", winner)
    verdict = int(judged.verdicts[machine])
    if verdict == _rules(engine):
        return WhyNot(name, "refused", None, ASIDE, winner)
    if verdict >= 0:
        bound = (*rules.cluster_validators, *rules.validators, *rules.tenant_rules)[verdict]
        text = _text(engine, scratch, verdict, int(judged.details[machine]), subject.of_set)
        return WhyNot(name, "refused", bound.rule.name, text, winner)
    assert subject.chosen is not None, "a valid machine exists, yet none was chosen"
    if subject.sought:
        reason = f"{winner} was taken so that all VMs of the request find a machine"
        return WhyNot(name, "not_sought", None, reason, winner)
    chosen = chosen_clusters(engine, scratch, subject.shape, judged)
    cluster = int(scratch.machines[machine]["cluster"])
    if cluster not in chosen:
        last = int(chosen[-1])
        by = deciding(rules.cluster_shifts, int(judged.cluster_keys[last]), int(judged.cluster_keys[cluster]))
        rule = rules.cluster_preferences[by].rule.name if by is not None else None
        how = f"by {rule}" if rule else "by lot"
        reason = f"its cluster {zone.cluster_names[cluster]} ranked behind the best {len(chosen)} {how}"
        return WhyNot(name, "cluster_not_selected", rule, reason, winner)
    best = np.sort(judged.keys[(judged.verdicts < 0) & np.isin(scratch.machines["cluster"], chosen)])
    alike = as_good(rules, scratch, subject.shape, subject.chosen, best)
    if alike > 1 and judged.keys[machine] <= best[min(alike, len(best)) - 1]:
        reason = f"among the best {alike:,}, but what would have to give way costs no less than on {winner}"
        return WhyNot(name, "lost", None, reason, winner)
    by = deciding(rules.shifts, int(judged.keys[subject.chosen]), int(judged.keys[machine]))
    if by is None:
        return WhyNot(name, "drawn", None, f"as good as {winner}, which was drawn by lot", winner)
    rule = rules.preferences[by].rule.name
    ours, theirs = (scores(engine, scratch, subject.shape, m)[by] for m in (machine, subject.chosen))
    return WhyNot(name, "lost", rule, f"{rule} prefers {winner} ({theirs:.3f} against {ours:.3f})", winner)


def _stage(view: View, subject: Subject) -> tuple[View, TenantDesk]:
    """A copy of the view with the request's earlier VMs in place, and the tenant at its desk."""
    scratch = view.at(view.revision)
    for machine, shape in subject.earlier:
        scratch.place(machine, shape)
    desk = TenantDesk(scratch)
    desk.open(subject.constraints, subject.homes, subject.remaining)
    if not subject.homes and not subject.of_set:
        desk.refuse(subject.refused)
    return scratch, desk


def _rules(engine: Engine) -> int:
    """How many hard rules there are: the verdict on what is set aside."""
    rules = engine.rules
    return len(rules.cluster_validators) + len(rules.validators) + len(rules.tenant_rules)


def _judge(engine: Engine, view: View, subject: Subject, desk: TenantDesk) -> Judgement:
    """What the rules say, and of machines that they would accept whether they were set aside."""
    judged = engine.judge(view, subject.shape, desk)
    judged.verdicts[subject.aside[judged.verdicts[subject.aside] < 0]] = _rules(engine)
    return judged


def _candidate(engine: Engine, view: View, shape: Shape, machine: int) -> Candidate:
    given = zip(engine.rules.preferences, scores(engine, view, shape, machine), strict=True)
    return Candidate(
        view.zone.machine_names[machine], tuple(Score(b.rule.name, score, b.bucket(score)) for b, score in given)
    )


def _reasons(engine: Engine, view: View, judged: Judgement, of_set: str) -> tuple[Reason, ...]:
    """Why machines are out, most first; each machine under the first rule that refuses it."""
    rules = engine.rules
    everything = (*rules.cluster_validators, *rules.validators, *rules.tenant_rules)
    aside = int((judged.verdicts == _rules(engine)).sum())
    out = (judged.verdicts >= 0) & (judged.verdicts < _rules(engine))
    counts = Counter(zip(judged.verdicts[out].tolist(), judged.details[out].tolist(), strict=True))
    found = [
        Reason(_text(engine, view, verdict, detail, of_set), everything[verdict].rule.name, machines)
        for (verdict, detail), machines in counts.items()
    ]
    if aside:
        found.append(Reason(ASIDE, "", aside))
    return tuple(sorted(found, key=lambda r: (-r.machines, r.text)))


def _text(engine: Engine, view: View, verdict: int, detail: int, of_set: str) -> str:
    """Why a rule, by its place among all hard rules, refuses."""
    rules = engine.rules
    everything = (*rules.cluster_validators, *rules.validators, *rules.tenant_rules)
    return everything[verdict].reason(view.zone, detail, of_set)


def _failing(engine: Engine, view: View, subject: Subject, desk: TenantDesk) -> Steps[Failure]:
    """Which of the five ways of not fitting this is."""
    rules, roomy = engine.rules, view.at(view.revision)
    roomy.clusters["thresholds"] = 0
    yield
    verdicts = engine.judge(roomy, subject.shape, desk).verdicts
    if (verdicts < 0).any():
        return "threshold"
    if (verdicts >= len(rules.cluster_validators) + len(rules.validators)).any():
        return "tenant_constraint"
    yield
    empty = View(view.zone, view.kernel, history=0)
    empty.machines["health"], empty.clusters["thresholds"] = 100, 0
    for machine in np.flatnonzero(empty.machines["state"] != MachineState.READY).tolist():
        empty.set_state(machine, MachineState.READY)
    nobody = TenantDesk(empty)
    if (engine.judge(empty, subject.shape, nobody).verdicts >= 0).all():
        return "mistake"
    yield
    # Where it could run if only there were room: is there room in sum?
    roomy.machines["free"] = roomy.machines["capacity"][:, None, :]
    open_to_it = engine.judge(roomy, subject.shape, nobody).verdicts < 0
    band = rules.view_of(subject.shape.traits["priority"])
    free = view.machines["free"][open_to_it, band].sum(axis=0, dtype=np.int64)
    demand = subject.shape.row["demand"][0][view.machines["generation"][open_to_it]]
    return "fragmented" if open_to_it.any() and (free >= demand.max(axis=0)).all() else "no_capacity"
