"""Plans carried out: through the real commit path while others work, and by a mover that fails as it is told."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from roost.agent.agent import Agent
from roost.agent.replica import Replica
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.model.errors import InvalidInput, StoreUnavailable
from roost.model.request import HOLD, VM, Constraints, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.audit import audit
from roost.store.columns import ZoneColumns
from roost.store.contract import Store
from roost.store.memory import MemoryStore
from roost.whatif.agent_mover import AgentMover
from roost.whatif.carry_out import CarryOutResult, carry_out, command_of
from roost.whatif.measures import Measures
from roost.whatif.mover import MoverStep, StepOutcome
from roost.whatif.plan import Plan, PlannedMove, PlanTerms, plan_id
from roost.whatif.planner import plan_moves
from roost.whatif.progress import Progress
from roost.wiring import open_agent, open_store
from tests.scenario.fragmented import fragmented

DEFAULT = Policy.named("default")
TYPES = ("A1", "A2", "D2", "D3", "D4", "A3")
NOTHING = Measures(
    density=0.0, utilisation=0.0, machines=0, machines_down=0, machines_in_use=0, empty_machines=0, vms=0, stranded={}
)


# ------------------------------------------------------------------------------------------------------- for real


class Others:
    """Tenants that come and go through an agent of their own, and what must be there afterwards."""

    def __init__(self, store: Store, seed: int, called: str = "t") -> None:
        self.agent, self._rng, self._number = open_agent(store, DEFAULT, seed=seed), random.Random(seed), 0
        self._called = called
        self.vms: dict[str, str] = {}  # by name: the tenant

    def place(self) -> None:
        """One more tenant."""
        self._number += 1
        tenant, rng = f"{self._called}{self._number}", self._rng
        wish = Constraints(min_fault_domains=2) if rng.random() < 0.3 else None
        request = Request(tenant, [VM(rng.choice(TYPES))] * rng.choice((1, 2, 3)), wish)
        (answer,) = self.agent.run(self.agent.submit(PlaceVMs(request)))
        self.vms |= {placement.vm: tenant for placement in answer.placements}

    def release(self) -> None:
        """One VM less."""
        vm = self._rng.choice(sorted(self.vms))
        (answer,) = self.agent.run(self.agent.submit(ReleaseVMs(self.vms.pop(vm).split("/")[0], (vm,))))
        assert answer.ok

    def fragment(self, full: float, left: float) -> None:
        """Fill the zone, and let VMs leave at random."""
        while self.agent.allocator.usage().utilisation < full:
            self.place()
        while self.agent.allocator.usage().utilisation > left:
            self.release()


class Disturbed(AgentMover):
    """A mover in a zone where others work between the steps."""

    def __init__(self, agent: Agent, others: Others) -> None:
        super().__init__(agent)
        self._others, self._steps = others, 0

    def move(self, tenant: str, vm: str, machine: str, step: MoverStep, key: str) -> StepOutcome:
        """First the others."""
        self._steps += 1
        if self._steps % 3 == 0:
            self._others.place()
            self._others.release()
        return super().move(tenant, vm, machine, step, key)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with a small zone."""
    url = "memory:" if request.param == "memory" else str(tmp_path / "zone.db")
    with closing(open_store(url, create=Zone.synthetic(100))) as store:
        yield store


def test_a_plan_is_carried_out_while_others_place_and_release(store: Store, tmp_path: Path) -> None:
    others = Others(store, seed=5)
    others.fragment(0.75, 0.4)
    plan = plan_moves(store.load(), DEFAULT, PlanTerms(budget=60))
    assert len(plan.moves) > 30
    with Progress(tmp_path / "progress", plan.id) as progress:
        result = carry_out(plan, Disturbed(open_agent(store, DEFAULT, seed=9), others), progress)
    ledger = store.load()
    assert audit(store).clean
    assert set(ledger.vms) == set(others.vms)
    assert not any(name.endswith(HOLD) for name in ledger.vms)
    assert result.finished + result.gone + result.skipped + result.cancelled == len(plan.moves)
    assert result.finished > len(plan.moves) / 3
    assert result.skipped > 0, "others took the room"
    for move in plan.moves:
        if progress.state(move.number) == "finished" and move.vm in ledger.vms:
            assert ledger.vms[move.vm].machine == move.target


