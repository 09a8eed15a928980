"""Several agents at once, on a real PostgreSQL, make VMs give way to others; and what must be so afterwards."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from random import Random

import msgspec

from roost.agent.agent import Agent
from roost.agent.courier import ThreadCourier
from roost.agent.operation import Operation
from roost.agent.settings import AgentSettings
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.bench.postgres import ThrowawayPostgres
from roost.model.change import Entry, PlacedVM
from roost.model.registry import WAITING
from roost.model.request import HOLD, VM, Constraints, Request
from roost.store.audit import check_invariants
from roost.store.contract import Committed, Conflict, Place, Store, Victim
from roost.store.ledger import Ledger, MachineRow
from roost.wiring import open_store
from tests.property.cramped import BANDS, POLICY, SIZES, zone
from tests.scenario.overlapping import MACHINES, PATIENCE, WHOLE, Database, Gate, kinds, place, release

AGENTS = 4
TURNS = 25  # of each agent
AT_ONCE = 8  # operations in each turn
ZONE = zone(8)
TOGETHER = Constraints(evict_together=True)
M0, M1, *_ = MACHINES


# -------------------------------------------------------------------------------------------- two that overlap, exactly


def low_on(*machines: str) -> Place:
    """A VM of the lower band that fills each machine; all of one tenant."""
    return place("low", *machines, tenant="low", vm=VM(WHOLE.type, priority="spot"))


def instead(key: str, machine: str, *victims: PlacedVM) -> Place:
    """A VM on a machine where VMs of that tenant give way."""
    given = tuple(Victim("low", victim) for victim in victims)
    return msgspec.structs.replace(place(key, machine, vm=WHOLE), victims=given)


def test_of_two_commits_that_want_the_same_victim_at_once_one_gets_it(database: Database) -> None:
    low = low_on(M0)
    database.commit(low)
    with database.held_up("first"):
        first = database.start(instead("first", M0, *low.placed))
        database.wait_for_waiting(1)
        second = database.start(instead("second", M0, *low.placed))
        database.wait_for_waiting(2)
    assert kinds(first.result(PATIENCE)) == [Committed]
    (lost,) = second.result(PATIENCE)
    assert isinstance(lost, Conflict)
    assert lost.reason == "victims"
    assert set(database.store.load().vms) == {"first/0"}
    check_invariants(database.store)


def test_a_victim_is_evicted_or_released_but_not_both(database: Database) -> None:
    low = low_on(M0, M1)
    database.commit(low)
    gate = Gate()
    evicting = database.start_at(gate, instead("evicting", M0, low.placed[0]))
    releasing = database.start(release("releasing", msgspec.structs.replace(low, placed=low.placed[:1])))
    database.wait_for_waiting(1)
    gate.open()
    assert kinds(evicting.result(PATIENCE)) == [Committed]
    (lost,) = releasing.result(PATIENCE)
    assert isinstance(lost, Conflict)
    assert lost.reason == "gone"
    check_invariants(database.store)


def test_two_commits_evict_vms_of_one_tenant_on_two_machines_one_after_the_other(database: Database) -> None:
    """They share the tenant and nothing else."""
    low = low_on(M0, M1)
    database.commit(low)
    with database.held_up("first"):
        first = database.start(instead("first", M0, low.placed[0]))
        database.wait_for_waiting(1)
        second = database.start(instead("second", M1, low.placed[1]))
        database.wait_for_waiting(2)
    assert kinds(first.result(PATIENCE)) == kinds(second.result(PATIENCE)) == [Committed]
    assert database.store.tenant("low") is None
    check_invariants(database.store)


# ------------------------------------------------------------------------------------------------------- many, somehow


class Hand:
    """An agent with a store of its own, and a client that asks it for all sorts of things."""

    def __init__(self, url: str, number: int) -> None:
        self.number, self.draw, self.store = number, Random(number), open_store(url)
        self.agent = agent_on(self.store, f"agent {number}", number)
        self.came: Counter[str] = Counter()

    def work(self, start: threading.Barrier) -> None:
        """Some turns of several operations each, from when all are ready."""
        start.wait(PATIENCE)
        for turn in range(TURNS):
            tickets = [self.agent.submit(self._wanted(), f"{self.number}-{turn}-{i}") for i in range(AT_ONCE)]
            self.came.update(answer.status for answer in self.agent.run(*tickets))

    def _wanted(self) -> Operation:
        draw, allocator = self.draw, self.agent.allocator
        kind, tenants = draw.random(), sorted(allocator.tenants)
        movable = sorted(name for name in allocator.vms if not name.endswith(HOLD))
        if kind < 0.15 and tenants:
            return ReleaseVMs(draw.choice(tenants))
        if kind < 0.25 and movable:
            running = allocator.vms[draw.choice(movable)]
            step = draw.choice(("hold", "finish", "cancel", "whole"))
            return MoveVM(running.tenant, running.name, draw.choice(ZONE.machine_names), step)  # type: ignore[arg-type]
        vm = VM(draw.choice(tuple(SIZES)), priority=draw.choice(BANDS), requeue=draw.random() < 0.5)
        if draw.random() < 0.2:  # one of the tenants that everybody uses
            return PlaceVMs(Request(f"shared {draw.randrange(4)}", (vm,), TOGETHER))
        return PlaceVMs(Request(f"tenant {self.number}-{draw.randrange(6)}", (vm,) * draw.randint(1, 3)))

    def close(self) -> None:
        """Stop."""
        self.agent.close()
        self.store.close()


def agent_on(store: Store, name: str, seed: int) -> Agent:
    """An agent that commits in threads of its own."""
    return Agent(store, ThreadCourier(store), POLICY, name, seed=seed, settings=AgentSettings(group=4))


def test_agents_that_make_vms_give_way_at_once_do_so_for_good_reasons_only(server: ThrowawayPostgres) -> None:
    url = server.create_database("evictions")
    with closing(open_store(url, create=ZONE)) as store:
        hands = [Hand(url, number) for number in range(AGENTS)]
        try:
            start = threading.Barrier(AGENTS)
            with ThreadPoolExecutor(AGENTS) as threads:
                for done in [threads.submit(hand.work, start) for hand in hands]:
                    done.result(4 * PATIENCE)
            came = sum((hand.came for hand in hands), Counter[str]())
        finally:
            for hand in hands:
                hand.close()
        assert sum(came.values()) == AGENTS * TURNS * AT_ONCE
        assert came.keys() <= {"done", "declined", "conflicts", "invalid"}
        check_invariants(store)
        assert look_back(store) > 50, "hardly anybody had to give way"
        nobody_waits_for_lower_bands(store)


def look_back(store: Store) -> int:
    """Go through the feed, and look at every eviction on the way; returns how many there were."""
    ledger, evicted, feed = Ledger(store.catalogue), 0, store.changes(0, 10_000, patient=True)
    assert not feed.reload
    for row in feed.rows:
        gone: dict[str, list[Entry]] = {}  # by the key of what was placed instead
        for entry in row.entries:
            ledger.apply(entry)
            assert all(within_capacity(ledger, ledger.machines[name]) for name in entry.versions)
            if entry.eviction:
                gone.setdefault(entry.key, []).append(entry)
                evicted += len(entry.released)
            if entry.placed and (losses := gone.pop(entry.key, [])):
                check_cause(store, ledger, entry, losses)
        assert not gone, "somebody gave way to nothing"
    return evicted


def check_cause(store: Store, ledger: Ledger, entry: Entry, losses: list[Entry]) -> None:
    """What was placed is committed, of a higher band than those who gave way, and needed the room of each."""
    accounts, decided = ledger.accounts, store.decided(entry.key)
    assert decided is not None
    assert (decided.outcome, decided.placed) == ("committed", entry.placed)
    names = [vm.vm for loss in losses for vm in loss.released]
    assert len(set(names)) == len(names)
    assert {victim.vm.vm for victim in decided.record.victims} == set(names)
    assert not ledger.vms.keys() & set(names)
    highest = min(accounts.band(vm.spec) for vm in entry.placed)
    for loss in losses:
        for vm in loss.released:
            assert accounts.band(vm.spec) > highest
            if vm.vm.endswith(HOLD):
                continue
            if not loss.constraints.evict_together:
                row = ledger.machines[vm.machine].copy()
                accounts.put(row, vm.spec, loss.tenant, 1)
                assert not within_capacity(ledger, row), f"{vm.vm} could have stayed"
            assert not vm.spec.requeue or (WAITING, vm.vm) in ledger.registry


def within_capacity(ledger: Ledger, row: MachineRow) -> bool:
    """Whether a machine holds no more than it has, as every band sees it."""
    resources, accounts = ledger.accounts.resources, ledger.accounts
    for band in range(accounts.bands):
        seen = row.used[: (band + 1) * resources]
        if any(sum(seen[r::resources]) > capacity for r, capacity in enumerate(row.spec.capacity)):
            return False
    return True


def nobody_waits_for_lower_bands(store: Store) -> None:
    """Somebody who is alone now is refused only where its own band and those above leave no room."""
    agent = agent_on(store, "last", 99)
    try:
        for i in range(40):
            band, kind = i % len(BANDS), tuple(SIZES)[i % len(SIZES)]
            ticket = agent.submit(PlaceVMs(Request(f"last {i}", (VM(kind, priority=BANDS[band]),))))
            (answer,) = agent.run(ticket)
            assert answer.status in ("done", "declined")
            if answer.status == "declined":
                for row in store.load().machines.values():
                    assert not has_room(row, band, SIZES[kind]), f"{row.spec.name} has room but for lower bands"
    finally:
        agent.close()
    check_invariants(store)


def has_room(row: MachineRow, band: int, demand: tuple[int, ...]) -> bool:
    """Whether a machine had room for something if all below its band were gone."""
    seen = row.used[: (band + 1) * len(demand)]
    left = [capacity - sum(seen[r :: len(demand)]) for r, capacity in enumerate(row.spec.capacity)]
    return all(need <= has for need, has in zip(demand, left, strict=True))
