"""What a simulated run decides is what the real service decides, healing and placing again included.

The run fills a zone until requests are declined, with tenants of several VMs, constraints, spot VMs that have to give
way and ask to come back, departures, machines and racks that fail, and maintenance. What the world outside did is then
done again, one thing after another, to an agent with its duties on a store of another kind, and over HTTP to `roost
serve`, with the same policy and the seed of the run's only agent. Nobody says what is healed or placed again: that is
for duties to find out, here and there. After each step both feeds must say the same, change by change.

Things happen far enough apart in the run that duties are at rest before the next; in the service they are waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import count
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import pytest
import yaml

import roost.duties.virtual
from roost.agent.agent import Agent
from roost.agent.operation import Answer, Operation
from roost.agent.settings import AgentSettings
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.bench.postgres import ThrowawayPostgres
from roost.client import Client, MachineChange, ServiceProblem, VMWish
from roost.duties.duty import Roster
from roost.duties.table import Runner, make_roster
from roost.duties.virtual import SETTINGS
from roost.model.change import Entry
from roost.model.request import UNCONSTRAINED, Request
from roost.model.rows import MachineState
from roost.rules.policy import SHIPPED, Policy
from roost.settings import Settings
from roost.sim.crew import Crew
from roost.sim.experiment import Experiment
from roost.sim.simulation import Simulation
from roost.sim.virtual import Clock
from roost.store.contract import Store
from roost.traces.generate import WorkloadShape, generate
from roost.traces.standing import standing_population
from roost.traces.workload import Workload
from roost.wire.basics import StateName
from roost.wire.changes import ChangeView
from roost.wiring import find_policy, find_zone, open_agent, open_store
from tests.e2e.serving import serving

SEED, AGENT_SEED = 7, 7_000  # of a run, and of its first agent
ZONE, POLICIES = "synthetic:100", ("default", "dense")
SHAPE = WorkloadShape(days=0.03, requests_per_day=20_000, stays=0.5, spot=0.15, spread=0.8)
FILL = 0.85  # of the cores, by requests that come first
APART = 100.0  # seconds, between two arrivals; the other things happen in between
EXPERIMENT = {
    "name": "same",
    "zone": ZONE,
    "workload": "given",
    "agents": {"group": 256},  # as in the service
    "latency": {"commit_ms": 1},  # so that time passes between two steps of duties
    "until": 140_000,
    "requeue": True,
    "faults": {
        "outages": [
            *({"at": 75_085 + 4_000 * i, "lasts": 2_510, "machine": f"c00{i}-r00-m03"} for i in range(4)),
            *({"at": 90_085 + 9_000 * i, "lasts": 5_010, "rack": f"c00{1 + i}-r01"} for i in range(2)),
        ],
        "maintenance": [{"at": 88_085 + 10_000 * i, "lasts": 5_010, "share": 0.01} for i in range(3)],
    },
    "checkpoint": 0,
}
# Less than there is between two steps of duties, in the run and elsewhere: then each step tries whoever may find room.
IMPATIENT = replace(
    SETTINGS,
    healing=replace(SETTINGS.healing, retry_seconds=1e-9),
    agent=replace(SETTINGS.agent, requeue_seconds=1e-9, foresight_seconds=0.0),
)
# The only type of spot VMs: tries in vain have a share of real time, so in a service it depends on its computer when
# those have their turn that want something else.
SPOT = "A2"
NO_ROOM = {"roost.no_capacity", "roost.fragmented", "roost.tenant_constraint"}
PATIENCE = 30.0  # seconds for duties of a service to come to rest
RESTING, TICK = 90, 0.1  # steps that duties have until they are at rest, and seconds between two

Change = tuple[str, ...]  # what one commit changed, in words


@dataclass
class Act:
    """What the world did at one moment, what was answered, and all that was committed until it did something else."""

    at: float
    operations: list[Operation] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)


@pytest.fixture(scope="module")
def postgres() -> Iterator[ThrowawayPostgres]:
    with ThrowawayPostgres() as server:
        yield server


@pytest.fixture(scope="module", params=POLICIES)
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy's file, but that it does not matter how long ago a VM was placed: a run has a clock of its own."""
    path = tmp_path_factory.mktemp("policies") / f"{request.param}.yaml"
    rules = yaml.safe_load((SHIPPED / path.name).read_text())
    rules["evictions"] = {**rules.get("evictions", {}), "age": 0}
    path.write_text(yaml.safe_dump(rules))
    return str(path)


