"""A verb is a module and a line of the table: whoever asks, decides, queues, answers or counts goes by that."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roost.agent import verbs
from roost.agent.agent import Agent
from roost.agent.operation import Answer, Operation
from roost.agent.past import recall
from roost.agent.settings import AgentSettings
from roost.agent.under_way import LARGE
from roost.agent.verbs.cluster import SetCluster
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.evict import EvictVMs
from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.release import ReleaseVMs
from roost.agent.verbs.table import VERBS, read_operation
from roost.api.json_lines import operation_of, serve
from roost.api.problems import Refused
from roost.api.service import Service
from roost.cli.worker import verbs_shown
from roost.model.errors import InvalidInput
from roost.model.registry import THRESHOLD
from roost.model.request import VM, Request
from roost.model.thresholds import Thresholds
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.settings import AgentSection, LimitsSection, Settings
from roost.settings import StoreSection as StoreSettings
from roost.sim.experiment import Experiment
from roost.sim.runs import stage
from roost.sim.simulation import Simulation
from roost.store import contract as store
from roost.store.audit import audit
from roost.store.contract import Conflict
from roost.wiring import open_agent, open_store
from tests.unit.claiming import CLAIMED, Claim, ClaimRoom, enter_tables


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is in both tables."""
    enter_tables(monkeypatch)


@pytest.fixture
def agent() -> Iterator[Agent]:
    """An agent on a zone in memory."""
    agent = open_agent(open_store("memory:", create=Zone.synthetic(100)), Policy.named("fast"))
    yield agent
    agent.close()


def place(agent: Agent, tenant: str, vms: int) -> tuple[str, ...]:
    (answer,) = agent.run(agent.submit(PlaceVMs(Request(tenant, [VM("A0")] * vms))))
    assert answer.ok, answer
    return tuple(placement.vm for placement in answer.placements)


def test_the_table_has_every_operation_under_a_name_of_its_own() -> None:
    from importlib import import_module
    from pkgutil import iter_modules

    for module in iter_modules(verbs.__path__):
        import_module(f"{verbs.__name__}.{module.name}")
    shipped = {each for each in Operation.__subclasses__() if each.__module__.startswith(verbs.__name__)}
    assert set(VERBS) == shipped
    tags = [each.__struct_config__.tag for each in VERBS]
    assert len(tags) == len(set(tags)) == 11


@pytest.mark.parametrize(
    ("form", "operation"),
    [
        ({"do": "place", "request": {"tenant": "web", "vms": [{"type": "A0"}]}}, PlaceVMs(Request("web", [VM("A0")]))),
        ({"do": "heal", "tenant": "web", "vms": ["web/0"]}, HealVMs("web", ("web/0",))),
        ({"do": "evict", "tenant": "web", "vms": ["web/0"]}, EvictVMs("web", ("web/0",))),
        ({"do": "machine", "machine": "m", "state": "down"}, SetMachine("m", "down")),
    ],
)
def test_operations_keep_their_json_form(form: dict[str, Any], operation: Operation) -> None:
    assert operation_of(dict(form)) == operation
    assert read_operation(msgspec.json.encode(operation)) == operation


# ------------------------------------------------------------------------------------- the toy, through everything


@pytest.mark.usefixtures("toy")
def test_a_verb_of_one_module_and_two_lines_is_decided_answered_and_counted(agent: Agent) -> None:
    (answer,) = agent.run(agent.submit(ClaimRoom("web", "c1", 2), key="k", by="me"))
    assert (answer.status, [each.vm for each in answer.placements]) == (
        "done",
        list(agent.allocator.tenants["web"].vms),
    )
    assert agent.store.registry(CLAIMED) == {"c1": "web"}
    counters = agent.counters
    assert (counters.commits, counters.placed_vms, counters.answers) == (1, 2, {("claim", "done"): 1})
    decided = agent.store.decided("k")
    assert decided is not None
    assert (decided.record.by, read_operation(decided.request)) == ("me", ClaimRoom("web", "c1", 2))
    (again,) = agent.run(agent.submit(ClaimRoom("web", "c1", 2), key="k"))
    assert (again.replayed, again.placements) == (True, answer.placements)
    (nonsense,) = agent.run(agent.submit(ClaimRoom("web", "")))
    assert (nonsense.status, nonsense.where) == ("invalid", "claim")
    (used,) = agent.run(agent.submit(ClaimRoom("shop", "c1")))
    assert (used.status, used.code, counters.reasons) == ("invalid", "roost.taken", {CLAIMED: 1})
    agent.step()
    agent.check_invariants()


