"""What is worked out beside the rows, and the numbers of a policy, are data: nothing is compiled anew for them."""

from pathlib import Path

import numpy as np
import pytest

from roost import VM, Allocator, InvalidInput, Policy, Request, Zone
from roost.engine import funnel, side_tables, view
from roost.engine.kernel import asking, compiler
from roost.engine.kernel.compiler import compile_rules
from roost.engine.rule import preference, rule_of, validator
from roost.engine.ruleset import BoundRule, RuleSet
from roost.engine.selection import Engine
from roost.engine.shape import Shapes
from roost.engine.side_tables import FORESIGHT, SideTable
from roost.engine.view import View
from roost.model.foresight import foresee, table_of
from roost.rules.validators.evicts_nobody import evicts_nobody
from roost.rules.validators.has_room import has_room

PACKED = """\
name: packed
machines:
  validators: [has_room, evicts_nobody]
  preferences:
    - {{rule: best_fit, weights: {{cores: {cores}, memory: {memory}}}}}
"""
WEAR = SideTable("wear", "machine", lambda _: np.dtype([("share", np.float64)]))
LOAD = SideTable("load", "cluster", lambda _: np.dtype([("share", np.float64)]))


@preference(reads=(WEAR, LOAD))
def least_worn(machine, vm, wear, load):  # type: ignore[no-untyped-def]
    """Prefer the machine that is least worn, in a cluster that is not loaded."""
    return min(1.0, wear.share + load.share)


