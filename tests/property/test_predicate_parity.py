"""The store says yes to what an agent chose, unless something changed; and no only when a marked validator says no.

The agent asks compiled rules about its own rows; the store asks the marked ones about rows made from its tables; the
test asks the rules' own functions, uncompiled, about rows that it works out itself. On the same state all three agree.
"""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from roost.engine.choice import BEST, AmongBest
from roost.engine.recheck import CompiledRecheck, RecheckedRows, rows_of
from roost.engine.ruleset import BoundRule, RuleSet
from roost.engine.selection import Engine
from roost.engine.shape import Shape, Shapes
from roost.engine.view import View
from roost.model.inventory import catalogue_of, machine_specs
from roost.model.request import VM
from roost.model.rows import MachineState
from roost.model.zone import CONDITION, INT32_MAX
from roost.rules.policy import shipped_policies
from roost.store.ledger import Accounts, MachineRow
from tests.oracle.plain import PlainAllocator
from tests.property.effort import examples
from tests.property.requests import often, rarely, vms
from tests.property.world import SMALL
from tests.property.zones import STANDARD, ClusterPlan, build, policy

# One zone for all: two machines of each generation, in two datacenters; some have a feature of their own.
ZONE = build(
    STANDARD,
    (
        ClusterPlan(0, 0, (1, 1)),
        ClusterPlan(1, 0, (2,)),
        ClusterPlan(2, 1, (2,), ("infiniband",)),
        ClusterPlan(3, 1, (1, 1), excluded=("A1",)),
    ),
)
CATALOGUE, SPECS = catalogue_of(ZONE), machine_specs(ZONE)
ACCOUNTS = Accounts(CATALOGUE)
BANDS, RESOURCES = len(ZONE.bands), len(ZONE.resources)
TENANTS = ("mine", "yours", "theirs")
NUMBERS = {"": 0} | {name: i for i, name in enumerate(TENANTS, 1)}

each_policy = pytest.mark.parametrize("name", shipped_policies())
index = st.integers(0, len(SPECS) - 1)
tenants = st.sampled_from(TENANTS)
any_vm = vms(STANDARD, ZONE)


@cache
def recheck(name: str) -> CompiledRecheck:
    """The store's side of a policy."""
    return CompiledRecheck(ZONE, policy(name).rules)


# ----------------------------------------------------------------------------------------------- the rules, uncompiled


def plain_machine(row: MachineRow) -> SimpleNamespace:
    """A machine as rules read it, worked out from what the store holds."""
    spec, at = row.spec, ZONE.machine(row.spec.name)
    by_band = [row.used[b * RESOURCES : (b + 1) * RESOURCES] for b in range(BANDS)]
    free = [
        [spec.capacity[r] - sum(used[r] for used in by_band[: b + 1]) for r in range(RESOURCES)] for b in range(BANDS)
    ]
    fixed = {field: ZONE.machines[at][field].item() for field in ("rack", "cluster", "datacenter", "update_domain")}
    return SimpleNamespace(
        **fixed,
        **{field: getattr(row, field) for field in CONDITION},
        free=free,
        capacity=spec.capacity,
        generation=[g.name for g in ZONE.generations].index(spec.generation),
        features=sum(1 << ZONE.features.index(feature) for feature in spec.features),
        vms=row.vms,
        owner=NUMBERS[row.owner],
        classes=row.classes,
    )


def plain_vm(rules: RuleSet, vm: VM, tenant: str) -> SimpleNamespace:
    """A VM as rules read it; where its type cannot run it would take more than any machine has."""
    row = PlainAllocator(ZONE, rules, numbers=dict(NUMBERS)).vm_row(vm, tenant)
    row.demand = [
        need if runs else [INT32_MAX] * RESOURCES for need, runs in zip(row.demand, row.supported, strict=True)
    ]
    return row


@cache
def marked(name: str) -> tuple[tuple[BoundRule, tuple[Any, ...]], ...]:
    """The validators of a policy that are marked for re-check, with their parameters."""
    return tuple((bound, bound.constants(ZONE)) for bound in policy(name).rules.validators if bound.rule.recheck)


def refusal(name: str, row: MachineRow, vm: VM, tenant: str) -> str | None:
    """What the first marked validator that says no says, None if all agree."""
    machine, asked = plain_machine(row), plain_vm(policy(name).rules, vm, tenant)
    for bound, parameters in marked(name):
        if not bound.rule.function(machine, asked, *parameters):
            return bound.reason(ZONE, bound.rule.detail(machine, asked) if bound.rule.detail else 0)
    return None


# ------------------------------------------------------------------------------------------------------------- states


