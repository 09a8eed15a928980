"""Several agents on one store, with every delay in the hands of the test."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec

from roost.agent.agent import Agent
from roost.agent.agreement import check_against
from roost.agent.courier import Delivery, Group
from roost.agent.operation import Operation
from roost.agent.past import recall
from roost.agent.settings import AgentSettings
from roost.agent.ticket import Ticket
from roost.agent.verbs.cluster import SetCluster
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.engine.explain import Explanation, Remedies
from roost.model.inventory import catalogue_of
from roost.model.registry import THRESHOLD
from roost.model.request import HOLD, VM, Constraints, Request
from roost.model.thresholds import Thresholds
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.store.codec import encode
from roost.store.contract import Store
from roost.store.feed import Feed
from roost.wiring import open_store

TYPES = ("D1", "D2", "D4", "D14", "A4", "G3")
STEPS: tuple[Any, ...] = ("finish", "finish", "finish", "cancel", "hold", "hold", "whole")
STATES: tuple[Any, ...] = ("ready", "down", "draining", "quarantined")


class HeldCourier:
    """Commits a group, and brings the feed, only when told to."""

    def __init__(self, store: Store, *, written: bool = False) -> None:
        """`written`: it brings the feed as stores with tables do."""
        self.store, self.revision, self.written = store, 0, written
        self.out: deque[Group] = deque()
        self.back: list[Delivery] = []

    def send(self, group: Group) -> None:
        self.out.append(group)

    def commit(self) -> None:
        """Carry the oldest group to the store; its outcomes come back."""
        if self.out:
            group = self.out.popleft()
            outcomes = self.store.commit(group.proposals, group.recheck, strict=group.strict, round_=group.round)
            self.back.append(Delivery(group.round.number, outcomes))
            if group.wants_news(outcomes):
                self.look()

    def look(self) -> None:
        """Bring the feed."""
        feed: Feed = self.store.changes(self.revision)
        if feed.rows:
            self.revision = feed.rows[-1].last
        if self.written:
            feed = Feed([msgspec.structs.replace(row, told=encode(row.entries)) for row in feed.rows], feed.reload)
        self.back.append(Delivery(feed=feed))

    def receive(self, seconds: float = 0.0) -> list[Delivery]:
        back, self.back = self.back, []
        return back

    def follow(self, revision: int) -> None:
        self.revision = revision

    def close(self) -> None:
        pass


class Company:
    """Agents that share a zone, and clients that never ask for the same tenant twice at once."""

    def __init__(
        self,
        zone: Zone,
        seed: int,
        agents: int = 3,
        settings: AgentSettings | None = None,
        *,
        policy: Policy | None = None,
        types: Sequence[str] = TYPES,
        bands: Sequence[str] = ("", "", "spot"),
    ) -> None:
        """`types` and `bands`: of the VMs that clients want."""
        self.draw = random.Random(seed)
        self.zone, self.policy, self.types, self.bands = zone, policy or Policy.default(), types, bands
        self.store = open_store("memory:", create=zone)
        assert self.store.catalogue == catalogue_of(zone)
        self.couriers = [HeldCourier(self.store, written=bool(i % 2)) for i in range(agents)]
        self.agents = [
            Agent(self.store, courier, self.policy, f"agent {i}", seed=seed + i, settings=settings, now=lambda: 1.0)
            for i, courier in enumerate(self.couriers)
        ]
        self.tickets: list[Ticket] = []
        self.tenants: list[str] = []
        self.begun: list[MoveVM] = []
        self.explained: dict[tuple[str, int], Explanation] = {}
        self._numbers = count()

    def ask(self, agent: int) -> None:
        """Something that a client may want."""
        draw, number = self.draw, next(self._numbers)
        kind = draw.random()
        operation: Operation
        if kind < 0.65 or not self.tenants:
            operation = PlaceVMs(self._request(number), healing=draw.random() < 0.1)
        elif kind < 0.8:
            operation = ReleaseVMs(draw.choice(self.tenants))
        elif kind < 0.86:
            operation = self._move(agent)
        elif kind < 0.9:
            operation = self._heal(agent)
        elif kind < 0.97:
            machine = draw.choice(self.zone.machine_names)
            operation = SetMachine(machine, draw.choice(STATES[:2] + STATES), health=draw.choice([100, 80, 40]))
        elif kind < 0.985:
            operation = SetCluster(draw.choice(self.zone.cluster_names), draw.random() < 0.3)
        else:
            operation = self._keep()
        self.tickets.append(self.agents[agent].submit(operation, f"key {number}"))

    def _keep(self) -> SetEntry:
        """Other thresholds of some cluster, or none of its own."""
        cluster, kept = self.draw.choice(self.zone.cluster_names), sorted(self.draw.sample(range(5), 3))
        value = msgspec.json.encode(Thresholds(new=kept[2], scale_out=kept[1], healing=kept[0])).decode()
        return SetEntry(THRESHOLD, cluster, value if self.draw.random() < 0.7 else None)

    def _move(self, agent: int) -> MoveVM:
        """A step of some VM's move: one goes on that any agent was asked to begin, or another begins."""
        draw, names = self.draw, self.zone.machine_names
        if self.begun and draw.random() < 0.6:
            begun = draw.choice(self.begun)
            return MoveVM(begun.tenant, begun.vm, begun.machine, draw.choice(STEPS))
        movable = [vm for vm in self.agents[agent].allocator.vms.values() if not vm.name.endswith(HOLD)]
        if not movable:
            return MoveVM(draw.choice(self.tenants), "nobody", draw.choice(names))
        vm = draw.choice(movable)
        cluster = self.zone.clusters[self.zone.machines[vm.machine]["cluster"]]
        target = int(cluster["first"]) + draw.randrange(int(cluster["machines"]))
        self.begun.append(MoveVM(vm.tenant, vm.name, names[target], draw.choice(STEPS[-3:])))
        return self.begun[-1]

    def _heal(self, agent: int) -> HealVMs:
        """Some VMs of a tenant are to be healed, most likely because their machine is not ready."""
        draw, allocator = self.draw, self.agents[agent].allocator
        states = allocator.view.machines["state"]
        lost = [vm for vm in allocator.vms.values() if states[vm.machine] and not vm.name.endswith(HOLD)]
        if not lost:
            return HealVMs(draw.choice(self.tenants), ("nobody",))
        tenant = draw.choice(lost).tenant
        names = [vm.name for vm in lost if vm.tenant == tenant]
        return HealVMs(tenant, tuple(draw.sample(names, draw.randint(1, len(names)))))

    def _request(self, number: int) -> Request:
        draw = self.draw
        size = draw.choice([1, 1, 2, 3, 5])
        band, isolated = draw.choice(self.bands), draw.random() < 0.15
        vm = VM(draw.choice(self.types), priority=band, isolated=isolated, requeue=draw.random() < 0.3)
        if self.tenants and draw.random() < 0.25:  # scale out, perhaps while another agent does the same
            return Request(draw.choice(self.tenants), (vm,) * size)
        self.tenants.append(f"tenant {number}")
        limits = None
        if size > 1 and draw.random() < 0.5:
            limits = Constraints(min_fault_domains=2, max_per_machine=1, evict_together=draw.random() < 0.3)
        named = [msgspec.structs.replace(vm, name=f"mine {number % 7}")] if draw.random() < 0.1 else []
        return Request(self.tenants[-1], (*named, *(vm,) * size), limits)

    def work(self, agent: int, explain: bool = False) -> None:
        """One turn of an agent; what it has just decided is explained on the spot."""
        number = self.agents[agent]._number
        self.agents[agent].step()
        latest = self.couriers[agent].out[-1] if explain and self.couriers[agent].out else None
        if latest is None or latest.round.number <= number:  # else its books may have changed since
            return
        sent = self.agents[agent].under_way.rounds[latest.round.number]
        for position, ticket in enumerate(sent):
            if ticket.decision is not None and (position == len(sent) - 1 or ticket.decision.ok):
                self.explained[ticket.key, ticket.retries] = ticket.decision.explanation

    def finish(self) -> None:
        """Let everything come to its end."""
        for turn in range(2_000):
            if turn > 200:
                time.sleep(0.001)  # on a busy machine, a search that takes long rests now and then
            for agent, courier in zip(self.agents, self.couriers, strict=True):
                courier.commit()
                courier.look()
                agent.step()
            if all(agent.idle for agent in self.agents) and not any(courier.out for courier in self.couriers):
                break
        for agent, courier in zip(self.agents, self.couriers, strict=True):
            courier.look()
            agent.step()
        assert all(ticket.answer for ticket in self.tickets), "somebody was never answered"

    def check(self) -> None:
        """The store agrees with itself, every copy with the store, every answer with what is there."""
        check_invariants(self.store)
        ledger = self.store.load()
        for agent in self.agents:
            assert agent.replica.revision == ledger.revision
            assert not agent.replica.ahead
            if not agent.replica.adopted:
                check_against(agent.replica, ledger)
        for ticket in self.tickets:
            assert ticket.answer is not None
            decided = self.store.decided(ticket.key)
            done = decided is not None and decided.outcome == "committed"
            assert done == (ticket.answer.status == "done"), (ticket, decided)
            if decided is not None and isinstance(ticket.operation, PlaceVMs | HealVMs) and done:
                assert [p.machine for p in ticket.answer.placements] == [p.machine for p in decided.placed]
        self.check_evictions()

    def check_evictions(self) -> int:
        """Nobody gave way but to something of a higher priority that was committed; returns how many did."""
        evicted = 0
        band = {"": 0} | {name: i for i, name in enumerate(self.zone.bands)}
        for row in self.store.changes(0).rows:
            for entry in row.entries:
                if entry.eviction is None:
                    continue
                decided = self.store.decided(entry.key)
                assert decided is not None
                assert decided.outcome == "committed"
                stayed = {vm.vm for vm in entry.placed}
                gone = [vm for vm in entry.released if vm.vm not in stayed]
                evicted += len(gone)
                highest = min(band[vm.spec.priority] for vm in decided.placed)
                assert all(band[vm.spec.priority] > highest for vm in gone)
                assert {vm.vm for vm in gone} <= {victim.vm.vm for victim in decided.record.victims}
        return evicted

    def check_explanations(self) -> int:
        """Each explanation given at the time is the one that the store gives now; returns how many there were."""
        checked = 0
        for (key, retries), then in self.explained.items():
            decided = self.store.decided(key)
            if decided is None or decided.record.retries != retries:
                continue  # that try was lost; a later one stands
            now = recall(self.store, key, lambda _: self.policy).explanation
            if not then.remedies:  # it was asked for when the copy had changed, too late to try any
                now = now.with_remedies(Remedies())
            assert now == then
            checked += 1
        return checked


def replayed(actions: Sequence[tuple[str, int]], company: Company) -> None:
    """Play a list of actions, each with the agent that it concerns."""
    for action, agent in actions:
        if action == "ask":
            company.ask(agent)
        elif action == "work":
            company.work(agent)
        elif action == "explain":
            company.work(agent, explain=True)
        elif action == "commit":
            company.couriers[agent].commit()
        else:
            company.couriers[agent].look()