@pytest.fixture
def more_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two more side tables than there are."""
    for module in (side_tables, view, compiler, asking, funnel):
        monkeypatch.setattr(module, "TABLES", (FORESIGHT, WEAR, LOAD))
    monkeypatch.setattr("roost.engine.selection.TABLES", (FORESIGHT, WEAR, LOAD))


def packed(cores: float, memory: float) -> Policy:
    return Policy.parse(PACKED.format(cores=cores, memory=memory))


def test_policies_that_differ_in_numbers_share_a_kernel_and_decide_differently() -> None:
    zone, machines = Zone.synthetic(100, seed=1), []
    by_cores, by_memory = packed(1.0, 0.0), packed(0.0, 1.0)
    assert compile_rules(by_cores.rules, zone) is compile_rules(by_memory.rules, zone)
    for policy in (by_cores, by_memory):
        allocator = Allocator(zone, policy, seed=1)
        free = allocator.view.machines["free"]
        free[:, :, 0] -= 1_000 * np.arange(len(free), dtype=np.int32)[:, None] % 7  # fuller the less memory is in use
        free[:, :, 1] -= 1_000 * (7 - np.arange(len(free), dtype=np.int32)[:, None] % 7)
        (placed,) = allocator.allocate(Request("t", [VM("A1")])).placements
        machines.append(placed.machine)
    assert machines[0] != machines[1]


def test_a_weight_of_a_policy_in_force_changes_what_it_says_at_the_next_policy_without_compiling() -> None:
    zone = Zone.synthetic(100, seed=1)
    allocator = Allocator(zone, packed(1.0, 0.0), seed=1)
    kernel = allocator.engine.kernel
    allocator.switch_policy(packed(0.5, 0.5))
    assert allocator.engine.kernel is kernel
    assert allocator.engine.data[0].tolist()[:2] == [0.5, 0.5]


@pytest.mark.usefixtures("more_tables")
def test_a_rule_reads_its_machine_s_row_of_a_table_and_its_cluster_s_of_another() -> None:
    zone = Zone.synthetic(300, seed=1)
    rule, room, spares = (rule_of(each) for each in (least_worn, has_room, evicts_nobody))
    assert rule is not None
    assert room is not None
    assert spares is not None
    rules = RuleSet(validators=(BoundRule(room), BoundRule(spares)), preferences=(BoundRule(rule),), top_clusters=1_000)
    rows = View(zone, compile_rules(rules, zone))
    engine, shape = Engine(rows, rules), Shapes(zone, rules).of(VM("A1"), 0)
    rng = np.random.default_rng(1)
    for _ in range(5):
        wear, load = WEAR.blank(zone), LOAD.blank(zone)
        wear["share"], load["share"] = rng.random(len(wear)), rng.random(len(load)) / 4
        before = rows.revision
        rows.set_table(WEAR, wear)
        rows.set_table(LOAD, load)
        assert rows.revision == before + 2
        said = np.minimum(1.0, wear["share"] + load["share"][zone.machines["cluster"]])
        fits = engine.judge(rows, shape, engine.desk).verdicts < 0
        chosen = engine.assign(shape).machine  # never by a mixture of two versions
        assert chosen == np.flatnonzero(fits)[np.argmin(said[fits])]
        (score,) = funnel.scores(engine, rows, shape, chosen)
        assert score == pytest.approx(said[chosen])


def test_what_does_not_rest_on_a_table_is_not_worked_out_anew_and_what_does_is() -> None:
    zone, looked = Zone.synthetic(300, seed=1), {}
    for name in ("fast", "default"):
        allocator = Allocator(zone, Policy.named(name), seed=1)
        engine, shape = allocator.engine, allocator.shape(VM("A1", priority=zone.bands[-1]), "t")
        engine.assign(shape)
        engine.assign(shape)
        allocator.view.set_table(FORESIGHT, table_of(foresee(zone, allocator.view.machines, {("A1", ""): 5.0}), zone))
        looked[name] = engine.assign(shape).updated
    assert looked["fast"] <= 2
    assert looked["default"] > 50


def test_a_table_is_undone_with_the_rest_and_a_past_revision_has_what_it_said_then() -> None:
    zone = Zone.synthetic(100, seed=1)
    rows = View(zone, compile_rules(Policy.named("fast").rules, zone))
    first, second = (table_of(foresee(zone, zone.machines, {("A1", ""): rate}), zone) for rate in (1.0, 2.0))
    rows.set_table(FORESIGHT, first)
    then = rows.attempt()
    rows.set_table(FORESIGHT, second)
    assert rows.at(then).tables[0]["arrivals"].max() == 1.0
    assert rows.tables[0]["arrivals"].max() == 2.0
    versions = list(rows.table_versions)
    rows.rewind(then)
    assert rows.tables[0]["arrivals"].max() == 1.0
    assert rows.table_versions != versions  # the engine must notice


def test_a_rule_that_is_checked_again_at_commit_reads_no_side_table() -> None:
    with pytest.raises(InvalidInput, match="re-check"):

        @validator(reason="worn", reads=(WEAR,), recheck=True)
        def unworn(machine, vm, wear):  # type: ignore[no-untyped-def]
            return wear.share < 1.0


def test_a_rule_of_ones_own_can_read_what_is_foreseen(tmp_path: Path) -> None:
    (tmp_path / "quiet.py").write_text(
        "from roost.engine.rule import preference\nfrom roost.engine.side_tables import FORESIGHT\n\n"
        "@preference(reads=(FORESIGHT,))\ndef quiet(machine, vm, foresight):\n"
        "    return 0.5 if foresight.arrivals[1][0] > 0.0 else 0.0\n"
    )
    (tmp_path / "policy.yaml").write_text(
        "name: own\nmachines:\n  validators: [has_room, evicts_nobody]\n  preferences:\n"
        '    - {rule: "quiet.py:quiet", buckets: 2}\n'
    )
    zone = Zone.synthetic(100, seed=1)
    allocator = Allocator(zone, Policy.load(tmp_path / "policy.yaml"))
    shape = allocator.shape(VM("A1"), "t")
    keys = []
    for rate in (0.0, 5.0):
        rates = {(zone.vm_types[0].name, ""): rate}
        allocator.view.set_table(FORESIGHT, table_of(foresee(zone, zone.machines, rates), zone))
        keys.append(allocator.engine.look(shape).key)
    assert keys == [0, 1]