@pytest.mark.usefixtures("toy")
def test_what_it_assumed_is_in_the_round_that_those_after_it_are_explained_by(agent: Agent) -> None:
    first, second = (
        agent.submit(ClaimRoom("web", "c1", type="D2")),
        agent.submit(PlaceVMs(Request("shop", [VM("D2")])), "k"),
    )
    agent.run(first, second)
    decided = agent.store.decided("k")
    assert decided is not None
    seen = agent.store.round(decided.record.agent, decided.record.round)
    assert seen is not None
    assert [(tenant, [each.vm for each in vms]) for tenant, vms in seen.placed] == [
        ("web", ["web/0"]),
        ("shop", ["shop/0"]),
    ]
    past = recall(agent.store, "k", lambda _: Policy.named("fast"))
    assert past.explain(0).machine == decided.placed[0].machine


@pytest.mark.usefixtures("toy")
def test_it_is_queued_by_its_size_and_under_its_tenant(agent: Agent) -> None:
    assert agent.ticket(ClaimRoom("web", "c1", 7)).vms == 7
    small, large = agent.submit(ClaimRoom("web", "c1")), agent.submit(ClaimRoom("shop", "c2", LARGE + 1))
    lines = agent.under_way.lines
    assert (list(lines.small), list(lines.large)) == ([small], [large])
    agent.under_way.decided(small)
    assert agent.under_way.must_wait(agent.submit(ClaimRoom("web", "c3")))
    assert not agent.under_way.must_wait(large)


@pytest.mark.usefixtures("toy")
def test_a_worker_takes_it_as_a_line_and_checks_the_names_that_it_brings_in(agent: Agent) -> None:
    lines = [
        b'{"key": "a", "do": "claim", "tenant": "web", "claim": "c1"}',
        b'{"key": "b", "do": "claim", "tenant": "shop", "claim": "c1"}',
        b'{"key": "c", "do": "claim", "tenant": "a b", "claim": "c2"}',
        b'{"key": "d", "do": "claim", "tenant": "web", "claim": "c3", "type": "none"}',
    ]
    written: list[bytes] = []
    serve(agent, lines, written.append)
    answers = {answer["key"]: answer for answer in map(msgspec.json.decode, written)}
    assert {key: answer["status"] for key, answer in answers.items()} == {
        "a": "done", "b": "invalid", "c": "invalid", "d": "invalid",
    }  # fmt: skip
    assert [each["vm"] for each in answers["a"]["placements"]] == ["web/0"]
    assert [answers[key]["detail"].split()[0] for key in "bc"] == ["claim:", "tenant:"]
    assert audit(agent.store).clean


@pytest.mark.usefixtures("toy")
def test_a_service_does_it_counts_it_explains_it_and_is_audited(tmp_path: Path) -> None:
    async def ask() -> str:
        url = str(tmp_path / "zone.db")
        service = Service(
            Settings(store=StoreSettings(url=url, zone="synthetic:100"), agent=AgentSection(policy="fast"))
        )
        await service.start()
        answer = (await service.submit(ClaimRoom("web", "c1"), key="k")).answer
        assert answer is not None
        assert [placement.vm for placement in answer.placements] == list(service.agent.allocator.tenants["web"].vms)
        await service.submit(ClaimRoom("web", "c1"))
        await service.submit(SetCluster("c000", quarantined=True))
        past = recall(service.store, "k", lambda _: Policy.named("fast"))
        assert past.explain(0).machine == answer.placements[0].machine
        assert (await service.rehearse(ClaimRoom("web", "c2"))).answer is not None
        assert audit(service.store).clean
        service.metrics.measure(service)
        found = service.metrics.text().decode()
        await service.stop(0.0)
        return found

    counted = asyncio.run(ask()).splitlines()
    assert [line for line in counted if line.startswith("roost_operations_total{")] == [
        'roost_operations_total{result="done",verb="claim"} 1.0',
        'roost_operations_total{result="invalid",verb="claim"} 1.0',
        'roost_operations_total{result="done",verb="cluster"} 1.0',
    ]
    tried = [line.partition("result=")[2] for line in counted if line.startswith("roost_schedule_attempts_total{")]
    assert tried == ['"scheduled"} 1.0', '"invalid"} 1.0']
    assert f'roost_conflicts_total{{reason="{CLAIMED}"}} 1.0' in counted


@pytest.mark.usefixtures("toy")
def test_thresholds_hold_it_back_when_it_is_decided_and_when_it_is_committed(agent: Agent) -> None:
    zone, other = agent.allocator.zone, open_agent(agent.store, Policy.named("fast"))
    for name, machines in zip(zone.cluster_names, zone.clusters["machines"].tolist(), strict=True):
        kept = msgspec.json.encode(Thresholds(new=machines)).decode()
        assert agent.run(agent.submit(SetEntry(THRESHOLD, name, kept)))[0].ok
    (answer,) = agent.run(agent.submit(ClaimRoom("web", "c1")))
    assert answer.status == "declined"
    ticket, proposal = other.rehearse(ClaimRoom("web", "c1"))  # it has not heard of them
    assert isinstance(proposal, Claim), ticket.answer
    (outcome,) = agent.store.commit([proposal], other.recheck)
    assert isinstance(outcome, Conflict)
    assert (outcome.reason, outcome.behind) == ("threshold", True)
    other.close()


