"""Migration plans: what they bring, and that they can be carried out as they say."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roost.model.change import PlacedVM
from roost.model.errors import InvalidInput
from roost.model.registry import THRESHOLD
from roost.model.request import HOLD
from roost.rules.policy import Policy
from roost.store.ledger import Ledger, VMRow
from roost.store.snapshot import decode_snapshot, encode_snapshot
from roost.whatif.plan import PlanTerms, read_plan, write_plan
from roost.whatif.planner import PINNED, plan_moves
from tests.oracle.moves import any_order, wrong_with
from tests.scenario.fragmented import MIXED, fragmented

DEFAULT = Policy.named("default")


@pytest.fixture(scope="module")
def zone() -> Ledger:
    """A fragmented zone with all sorts of VMs and wishes."""
    return fragmented(300, mix=MIXED, fussy=0.5)


def test_a_fragmented_zone_gets_two_points_denser_by_moving_two_percent_of_its_vms() -> None:
    ledger = fragmented(5_000)
    assert len(ledger.vms) > 50_000
    terms = PlanTerms(budget=len(ledger.vms) // 50)
    started = time.process_time()
    plan = plan_moves(ledger, DEFAULT, terms)
    assert time.process_time() - started < 10
    assert plan.gain >= 2.0
    assert len(plan.moves) <= terms.budget
    assert plan.after.machines_in_use == plan.before.machines_in_use - plan.emptied
    assert plan.gain == pytest.approx(sum(move.gain for move in plan.moves))
    assert list(wrong_with(plan, ledger, plan.moves)) == []


@pytest.mark.parametrize("budget", [30, 150, 10_000])
def test_a_plan_is_right_move_by_move_and_claims_what_it_brings(zone: Ledger, budget: int) -> None:
    plan = plan_moves(zone, DEFAULT, PlanTerms(budget=budget, isolated=budget > 30))
    assert list(wrong_with(plan, zone)) == []
    assert plan.gain > 0


def test_no_move_costs_an_availability_set_anything_not_even_best_effort() -> None:
    ledger = fragmented(200, sets=True)
    plan = plan_moves(ledger, DEFAULT, PlanTerms(budget=10_000))
    moved = {ledger.vms[move.vm].spec.set for move in plan.moves}
    assert moved == {"pair", "web", ""}
    assert list(wrong_with(plan, ledger)) == []
    assert list(wrong_with(plan, ledger, any_order(plan, seed=1))) == []


def test_moves_may_be_made_in_any_order_that_heeds_what_they_come_after(zone: Ledger) -> None:
    plan = plan_moves(zone, DEFAULT, PlanTerms(budget=10_000, isolated=True))
    assert any(move.after for move in plan.moves)
    for seed in range(10):
        assert list(wrong_with(plan, zone, any_order(plan, seed))) == []


def test_vms_make_room_for_larger_ones_and_those_wait_for_them(zone: Ledger) -> None:
    plan = plan_moves(zone, DEFAULT, PlanTerms(budget=10_000))
    ejected = [move for move in plan.moves if move.source != move.empties]
    assert ejected
    for move in ejected:
        assert any(move.number in later.after and later.target == move.source for later in plan.moves)


def test_the_same_question_gets_the_same_plan_and_the_ledger_is_as_it_was(zone: Ledger) -> None:
    before = encode_snapshot(zone)
    first, second = (plan_moves(zone, DEFAULT, PlanTerms(budget=50)) for _ in range(2))
    assert first == second
    assert encode_snapshot(zone) == before


def test_only_what_the_terms_allow_is_moved(zone: Ledger) -> None:
    for terms in (
        PlanTerms(budget=100, tenants=("t1*", "t2?")),
        PlanTerms(budget=100, types=("A1", "A2", "D1", "D2")),
        PlanTerms(budget=100, priorities=("spot",)),
    ):
        plan = plan_moves(zone, DEFAULT, terms)
        assert list(wrong_with(plan, zone)) == []
        assert plan.left[PINNED] > 0
    dear = plan_moves(zone, DEFAULT, PlanTerms(budget=10_000, cost=8.0))
    assert dear.moves
    assert dear.frees >= 8.0 * len(dear.moves)


def test_what_is_being_moved_already_stays(zone: Ledger) -> None:
    plan = plan_moves(zone, DEFAULT, PlanTerms(budget=40))
    busy = zone.copy()
    first = plan.moves[0]
    row = busy.vms[first.vm]
    busy.vms[first.vm + HOLD] = VMRow(row.tenant, PlacedVM(first.vm + HOLD, row.spec, first.target))
    busy.accounts.put(busy.machines[first.target], row.spec, row.tenant, 1)
    again = plan_moves(busy, DEFAULT, PlanTerms(budget=40))
    assert first.vm.removesuffix(HOLD) not in {move.vm.removesuffix(HOLD) for move in again.moves}


def test_machines_that_are_kept_empty_are_no_reason_not_to_move(zone: Ledger) -> None:
    kept = zone.copy()
    kept.registry = {(THRESHOLD, cluster): '{"new": 1, "scale_out": 1, "healing": 1}' for cluster in kept.clusters}
    assert any(not row.vms for row in kept.machines.values())
    assert (
        plan_moves(kept, DEFAULT, PlanTerms(budget=40)).moves == plan_moves(zone, DEFAULT, PlanTerms(budget=40)).moves
    )


def test_a_plan_survives_its_file_and_a_forged_one_is_refused(zone: Ledger, tmp_path: Path) -> None:
    plan = plan_moves(zone, DEFAULT, PlanTerms(budget=20))
    file = tmp_path / "plan.json"
    write_plan(plan, file)
    assert read_plan(file) == plan
    (tmp_path / "damaged.json").write_bytes(b'{"id": "\xff"}')
    with pytest.raises(InvalidInput, match=r"damaged\.json"):
        read_plan(tmp_path / "damaged.json")
    for change in ({"target": plan.moves[1].target}, {"tenant": "other"}, {"empties": ""}):
        moved = msgspec.structs.replace(plan.moves[0], **change)
        write_plan(msgspec.structs.replace(plan, moves=(moved, *plan.moves[1:])), file)
        with pytest.raises(InvalidInput, match="it was changed"):
            read_plan(file)


@pytest.mark.parametrize(
    ("terms", "complaint"),
    [
        ({"types": ("D22",)}, "no VM type is called 'D22'"),
        ({"priorities": ("gold",)}, "no priority band is called 'gold'"),
        ({"tenants": ("x*",)}, "no tenant is called like 'x\\*'"),
        ({"budget": -1}, "budget: is -1"),
    ],
)
def test_terms_that_make_no_sense_are_refused(zone: Ledger, terms: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        plan_moves(zone, DEFAULT, PlanTerms(**{"budget": 1, **terms}))  # type: ignore[arg-type]


def test_a_snapshot_is_the_whole_ledger(zone: Ledger) -> None:
    again = decode_snapshot(encode_snapshot(zone))
    assert list(zone.differences(again)) == []
    assert again.revision == zone.revision
    with pytest.raises(InvalidInput, match="give what `roost whatif snapshot` wrote"):
        decode_snapshot(b'{"form": "roost snapshot 2"}')
    with pytest.raises(InvalidInput, match="give what `roost whatif snapshot` wrote"):
        decode_snapshot(b'{"form": "\xff"}')


def test_a_snapshot_takes_policies_along_and_no_tokens(zone: Ledger) -> None:
    known = zone.copy()
    known.registry = {("token", "boss"): "hash of a secret", ("policy", "ours"): "name: ours"}
    written = encode_snapshot(known)
    assert b"secret" not in written
    assert decode_snapshot(written).registry == {("policy", "ours"): "name: ours"}


def test_a_snapshot_that_contradicts_itself_is_refused(zone: Ledger) -> None:
    name = next(iter(zone.vms))
    for changed in (
        encode_snapshot(zone).replace(zone.vms[name].machine.encode(), b"nowhere", 1),
        encode_snapshot(zone).replace(b'"vms":[[', b'"vms":[["ghost","nobody","nowhere",0],['),
    ):
        with pytest.raises(InvalidInput, match="snapshot"):
            decode_snapshot(changed)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda said: said["machines"][0].__setitem__(1, 9), "is in state 9"),
        (lambda said: said["machines"][0][0].__setitem__(4, "gen99"), "is of generation gen99, which is not in it"),
        (lambda said: said["machines"][0][0][7].pop(), "resources, and the zone"),
        (lambda said: said["catalogue"]["generations"][0]["capacity"].pop(), "generation .* resources, and the zone"),
        (lambda said: said["vms"][0].__setitem__(3, -1), "has spec -1"),
    ],
)
def test_a_snapshot_that_makes_no_sense_is_refused(
    zone: Ledger, change: Callable[[dict[str, Any]], object], problem: str
) -> None:
    said = msgspec.json.decode(encode_snapshot(zone))
    change(said)
    with pytest.raises(InvalidInput, match=problem):
        decode_snapshot(msgspec.json.encode(said))
