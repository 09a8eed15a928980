"""A past decision is explained as it was then, however much has changed since; and stores that come and go."""

import random
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import pytest

from roost.agent.agent import Agent
from roost.agent.courier import ThreadCourier
from roost.agent.operation import Answer
from roost.agent.past import recall
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.machines import AddMachines, RemoveMachines
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.engine.explain import Explanation
from roost.model.availability import AvailabilitySet
from roost.model.errors import InvalidInput, StoreUnavailable
from roost.model.inventory import MachineSpec, machine_specs
from roost.model.request import VM, Constraints, Request
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.audit import check_invariants
from roost.store.contract import Outcome, Proposal, Round
from roost.store.memory import MemoryStore
from roost.store.recheck import Recheck
from roost.wiring import open_agent, open_store, recorded_policy

ZONE = Zone.synthetic(100, seed=1)
TYPES = ("D1", "D2", "D3", "D4", "A2")
SETS = Constraints(
    sets={
        "db": AvailabilitySet(fault_domains=3),
        "web": AvailabilitySet(fault_domains=3, update_domains=20, best_effort=True),
        "all": AvailabilitySet(update_domains=20),
    },
    max_per_rack=2,
)


def churn(agent: Agent, changes: int, seed: int) -> None:
    """Tenants come and go."""
    draw, numbers = random.Random(seed), count()
    running: list[str] = []
    while changes > 0:
        tickets = []
        for n in (next(numbers) for _ in range(100)):
            if len(running) > 60:
                tickets.append(agent.submit(ReleaseVMs(running.pop(draw.randrange(len(running))))))
            else:
                running.append(f"churn {seed} {n}")
                tickets.append(agent.submit(PlaceVMs(Request(running[-1], [VM(draw.choice(TYPES))] * 2))))
        changes -= sum(answer.ok for answer in agent.run(*tickets))


def decide(agent: Agent, key: str, request: Request) -> Explanation:
    """Decide a request, and explain it on the spot."""
    ticket = agent.submit(PlaceVMs(request), key)
    agent.step()
    assert ticket.decision is not None
    explanation = ticket.decision.explanation
    agent.run(ticket)
    return explanation


def test_a_decision_is_explained_as_it_was_after_thousands_of_changes(tmp_path: Path) -> None:
    """Also by another process that knows only the store, and after machines came and went."""
    store = open_store(str(tmp_path / "zone.db"), create=ZONE)
    agent = open_agent(store, seed=3)
    churn(agent, 500, seed=1)
    spread = Constraints(min_fault_domains=3, max_per_machine=1)
    then = {
        "placed": decide(agent, "placed", Request("web", [VM("D2")] * 4, spread)),
        "scaled out": decide(agent, "scaled out", Request("web", [VM("D4")] * 2)),
        "declined": decide(agent, "declined", Request("giant", [VM("Full-gen6")] * 60)),
        "sets": decide(agent, "sets", Request("shop", [VM("D2", set="db"), VM("D1", set="web"), VM("D1")] * 3, SETS)),
        "sets scaled out": decide(agent, "sets scaled out", Request("shop", [VM("A2", set="db"), VM("D2", set="web")])),
        "best effort": decide(agent, "best effort", Request("soft", [VM("D1", set="web", cluster="c004")] * 12, SETS)),
        "sets declined": decide(
            agent, "sets declined", Request("hard", [VM("D1", set="all", cluster="c004")] * 12, SETS)
        ),
    }
    assert (then["sets"].of_set, then["sets declined"].of_set) == ("db", "all")
    assert then["sets declined"].failure == "tenant_constraint"
    assert recall(store, "best effort", recorded_policy).explain(8).waived
    assert then["placed"].machine is not None
    assert then["declined"].failure is not None
    churn(agent, 4_000, seed=2)
    spec = machine_specs(ZONE)[0]
    more = MachineSpec("extra", spec.datacenter, spec.cluster, spec.rack, spec.generation, 0, (), spec.capacity)
    empty = next(name for name, row in store.load().machines.items() if not row.vms and name != spec.name)
    for operation in (AddMachines((more,)), RemoveMachines((empty,)), SetMachine(spec.name, "down")):
        (answer,) = agent.run(agent.submit(operation))
        assert answer.ok, answer
    churn(agent, 200, seed=3)
    agent.check_invariants()
    agent.close()
    store.close()
    store = open_store(str(tmp_path / "zone.db"), read_only=True)
    for key, explanation in then.items():
        assert recall(store, key, recorded_policy).explanation == explanation
    store.close()


