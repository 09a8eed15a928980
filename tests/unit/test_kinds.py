"""A kind of registry entry is a line of the table: whoever checks, keeps, follows or copies entries goes by that."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from roost.agent.agent import Agent
from roost.agent.operation import Answer
from roost.agent.verbs.entry import SetEntry
from roost.model.errors import InvalidInput
from roost.model.registry import KINDS, EntryTarget, Kind
from roost.model.thresholds import Thresholds, of_row
from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.store.snapshot import ledger_of, snapshot_of
from roost.wiring import open_agent, open_store

CLUSTER = "c000"


class Holiday(msgspec.Struct, frozen=True):
    """A toy: on a holiday a cluster keeps so many machines empty."""

    machines: int


def check(zone: Zone, cluster: str, holiday: Holiday) -> None:
    if holiday.machines > int(zone.clusters[zone.cluster(cluster)]["machines"]):
        raise InvalidInput("machines", "are more than the cluster has", "keep fewer")


def apply(copy: EntryTarget, cluster: str, holiday: Holiday | None) -> None:
    copy.keep_empty(cluster, None if holiday is None else Thresholds(new=holiday.machines))


@pytest.fixture
def holiday(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy is in the table."""
    monkeypatch.setitem(KINDS, "holiday", Kind("Machines kept; by cluster.", Holiday, None, check, apply, True))


@pytest.fixture
def agents() -> Iterator[tuple[Agent, Agent]]:
    """Two agents on one zone in memory."""
    store = open_store("memory:", create=Zone.synthetic(100))
    two = open_agent(store, Policy.named("fast"), name="one"), open_agent(store, Policy.named("fast"), name="two")
    yield two
    for agent in two:
        agent.close()


def enter(agent: Agent, value: str | None) -> Answer:
    (answer,) = agent.run(agent.submit(SetEntry("holiday", CLUSTER, value)))
    return answer


def kept(agent: Agent) -> int:
    zone = agent.allocator.zone
    return of_row(agent.replica.view.clusters[zone.cluster(CLUSTER)]["thresholds"]).new


@pytest.mark.usefixtures("holiday")
def test_every_copy_of_the_zone_is_as_such_an_entry_says(agents: tuple[Agent, Agent]) -> None:
    one, two = agents
    assert enter(one, '{"machines": 3}').ok
    two.step()
    assert (kept(one), kept(two)) == (3, 3)
    later = open_agent(one.store, Policy.named("fast"), name="later")
    assert kept(later) == 3
    later.close()
    assert enter(two, None).ok
    one.step()
    assert (kept(one), kept(two)) == (0, 0)


@pytest.mark.usefixtures("holiday")
@pytest.mark.parametrize(
    ("value", "where"),
    [("three", "holiday c000"), ('{"machines": "3"}', "holiday c000"), ('{"machines": 1000}', "machines")],
)
def test_an_entry_that_makes_no_sense_is_refused(agents: tuple[Agent, Agent], value: str, where: str) -> None:
    answer = enter(agents[0], value)
    assert (answer.status, answer.where) == ("invalid", where)
    assert agents[0].store.registry("holiday") == {}


@pytest.mark.usefixtures("holiday")
def test_snapshots_take_along_what_decisions_rest_on(agents: tuple[Agent, Agent]) -> None:
    enter(agents[0], '{"machines": 3}')
    assert ledger_of(snapshot_of(agents[0].store.load())).registry == {("holiday", CLUSTER): '{"machines": 3}'}


def test_entries_of_a_kind_that_is_not_in_the_table_are_kept_and_change_nothing(agents: tuple[Agent, Agent]) -> None:
    assert enter(agents[0], "three").ok
    assert agents[0].store.registry("holiday") == {CLUSTER: "three"}
    assert kept(agents[0]) == 0
    assert ledger_of(snapshot_of(agents[0].store.load())).registry == {}


def test_every_kind_says_what_it_is() -> None:
    for name, kind in KINDS.items():
        assert kind.what.endswith("."), name
        assert (kind.value is str) or (kind.named is None), name
