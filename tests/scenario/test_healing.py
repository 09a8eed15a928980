"""Machines and racks fail, and their VMs run elsewhere: never lost, never twice, and what has to wait is seen to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest

from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.operation import Operation
from roost.agent.ticket import Ticket
from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.api.backwards import MOST_SUMMED
from roost.api.healings import summary_of
from roost.api.json_lines import serve
from roost.api.service import Service
from roost.duties.duty import Roster
from roost.duties.healing import RECALL_SECONDS, TELL_SECONDS, TOLD, Healer, healing_key
from roost.duties.outages import outages_of
from roost.duties.turns import LONGEST_PAUSE
from roost.model.errors import StoreUnavailable
from roost.model.request import VM, Constraints, Request
from roost.model.rows import MachineState
from roost.model.spans import DAY
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.settings import AgentSection as AgentSettings
from roost.settings import Settings
from roost.settings import StoreSection as StoreSettings
from roost.store import backwards
from roost.store.audit import check_invariants
from roost.store.contract import Store
from roost.wire.healing import HealingSummary
from roost.wiring import open_store
from tests.property.zones import TINY, ClusterPlan, build

FAST = Policy.named("fast")
FLAPS = Settings().healing.flaps


class Site:
    """An agent that heals, on a store; time passes when told to."""

    def __init__(self, zone: Zone, store: Store | None = None) -> None:
        self.zone, self.now, self._keys = zone, 1_000.0, count()
        self.store = store or open_store("memory:", create=zone)
        self.agent = Agent(self.store, InlineCourier(self.store), FAST, f"agent-{id(self)}", now=lambda: self.now)
        self.begin()

    def begin(self, time_of_day: Callable[[], float] | None = None) -> None:
        """A healer begins, and remembers nothing."""
        self.healer = Healer(self.agent, lambda: self.now, time_of_day or (lambda: self.now))
        self.roster = Roster([self.healer])

    def do(self, *operations: Operation) -> None:
        """What clients and operators ask for; all of it is done."""
        tickets = [self.agent.submit(operation, self._key(operation)) for operation in operations]
        for answer in self.agent.run(*tickets):
            assert answer.ok, answer

    def _key(self, operation: Operation) -> str:
        return healing_key() if isinstance(operation, HealVMs) else f"key {next(self._keys)} {id(self)}"

    def summary(self, since: float = 0.0, most: int = MOST_SUMMED) -> HealingSummary:
        return summary_of(self.store, since, self.zone.bands, 0, 0, most=most)

    def place(self, tenant: str, *types: str, priority: str = "", constraints: Constraints | None = None) -> None:
        vms = tuple(VM(kind, priority=priority) for kind in types)
        self.do(PlaceVMs(Request(tenant, vms, constraints)))

    def set(self, state: str, *machines: str) -> None:
        self.do(*(SetMachine(machine, state=state) for machine in machines))  # type: ignore[arg-type]

    def heal(self, seconds: float = 2.0) -> None:
        """Let the healer work until it has nothing to do."""
        for _ in range(3):
            self.now += seconds
            self.roster.step(self.now)
            while not self.agent.idle:
                self.agent.step(0.01)
            self.agent.step()
        self.check()

    def check(self) -> None:
        check_invariants(self.store)
        self.agent.check_invariants()

    def where(self) -> dict[str, str]:
        """The machine of each VM, by the store."""
        return {name: row.machine for name, row in self.store.load().vms.items()}


def unavailable(*_: object, **__: object) -> None:
    """A commit to a store that is away."""
    raise StoreUnavailable("away")


@pytest.fixture
def site() -> Iterator[Site]:
    """Four old machines, in two racks, with room for four small VMs each."""
    made = Site(build(TINY, (ClusterPlan(0, 0, (2, 2)),)))
    yield made
    made.agent.close()


def test_vms_of_a_machine_that_fails_run_elsewhere_under_their_names(site: Site) -> None:
    site.place("t", "small", "small", "small")
    before = site.where()
    (machine,) = set(before.values())
    site.set("down", machine)
    site.heal()
    after = site.where()
    assert after.keys() == before.keys()
    assert machine not in after.values()
    assert site.healer.waiting == {}
    assert site.healer.counts.healed == 3


def test_a_vm_stays_as_old_as_it_is(site: Site) -> None:
    site.place("t", "small")
    since = site.store.load().vms["t/0"].since
    site.set("down", site.where()["t/0"])
    site.heal()
    assert site.store.load().vms["t/0"].since == since > 0


def test_a_machine_that_comes_back_does_not_bring_a_second_copy(site: Site) -> None:
    site.place("t", "small")
    machine = site.where()["t/0"]
    site.set("down", machine)
    site.heal()
    site.set("ready", machine)
    site.heal()
    assert list(site.where()) == ["t/0"]
    assert site.store.load().machines[machine].vms == 0


def test_a_machine_that_comes_back_in_time_keeps_its_vms(site: Site) -> None:
    site.place("t", "small")
    before = site.where()
    site.set("down", *before.values())
    site.set("ready", *before.values())
    site.heal()
    assert site.where() == before


def test_what_finds_no_machine_waits_and_is_healed_when_something_leaves(site: Site) -> None:
    for tenant in "abcd":
        site.place(tenant, "whole")
    machine = site.where()["a/0"]
    site.set("down", machine)
    site.heal()
    assert set(site.healer.waiting) == {"a/0"}
    assert site.where()["a/0"] == machine
    tries = site.healer.counts.declined
    site.heal()
    assert site.healer.counts.declined == tries, "nothing had changed"
    site.do(ReleaseVMs("b"))
    site.heal()
    assert site.healer.waiting == {}
    assert site.where()["a/0"] != machine


def test_vms_of_the_highest_priority_are_healed_first(site: Site) -> None:
    site.place("low", "whole", priority="low")
    site.place("high", "whole")
    site.place("fill", "whole")
    where = site.where()
    site.set("down", where["low/0"], where["high/0"])  # there is room for one of them
    site.heal()
    assert set(site.healer.waiting) == {"low/0"}


def test_a_vm_that_is_healed_makes_lower_ones_give_way(site: Site) -> None:
    for tenant, band in (("a", ""), ("b", ""), ("c", ""), ("d", "low")):
        site.place(tenant, "whole", priority=band)
    site.set("down", site.where()["a/0"])
    site.heal()
    assert set(site.where()) == {"a/0", "b/0", "c/0"}
    assert site.healer.waiting == {}


def test_a_tenant_keeps_its_fault_domains(site: Site) -> None:
    spread = Constraints(min_fault_domains=2, max_per_rack=1)
    site.place("pair", "small", "small", constraints=spread)
    racks = {name: site.zone.machines[site.zone.machine(machine)]["rack"] for name, machine in site.where().items()}
    assert len(set(racks.values())) == 2
    site.set("down", site.where()["pair/0"])
    site.heal()
    after = {name: site.zone.machines[site.zone.machine(machine)]["rack"] for name, machine in site.where().items()}
    assert after == racks  # the other machine of the same rack


def test_of_a_tenant_that_does_not_fit_as_a_whole_as_many_as_possible_are_healed(site: Site) -> None:
    site.place("many", "wide", "wide", constraints=Constraints(colocate="rack"))
    site.place("fill", "whole", "wide", "whole")
    where = site.where()
    site.set("down", where["many/0"])
    site.heal()
    assert len(site.healer.waiting) <= 1
    assert site.where().keys() == where.keys()


def test_a_machine_that_fails_again_and_again_is_quarantined_when_it_comes_back(site: Site) -> None:
    machine = site.zone.machine_names[0]
    for _ in range(FLAPS):
        site.set("down", machine)
        site.heal()
        site.set("ready", machine)
        site.heal()
    assert site.store.load().machines[machine].state == 3
    assert site.healer.counts.quarantined == 1


def test_a_machine_is_quarantined_once_the_store_is_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = site.zone.machine_names[0]
    for _ in range(FLAPS):
        site.set("down", machine)
        site.heal()
        site.set("ready", machine)
        with monkeypatch.context() as away:
            away.setattr(site.store, "commit", unavailable)
            site.heal()
    assert site.store.load().machines[machine].state == MachineState.READY
    assert site.healer.counts.quarantined == 0
    site.heal()
    assert site.store.load().machines[machine].state == MachineState.QUARANTINED
    assert site.healer.counts.quarantined == 1


def test_a_healing_took_as_long_as_its_machine_was_down(site: Site) -> None:
    site.place("t", "small", "small")
    machine = site.where()["t/0"]
    site.set("down", machine)
    site.heal(5.0)
    site.now += 3 * DAY
    site.set("ready", machine)
    found = site.summary()
    assert (found.healed, found.took.count, found.took.mean) == (2, 2, 5.0)
    assert (found.first, found.last) == (1_005.0, 1_005.0)


def test_what_is_moved_for_maintenance_was_not_healed(site: Site) -> None:
    site.place("t", "small")
    machine = site.where()["t/0"]
    site.set("down", machine)
    site.heal(5.0)
    site.set("ready", machine)
    healed = site.summary()
    site.now += 3 * DAY
    for other in site.zone.machine_names:
        if other != machine:
            site.set("quarantined", other)
    site.place("later", "small")
    assert site.where()["later/0"] == machine
    for other in site.zone.machine_names:
        site.set("draining" if other == machine else "ready", other)
    site.do(HealVMs("later", ("later/0",)))
    assert site.where()["later/0"] != machine
    assert site.summary() == healed
    assert site.summary(since=site.now - DAY).healed == 0


def test_a_healing_counts_though_its_loss_is_older_than_what_is_looked_at(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backwards, "WINDOW", 1)
    for tenant in "abcd":
        site.place(tenant, "whole")
    machine, other = site.where()["a/0"], site.where()["b/0"]
    site.set("down", machine)
    site.set("draining", other)
    site.heal()
    site.do(ReleaseVMs("c"))
    site.heal()  # one of them
    site.do(ReleaseVMs("d"))
    site.do(HealVMs("b", ("b/0",)))
    assert not {machine, other} & set(site.where().values())
    found = site.summary(most=3)  # the last things that were done
    assert (found.healed, found.took.count, found.whole) == (1, 0, False)
    assert site.summary().took.count == 1
    site.set("ready", machine, other)
    assert site.summary(most=5).healed == 1, "that says what they were"


def test_another_healer_goes_on_where_one_was_killed(site: Site) -> None:
    site.place("t", "small", "small")
    before = site.where()
    site.set("down", *set(before.values()))
    heir = Site(site.zone, site.store)
    heir.heal()
    assert heir.where().keys() == before.keys()
    assert not set(before.values()) & set(heir.where().values())
    heir.agent.close()


def test_two_healers_do_not_heal_a_vm_twice(site: Site) -> None:
    site.place("t", "small", "small", "small")
    site.set("down", *set(site.where().values()))
    other = Site(site.zone, site.store)
    for _ in range(4):
        for each in (site, other):
            each.now += 2
            each.healer.step(each.now)
        for each in (site, other):
            each.agent.step()
    site.heal()
    other.heal()
    assert len(site.where()) == 3
    assert site.healer.counts.healed + other.healer.counts.healed == 3
    other.agent.close()


def test_a_rack_of_forty_machines_is_one_event(tmp_path: Path) -> None:
    """Some four hundred VMs find other machines; all is committed by a handful of transactions."""
    zone = Zone.synthetic(400, seed=3)
    site = Site(zone, open_store(str(tmp_path / "zone.db"), create=zone))
    try:
        wishes = [PlaceVMs(Request(f"t{i}", (VM("D2"),) * 5)) for i in range(560)]
        site.do(*wishes)
        racks = zone.machines["rack"]
        held = [0] * len(zone.racks)
        for machine in site.where().values():
            held[racks[zone.machine(machine)]] += 1
        rack = max(range(len(held)), key=lambda r: held[r])
        failed = [name for name, r in zip(zone.machine_names, racks.tolist(), strict=True) if r == rack]
        before = site.where()
        lost = {vm for vm, machine in before.items() if machine in failed}
        assert len(lost) > 100
        site.set("down", *failed)
        rounds = site.agent.counters.rounds
        site.heal()
        assert site.agent.counters.rounds - rounds < 20
        after = site.where()
        assert after.keys() == before.keys()
        assert not set(after.values()) & set(failed)
        assert {vm for vm in after if after[vm] != before[vm]} == lost
    finally:
        site.agent.close()
        site.store.close()


# -------------------------------------------------------------------------------------------- what cannot be healed


SPREAD = Constraints(min_fault_domains=2)


class Stuck(Site):
    """A rack is down, and so many tenants want their VMs in two: there is one left, with room for all of them."""

    def __init__(self, tenants: int) -> None:
        super().__init__(build(TINY, (ClusterPlan(0, 0, (tenants, tenants)),)))
        self.noted = list[str]()
        self.healer = Healer(self.agent, lambda: self.now, lambda: self.now, noted=self._note)
        self.roster = Roster([self.healer])
        for i in range(tenants):
            self.place(f"t{i}", "small", "small", constraints=SPREAD)
        self.tries = 0
        rehearse = self.agent.rehearse

        def counted(operation: Operation, key: str = "", by: str = "") -> object:
            self.tries += 1
            return rehearse(operation, key, by)

        self.agent.rehearse = counted  # type: ignore[method-assign, assignment]
        (self.lost,) = {name for name in self.zone.rack_names if name.endswith("r0")}
        self.set("down", *(name for name in self.zone.machine_names if name.startswith(self.lost)))

    def _note(self, ticket: Ticket) -> None:
        assert isinstance(ticket.operation, HealVMs)
        if len(ticket.operation.vms) == 1 and self.healer.may_tell(ticket.operation.vms[0]):
            self.noted += ticket.operation.vms

    def passes(self, seconds: int, *, busy: bool = True) -> None:
        """Time passes; VMs come and go, if it is busy, and leave no more room than before."""
        for _ in range(seconds):
            self.now += 1.0
            if busy:
                self.place("c", "small")
                self.do(ReleaseVMs("c"))
            self.roster.step(self.now)
            while not self.agent.idle:
                self.agent.step(0.01)


@pytest.fixture
def stuck() -> Iterator[Stuck]:
    made = Stuck(20)
    yield made
    made.agent.close()


def test_what_cannot_be_healed_is_told_once_and_tried_ever_more_seldom(stuck: Stuck) -> None:
    stuck.passes(30)
    assert len(stuck.healer.waiting) == 20
    assert sorted(stuck.noted) == sorted(stuck.healer.waiting), "each once"
    stuck.passes(300)
    tries, declined = stuck.tries, stuck.healer.counts.declined
    stuck.passes(int(LONGEST_PAUSE))
    assert stuck.tries - tries <= 2 * 20, "about once a minute"
    assert stuck.healer.counts.declined == declined, "and nothing of it is recorded"
    assert len(stuck.noted) == 20, "nor told again"


def test_what_waited_long_is_healed_at_once_when_a_machine_comes_back(stuck: Stuck) -> None:
    stuck.passes(200)
    first = next(name for name in stuck.zone.machine_names if name.startswith(stuck.lost))
    stuck.set("ready", first)
    stuck.passes(3)
    assert len(stuck.healer.waiting) <= 20 - 4, "the machine has room for four, beside its own"
    stuck.check()


@pytest.mark.parametrize("constraints", [None, Constraints(max_per_machine=1)])
def test_a_vm_that_lost_a_race_for_room_is_healed_when_there_is_room_again(
    site: Site, constraints: Constraints | None
) -> None:
    site.place("lost", "small", constraints=constraints)
    (machine,) = set(site.where().values())
    site.set("draining", machine)
    for i in range(100):  # until all other machines are full
        (answer,) = site.agent.run(site.agent.submit(PlaceVMs(Request(f"fill-{i}", [VM("small")]))))
        if not answer.ok:
            break
    site.set("down", machine)
    site.heal()
    assert site.healer.waiting.keys() == {"lost/0"}
    freed = next(name for name in site.where() if site.where()[name] != machine)
    site.do(ReleaseVMs(freed.partition("/")[0], (freed,)))
    site.now += LONGEST_PAUSE
    site.roster.step(site.now)  # it sees the room, and asks for it; but somebody else is faster
    with closing(Agent(site.store, InlineCourier(site.store), FAST, "other")) as other:
        assert other.run(other.submit(PlaceVMs(Request("faster", [VM("small")]))))[0].ok
    while not site.agent.idle:
        site.agent.step()
    assert site.healer.waiting.keys() == {"lost/0"}, "it was healed, although somebody else was faster"
    site.do(ReleaseVMs("faster"))
    for _ in range(5):
        site.heal(LONGEST_PAUSE)
    assert site.healer.waiting == {}
    assert site.where()["lost/0"] != machine


def test_what_still_waits_after_something_opened_is_told_again(stuck: Stuck) -> None:
    stuck.passes(30)
    stuck.set("quarantined", stuck.zone.machine_names[-1])
    stuck.set("ready", stuck.zone.machine_names[-1])
    stuck.passes(60, busy=False)
    assert sorted(stuck.noted) == sorted([*stuck.healer.waiting] * 2)


def test_what_waited_long_is_healed_at_once_when_its_own_tenant_changes() -> None:
    stuck = Stuck(4)
    stuck.passes(200)
    (name,) = (vm for vm in stuck.healer.waiting if vm.startswith("t0/"))
    stuck.do(ReleaseVMs("t0", tuple(vm for vm in stuck.where() if vm.startswith("t0/") and vm != name)))
    stuck.passes(2, busy=False)
    assert name not in stuck.healer.waiting, "it is the only one of its tenant now, so one rack will do"
    stuck.agent.close()


def test_why_is_told_of_so_many_at_once_and_of_the_others_soon() -> None:
    stuck = Stuck(2 * TOLD)
    stuck.roster.step(stuck.now)
    while not stuck.agent.idle:
        stuck.agent.step(0.01)
    assert len(stuck.noted) == TOLD
    stuck.passes(int(TOLD * TELL_SECONDS) + 2, busy=False)
    assert len(stuck.noted) == len(set(stuck.noted)) >= TOLD + TOLD // 2
    stuck.agent.close()


# ------------------------------------------------------------------------------------------------- what time it is


def test_outages_before_a_healer_began_count_as_long_ago_as_they_were(site: Site) -> None:
    machine = site.zone.machine_names[0]
    for _ in range(FLAPS - 1):
        site.set("down", machine)
        site.now += 60.0
        site.set("ready", machine)
    site.place("t", "small")
    heir = Site(site.zone, site.store)
    heir.now = 5.0  # a clock that began anew
    heir.begin(time_of_day=lambda: site.now)
    heir.roster.step(heir.now)
    heir.set("down", machine)
    heir.heal()
    heir.set("ready", machine)
    heir.heal()
    assert site.store.load().machines[machine].state == MachineState.QUARANTINED
    heir.agent.close()


def test_a_feed_that_cannot_be_read_at_first_is_a_failure_that_all_see_and_is_read_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = site.zone.machine_names[0]
    for _ in range(FLAPS - 1):
        site.set("down", machine)
        site.set("ready", machine)
    site.place("t", "small")
    (lost,) = site.where().values()
    site.begin()
    site.set("down", lost)
    with monkeypatch.context() as away:
        away.setattr(site.store, "head", unavailable)
        site.roster.step(site.now)
    assert "StoreUnavailable" in site.roster.failing["healing"]
    while not site.agent.idle:
        site.agent.step()
    assert site.where() != {"t/0": lost}, "it heals all the same"
    site.set("ready", lost)
    site.heal(RECALL_SECONDS)
    assert site.roster.failing == {}
    site.set("down", machine)
    site.heal()
    site.set("ready", machine)
    site.heal()
    assert site.store.load().machines[machine].state == MachineState.QUARANTINED


def test_a_worker_knows_of_outages_before_it_began_as_a_service_does(site: Site) -> None:
    site.place("t", "small")
    (machine,) = site.where().values()
    for _ in range(FLAPS - 1):
        site.set("down", machine)
        site.set("ready", machine)

    def lines() -> Iterator[bytes]:
        yield b'{"key": "a", "do": "machine", "machine": "%b", "state": "down"}\n' % machine.encode()
        comes_true(lambda: site.where() != {"t/0": machine})
        yield b'{"key": "b", "do": "machine", "machine": "%b", "state": "ready"}\n' % machine.encode()
        comes_true(lambda: site.store.load().machines[machine].state == MachineState.QUARANTINED)

    with closing(Agent(site.store, InlineCourier(site.store), FAST, "worker", now=lambda: site.now)) as agent:
        serve(agent, lines(), lambda _: None)
    assert site.store.load().machines[machine].state == MachineState.QUARANTINED


def comes_true(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something that is done in another thread."""
    deadline = time.monotonic() + seconds
    while not holds() and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_vm_was_lost_when_its_machine_went_down_whoever_looks(site: Site) -> None:
    for tenant in "abcd":
        site.place(tenant, "whole")
    site.set("down", site.where()["a/0"])
    site.now += 500.0
    heir = Site(site.zone, site.store)
    heir.begin(time_of_day=lambda: site.now)
    heir.heal()
    assert heir.healer.waiting["a/0"].since == 1_002.0 - 500.0, "by its own clock"
    assert "b/0" not in heir.healer.waiting
    heir.agent.close()


