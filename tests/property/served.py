"""A zone that is served: an agent, healing and placing again, on a store, and time that passes when told to.

This is the service's own path, without HTTP. It knows nothing of what-if questions.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from roost.agent.operation import Answer, Operation
from roost.agent.verbs.cluster import SetCluster
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.move import MoveVM
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.duties.healing import Healer
from roost.duties.requeue import Requeue
from roost.model.registry import THRESHOLD
from roost.model.request import HOLD, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.store.contract import Store
from roost.store.ledger import Ledger
from roost.wiring import open_agent, open_store
from tests.property.requests import constraints, gangs, members, rarely, some_thresholds, thresholds, vms
from tests.property.zones import Shape

TICK, RETRY = 0.5, 1.0  # seconds
LONG = 130.0  # after which whoever waits had its turn, if nothing changes
STATES = ("ready", "down", "draining", "quarantined")


class Served:
    """A service on a store, from when it starts."""

    def __init__(self, store: Store, policy: Policy, seed: int = 0) -> None:
        self.store, self.policy, self.now = store, policy, 0.0
        self.agent = open_agent(store, policy, f"service-{id(self)}", seed=seed, clock=lambda: self.now)
        self.requeue = Requeue(self.agent, lambda: self.now, patience=RETRY)
        self.healer = Healer(self.agent, lambda: self.now, time.time)

    def do(self, operation: Operation) -> Answer:
        """What somebody asks for, to its end."""
        (answer,) = self.at_once([operation])
        return answer

    def at_once(self, operations: Sequence[Operation]) -> list[Answer]:
        """What is asked for in one moment, to its end."""
        return self.agent.run(*[self.agent.submit(operation) for operation in operations])

    def wait(self, seconds: float = LONG) -> None:
        """Let so much time pass, and as much again after every change; less if nobody waits for anything."""
        quiet, revision = 0.0, -1
        while quiet <= (seconds if self.healer.waiting or self.requeue.waiting else TICK):
            self.requeue.step(self.now)
            self.healer.step(self.now)
            while not self.agent.idle:
                self.agent.step(0.01)
            self.agent.step()
            quiet = quiet + TICK if self.agent.replica.revision == revision else 0.0
            revision = self.agent.replica.revision
            self.now += TICK

    def ledger(self) -> Ledger:
        """What is there now."""
        check_invariants(self.store)
        self.agent.check_invariants()
        return self.store.load()

    def evicted(self, since: int) -> set[str]:
        """The VMs that gave way after a revision, as the feed tells it."""
        gone: set[str] = set()
        for row in self.store.changes(since).rows:
            for entry in row.entries:
                if entry.eviction is not None:
                    stayed = {vm.vm for vm in entry.placed}
                    gone |= {vm.vm for vm in entry.released if vm.vm not in stayed and not vm.vm.endswith(HOLD)}
        return gone


@st.composite
def served(draw: st.DrawFn, shape: Shape, zone: Zone, policy: Policy, steps: int = 10) -> Served:
    """A service that has just started on a store with a history, after which all came to rest."""
    store = open_store("memory:", create=zone)
    past = Served(store, policy, seed=7)
    for cluster in zone.cluster_names:
        past.do(draw(_keeping(zone, cluster)))
    for number in range(draw(st.integers(2, steps))):
        past.do(draw(_operations(shape, zone, past.store.load(), number)))
        past.wait(2 * TICK)
    now = Served(store, policy)
    now.wait()
    return now


@st.composite
def _operations(draw: st.DrawFn, shape: Shape, zone: Zone, ledger: Ledger, number: int) -> Operation:
    """Something that clients or operators ask for; mostly more VMs."""
    kinds = ["place"] * 6 + ["machine", "cluster"]
    kind = draw(st.sampled_from(kinds + ["release", "release", "move"] * bool(ledger.vms)))
    if kind == "place":
        return PlaceVMs(draw(_requests(shape, zone, ledger, number)))
    if kind == "machine":
        return SetMachine(draw(st.sampled_from(zone.machine_names)), draw(st.sampled_from(STATES)))
    if kind == "cluster":
        return SetCluster(draw(st.sampled_from(zone.cluster_names)), draw(rarely))
    name = draw(st.sampled_from(sorted(vm for vm in ledger.vms if not vm.endswith(HOLD))))
    tenant = ledger.vms[name].tenant
    if kind == "release":
        return ReleaseVMs(tenant, (name,))
    return MoveVM(tenant, name, draw(st.sampled_from(zone.machine_names)), "hold")


@st.composite
def _keeping(draw: st.DrawFn, zone: Zone, cluster: str) -> SetEntry:
    """So many machines of a cluster are kept empty, if any."""
    machines = int(zone.clusters[zone.cluster(cluster)]["machines"])
    kept = draw(st.one_of(thresholds(machines), some_thresholds(machines)))
    return SetEntry(THRESHOLD, cluster, msgspec.json.encode(kept).decode())


@st.composite
def _requests(draw: st.DrawFn, shape: Shape, zone: Zone, ledger: Ledger, number: int) -> Request:
    """VMs of a new tenant, or sometimes more of one that there is."""
    gang = draw(gangs(vms(shape, zone)))
    gang = tuple(msgspec.structs.replace(vm, requeue=draw(st.booleans())) for vm in gang)
    if draw(rarely) and ledger.tenants:
        known = draw(st.sampled_from(sorted(ledger.tenants)))
        return Request(known, draw(members(gang, ledger.tenants[known].constraints)))
    wanted = draw(constraints())
    return Request(f"t{number}", draw(members(gang, wanted)), wanted)
