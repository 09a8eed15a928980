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
from roost.agent.context import Context
from roost.agent.operation import Operation
from roost.agent.past import recall
from roost.agent.settings import AgentSettings
from roost.agent.ticket import Ticket
from roost.agent.under_way import LARGE
from roost.agent.verbs.evict import EvictVMs
from roost.agent.verbs.heal import HealVMs
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.agent.verbs.placing import propose
from roost.agent.verbs.release import ReleaseVMs
from roost.agent.verbs.table import VERBS, read_operation
from roost.agent.verbs.verb import Tenants, Verb, Wanted, of_tenant
from roost.api.json_lines import operation_of
from roost.api.problems import Refused
from roost.api.service import Service
from roost.model.errors import InvalidInput
from roost.model.names import check_new_name
from roost.model.request import VM, Request
from roost.model.zone import Zone
from roost.placing.allocator import Allocator
from roost.rules.policy import Policy
from roost.settings import AgentSection, LimitsSection, Settings
from roost.settings import StoreSection as StoreSettings
from roost.store import contract as store
from roost.store.audit import audit
from roost.store.contract import Committed, Conflict, Proposal
from roost.wiring import open_agent, open_store


class LabelTenant(Operation, frozen=True, tag="label"):
    """A toy: write something on a tenant, with a copy for each of so many readers."""

    tenant: str
    text: str
    readers: int = 1


def decide(context: Context, operation: LabelTenant, ticket: Ticket) -> Proposal:
    if not operation.text:
        raise InvalidInput("text", "is empty", "write something")
    return store.Register(kind="label", name=operation.tenant, value=operation.text, **context.common(ticket))


def readers(operation: LabelTenant, _: Tenants) -> int:
    return operation.readers


def check(operation: LabelTenant) -> None:
    check_new_name("tenant", operation.tenant)


def generation(operation: LabelTenant, _: Committed) -> int:
    return len(operation.text)


LABEL = Verb(decide, of_tenant, readers, check, generation=generation)


@pytest.fixture
def label(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is in the table."""
    monkeypatch.setitem(VERBS, LabelTenant, LABEL)  # type: ignore[misc]


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


@pytest.mark.usefixtures("label")
def test_a_verb_of_one_file_and_one_line_is_decided_answered_and_counted(agent: Agent) -> None:
    done = agent.counters.done
    (answer,) = agent.run(agent.submit(LabelTenant("web", "blue"), key="k", by="me"))
    assert (answer.status, answer.generation) == ("done", 4)
    assert agent.store.registry("label") == {"web": "blue"}
    assert (agent.counters.done, agent.counters.commits) == (done + 1, 0)
    decided = agent.store.decided("k")
    assert decided is not None
    assert (decided.record.by, read_operation(decided.request)) == ("me", LabelTenant("web", "blue"))
    (again,) = agent.run(agent.submit(LabelTenant("web", "blue"), key="k"))
    assert again.replayed
    (nonsense,) = agent.run(agent.submit(LabelTenant("web", "")))
    assert (nonsense.status, nonsense.where) == ("invalid", "text")


@pytest.mark.usefixtures("label")
def test_such_a_verb_is_queued_by_its_size_and_under_its_tenant(agent: Agent) -> None:
    assert agent.ticket(LabelTenant("web", "blue", 7)).vms == 7
    small, large = agent.submit(LabelTenant("web", "blue")), agent.submit(LabelTenant("shop", "red", LARGE + 1))
    lines = agent.under_way.lines
    assert (list(lines.small), list(lines.large)) == ([small], [large])
    agent.under_way.decided(small)
    assert agent.under_way.must_wait(agent.submit(LabelTenant("web", "green")))
    assert not agent.under_way.must_wait(large)


@pytest.mark.usefixtures("label")
def test_such_a_verb_is_understood_by_a_worker_which_checks_the_names_that_it_brings_in() -> None:
    assert operation_of({"do": "label", "tenant": "web", "text": "blue"}) == LabelTenant("web", "blue")
    with pytest.raises(InvalidInput, match="tenant"):
        operation_of({"do": "label", "tenant": "a b", "text": "blue"})


class PlaceSpare(Operation, frozen=True, tag="spare"):
    """Another toy: one small VM for a tenant, whatever it has."""

    tenant: str


def spare(allocator: Allocator, operation: PlaceSpare) -> Wanted:
    return Wanted(Request(operation.tenant, [VM("A0")]))


def decide_spare(context: Context, operation: PlaceSpare, ticket: Ticket) -> Proposal:
    return propose(context, ticket, spare(context.allocator, operation))


@pytest.fixture
def placing_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other toy is in the table."""
    monkeypatch.setitem(VERBS, PlaceSpare, Verb(decide_spare, of_tenant, wanted=spare))  # type: ignore[misc]


@pytest.mark.usefixtures("placing_toy")
def test_a_verb_that_places_is_done_by_a_service_counted_explained_and_audited(
    tmp_path: Path,
) -> None:
    async def ask() -> str:
        url = str(tmp_path / "zone.db")
        service = Service(
            Settings(store=StoreSettings(url=url, zone="synthetic:100"), agent=AgentSection(policy="fast"))
        )
        await service.start()
        answer = (await service.submit(PlaceSpare("web"), key="k")).answer
        assert answer is not None
        assert [placement.vm for placement in answer.placements] == list(service.agent.allocator.tenants["web"].vms)
        assert service.agent.counters.commits == 1
        past = recall(service.store, "k", lambda _: Policy.named("fast"))
        assert past.explain(0).machine == answer.placements[0].machine
        assert audit(service.store).clean
        service.metrics.measure(service)
        found = service.metrics.text().decode()
        await service.stop(0.0)
        return found

    counted = [line for line in asyncio.run(ask()).splitlines() if "_total{" in line and 'result="scheduled"' in line]
    assert [float(line.rsplit(" ", 1)[1]) for line in counted] == [1.0]


def test_what_is_not_in_the_table_is_not_understood() -> None:
    with pytest.raises(InvalidInput, match="label"):
        operation_of({"do": "label", "tenant": "web", "text": "blue"})


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
