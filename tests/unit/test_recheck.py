"""What the validators say at commit, on the rows of an authority."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest

from roost.engine.recheck import CompiledRecheck, RecheckedRows, TenantNumbers, rows_of
from roost.engine.rule import derived, rule_of, validator
from roost.model.errors import InvalidInput
from roost.model.inventory import catalogue_of, machine_specs
from roost.model.request import VM
from roost.model.rows import MachineState
from roost.store.ledger import Accounts, MachineRow
from tests.property.zones import COLUMNS, TINY, ClusterPlan, build, policy

ZONE = build(TINY, (ClusterPlan(0, 0, (2,)), ClusterPlan(1, 0, (1,))))
CATALOGUE, SPECS = catalogue_of(ZONE), machine_specs(ZONE)
ACCOUNTS = Accounts(CATALOGUE)
OLD, OTHER, NEW = ZONE.machine_names  # two of 4 cores and 8 GiB, one of 6 and 6
SMALL, WHOLE = VM("small"), VM("whole")


@cache
def recheck() -> CompiledRecheck:
    """All shipped validators, no more than three VMs on a machine, and two rules of a user's own."""
    return CompiledRecheck(ZONE, policy(COLUMNS).rules)


def holdings(*vms: tuple[str, VM, str], **condition: int) -> list[MachineRow]:
    """A row of each machine: all in some condition, with these VMs (machine, VM, tenant) on them."""
    rows = {spec.name: ACCOUNTS.new_row(spec) for spec in SPECS}
    for row in rows.values():
        for field, value in condition.items():
            setattr(row, field, value)
    for machine, vm, tenant in vms:
        ACCOUNTS.put(rows[machine], vm, tenant, 1)
    return list(rows.values())


def rows_with(*vms: tuple[str, VM, str], **condition: int) -> RecheckedRows:
    """These rows, to test placements on."""
    return recheck().on(holdings(*vms, **condition))


def same(mine: Any, theirs: Any) -> bool:
    """Whether rows agree in every field."""
    names: Iterable[str] = mine.dtype.names
    return all(np.array_equal(mine[name], theirs[name]) for name in names)


# -------------------------------------------------------------------------------------------------------- who is asked


def test_a_machine_that_the_zone_lacks_is_refused_with_a_sentence() -> None:
    stranger = ACCOUNTS.new_row(msgspec.structs.replace(SPECS[0], name="stranger"))
    tested = recheck().on([*holdings(), stranger])
    assert tested.place("stranger", SMALL, "t") == "not known here yet"
    assert tested.place(OLD, SMALL, "t") is None


def test_a_machine_that_was_not_handed_over_is_refused_with_a_sentence() -> None:
    assert recheck().on(holdings()[1:]).place(OLD, SMALL, "t") == "not known here yet"
    assert recheck().on([]).place(OLD, SMALL, "t") == "not known here yet"


def test_a_machine_that_nobody_knows_can_be_told_anything() -> None:
    tested = rows_with()
    tested.remove("stranger", SMALL, "t")
    tested.set_condition("stranger", "state", 1)
    assert same(tested.rows, rows_with().rows)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1,)])
def test_rows_may_come_in_any_order_and_be_few(order: tuple[int, ...]) -> None:
    rows = holdings((OTHER, WHOLE, "t"))
    tested = recheck().on([rows[i] for i in order])
    assert tested.place(OTHER, SMALL, "t") == "insufficient cores"
    if len(order) == 3:
        assert tested.place(NEW, WHOLE, "t") is None


def test_a_machine_that_was_replaced_by_other_hardware_is_not_judged_by_what_it_was() -> None:
    """The zone that the rules know has it with the hardware of old: what fits there may not even run here."""
    new = next(g for g in CATALOGUE.generations if g.name != SPECS[0].generation)
    replaced = ACCOUNTS.new_row(
        msgspec.structs.replace(SPECS[0], generation=new.name, capacity=new.capacity, features=new.features)
    )
    vm = VM("big")  # 3 cores and 6 GiB of the old, 2 and 3 of the new: two fit on the new
    tested = recheck().on([replaced])
    said = [tested.place(OLD, vm, "t") for _ in range(3)]
    assert said in ([None, None, "insufficient memory"], ["not known here yet"] * 3)