@pytest.mark.usefixtures("toy")
def test_a_simulated_run_has_it_and_its_books_agree() -> None:
    form = {"name": "toy", "zone": "synthetic:100", "workload": {"days": 0.01, "requests_per_day": 5_000}}
    experiment, answers = msgspec.convert(form, Experiment), list[Answer]()
    run = Simulation(experiment, "fast", 1, *stage(experiment, 1))
    for claim in ("c1", "c1", "c2"):
        run.crew.submit(ClaimRoom("web", claim), answers.append)
    run.run()  # raises unless what was counted is what the store holds
    assert [(answer.status, answer.code) for answer in answers] == [
        ("done", ""),
        ("invalid", "roost.taken"),
        ("done", ""),
    ]
    assert {each.vm for answer in answers for each in answer.placements} <= run.store.load().vms.keys()
    assert audit(run.store).clean


@pytest.mark.usefixtures("toy")
def test_help_of_a_worker_shows_an_example_of_every_verb_and_each_is_understood() -> None:
    shown = " ".join(line.strip() for line in verbs_shown())
    assert shown.count('"do": ') == len(VERBS) == 12
    assert 'Place VMs of a tenant for a claim. {"do": "claim", "tenant": "web", "claim": "c1"}' in shown
    for operation, verb in VERBS.items():
        assert type(verb.example) is operation
        assert operation_of(msgspec.to_builtins(verb.example)) == verb.example


def test_what_is_not_in_the_table_is_not_understood() -> None:
    with pytest.raises(InvalidInput, match="claim"):
        operation_of({"do": "claim", "tenant": "web", "claim": "c1"})


def test_a_race_that_a_healing_lost_counts_as_a_conflict(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    (vm,) = place(agent, "web", 1)
    machine = agent.allocator.zone.machine_names[agent.allocator.vms[vm].machine]
    agent.run(agent.submit(SetMachine(machine, "down")))
    commit, before, lost = agent.store.commit, agent.counters.commits, [Conflict("room", "somebody was faster")]

    def lose(*group: Any, **more: Any) -> list[store.Outcome]:
        return [lost.pop()] if lost else commit(*group, **more)

    monkeypatch.setattr(agent.store, "commit", lose)
    (answer,) = agent.run(agent.submit(HealVMs("web", (vm,))))
    assert (answer.status, answer.retries) == ("done", 1)
    assert agent.counters.commits == before + 2
    assert (agent.counters.conflicts, agent.counters.reasons) == (1, {"room": 1})


@pytest.mark.parametrize("duty", [False, True])
def test_what_is_about_many_vms_has_a_round_of_its_own(agent: Agent, duty: bool) -> None:
    many = place(agent, "many", LARGE + 1)
    few = place(agent, "few", LARGE)
    large = [HealVMs("many", many), ReleaseVMs("many", many), ReleaseVMs("many"), EvictVMs("many", many)]
    small = [HealVMs("few", few), ReleaseVMs("few", few), ReleaseVMs("few"), EvictVMs("few", few)]
    for operation in (*large, *small):
        agent.submit(operation, duty=duty)
    lines = agent.under_way.lines
    assert [ticket.operation for ticket in lines.large] == large
    assert [ticket.operation for ticket in (lines.duties if duty else lines.small)] == small


def test_a_service_weighs_deletions_and_healings_by_their_vms(tmp_path: Path) -> None:
    async def ask() -> None:
        settings = Settings(
            store=StoreSettings(url=str(tmp_path / "zone.db"), zone="synthetic:100"),
            agent=AgentSection(policy="fast"),
            limits=LimitsSection(queued_vms=10),
        )
        service = Service(settings)
        await service.start()
        for tenant in ("web", "shop"):
            for _ in range(2):
                await service.submit(PlaceVMs(Request(tenant, [VM("A0")] * 6)))
        running = tuple(service.agent.allocator.tenants["web"].vms)
        healing = service.submit(HealVMs("web", running[:6]))
        assert service.queued_vms == 6
        with pytest.raises(Refused):
            service.submit(ReleaseVMs("shop"))
        await healing
        deleting = service.submit(ReleaseVMs("shop"))  # of more than may wait, when nothing else does
        assert service.queued_vms == 12
        with pytest.raises(Refused):
            service.submit(ReleaseVMs("web", running[:1]))
        answer = (await deleting).answer
        assert answer is not None
        assert answer.ok
        assert service.queued_vms == 0
        with pytest.raises(Refused):
            service.submit(PlaceVMs(Request("web", [VM("A0")] * 11)))
        await service.stop(0.0)

    asyncio.run(ask())


def test_an_agent_and_a_service_take_the_same_groups() -> None:
    documented = AgentSection()
    for name in ("retries", "group", "group_vms", "top", "window"):
        assert getattr(AgentSettings(), name) == getattr(documented, name)
