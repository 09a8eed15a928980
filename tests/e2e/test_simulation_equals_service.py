"""What a simulated run decides is what the real service decides, given the same requests in the same order.

The run fills a zone until requests are declined, with tenants of several VMs, constraints, spot VMs, departures,
machines that fail and maintenance. Every operation of it is then given, one after another, to an agent on a store of
another kind, and over HTTP to `roost serve`, with the same policy and the seed of the run's only agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import msgspec
import pytest
import yaml

from roost.agent.operation import Answer, Evicted, Operation
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.bench.postgres import ThrowawayPostgres
from roost.client import Client, MachineChange, ServiceProblem, VMWish
from roost.model.request import UNCONSTRAINED, Placement, Request
from roost.rules.policy import SHIPPED, Policy
from roost.sim.experiment import Experiment
from roost.sim.runs import stage
from roost.sim.simulation import Simulation
from roost.wire.tenants import EvictedVM
from roost.wiring import find_zone, open_agent, open_store
from tests.e2e.serving import serving

SEED, AGENT_SEED = 7, 7_000  # of a run, and of its first agent
ZONE, POLICIES = "synthetic:100", ("default", "dense")
EXPERIMENT = {
    "name": "same",
    "zone": ZONE,
    "workload": {"days": 0.03, "requests_per_day": 20_000, "stays": 0.5, "spot": 0.1, "spread": 0.8},
    "fill": 0.97,
    "faults": {"mtbf": "1d", "repair": "1h", "maintenance": [{"at": "30m", "lasts": "30m", "share": 0.1}]},
}
NO_ROOM = {"roost.no_capacity", "roost.fragmented", "roost.tenant_constraint"}

GAVE_WAY = "gave way"
Decision = tuple[str, ...]  # of each VM, the name and the machine, and who gave way; of what was refused, how
Step = tuple[Operation, Decision]


@pytest.fixture(scope="module")
def postgres() -> Iterator[ThrowawayPostgres]:
    with ThrowawayPostgres() as server:
        yield server


@pytest.fixture(scope="module", params=POLICIES)
def policy(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A policy's file, but that it does not matter how long ago a VM was placed: a run has a clock of its own.

    Nor what VMs are for: who places lost ones anew, over HTTP, cannot say that they are healed.
    """
    path = tmp_path_factory.mktemp("policies") / f"{request.param}.yaml"
    rules = yaml.safe_load((SHIPPED / path.name).read_text())
    clusters = rules["clusters"]
    clusters["validators"] = [each for each in clusters["validators"] if "below_limit" not in str(each)]
    rules["evictions"] = {**rules.get("evictions", {}), "age": 0}
    path.write_text(yaml.safe_dump(rules))
    return str(path)


@cache
def simulated(policy: str) -> list[Step]:
    """All that a run asked for, and what was decided, in order."""
    steps: list[Step] = []
    experiment = msgspec.convert(EXPERIMENT, Experiment)

    def witness(operation: Operation, answer: Answer) -> None:
        steps.append((operation, decision(answer)))

    Simulation(experiment, policy, SEED, *stage(experiment, SEED), witness=witness).run()
    return steps


def decision(answer: Answer) -> Decision:
    return _in_words(answer.placements, answer.evicted) if answer.ok else (answer.status,)


def _in_words(placed: Sequence[Placement], evicted: Sequence[Evicted | EvictedVM]) -> Decision:
    return (*(f"{vm.vm} on {vm.machine}" for vm in placed), *(f"{vm.vm} {GAVE_WAY}" for vm in evicted))


class OverHTTP:
    """Does operations as programs do that know the service only."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._running: Counter[str] = Counter()  # VMs of each tenant

    def __call__(self, operation: Operation) -> Decision:
        if isinstance(operation, PlaceVMs):
            return self._place(operation.request)
        if isinstance(operation, ReleaseVMs):
            self._client.scale_in(operation.tenant, operation.vms)
            self._running[operation.tenant] -= len(operation.vms)
        else:
            assert isinstance(operation, SetMachine)
            assert operation.state
            self._client.change_machine(operation.machine, MachineChange(state=operation.state))
        return ()

    def _place(self, request: Request) -> Decision:
        wishes = [VMWish(type=vm.type, priority=vm.priority) for vm in request.vms]
        try:
            if self._running[request.tenant]:  # some of its VMs were lost with their machine
                placed = self._client.scale_out(request.tenant, wishes)
            else:
                placed = self._client.create_tenant(request.tenant, wishes, request.constraints or UNCONSTRAINED)
        except ServiceProblem as error:
            return ("declined" if error.code in NO_ROOM else str(error),)
        self._running[request.tenant] += len(wishes)
        self._running.subtract(vm.tenant for vm in placed.evicted)
        return _in_words(placed.vms, placed.evicted)


def assert_same(steps: list[Step], decide: Callable[[Operation], Decision]) -> None:
    for number, (operation, expected) in enumerate(steps):
        assert decide(operation) == expected, f"operation {number} of {len(steps)}: {operation}"


def test_a_run_has_all_that_could_be_decided_otherwise(policy: str) -> None:
    steps = simulated(policy)
    asked = [(operation.request, decided) for operation, decided in steps if isinstance(operation, PlaceVMs)]
    assert sum(decided == ("declined",) for _, decided in asked) > 50
    assert sum(each.endswith(GAVE_WAY) for _, decided in asked for each in decided) > 50
    assert sum(len(request.vms) > 1 for request, _ in asked) > 25
    assert sum(request.constraints is not None for request, _ in asked) > 15
    assert sum(request.vms[0].priority == "spot" for request, _ in asked) > 100
    assert sum(isinstance(operation, ReleaseVMs) for operation, _ in steps) > 300
    assert sum(isinstance(operation, SetMachine) for operation, _ in steps) > 10
    assert len({request.tenant for request, _ in asked}) < len(asked), "some VMs are placed again, elsewhere"


def test_other_policies_and_other_seeds_decide_otherwise() -> None:
    assert len({tuple(decided for _, decided in simulated(name)) for name in POLICIES}) == len(POLICIES)
    with closing(open_store("memory:", create=find_zone(ZONE))) as store:
        agent = open_agent(store, seed=AGENT_SEED + 1)
        with pytest.raises(AssertionError, match="operation"):
            assert_same(simulated("default"), lambda operation: decision(agent.run(agent.submit(operation))[0]))


def test_an_agent_on_a_file_decides_as_in_the_simulation(policy: str, tmp_path: Path) -> None:
    with closing(open_store(str(tmp_path / "zone.db"), create=find_zone(ZONE))) as store:
        agent = open_agent(store, Policy.load(policy), seed=AGENT_SEED)
        assert_same(simulated(policy), lambda operation: decision(agent.run(agent.submit(operation))[0]))
        agent.check_invariants()
        agent.close()


def test_the_service_decides_as_in_the_simulation(policy: str, postgres: ThrowawayPostgres, tmp_path: Path) -> None:
    """The default policy on a file, the other one on PostgreSQL."""
    store = str(tmp_path / "zone.db") if "default" in policy else postgres.create_database("same")
    heals_nothing = ("--set", "healing.retry_seconds=0", "--set", "healing.flaps=0")  # the run says what comes where
    how = ("--zone", ZONE, "--policy", policy, "--set", f"agent.seed={AGENT_SEED}", *heals_nothing)
    with serving(store, *how) as service, Client(service.url) as client:
        assert_same(simulated(policy), OverHTTP(client))