def test_what_the_feed_no_longer_reaches_is_said_to_be_too_long_ago(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "zone.db"), create=ZONE)
    agent = open_agent(store)
    decide(agent, "early", Request("web", [VM("D2")]))
    churn(agent, 300, seed=1)
    store.trim(keep=100)
    with pytest.raises(InvalidInput, match="forgotten"):
        recall(store, "early", recorded_policy)
    with pytest.raises(InvalidInput, match="never decided"):
        recall(store, "nobody asked", recorded_policy)
    churn(agent, 100, seed=2)  # the agent itself goes on
    check_invariants(store)
    agent.close()
    store.close()


def test_a_decision_is_not_explained_by_other_rules(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "zone.db"), create=ZONE)
    agent = open_agent(store)
    decide(agent, "key", Request("web", [VM("D2")]))
    with pytest.raises(InvalidInput, match="it was decided by default"):
        recall(store, "key", lambda recorded: recorded_policy(recorded, Policy.named("dense")))
    agent.close()
    store.close()


class Shaky(MemoryStore):
    """A store that is away now and then: before it does what it is asked, or after."""

    moments: Sequence[str] = ()

    def commit(
        self,
        group: Sequence[Proposal],
        recheck: Recheck,
        *,
        strict: bool = False,
        round_: Round | None = None,
        dry: bool = False,
    ) -> list[Outcome]:
        moment, self.moments = (self.moments[0], self.moments[1:]) if self.moments else ("", ())
        if moment == "before":
            raise StoreUnavailable("away")
        outcomes = super().commit(group, recheck, strict=strict, round_=round_, dry=dry)
        if moment == "after":
            raise StoreUnavailable("away")
        return outcomes


@pytest.mark.parametrize("moments", [("before",), ("after",), ("before", "after", "before"), ("after",) * 4])
def test_what_a_shaky_store_has_done_is_done_once(moments: Sequence[str]) -> None:
    store = shaky()
    courier = ThreadCourier(store)
    agent = Agent(store, courier, Policy.default(), "agent")
    store.moments = moments
    tickets = [agent.submit(PlaceVMs(Request(f"t{i}", [VM("D2")] * 3)), f"key {i}") for i in range(20)]
    answers = agent.run(*tickets)
    assert [answer.status for answer in answers] == ["done"] * 20
    assert len(store.load().vms) == 60
    settled(agent, lambda: agent.replica.revision == store.head()[0])
    agent.check_invariants()
    agent.close()


def test_after_too_long_a_client_is_told_and_asks_again() -> None:
    """What was done all the same is found under its key, and arrives by the feed."""
    store = shaky()
    courier = ThreadCourier(store, patience=0.0)
    agent = Agent(store, courier, Policy.default(), "agent")
    store.moments = ("after",)
    request = PlaceVMs(Request("web", [VM("D2")] * 3))
    (lost,) = agent.run(agent.submit(request, "key"))
    assert (lost.status, lost.placements) == ("unavailable", ())
    (again,) = agent.run(agent.submit(request, "key"))
    assert (again.status, again.replayed, len(again.placements)) == ("done", True, 3)
    settled(agent, lambda: agent.replica.revision == store.head()[0])
    assert len(agent.replica.allocator.vms) == 3
    agent.check_invariants()
    agent.close()


def shaky() -> Shaky:
    """A store that keeps still for now."""
    steady = open_store("memory:", create=ZONE)
    assert isinstance(steady, MemoryStore)
    store = Shaky(steady.catalogue)
    store._ledger, store._feed = steady._ledger, steady._feed
    return store


def settled(agent: Agent, done: Callable[[], bool]) -> None:
    """Let an agent go on until something is so."""
    for _ in range(1_000):
        if done():
            return
        agent.step(0.01)
    raise AssertionError("it never came to rest")


def test_an_answer_says_where_the_time_went() -> None:
    store = open_store("memory:", create=ZONE)
    agent = open_agent(store)
    (answer,) = agent.run(agent.submit(PlaceVMs(Request("web", [VM("D2")]))))
    assert isinstance(answer, Answer)
    assert answer.decided_us > 0
    assert answer.committed_us > 0
    (decided,) = store.decisions(1)
    assert decided.record.policy.startswith("default ")
    assert decided.record.decided_us > 0
    agent.close()