@st.composite
def any_row(draw: st.DrawFn, at: int, vm: VM) -> MachineRow:
    """Anything that a table could hold of a machine, mostly just enough for a VM or just too little."""
    row, spec = ACCOUNTS.new_row(SPECS[at]), SPECS[at]
    needed = CATALOGUE.demand.get((vm.type, spec.generation), spec.capacity)
    short = draw(st.integers(0, RESOURCES - 1)) if draw(rarely) else -1
    for r, (need, capacity) in enumerate(zip(needed, spec.capacity, strict=True)):
        lowest = need - 1 if r == short else draw(st.sampled_from((need, need + 1, capacity)))
        held = draw(st.sampled_from((0, 1, need, need + 1)))  # by VMs of the lowest band
        row.used[r], row.used[(BANDS - 1) * RESOURCES + r] = capacity - lowest - held, held
    row.vms = draw(st.sampled_from((0, 1, 63, 64, 127, 128)))
    row.owner = draw(tenants) if draw(rarely) else ""
    row.classes = [draw(st.sampled_from((0, 0, 1, 7))) for _ in row.classes]
    row.state = draw(st.integers(0, len(MachineState) - 1)) if draw(rarely) else int(MachineState.READY)
    row.health, row.failures = draw(st.sampled_from((0, 29, 30, 100))), draw(st.sampled_from((0, 3)))
    return row


@st.composite
def started_row(draw: st.DrawFn, at: int) -> MachineRow:
    """A machine that has run for a while: with room, but near some limit."""
    row = ACCOUNTS.new_row(SPECS[at])
    resident = VM(draw(st.sampled_from(("A1", "A3"))), colocation=draw(st.sampled_from(("", *ZONE.classes))))
    for _ in range(draw(st.integers(0, 2))):
        ACCOUNTS.put(row, resident, "theirs", 1)
    if draw(st.booleans()):
        row.vms = draw(st.sampled_from((62, 63, 126, 127)))
    return row


def prepared(moves: list[tuple[int, VM, str, int]], conditions: list[tuple[int, str, int]], name: str) -> Side:
    """A zone in which these moves were made as far as rules allow, and then operators changed machines."""
    side = Side(name)
    for at, vm, tenant, times in moves:
        for _ in range(times):
            if refusal(name, side.rows[at], vm, tenant) is None:
                side.put(at, vm, tenant)
    for at, field, value in conditions:
        side.set_condition(at, field, value)
    return side


class Side:
    """The same zone as an agent has it and as the store has it."""

    def __init__(self, name: str) -> None:
        rules = policy(name).rules
        self.rows = [ACCOUNTS.new_row(spec) for spec in SPECS]
        self.recheck = recheck(name)
        self.view = View(ZONE, self.recheck.arms[0].kernel)
        self.engine = Engine(self.view, rules, limits=SMALL)
        self._shapes = Shapes(ZONE, rules)

    def shape(self, vm: VM, tenant: str) -> Shape:
        """What a VM asks for, as the agent sees it."""
        return self._shapes.of(vm, NUMBERS[tenant])

    def put(self, at: int, vm: VM, tenant: str) -> None:
        """A VM on a machine."""
        self.view.place(at, self.shape(vm, tenant))
        ACCOUNTS.put(self.rows[at], vm, tenant, 1)

    def set_condition(self, at: int, field: str, value: int) -> None:
        """A machine in another condition."""
        if field == "state":
            self.view.set_state(at, MachineState(value))
        else:
            self.view.set_field(at, field, value)
        setattr(self.rows[at], field, value)

    def tested(self) -> RecheckedRows:
        """The store's rows, fresh."""
        return self.recheck.on(self.rows)

    def check(self) -> None:
        """The agent's rows are what the store's rows say."""
        assert differing(renumbered(self.view.machines), renumbered(self.tested().rows)) == []


def differing(mine: NDArray[np.void], theirs: NDArray[np.void]) -> list[str]:
    """The fields in which rows differ."""
    return [name for name in mine.dtype.names or () if not np.array_equal(mine[name], theirs[name])]


def renumbered(rows: NDArray[np.void]) -> NDArray[np.void]:
    """Rows whose owners are numbered in order of appearance: agent and store number tenants as they like."""
    order, rows = {0: 0}, rows.copy()
    rows["owner"] = [order.setdefault(owner, len(order)) for owner in rows["owner"].tolist()]
    rows["owners"] = rows["owner"] * rows["isolated"]
    return rows


conditions = st.lists(
    st.one_of(
        st.tuples(index, st.just("state"), st.integers(0, len(MachineState) - 1)),
        st.tuples(index, st.just("health"), st.sampled_from((0, 29, 30, 100))),
        st.tuples(index, st.sampled_from(("failures", "versions_behind")), st.integers(0, 5)),
    ),
    max_size=5,
)


# --------------------------------------------------------------------------------------------------------- properties