def workload() -> Workload:
    """Requests that fill the zone, then those of a generated workload; some leave, at moments of their own."""
    zone = find_zone(ZONE)
    drawn = generate(SHAPE, SEED, zone)
    standing = standing_population(drawn, FILL * zone.cores, SEED)
    arrival = APART * np.arange(standing.requests + drawn.requests, dtype=np.float64)
    first = np.concatenate([standing.first, drawn.first[1:] + standing.vms])
    draw, taken = np.random.default_rng(SEED), set[float]()
    lifetime = np.full(int(first[-1]), np.inf)
    kind, priority = (np.concatenate([getattr(each, of) for each in (standing, drawn)]) for of in ("type", "priority"))
    kinds = [each.name for each in drawn.types]
    for number, at in enumerate(arrival.tolist()):
        if draw.random() < 0.5:
            leaves = at + APART * int(draw.integers(1, 900)) + 10.0 * int(draw.integers(2, 8))
            while leaves in taken:
                leaves += APART
            taken.add(leaves)
            lifetime[first[number] : first[number + 1]] = leaves - at
    return replace(
        drawn,
        arrival=arrival,
        first=first,
        type=np.where(drawn.priorities.index("spot") == priority, kinds.index(SPOT), kind),
        lifetime=lifetime,
        tenants=[*standing.tenants, *drawn.tenants],
        priority=priority,
        constraints={n + standing.requests: each for n, each in drawn.constraints.items() if _picky(drawn, n)},
    )


def _picky(drawn: Workload, number: int) -> bool:
    """Who may have constraints. VMs of such tenants that wait are tried at times of their own; so they are few."""
    return drawn.sizes[number] <= 5 and drawn.request(number).vms[0].priority != "spot"


@cache
def simulated(policy: str) -> list[Act]:
    """What the world did in a run, and what came of it, in order."""
    experiment = msgspec.convert(EXPERIMENT, Experiment)
    with patch.object(roost.duties.virtual, "SETTINGS", IMPATIENT):
        made = Simulation(experiment, policy, SEED, workload(), find_zone(ZONE), find_policy)
    acts: list[Act] = []
    hear, submit, moments = made.guests.hear, Crew.submit, count()

    def noted(crew: Crew, operation: Operation, done: Callable[[Answer], None], *more: object) -> None:
        if not acts or acts[-1].at != made.clock.now:
            acts.append(Act(made.clock.now))
        acts[-1].operations.append(operation)
        submit(crew, operation, partial(answered, acts[-1], done), *more)  # type: ignore[arg-type]

    def answered(act: Act, done: Callable[[Answer], None], answer: Answer) -> None:
        act.statuses.append(answer.status)
        done(answer)

    def heard(entry: Entry) -> None:
        hear(entry)
        acts[-1].changes += in_words(entry)

    # No two VMs give way at one moment, as in a service: else it is not clear who waits longest.
    made.crew.workers[0].agent.context.now = lambda: made.clock.now + 1e-7 * next(moments)
    made.crew._heard = heard
    made.crew.submit = partial(noted, made.crew)  # type: ignore[method-assign]
    made.run()
    return acts


def in_words(entry: Entry) -> list[Change]:
    """What an entry of the feed changes of VMs and of the states of machines."""
    states = [f"{c.machine} is {MachineState(c.after).name}" for c in entry.conditions if c.field == "state"]
    return _change([(p.vm, p.machine) for p in entry.placed], [(p.vm, p.machine) for p in entry.released], states)


def over_http(change: ChangeView) -> list[Change]:
    """The same, of a change as the service tells it."""
    states = [f"{c['machine']} is {str(c['after']).upper()}" for c in change.machines if c["field"] == "state"]
    return _change([(p.vm, p.machine) for p in change.placed], [(p.vm, p.machine) for p in change.released], states)


def _change(placed: Sequence[tuple[str, str]], released: Sequence[tuple[str, str]], states: list[str]) -> list[Change]:
    off, on = (
        [f"{vm} {where} {machine}" for vm, machine in some] for some, where in ((released, "off"), (placed, "on"))
    )
    found = (*sorted(off), *sorted(on), *states)
    return [found] if found else []


# ---------------------------------------------------------------------------------------------------------- elsewhere


class ByAnAgent:
    """An agent with its duties, in the time of the run."""

    def __init__(self, store: Store, agent: Agent, clock: Clock, settings: Settings) -> None:
        self._store, self._agent, self._clock = store, agent, clock
        self.roster: Roster = make_roster(Runner(agent, settings, clock=clock, time_of_day=clock))
        self._read = store.head()[0]

    def __call__(self, act: Act) -> list[Change]:
        self._clock.now = act.at
        answers = self._agent.run(*[self._agent.submit(each) for each in act.operations])
        assert [answer.status for answer in answers] == act.statuses
        for _ in range(RESTING):
            self.roster.step(self._clock.now)
            while not self._agent.idle:
                self._agent.step(0.01)
            self._agent.step()
            if self.roster.at_rest:
                break
            self._clock.now += TICK
        feed = self._store.changes(self._read)
        found = [change for _, entry in feed.after(self._read) for change in in_words(entry)]
        self._read = self._store.head()[0]
        return found