def test_an_outage_that_is_yet_to_come_was_just_now_and_one_of_another_day_is_no_matter(site: Site) -> None:
    machine = site.zone.machine_names[0]
    for _ in range(2):
        site.set("down", machine)
        site.set("ready", machine)
    last = site.store.head()[0]
    assert outages_of(site.store, last, site.now - 3_600.0) == {machine: [0.0, 0.0]}
    assert outages_of(site.store, last, site.now + 2 * DAY) == {}


def test_a_service_heals_though_its_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zone = build(TINY, (ClusterPlan(0, 0, (2, 2)),))
    open_store(str(tmp_path / "zone.db"), create=zone).close()
    settings = Settings(store=StoreSettings(url=str(tmp_path / "zone.db")), agent=AgentSettings(policy="fast"))
    wall, set_back = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: wall() - sum(set_back))

    async def run() -> None:
        service = Service(settings)
        await service.start()
        try:
            for tenant in "abcd":
                await service.submit(PlaceVMs(Request(tenant, (VM("whole"),))))
            machine = zone.machine_names[service.agent.allocator.vms["a/0"].machine]
            await service.submit(SetMachine(machine, state="down"))
            healer = service.healer
            assert healer
            await until(lambda: "a/0" in healer.waiting and bool(healer.waiting["a/0"].key))
            set_back.append(3_600.0)
            await service.submit(ReleaseVMs("b"))
            await until(lambda: not healer.waiting)
        finally:
            await service.stop(time.monotonic() + 5.0)

    asyncio.run(run())


async def until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
