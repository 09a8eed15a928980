"""Thresholds that a zone's own history asks for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from roost.admission.history import ClusterHistory, ZoneHistory, read_history
from roost.admission.thresholds import Computed, Targets, compute
from roost.agent.agent import Agent
from roost.agent.courier import InlineCourier
from roost.agent.verbs.machine import SetMachine
from roost.agent.verbs.place import PlaceVMs
from roost.model.errors import InvalidInput
from roost.model.request import VM, Request
from roost.model.spans import DAY
from roost.model.thresholds import Thresholds
from roost.model.zone import Generation, MachineGroup, Resource, VMType, Zone
from roost.rules.policy import Policy
from roost.store.contract import Store
from roost.wiring import open_store

# As many as in `tests.scenario.test_empty_machines`, to share its kernel.
SIZES = {"small": 1, "two": 2, "five": 5, "whole": 10}


def zone(**clusters: int) -> Zone:
    """Clusters of so many machines of ten cores."""
    return Zone(
        name="lab",
        resources=(Resource("cores", "cores", 1),),
        bands=("regular", "spot"),
        generations=(Generation("g", (10,)),),
        vm_types=tuple(VMType(name, name[0], {"g": (cores,)}) for name, cores in SIZES.items()),
        groups=[
            MachineGroup(
                datacenter="d", cluster=name, rack=f"{name}-r", generation="g", names=[f"{name}-{i}" for i in range(n)],
                update_domains=[0] * n,
            )
            for name, n in clusters.items()
        ],
    )  # fmt: skip


class Life:
    """A zone in which days pass."""

    def __init__(self, **clusters: int) -> None:
        self.now = 1_000 * DAY
        self.store: Store = open_store("memory:", create=zone(**clusters))
        self.agent = Agent(self.store, InlineCourier(self.store), Policy.named("fast"), "a", now=self.clock)

    def clock(self) -> float:
        """In seconds."""
        return self.now

    def do(self, operation: PlaceVMs | SetMachine, days: float = 0.0) -> None:
        """Do something, and let time pass."""
        (answer,) = self.agent.run(self.agent.submit(operation))
        assert answer.status in ("done", "declined"), answer
        self.now += days * DAY

    def history(self) -> ZoneHistory:
        """What is remembered now."""
        return read_history(self.store, self.now)


def cluster(history: ZoneHistory, name: str = "c") -> ClusterHistory:
    """What is remembered of one cluster."""
    return next(each for each in history.clusters if each.cluster == name)


def only(found: list[Computed]) -> Computed:
    """The one cluster's."""
    (computed,) = found
    return computed


def past(
    machines: int = 100,
    days: float = 100.0,
    outages: Sequence[tuple[float, float]] = (),
    growth: Sequence[tuple[float, list[float]]] = (),
) -> ZoneHistory:
    """A cluster's past that begins at 0."""
    one = ClusterHistory(cluster="c", generation="g", machines=machines, outages=list(outages), growth=list(growth))
    return ZoneHistory(since=0.0, until=days * DAY, clusters=[one])


# ------------------------------------------------------------------------------------------------------------- reading


def test_the_feed_tells_when_machines_were_down_and_which_still_are() -> None:
    life = Life(c=4)
    began = life.now
    life.do(PlaceVMs(Request("web", [VM("small")])), days=1)
    life.do(SetMachine("c-0", state="down"), days=2)
    life.do(SetMachine("c-0", health=10), days=0)
    life.do(SetMachine("c-0", state="ready"), days=1)
    life.do(SetMachine("c-1", state="draining"), days=1)
    life.do(SetMachine("c-2", state="down"), days=3)
    found = life.history()
    outages = sorted((start - began, end - began) for start, end in cluster(found).outages)
    assert outages == [(1 * DAY, 3 * DAY), (5 * DAY, 8 * DAY)]
    assert found.until == life.now


def test_a_machine_that_was_down_before_the_feed_begins_was_down_since_then() -> None:
    life = Life(c=4)
    life.do(SetMachine("c-0", state="down"), days=1)
    life.do(SetMachine("c-3", state="down"), days=1)
    trimmed = life.now
    life.do(PlaceVMs(Request("web", [VM("small")])), days=1)
    life.store.trim(1)
    life.do(SetMachine("c-0", state="ready"), days=2)
    assert sorted(cluster(life.history()).outages) == [(trimmed, trimmed + DAY), (trimmed, life.now)]


def test_decisions_tell_by_how_much_tenants_grew_and_how_often_they_could_not() -> None:
    life = Life(c=2)
    life.do(PlaceVMs(Request("web", [VM("small")] * 3)), days=1)
    at = life.now
    life.do(PlaceVMs(Request("web", [VM("small")] * 2)), days=1)
    life.do(PlaceVMs(Request("web", [VM("small", priority="spot")])), days=1)
    life.do(PlaceVMs(Request("web", [VM("whole")] * 2)), days=1)
    life.do(PlaceVMs(Request("web", [VM("small")]), healing=True))
    found = life.history()
    assert cluster(found).growth == [(at, [0.1, 0.1])], "neither spot VMs, nor what was refused, nor healed"
    assert (found.scale_outs, found.refused) == (3, 1)


def test_thousands_of_decisions_are_read_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roost.admission.history.PAGE", 3)
    life = Life(c=9)
    for _ in range(11):
        life.do(PlaceVMs(Request("web", [VM("small")])), days=0.1)
    assert len(cluster(life.history()).growth) == 10