class OverHTTP:
    """Does as programs do that know the service only, and waits for what it does by itself."""

    def __init__(self, client: Client) -> None:
        self._client, self._zone = client, find_zone(ZONE)
        self._revision = client.list_changes(since=0, limit=1).head
        self._tenants: set[str] = set()

    def __call__(self, act: Act) -> list[Change]:
        operations = act.operations
        if rack := self._rack(operations):
            self._client.change_rack(*rack)
        else:
            statuses = [self._do(each) for each in operations]
            assert statuses == act.statuses
        return self._heard(len(act.changes))

    def _rack(self, operations: Sequence[Operation]) -> tuple[str, StateName] | None:
        """All machines of a rack are said to be something."""
        said = [(each.machine, each.state) for each in operations if isinstance(each, SetMachine) and each.state]
        if len(said) < 2:
            return None
        rows = self._zone.machines["rack"][[self._zone.machine(machine) for machine, _ in said]]
        assert len(set(rows.tolist())) == len({state for _, state in said}) == 1
        return self._zone.rack_names[int(rows[0])], said[0][1]

    def _do(self, operation: Operation) -> str:
        if isinstance(operation, PlaceVMs):
            return self._place(operation.request)
        if isinstance(operation, ReleaseVMs):
            self._client.scale_in(operation.tenant, operation.vms)
        elif isinstance(operation, SetEntry):
            self._client.cancel_waiting(operation.name)
        else:
            assert isinstance(operation, SetMachine)
            assert operation.state
            self._client.change_machine(operation.machine, MachineChange(state=operation.state))
        return "done"

    def _place(self, request: Request) -> str:
        wishes = [VMWish(type=vm.type, priority=vm.priority, requeue=vm.requeue) for vm in request.vms]
        try:
            self._client.create_tenant(request.tenant, wishes, request.constraints or UNCONSTRAINED)
        except ServiceProblem as error:
            return "declined" if error.code in NO_ROOM else str(error)
        return "done"

    def _heard(self, expected: int) -> list[Change]:
        """What changed since the last time, once so much did."""
        found: list[Change] = []
        until = time.monotonic() + PATIENCE
        while True:
            news = self._client.list_changes(since=self._revision, limit=1_000)
            self._revision = news.revision
            found += [change for each in news.items for change in over_http(each)]
            if len(found) >= expected or time.monotonic() > until:
                return found
            time.sleep(0.005)


def assert_same(acts: list[Act], do: Callable[[Act], list[Change]]) -> None:
    for number, act in enumerate(acts):
        assert do(act) == act.changes, f"act {number} of {len(acts)}: {act.operations}"


# -------------------------------------------------------------------------------------------------------------- claims


def test_a_run_has_all_that_could_be_decided_otherwise(policy: str) -> None:
    acts = simulated(policy)
    asked = [each.request for act in acts for each in act.operations if isinstance(each, PlaceVMs)]
    changes = [change for act in acts for change in act.changes]
    own = {id(act.changes[0]) for act in acts if act.changes}
    by_duties = [change for change in changes if id(change) not in own]
    healed = [c for c in by_duties if any(" off " in word for word in c) and any(" on " in word for word in c)]
    requeued = [c for c in by_duties if all(" on " in word for word in c)]
    assert sum(act.statuses.count("declined") for act in acts) > 50
    assert len(healed) > 50
    assert len(requeued) > 20
    assert sum(len(request.vms) > 1 for request in asked) > 25
    assert sum(request.constraints is not None for request in asked) > 15
    assert sum(request.vms[0].priority == "spot" for request in asked) > 100
    assert sum(isinstance(each, ReleaseVMs) for act in acts for each in act.operations) > 300
    assert sum(len(act.operations) > 5 for act in acts) == 4, "racks fail, and are back"


def test_other_policies_and_other_seeds_decide_otherwise() -> None:
    assert len({tuple(change for act in simulated(name) for change in act.changes) for name in POLICIES}) == 2
    with closing(open_store("memory:", create=find_zone(ZONE))) as store:
        clock = Clock()
        agent = open_agent(store, seed=AGENT_SEED + 1, clock=clock)
        with pytest.raises(AssertionError):
            assert_same(simulated("default"), ByAnAgent(store, agent, clock, IMPATIENT))


def test_an_agent_and_its_duties_on_a_file_decide_as_in_the_simulation(policy: str, tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "zone.db"), create=find_zone(ZONE))) as store:
        clock = Clock()
        agent = open_agent(store, Policy.load(policy), seed=AGENT_SEED, settings=AgentSettings(group=256), clock=clock)
        assert_same(simulated(policy), ByAnAgent(store, agent, clock, IMPATIENT))
        agent.check_invariants()
        agent.close()


def test_the_service_decides_as_in_the_simulation(policy: str, postgres: ThrowawayPostgres, tmp_path: Path) -> None:
    """The default policy on a file, the other one on PostgreSQL."""
    store = str(tmp_path / "zone.db") if "default" in policy else postgres.create_database("same")
    healing = IMPATIENT.healing
    said = {
        "agent.seed": AGENT_SEED, "agent.foresight_seconds": 0,
        "agent.requeue_seconds": IMPATIENT.agent.requeue_seconds,
        "healing.flaps": healing.flaps, "healing.retry_seconds": healing.retry_seconds,
    }  # fmt: skip
    how = [word for name, value in said.items() for word in ("--set", f"{name}={value}")]
    with serving(store, "--zone", ZONE, "--policy", policy, *how) as service, Client(service.url) as client:
        assert_same(simulated(policy), OverHTTP(client))