def test_undisturbed_a_plan_brings_what_it_claims(store: Store, tmp_path: Path) -> None:
    Others(store, seed=6).fragment(0.75, 0.4)
    plan = plan_moves(store.load(), DEFAULT, PlanTerms(budget=60))
    agent = open_agent(store, DEFAULT, seed=9)
    with Progress(tmp_path / "progress", plan.id) as progress:
        result = carry_out(plan, AgentMover(agent), progress, at_once=4)
    assert result == CarryOutResult(
        plan=plan.id, moves=len(plan.moves), finished=len(plan.moves), gone=0, skipped=0, cancelled=0,
        emptied=plan.emptied, not_done=(),
    )  # fmt: skip
    usage = agent.allocator.usage()
    assert usage.packing_density == pytest.approx(plan.after.density)
    assert usage.empty_machines == plan.after.empty_machines
    assert audit(store).clean


def test_a_zone_of_5000_machines_gets_two_points_denser_while_others_place_and_release(tmp_path: Path) -> None:
    ledger = fragmented(5_000)
    store = MemoryStore(ledger.catalogue, ledger.copy())
    plan = plan_moves(ledger, DEFAULT, PlanTerms(budget=len(ledger.vms) // 50))
    others, steps, done = Others(store, seed=5, called="other"), threading.Semaphore(0), threading.Event()

    def work() -> None:
        while not done.is_set():
            steps.acquire()  # a tenant comes and a VM goes for every step of a move, in their own time
            others.place()
            if len(others.vms) > 100:
                others.release()

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        try:
            with Progress(tmp_path / "progress", plan.id) as progress:
                mover = AgentMover(open_agent(store, DEFAULT, seed=9))
                carry_out(plan, mover, progress, at_once=8, tell=lambda *_: steps.release())
        finally:
            done.set()
            steps.release()
        working.result()
    now = store.load()
    assert audit(store).clean
    assert len(others.vms) > 100
    entries = [entry for row in store.changes(ledger.revision, 10**6).rows for entry in row.entries if entry.eviction]
    gave_way = {vm.vm for entry in entries for vm in entry.released}
    assert set(now.vms) == {*ledger.vms, *others.vms} - gave_way, "none is lost, and none is there twice"
    assert Replica(ZoneColumns.of(now), DEFAULT).allocator.usage().packing_density - plan.before.density > 0.02


# ---------------------------------------------------------------------------------------------------- made to fail


class Toy:
    """A zone of names: who is where, what is held, and what was asked; refuses and fails as it is told."""

    def __init__(self, plan: Plan) -> None:
        self.where: dict[str, str | None] = {move.vm: move.source for move in plan.moves}
        self.held: dict[str, str] = {}
        self.done: Counter[str] = Counter()  # keys, each time that something was really done
        self.log: list[tuple[str, str]] = []
        self.refuses: set[tuple[str, str]] = set()  # (vm, step)
        self.conflicts: Counter[tuple[str, str]] = Counter()  # (vm, step): how often others are faster
        self.steps_left = 10**9  # before it cannot be reached any more

    def machine_of(self, vm: str) -> str | None:
        """Where it is, or what is held."""
        return self.held.get(vm.removesuffix(HOLD)) if vm.endswith(HOLD) else self.where[vm]

    def move(self, tenant: str, vm: str, machine: str, step: MoverStep, key: str) -> StepOutcome:
        """One step; after the last one that is left, it is done, but nobody hears of it."""
        if (vm, step) in self.refuses:
            return StepOutcome(False, f"no {step} for {vm}")
        if self.conflicts[vm, step]:
            self.conflicts[vm, step] -= 1
            return StepOutcome(False, "others were faster", again=True)
        if not self.done[key]:
            self.done[key] += 1
            self.log.append((vm, step))
            if step == "hold":
                assert vm not in self.held
                self.held[vm] = machine
            elif step == "finish":
                self.where[vm] = self.held.pop(vm)
            else:
                self.held.pop(vm, None)
        self.steps_left -= 1
        if self.steps_left <= 0:
            raise StoreUnavailable("gone away")
        return StepOutcome(True)


def made_plan(*moves: tuple[str, str, str, tuple[int, ...]]) -> Plan:
    """A plan of (vm, source, target, after)."""
    made = tuple(
        PlannedMove(
            number=i, tenant="t", vm=vm, type="A1", source=source, target=target, gain=0.1, empties=source, after=after
        )
        for i, (vm, source, target, after) in enumerate(moves, 1)
    )
    return Plan(
        id=plan_id("toy", 1, made), zone="toy", revision=1, policy="", terms=PlanTerms(budget=9), before=NOTHING,
        after=NOTHING, left={}, moves=made,
    )  # fmt: skip


PLAN = made_plan(("a", "m1", "m2", ()), ("b", "m1", "m3", ()), ("c", "m4", "m2", (1,)), ("d", "m5", "m3", ()))


@pytest.mark.parametrize("with_copies", [False, True])
def test_whenever_it_stops_it_goes_on_and_nothing_is_done_twice(tmp_path: Path, with_copies: bool) -> None:
    for steps in range(1, 9):
        toy, copied = Toy(PLAN), Counter[str]()
        path = tmp_path / f"{with_copies}-{steps}"

        def copy(move: PlannedMove, copied: Counter[str] = copied) -> str:
            copied[move.vm] += 1
            return ""

        given = copy if with_copies else None
        toy.steps_left = steps
        with Progress(path, PLAN.id) as progress, pytest.raises(StoreUnavailable):
            carry_out(PLAN, toy, progress, copy=given)
        toy.steps_left = 10**9
        with Progress(path, PLAN.id) as progress:
            result = carry_out(PLAN, toy, progress, copy=given)
        assert result.finished == len(PLAN.moves)
        assert toy.where == {move.vm: move.target for move in PLAN.moves}
        assert toy.held == {}
        assert set(toy.done.values()) == {1}
        assert set(copied.values()) <= {1}, "a copy that was made is not made again"
        with Progress(path, PLAN.id) as progress:
            assert carry_out(PLAN, toy, progress, copy=given) == result, "a third time nothing is left to do"


def test_a_line_that_was_being_written_is_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    with Progress(path, PLAN.id) as progress:
        progress.note(1, "held")
    path.write_bytes(path.read_bytes() + b'{"number":1,"rea')
    with Progress(path, PLAN.id) as progress:
        assert progress.state(1) == "held"
        progress.note(1, "finished")
    with Progress(path, PLAN.id) as progress:
        assert progress.state(1) == "finished"


def test_one_process_at_a_time_carries_a_plan_out_and_only_this_plan(tmp_path: Path) -> None:
    path = tmp_path / "progress"
    with Progress(path, PLAN.id), pytest.raises(InvalidInput, match="another process"):
        Progress(path, PLAN.id)
    with pytest.raises(InvalidInput, match="belongs to plan"):
        Progress(path, "another")
    for damaged in (b"hello\n", b'{"plan":"\xff"}\n'):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInput, match="is no progress of a plan"):
            Progress(path, PLAN.id)


@pytest.mark.parametrize("at_once", [1, 3])
def test_moves_come_after_those_they_need(tmp_path: Path, at_once: int) -> None:
    toy = Toy(PLAN)
    with Progress(tmp_path / "progress", PLAN.id) as progress:
        carry_out(PLAN, toy, progress, at_once=at_once)
    assert toy.log.index(("a", "finish")) < toy.log.index(("c", "hold"))


def ends(progress: Progress) -> list[str | None]:
    """How each move ended."""
    return [progress.state(move.number) for move in PLAN.moves]


def test_a_target_that_refuses_ends_what_needs_it_and_the_rest_goes_on(tmp_path: Path) -> None:
    toy = Toy(PLAN)
    toy.refuses = {("a", "hold")}
    with Progress(tmp_path / "progress", PLAN.id) as progress:
        result = carry_out(PLAN, toy, progress)
    assert ends(progress) == ["skipped", "skipped", "skipped", "finished"]
    assert [each.why for each in result.not_done] == [
        "no hold for a",
        "m1 is not emptied any more: move 1 was not made",
        "it needs move 1, which was not made",
    ]
    assert result.emptied == 1
    assert toy.held == {}


def test_room_of_which_nobody_heard_that_it_was_held_is_not_left_behind(tmp_path: Path) -> None:
    toy = Toy(PLAN)
    toy.refuses, toy.steps_left = {("a", "hold")}, 1  # holds of b and of d are done, but their answers are lost
    path = tmp_path / "progress"
    with Progress(path, PLAN.id) as progress, pytest.raises(StoreUnavailable):
        carry_out(PLAN, toy, progress, at_once=2)
    assert toy.held
    toy.steps_left = 10**9
    with Progress(path, PLAN.id) as progress:
        carry_out(PLAN, toy, progress)
    assert toy.held == {}


def test_a_vm_that_is_gone_or_elsewhere_stands_in_nobodys_way(tmp_path: Path) -> None:
    toy = Toy(PLAN)
    toy.where["a"], toy.where["d"] = None, "m9"
    with Progress(tmp_path / "progress", PLAN.id) as progress:
        result = carry_out(PLAN, toy, progress)
    assert ends(progress) == ["gone", "finished", "finished", "gone"]
    assert [each.why for each in result.not_done] == ["it runs no more", "it runs on m9"]
    assert result.emptied == 3


def test_what_a_command_fails_at_is_cancelled(tmp_path: Path) -> None:
    toy = Toy(PLAN)
    program = f'{sys.executable} -c \'import sys; sys.exit("no way" if "{{vm}}" == "d" else 0)\''
    with Progress(tmp_path / "progress", PLAN.id) as progress:
        result = carry_out(PLAN, toy, progress, copy=command_of(program, PLAN.id))
    assert ends(progress) == ["finished", "finished", "finished", "cancelled"]
    assert "ended with 1: no way" in result.not_done[0].why
    assert (toy.held, toy.where["d"]) == ({}, "m5")


def test_a_finish_that_is_refused_gives_the_target_back(tmp_path: Path) -> None:
    toy = Toy(PLAN)
    toy.refuses = {("d", "finish")}
    with Progress(tmp_path / "progress", PLAN.id) as progress:
        carry_out(PLAN, toy, progress)
    assert ends(progress) == ["finished", "finished", "finished", "cancelled"]
    assert toy.held == {}


class Copying:
    """Copies, and sees that there is room to copy to; fails for some, or is killed."""

    def __init__(self, toy: Toy) -> None:
        self.toy, self.copied, self.fails, self.dies = toy, list[str](), set[str](), False

    def __call__(self, move: PlannedMove) -> str:
        """One VM."""
        assert self.toy.held.get(move.vm) == move.target, "what is not held is not copied to"
        if self.dies:
            raise StoreUnavailable("killed")
        self.copied.append(move.vm)
        return "no way" if move.vm in self.fails else ""


ONE = made_plan(("d", "m5", "m3", ()))


def test_a_plan_whose_progress_is_lost_holds_room_again(tmp_path: Path) -> None:
    toy = Toy(ONE)
    copy = Copying(toy)
    copy.fails = {"d"}
    with Progress(tmp_path / "progress", ONE.id) as progress:
        assert carry_out(ONE, toy, progress, copy=copy).cancelled == 1
    copy.fails = set()
    with Progress(tmp_path / "another", ONE.id) as progress:
        assert carry_out(ONE, toy, progress, copy=copy).finished == 1
    assert toy.where == {"d": "m3"}


@pytest.mark.parametrize("refuses", [False, True])
def test_room_that_was_given_back_meanwhile_is_held_anew_before_anything_is_copied(
    tmp_path: Path, refuses: bool
) -> None:
    toy = Toy(ONE)
    copy = Copying(toy)
    copy.dies = True
    with Progress(tmp_path / "progress", ONE.id) as progress, pytest.raises(StoreUnavailable):
        carry_out(ONE, toy, progress, copy=copy)
    copy.dies = False
    del toy.held["d"]
    toy.refuses = {("d", "hold")} if refuses else set()
    with Progress(tmp_path / "progress", ONE.id) as progress:
        assert progress.state(1) == "held"
        result = carry_out(ONE, toy, progress, copy=copy)
    assert (result.finished, result.skipped, toy.held) == (not refuses, refuses, {})


def test_where_others_are_faster_it_is_tried_again_and_a_copy_is_not_thrown_away(tmp_path: Path) -> None:
    toy = Toy(ONE)
    copy = Copying(toy)
    toy.conflicts["d", "hold"], toy.conflicts["d", "finish"] = 2, 7
    with Progress(tmp_path / "progress", ONE.id) as progress, pytest.raises(StoreUnavailable, match="finished"):
        carry_out(ONE, toy, progress, copy=copy)
    assert toy.held == {"d": "m3"}
    with Progress(tmp_path / "progress", ONE.id) as progress:
        assert carry_out(ONE, toy, progress, copy=copy).finished == 1
    assert (copy.copied, toy.held) == (["d"], {})


def test_what_cannot_be_cancelled_is_not_said_to_be(tmp_path: Path) -> None:
    toy = Toy(ONE)
    copy = Copying(toy)
    copy.fails, toy.refuses = {"d"}, {("d", "cancel")}
    with Progress(tmp_path / "progress", ONE.id) as progress, pytest.raises(StoreUnavailable, match="no cancel for d"):
        carry_out(ONE, toy, progress, copy=copy)
    toy.refuses = set()
    with Progress(tmp_path / "progress", ONE.id) as progress:
        assert carry_out(ONE, toy, progress, copy=copy).cancelled == 1
    assert toy.held == {}


def test_a_command_may_say_what_is_no_text() -> None:
    program = f"{sys.executable} -c 'import os; os.write(2, bytes([255])); os._exit(1)'"
    assert "ended with 1" in command_of(program, ONE.id)(ONE.moves[0])


@pytest.mark.parametrize("text", ["", "'migrate", "migrate {machine}", "migrate {", "migrate {0}"])
def test_a_command_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--run"):
        command_of(text, PLAN.id)