# ----------------------------------------------------------------------------------------------------------- computing


def test_scale_outs_stop_where_healing_needs_the_rest_and_new_deployments_where_growth_does() -> None:
    outages = [(i * DAY, i * DAY + 0.5 * DAY) for i in range(20)]  # one after another
    growth = [(i * DAY + 1.0, [0.5] * (i % 5)) for i in range(100)]
    found = only(compute(past(outages=outages, growth=growth), Targets(healing=0.01, scale_out=0.01)))
    assert (found.failures, found.windows, found.most_growth) == (20, 100, 2)
    assert found.failures_per_day == pytest.approx(20 / (100 * 100 - 20 * 0.5)), "a day that a machine is up"
    assert found.repair_hours == pytest.approx(12)
    assert (found.for_healing, found.for_growth) == (1, 2)
    assert found.thresholds == Thresholds(new=3, scale_out=1, healing=0)


def test_turn_space_is_kept_from_tenants_but_not_from_healing() -> None:
    found = only(compute(past(), Targets(failures_per_day=0.01, repair_hours=24, healing=0.01, turn_space=2)))
    assert found.for_healing == 4
    assert found.thresholds == Thresholds(new=6, scale_out=6, healing=0)


def test_a_rack_that_failed_once_too_long_outweighs_the_rate() -> None:
    rack = [(10 * DAY, 12 * DAY)] * 8
    assert only(compute(past(outages=rack), Targets(healing=0.01))).for_healing == 8
    assert only(compute(past(outages=rack), Targets(healing=0.05))).for_healing < 8


def test_hardware_of_a_kind_fails_alike_in_every_cluster() -> None:
    both = ZoneHistory(
        since=0.0,
        until=100 * DAY,
        clusters=[
            ClusterHistory(cluster="a", generation="g", machines=50, outages=[(0.0, DAY)] * 2, growth=[]),
            ClusterHistory(cluster="b", generation="g", machines=150, outages=[], growth=[]),
            ClusterHistory(cluster="n", generation="new", machines=50, outages=[], growth=[]),
        ],
    )
    rates = {each.cluster: each.failures_per_day for each in compute(both, Targets())}
    assert rates == {"a": 2 / 19_998, "b": 2 / 19_998, "n": 0.0}


def test_machines_that_are_down_half_of_the_time_are_taken_to_be_down_half_of_the_time() -> None:
    outages = [(day * DAY, (day + 1) * DAY) for day in range(0, 100, 2)] * 50  # of each of fifty machines
    found = only(compute(past(machines=50, outages=outages), Targets()))
    load = found.failures_per_day * found.repair_hours / 24
    assert load / (1 + load) == pytest.approx(0.5)


def test_machines_that_were_never_up_need_all_the_others() -> None:
    found = only(compute(past(machines=3, outages=[(0.0, 100 * DAY)] * 3), Targets()))
    assert found.for_healing == 3


def test_the_rarer_failures_may_be_the_more_is_kept() -> None:
    kept = [
        only(compute(past(), Targets(failures_per_day=0.01, repair_hours=24, healing=target))).for_healing
        for target in (0.3, 0.1, 0.01, 0.001, 0.0001)
    ]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1]


def test_no_cluster_keeps_more_machines_than_it_has() -> None:
    growth = [(i * DAY + 1.0, [1.0] * 9) for i in range(10)]
    found = only(compute(past(machines=5, days=10.0, growth=growth), Targets()))
    assert found.for_growth == 9
    assert found.thresholds == Thresholds(new=5, scale_out=0)
    assert not found.takes_new


def test_a_cluster_takes_new_deployments_as_long_as_one_machine_is_not_kept_from_them() -> None:
    growth = [(i * DAY + 1.0, [1.0] * 4) for i in range(10)]
    assert only(compute(past(machines=5, days=10.0, growth=growth), Targets())).takes_new
    assert not only(compute(past(machines=4, days=10.0, growth=growth), Targets())).takes_new
    assert only(compute(past(machines=4, days=10.0), Targets())).takes_new


def test_a_past_shorter_than_a_window_is_one_window() -> None:
    found = only(compute(past(days=0.1, growth=[(0.05 * DAY, [1.0, 1.0])]), Targets()))
    assert (found.windows, found.for_growth) == (1, 2)


def test_nothing_that_happened_asks_for_nothing() -> None:
    assert only(compute(past(days=0.0), Targets())).thresholds == Thresholds()


def test_a_rate_alone_is_not_enough_where_nothing_was_ever_repaired() -> None:
    with pytest.raises(InvalidInput, match=r"repair_hours: no machine of g failed .*; say how long a repair takes"):
        compute(past(), Targets(failures_per_day=0.01))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"healing": 0.0}, r"targets.healing: is 0.0; use a share above 0 and below 1"),
        ({"scale_out": 1.0}, r"targets.scale_out: is 1.0; use a share"),
        ({"repair_hours": -1.0}, r"targets.repair_hours: is -1.0; use a number from 1e-09 to 100,000"),
        ({"window_hours": 1e-300}, r"targets.window_hours: is 1e-300; use a number from 0.1 to 100,000"),
        ({"turn_space": -1}, r"targets.turn_space: is -1; use a whole number of machines"),
    ],
)
def test_targets_that_make_no_sense_are_refused(fields: dict[str, float], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Targets(**fields)  # type: ignore[arg-type]
