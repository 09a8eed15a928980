"""Every agent keeps as many empty machines as the zone says, or an operator, from the moment it learns of it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from roost.admission.standing import standings
from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.operation import Answer, Operation
from roost.agent.past import recall
from roost.agent.replica import Replica
from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machines import AddMachines, RemoveMachines
from roost.agent.verbs.place import PlaceVMs
from roost.model.inventory import catalogue_of, zone_of
from roost.model.registry import THRESHOLD
from roost.model.request import VM, Request
from roost.model.thresholds import Thresholds
from roost.rules.policy import Policy
from roost.store.columns import ZoneColumns
from roost.store.contract import Store
from roost.store.history import ledger_at
from roost.store.recheck import Recheck
from roost.store.snapshot import decode_snapshot, encode_snapshot
from roost.wiring import open_store
from tests.contract.tiny import CATALOGUE, MACHINES, machine, register

POLICY = Policy.default()
KEPT = Thresholds(new=3, scale_out=2, healing=1)


def agent_on(store: Store, name: str) -> Agent:
    """An agent that commits at once."""
    return Agent(store, InlineCourier(store), POLICY, name)


def entry(cluster: str, kept: Thresholds | None) -> SetEntry:
    """What an operator has an agent do."""
    return SetEntry(THRESHOLD, cluster, None if kept is None else msgspec.json.encode(kept).decode())


def do(agent: Agent, operation: Operation, key: str = "") -> Answer:
    (answer,) = agent.run(agent.submit(operation, key))
    return answer


def kept_by(agent: Agent) -> dict[str, tuple[Thresholds, str]]:
    """What an agent believes, and who says so."""
    agent.step()
    found = standings(agent.allocator, agent.replica.registry)
    return {each.cluster: (each.thresholds, each.source) for each in found}


def test_every_agent_follows_what_one_was_told_and_what_begins_later_knows_it(store: Store) -> None:
    one, other = agent_on(store, "one"), agent_on(store, "other")
    assert kept_by(other) == {"c1": (Thresholds(), "none"), "c2": (Thresholds(), "none")}
    assert do(one, entry("c2", KEPT)).ok
    for agent in (one, other, agent_on(store, "late")):
        assert kept_by(agent) == {"c1": (Thresholds(), "none"), "c2": (KEPT, "registry")}
        agent.check_invariants()
    assert do(other, entry("c2", None)).ok
    for agent in (one, other, agent_on(store, "later")):
        assert kept_by(agent)["c2"] == (Thresholds(), "none")
        agent.check_invariants()


def test_what_is_set_decides_at_once_on_every_agent(store: Store) -> None:
    one, other = agent_on(store, "one"), agent_on(store, "other")
    assert do(other, PlaceVMs(Request("web", [VM("whole", cluster="c2")]))).ok
    assert do(one, entry("c2", Thresholds(new=3))).ok
    other.step()
    assert do(other, PlaceVMs(Request("shop", [VM("whole", cluster="c2")]))).status == "declined"
    assert do(other, PlaceVMs(Request("web", [VM("whole", cluster="c2")]))).ok, "it grows"


@pytest.mark.parametrize(
    ("cluster", "value", "said"),
    [
        ("c3", '{"new": 1}', "cluster: no cluster is called 'c3'; did you mean"),
        ("c1", '{"new": 5}', "thresholds.new: is 5, and cluster c1 has 4 machines; keep at most 4"),
        ("c1", '{"new": 1, "scale_out": 2}', "thresholds.new: is 1, below scale_out, which is 2; new deployments stop"),
        ("c1", '{"new": -1}', "thresholds.new: is -1; use a whole number of machines"),
        ("c1", '{"newer": 1}', "thresholds: Object contains unknown field `newer`; give new, scale_out and healing"),
        ("c1", "three", "thresholds: JSON is malformed"),
    ],
)
def test_thresholds_that_make_no_sense_are_refused_with_what_would(
    store: Store, cluster: str, value: str, said: str
) -> None:
    answer = do(agent_on(store, "one"), SetEntry(THRESHOLD, cluster, value))
    assert answer.status == "invalid"
    assert answer.detail.startswith(said)
    assert store.registry(THRESHOLD) == {}


def test_thresholds_of_a_cluster_that_is_gone_are_no_trouble(store: Store) -> None:
    one, other = agent_on(store, "one"), agent_on(store, "other")
    assert do(one, entry("c2", KEPT)).ok
    assert do(one, RemoveMachines(cluster="c2")).ok
    assert kept_by(agent_on(store, "late")) == {"c1": (Thresholds(), "none")}
    assert do(one, entry("c2", None)).ok, "it can still be cleared"
    assert do(one, SetEntry(THRESHOLD, "c2", '{"new": 1}')).status == "invalid"
    assert do(one, AddMachines((machine("m5", "c2", "new"),))).ok
    assert kept_by(other)["c2"] == (Thresholds(), "none")
    assert do(one, entry("c2", Thresholds(new=1))).ok
    assert kept_by(other)["c2"] == (Thresholds(new=1), "registry")


def test_the_past_has_the_thresholds_of_then(store: Store) -> None:
    agent = agent_on(store, "one")
    assert do(agent, entry("c2", Thresholds(new=4))).ok
    then = store.head()[0]
    assert do(agent, PlaceVMs(Request("web", [VM("small", cluster="c2")])), "refused").status == "declined"
    assert do(agent, entry("c2", Thresholds(new=1))).ok
    assert do(agent, PlaceVMs(Request("web", [VM("small", cluster="c2")]))).ok
    past = ZoneColumns.of(ledger_at(store, then))
    assert Replica(past, POLICY).view.clusters["thresholds"].tolist() == [[0, 0, 0], [4, 0, 0]]
    told = recall(store, "refused", lambda _: POLICY).explanation
    assert told.failure == "threshold"
    assert "4 cluster keeps its empty machines from new deployments" in told.summary


def test_decisions_remember_what_the_request_was_for_and_are_explained_by_it(store: Store) -> None:
    agent = agent_on(store, "one")
    small = [VM("small", cluster="c2")]
    assert do(agent, PlaceVMs(Request("web", small)), "new").ok
    assert do(agent, entry("c2", Thresholds(new=4, scale_out=4, healing=4))).ok
    assert do(agent, PlaceVMs(Request("web", small)), "grow").status == "declined"
    assert do(agent, PlaceVMs(Request("web", small), healing=True), "heal").status == "declined"
    assert do(agent, PlaceVMs(Request("shop", small)), "other").status == "declined"
    found = {key: store.decided(key) for key in ("new", "grow", "heal", "other")}
    purposes = {key: decided.record.purpose for key, decided in found.items() if decided}
    assert purposes == {"new": "new", "grow": "scale_out", "heal": "healing", "other": "new"}
    for key, words in (("grow", "scale-outs"), ("heal", "healing"), ("other", "new deployments")):
        assert f"empty machines from {words}" in recall(store, key, lambda _: POLICY).explanation.summary


def test_a_snapshot_takes_thresholds_along(store: Store, recheck: Recheck) -> None:
    assert do(agent_on(store, "one"), entry("c1", KEPT)).ok
    store.commit([register("t", "somebody", "secret", kind="token")], recheck)
    copy = decode_snapshot(encode_snapshot(store.load()))
    assert list(copy.registry) == [(THRESHOLD, "c1")]
    assert Replica(ZoneColumns.of(copy), POLICY).view.clusters["thresholds"].tolist() == [[3, 2, 1], [0, 0, 0]]


@pytest.mark.parametrize("url", ["memory:", "zone.db"])
def test_a_store_knows_the_thresholds_of_its_zone(url: str, tmp_path: Path) -> None:
    zone = zone_of(msgspec.structs.replace(CATALOGUE, thresholds={"c2": KEPT, "gone": KEPT}), MACHINES)
    assert catalogue_of(zone).thresholds == {"c2": KEPT}
    place = url if url == "memory:" else str(tmp_path / url)
    store = open_store(place, create=zone)
    if url != "memory:":
        store.close()
        store = open_store(place)
    agent = agent_on(store, "one")
    assert kept_by(agent) == {"c1": (Thresholds(), "none"), "c2": (KEPT, "zone")}
    assert do(agent, entry("c2", Thresholds())).ok
    assert kept_by(agent)["c2"] == (Thresholds(), "registry"), "an operator may want none"
    assert do(agent, entry("c2", None)).ok
    assert kept_by(agent)["c2"] == (KEPT, "zone")
    agent.check_invariants()
    assert store.load().catalogue.thresholds == {"c2": KEPT}