@pytest.mark.parametrize(
    "change", [{"cluster": "c9"}, {"rack": "r9"}, {"datacenter": "d9"}, {"update_domain": 9}, {"features": ("odd",)}]
)
def test_a_machine_that_stands_elsewhere_by_now_or_has_other_features_is_not_judged_by_what_it_was(
    change: dict[str, Any],
) -> None:
    moved = ACCOUNTS.new_row(msgspec.structs.replace(SPECS[0], **change))
    assert recheck().on([moved]).place(OLD, SMALL, "t") == "not known here yet"
    assert recheck().standing().on([moved]).place(OLD, SMALL, "t") == "not known here yet"


@pytest.mark.parametrize(
    ("vm", "sentence"),
    [
        (VM("huge"), "vm.type: no VM type is called 'huge'"),
        (VM("small", priority="highest"), "no priority band is called 'highest'"),
        (VM("small", colocation="quiet"), "no anti-colocation class is called 'quiet'"),
        (VM("small", cluster="c9"), "no cluster is called 'c9'"),
        (VM("small", traits={"z": 1}), "no trait of the policy's own rules is called 'z'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_vm_that_the_zone_or_the_rules_do_not_know_is_refused_with_a_sentence(vm: VM, sentence: str) -> None:
    tested = rows_with()
    assert sentence in (tested.place(OLD, vm, "t") or "")
    assert same(tested.rows, rows_with().rows)


# -------------------------------------------------------------------------------------------------------- what is said


def test_each_vm_is_tested_on_what_those_before_it_left() -> None:
    tested = rows_with()
    assert [tested.place(OLD, VM("wide"), "t") for _ in range(3)] == [None, None, "insufficient cores"]
    assert tested.place(OTHER, VM("wide"), "t") is None


def test_the_resource_that_is_short_is_named() -> None:
    assert rows_with((OLD, VM("big"), "a")).place(OLD, VM("tall"), "t") == "insufficient memory"
    assert rows_with((OLD, VM("wide"), "a")).place(OLD, VM("big"), "t") == "insufficient cores"


def test_a_type_that_the_hardware_cannot_run_never_fits() -> None:
    assert rows_with().place(OLD, VM("only-new"), "t") == "insufficient cores"
    assert rows_with().place(NEW, VM("only-new"), "t") is None


def test_what_lower_priorities_hold_is_free_to_higher_ones() -> None:
    """Whether they really give way the store knows, which compares what is proposed with what is there."""
    held = rows_with((OLD, VM("whole", priority="low"), "a"))
    assert held.place(OLD, VM("small", priority="low"), "t") == "insufficient cores"
    assert held.place(OLD, VM("small", priority="lowest"), "t") == "insufficient cores"
    assert held.place(OLD, VM("small", priority="high"), "t") is None


def test_a_tenant_in_isolation_shares_a_machine_with_itself_alone() -> None:
    alone = VM("small", isolated=True)
    tested = rows_with((OTHER, SMALL, "a"))
    assert tested.place(OTHER, alone, "a") == "isolation", "not even with VMs of its own that are not isolated"
    assert tested.place(OLD, alone, "a") is None
    assert tested.place(OLD, alone, "b") == "isolation"
    assert tested.place(OLD, SMALL, "a") == "isolation"
    assert tested.place(OLD, alone, "a") is None


def test_a_machine_is_free_for_others_when_the_last_isolated_vm_is_gone() -> None:
    alone = VM("small", isolated=True)
    tested = rows_with((OLD, alone, "a"), (OLD, alone, "a"))
    tested.remove(OLD, alone, "a")
    assert tested.place(OLD, alone, "b") == "isolation"
    tested.remove(OLD, alone, "a")
    assert tested.place(OLD, alone, "b") is None
    assert tested.place(OLD, alone, "a") == "isolation"


def test_tenants_in_isolation_are_told_apart_across_commits() -> None:
    alone = VM("small", isolated=True)
    for tenant in ("a", "b", "c", "a"):
        tested = rows_with((OLD, alone, "a"), (OTHER, alone, "b"))
        assert (tested.place(OLD, alone, tenant) is None) == (tenant == "a")
        assert (tested.place(OTHER, alone, tenant) is None) == (tenant == "b")


def test_numbers_of_tenants_are_never_zero_and_never_shared() -> None:
    numbers = TenantNumbers()
    given = [numbers[name] for name in ("a", "b", "c", "a")]
    assert given[0] == given[3]
    assert len({0, *given}) == 4
    assert numbers[""] == 0


def test_vms_of_conflicting_classes_keep_apart() -> None:
    tested = rows_with((OLD, VM("small", colocation="loud"), "a"))
    assert tested.place(OLD, VM("small", colocation="shy"), "b") == "anti-colocation class"
    assert tested.place(OLD, VM("small", colocation="loud"), "b") is None
    assert tested.place(OTHER, VM("small", colocation="shy"), "b") is None
    assert tested.place(OTHER, VM("small", colocation="loud"), "b") == "anti-colocation class"


def test_a_class_that_keeps_apart_from_itself_has_one_vm_on_a_machine() -> None:
    tested, single = rows_with(), VM("small", colocation="single")
    assert [tested.place(OLD, single, "t") for _ in range(2)] == [None, "anti-colocation class"]
    tested.remove(OLD, single, "t")
    assert tested.place(OLD, single, "t") is None


def test_a_parameter_that_the_policy_sets_counts_at_commit_too() -> None:
    tested = rows_with((OLD, SMALL, "a"))
    assert [tested.place(OLD, SMALL, "t") for _ in range(3)] == [None, None, "VM-count limit"]


@pytest.mark.parametrize("state", [s for s in MachineState if s is not MachineState.READY])
def test_a_machine_that_is_not_ready_says_so(state: MachineState) -> None:
    assert rows_with(state=int(state)).place(OLD, SMALL, "t") == f"machine {state.name.lower()}"


def test_a_change_of_condition_counts_from_then_on() -> None:
    tested = rows_with()
    tested.set_condition(OLD, "state", MachineState.DRAINING)
    assert tested.place(OLD, SMALL, "t") == "machine draining"
    assert tested.place(OTHER, SMALL, "t") is None
    tested.set_condition(OLD, "state", MachineState.READY)
    assert tested.place(OLD, SMALL, "t") is None


def test_the_first_validator_of_the_policy_that_says_no_is_the_one_that_is_named() -> None:
    tested = rows_with((OLD, VM("whole", isolated=True), "a"), state=int(MachineState.DOWN))
    assert tested.place(OLD, SMALL, "b") == "machine down"
    tested.set_condition(OLD, "state", MachineState.READY)
    assert tested.place(OLD, SMALL, "b") == "insufficient cores"


def test_health_and_features_are_asked_for_again() -> None:
    assert rows_with(health=0).place(OLD, SMALL, "t") == "machine unhealthy"
    assert rows_with().place(OLD, VM("small", requires=ZONE.features), "t") == "missing hardware feature"


# ------------------------------------------------------------------------------------------------------ what it leaves


def test_a_refused_vm_leaves_no_trace() -> None:
    tested = rows_with((OLD, SMALL, "a"))
    before = tested.rows.copy()
    assert tested.place(OLD, WHOLE, "b") is not None
    assert tested.place(OLD, VM("small", isolated=True), "b") is not None
    assert same(tested.rows, before)


def test_neither_the_zone_nor_the_rows_handed_over_are_changed() -> None:
    rows, machines = holdings((OTHER, SMALL, "a")), ZONE.machines.copy()
    tested = recheck().on(rows)
    tested.place(OLD, SMALL, "t")
    tested.remove(OTHER, SMALL, "a")
    tested.set_condition(NEW, "state", 2)
    assert rows == holdings((OTHER, SMALL, "a"))
    assert same(ZONE.machines, machines)


def test_rows_of_an_empty_zone_are_the_rows_of_the_zone() -> None:
    assert same(rows_of(ZONE, holdings(), TenantNumbers()), ZONE.machines)
    assert len(rows_of(ZONE, [], TenantNumbers())) == 0


# ----------------------------------------------------------------------------------------- what can be marked for it


def test_a_validator_that_needs_a_derived_column_cannot_be_marked_for_recheck() -> None:
    @derived()
    def fact(machine: Any, vm: Any) -> float:
        return 0.0

    with pytest.raises(InvalidInput, match="is marked for re-check; a commit sees machine rows alone"):

        @validator(reason="no", needs=(fact,), recheck=True)
        def needy(machine: Any, vm: Any, fact: float) -> bool:
            return fact > 0

    @validator(reason="no", needs=(fact,))
    def fine(machine: Any, vm: Any, fact: float) -> bool:
        return fact > 0


def test_a_validator_of_clusters_cannot_be_marked_for_recheck() -> None:
    with pytest.raises(InvalidInput, match="a commit sees machine rows alone: no needs, scope machine"):

        @validator(reason="no", scope="cluster", recheck=True)
        def shut(cluster: Any, vm: Any) -> bool:
            return False


def test_a_validator_is_not_asked_again_unless_it_is_marked() -> None:
    @validator(reason="no")
    def usual(machine: Any, vm: Any) -> bool:
        return True

    @validator(reason="no", recheck=True)
    def marked(machine: Any, vm: Any) -> bool:
        return True

    described = [rule_of(usual), rule_of(marked)]
    assert [rule.recheck for rule in described if rule] == [False, True]


# ------------------------------------------------------------------------------------------------------ what it recalls


def test_what_a_commit_made_of_rows_counts_only_if_it_was_written() -> None:
    judge, rows = recheck().standing(), holdings()
    assert judge.on(rows).place(OLD, WHOLE, "t") is None
    assert judge.on(rows).place(OLD, WHOLE, "t") is None, "nothing was written: the machine is empty still"


def test_rows_that_were_written_are_recalled_under_their_new_version() -> None:
    judge, rows = recheck().standing(), {row.spec.name: row for row in holdings()}
    assert judge.on(list(rows.values())).place(OLD, SMALL, "t") is None
    ACCOUNTS.put(rows[OLD], SMALL, "t", 1)
    rows[OLD].version += 1
    judge.written([rows[OLD]])
    assert same(judge.on(list(rows.values())).rows, recheck().on(list(rows.values())).rows)


def test_a_row_of_another_version_is_looked_at_anew() -> None:
    judge, rows = recheck().standing(), {row.spec.name: row for row in holdings()}
    judge.on(list(rows.values()))
    ACCOUNTS.put(rows[OLD], WHOLE, "somebody", 1)
    rows[OLD].version += 1
    assert judge.on(list(rows.values())).place(OLD, SMALL, "t") == "insufficient cores"


def test_a_machine_that_was_removed_and_added_again_is_looked_at_anew() -> None:
    judge, rows = recheck().standing(), {row.spec.name: row for row in holdings((OLD, WHOLE, "t"))}
    assert judge.on(list(rows.values())).place(OLD, SMALL, "t") == "insufficient cores"
    again = ACCOUNTS.new_row(msgspec.structs.replace(rows[OLD].spec))  # same name and hardware, same version
    assert judge.on([again]).place(OLD, SMALL, "t") is None