@each_policy
@given(data=st.data(), conditions=conditions, tenant=tenants)
@settings(max_examples=examples(100))
def test_what_an_agent_chooses_on_an_unchanged_machine_the_store_accepts(
    name: str, data: st.DataObject, conditions: list[tuple[int, str, int]], tenant: str
) -> None:
    one = often(data.draw(st.lists(any_vm, min_size=1, max_size=3)), any_vm)
    moves = data.draw(st.lists(st.tuples(index, one, tenants, st.sampled_from((1, 2, 9))), max_size=10))
    side = prepared(moves, conditions, name)
    side.check()
    vm = data.draw(one)
    shape = side.shape(vm, tenant)

    rules = policy(name).rules
    judged = side.engine.judge(side.view, shape, side.engine.desk)
    first = len(rules.cluster_validators)
    for at, verdict in enumerate(judged.verdicts.tolist()):
        said = side.tested().place(SPECS[at].name, vm, tenant)
        if verdict < 0:
            assert said is None, f"{SPECS[at].name} is valid for the agent"
        elif verdict >= first and (bound := rules.validators[verdict - first]).rule.recheck:
            assert said == bound.reason(ZONE, int(judged.details[at])), "the agent is told the same"

    tested = side.tested()
    for choice in (
        BEST,
        BEST,
        AmongBest(3),
        AmongBest(2),
        BEST,
    ):  # several are decided, then committed together
        chosen = side.engine.assign(shape, choice).machine
        if chosen < 0:
            break
        assert side.tested().place(SPECS[chosen].name, vm, tenant) is None
        assert tested.place(SPECS[chosen].name, vm, tenant) is None
        ACCOUNTS.put(side.rows[chosen], vm, tenant, 1)
        side.check()
    assert differing(renumbered(tested.rows), renumbered(side.view.machines)) == []


@each_policy
@given(data=st.data(), vm=any_vm, tenant=tenants, machines=st.lists(index, min_size=1, max_size=3, unique=True))
@settings(max_examples=examples(250))
def test_the_store_refuses_exactly_what_a_marked_validator_refuses_and_names_it(
    name: str, data: st.DataObject, vm: VM, tenant: str, machines: list[int]
) -> None:
    """On anything that a table could hold, be it possible or not."""
    rows = [data.draw(any_row(at, vm)) for at in machines]
    tested = recheck(name).on(rows)
    for row in rows:
        assert tested.place(row.spec.name, vm, tenant) == refusal(name, row, vm, tenant)


@each_policy
@given(data=st.data())
@settings(max_examples=examples(100))
def test_one_bench_says_what_fresh_rows_would_and_going_back_leads_to_the_beginning(
    name: str, data: st.DataObject
) -> None:
    machines = data.draw(st.lists(index, min_size=1, max_size=2, unique=True))
    rows = [data.draw(started_row(at)) for at in machines]
    side, which = recheck(name), st.integers(0, len(rows) - 1)
    one = often(data.draw(st.lists(any_vm, min_size=1, max_size=2)), any_vm)
    before, tested = [row.copy() for row in rows], side.on(rows)
    start = tested.rows.copy()

    accepted: list[tuple[int, VM, str]] = []
    for i, vm, tenant in data.draw(st.lists(st.tuples(which, one, tenants), min_size=2, max_size=12)):
        machine = rows[i].spec.name
        said = tested.place(machine, vm, tenant)
        assert said == side.on(rows).place(machine, vm, tenant) == refusal(name, rows[i], vm, tenant)
        if said is None:
            ACCOUNTS.put(rows[i], vm, tenant, 1)
            accepted.append((i, vm, tenant))
        assert differing(tested.rows, rows_of(ZONE, rows, side.numbers)) == []
    for i, vm, tenant in data.draw(st.permutations(accepted)):
        tested.remove(rows[i].spec.name, vm, tenant)
        ACCOUNTS.put(rows[i], vm, tenant, -1)
        assert differing(tested.rows, rows_of(ZONE, rows, side.numbers)) == []
    assert rows == before
    assert differing(tested.rows, start) == []


@each_policy
@given(data=st.data(), vm=any_vm)
@settings(max_examples=examples(60))
def test_a_condition_told_to_a_commit_counts_as_if_it_had_been_there(name: str, data: st.DataObject, vm: VM) -> None:
    rows = [data.draw(any_row(at, vm)) for at in data.draw(st.lists(index, min_size=1, max_size=2, unique=True))]
    tested = recheck(name).on(rows)
    for at, field, value in data.draw(conditions):
        row = rows[at % len(rows)]
        tested.set_condition(row.spec.name, field, value)
        setattr(row, field, value)
    fresh = recheck(name).on(rows)
    assert differing(tested.rows, fresh.rows) == []
    for row in rows:
        assert tested.place(row.spec.name, vm, "mine") == fresh.place(row.spec.name, vm, "mine")
