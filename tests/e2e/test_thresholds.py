"""Thresholds over HTTP, with both clients and on the command line, against a real service."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from roost.client import AsyncClient, Client, MachineChange, ServiceProblem, ThresholdTargets, ThresholdWish, VMWish
from tests.e2e.serving import PATIENCE, ROOST, Serving, serving
from tests.e2e.talking import eventually, problem

# Two clusters of six machines; a VM fills a machine, or a quarter of it.
ZONE = """
name: kept
generations: {v1: {cores: 16, memory: 64}}
vm_types:
  quarter: {demand: {cores: 4, memory: 4}, on: [v1]}
  whole: {demand: {cores: 16, memory: 64}, on: [v1]}
clusters:
  - {name: c1, generation: v1, racks: 2, machines_per_rack: 3, thresholds: {new: 3, scale_out: 2}}
  - {name: c2, generation: v1, racks: 2, machines_per_rack: 3}
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("kept")
    (folder / "zone.yaml").write_text(ZONE)
    with serving(str(folder / "zone.db"), "--zone", str(folder / "zone.yaml"), "--policy", "fast") as running:
        yield running


@pytest.fixture
def client(service: Serving) -> Iterator[Client]:
    """A service as it was in the beginning, after whatever a test does to it."""
    with Client(service.url) as found:
        yield found
        for line in found.tenants():
            found.delete_tenant(line.tenant)
        for each in found.list_thresholds().items:
            if each.source == "registry":
                found.clear_thresholds(each.cluster)
        for machine in found.machines(state="down"):
            found.change_machine(machine.machine, MachineChange(state="ready"))


def whole(cluster: str, count: int = 1) -> list[VMWish]:
    """Machines' worth of VMs."""
    return [VMWish(type="whole", count=count, cluster=cluster)]


def kept(client: Client, cluster: str) -> tuple[int, tuple[int, int, int], str, list[str]]:
    """How many machines of a cluster are empty, what it keeps, who says so, and what has stopped."""
    found = next(each for each in client.list_thresholds().items if each.cluster == cluster)
    return found.empty, (found.new, found.scale_out, found.healing), found.source, list(found.reached)


def test_new_deployments_stop_before_scale_outs_and_are_told_why(client: Client) -> None:
    assert kept(client, "c1") == (6, (3, 2, 0), "zone", [])
    client.create_tenant("web", whole("c1", 3))
    assert kept(client, "c1") == (3, (3, 2, 0), "zone", ["new"])
    with pytest.raises(ServiceProblem) as refused:
        client.create_tenant("shop", [VMWish(type="quarter", cluster="c1")])
    told = refused.value.problem
    assert (told.code, told.status, told.retryable) == ("roost.threshold", 409, True)
    assert {r.text for r in told.reasons} >= {"cluster keeps its empty machines from new deployments"}
    threshold = next(r.text for r in told.remedies if r.kind == "threshold")
    assert threshold == "lower the threshold of cluster c1, which has 3 empty machines and keeps 3 from new deployments"
    client.scale_out("web", whole("c1"))
    with pytest.raises(ServiceProblem, match="clusters keep their empty machines"):
        client.scale_out("web", whole("c1"))
    assert kept(client, "c1")[3] == ["new", "scale_out"]
    later = client.explain_decision(told.decision)
    assert later.failure == "threshold"
    assert "from new deployments" in later.summary
    assert client.get_decision(told.decision).purpose == "new"
    assert "from scale-outs" in client.explain("web", whole("c1")).summary
    assert client.create_tenant("cheap", [VMWish(type="whole", cluster="c1", priority="spot")]).vms


def test_an_operator_overrules_the_zone_and_takes_it_back(client: Client) -> None:
    client.set_thresholds("c1", ThresholdWish(new=6, scale_out=1, healing=1))
    assert kept(client, "c1") == (6, (6, 1, 1), "registry", ["new"])
    with pytest.raises(ServiceProblem):
        client.create_tenant("web", whole("c1"))
    client.set_thresholds("c1", ThresholdWish())
    assert client.create_tenant("web", whole("c1", 6)).vms
    client.delete_tenant("web")
    client.clear_thresholds("c1")
    assert kept(client, "c1") == (6, (3, 2, 0), "zone", [])


def test_the_same_key_is_done_once_and_a_dry_run_not_at_all(client: Client) -> None:
    trial = client.set_thresholds("c2", ThresholdWish(new=2), dry_run=True)
    assert trial.dry_run
    assert kept(client, "c2")[2] == "none"
    assert not client.set_thresholds("c2", ThresholdWish(new=2), key="keep-two").replayed
    assert client.set_thresholds("c2", ThresholdWish(new=2), key="keep-two").replayed
    assert not client.clear_thresholds("c2", key="keep-none").replayed
    assert client.clear_thresholds("c2", key="keep-none").replayed
    with pytest.raises(ServiceProblem, match="no thresholds of its own"):
        client.clear_thresholds("c2")


@pytest.mark.parametrize(
    ("cluster", "body", "code", "field", "said"),
    [
        ("c1", {"new": 7}, "roost.invalid_request", "thresholds.new", "cluster c1 has 6 machines; keep at most 6"),
        ("c1", {"new": 1, "scale_out": 2}, "roost.invalid_request", "thresholds.new", "give at least 2"),
        ("c1", {"new": -1}, "roost.invalid_request", "", "new"),
        ("c1", {"newer": 1}, "roost.invalid_request", "", "newer"),
        ("c9", {"new": 1}, "roost.not_found", "cluster", "no cluster is called 'c9'; did you mean"),
    ],
)
def test_what_makes_no_sense_is_refused(
    service: Serving, cluster: str, body: dict[str, int], code: str, field: str, said: str
) -> None:
    found = problem(httpx.put(f"{service.url}/v1/thresholds/{cluster}", json=body), code)
    assert said in found.detail
    assert not field or found.field == field


def test_history_says_how_many_machines_to_keep(client: Client) -> None:
    client.create_tenant("web", [VMWish(type="quarter", cluster="c2")])
    client.scale_out("web", whole("c2", 2))
    client.change_machine("c2-r01-m02", MachineChange(state="down"))
    plan = client.compute_thresholds(ThresholdTargets(window_hours=1))
    assert plan.since < plan.until
    assert plan.scale_outs >= 1
    found = {each.cluster: each for each in plan.items}
    assert (found["c2"].for_growth, found["c2"].windows) == (2, 1)
    assert found["c2"].failures >= 1
    assert found["c2"].for_healing >= 1
    assert found["c2"].scale_out == found["c2"].for_healing
    assert kept(client, "c2")[2] == "none", "nothing is changed"
    given = client.compute_thresholds(ThresholdTargets(healing=0.01, failures_per_day=0.01, repair_hours=24))
    assert {each.for_healing for each in given.items} == {1}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"healing": 2}, "targets.healing: is 2.0; use a share above 0 and below 1"),
        ({"scale_out": 0}, "targets.scale_out: is 0.0; use a share above 0 and below 1"),
        ({"failures_per_day": 0}, "targets.failures_per_day: is 0.0; use a number from 1e-09 to 100,000"),
        ({"repair_hours": 1e6}, "targets.repair_hours: is 1000000.0; use a number from 1e-09 to 100,000"),
        ({"window_hours": 0.01}, "targets.window_hours: is 0.01; use a number from 0.1 to 100,000"),
        ({"turn_space": -1}, "targets.turn_space: is -1; use a whole number of machines"),
    ],
)
def test_a_target_that_makes_no_sense_is_named_with_what_would(
    service: Serving, body: dict[str, float], said: str
) -> None:
    answer = httpx.post(f"{service.url}/v1/thresholds/compute", json=body)
    found = problem(answer, "roost.invalid_request")
    assert (found.detail, found.field) == (said, said.partition(":")[0])


def test_whoever_awaits_gets_the_same(service: Serving, client: Client) -> None:
    async def look() -> Any:
        async with AsyncClient(service.url) as other:
            await other.set_thresholds("c2", ThresholdWish(new=1))
            listed = await other.list_thresholds()
            await other.compute_thresholds(ThresholdTargets())
            await other.clear_thresholds("c2")
            return listed

    listed = asyncio.run(look())
    assert [(each.cluster, each.new) for each in listed.items] == [("c1", 3), ("c2", 1)]
    assert kept(client, "c2")[2] == "none"


def test_metrics_tell_what_is_kept_what_is_left_and_what_has_stopped(client: Client) -> None:
    client.create_tenant("web", whole("c1", 3))
    with pytest.raises(ServiceProblem):
        client.create_tenant("shop", whole("c1"))

    def told(name: str) -> float:
        found = re.search(rf"^{re.escape(name)} (\S+)$", client.metrics().decode(), re.MULTILINE)
        return float(found[1]) if found else -1.0

    eventually(lambda: told('roost_cluster_empty_machines{cluster="c1"}') == 3)
    eventually(lambda: told('roost_thresholds_reached{purpose="new"}') == 1)
    assert told('roost_cluster_threshold_machines{cluster="c1",purpose="scale_out"}') == 2
    assert told('roost_thresholds_reached{purpose="scale_out"}') == 0
    assert told('roost_unschedulable_total{purpose="new"}') >= 1


# ----------------------------------------------------------------------------------------------------- command line


def run(service: Serving, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`roost thresholds …`."""
    return subprocess.run(
        [ROOST, "thresholds", *arguments, "--url", service.url],
        capture_output=True, text=True, cwd=folder, timeout=PATIENCE, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def test_the_command_line_lists_sets_clears_and_computes(service: Serving, client: Client, tmp_path: Path) -> None:
    client.create_tenant("web", whole("c1", 3))
    listed = run(service, tmp_path, "list").stdout.splitlines()
    assert listed[0].split() == ["cluster", "machines", "empty", "new", "scale-out", "healing", "from", "stopped"]
    assert listed[1].split() == ["c1", "6", "3", "3", "2", "0", "zone", "new"]
    done = run(service, tmp_path, "set", "c2", "--new", "4", "--scale-out", "2")
    assert done.stdout == "set thresholds of c2: new 4, scale-out 2, healing 0\n"
    found = json.loads(run(service, tmp_path, "list", "-o", "json").stdout)
    assert found[1] == {
        "cluster": "c2", "machines": 6, "empty": 6, "new": 4, "scale_out": 2, "healing": 0, "source": "registry",
        "reached": [],
    }  # fmt: skip
    wrong = run(service, tmp_path, "set", "c2", "--new", "1", "--scale-out", "2")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "--new: is 1, below scale_out, which is 2; new deployments stop first" in wrong.stderr
    assert run(service, tmp_path, "clear", "c2").stdout == "cleared thresholds of c2: the zone file decides\n"
    assert run(service, tmp_path, "clear", "c2").returncode == 2
    given = ("--target-healing", "0.01", "--failures-per-day", "0.01", "--repair-hours", "24")
    computed = run(service, tmp_path, "compute", *given)
    assert computed.stdout.splitlines()[0].split()[:5] == ["cluster", "machines", "new", "scale-out", "healing"]
    assert "nothing was changed; set them with --apply" in computed.stderr
    assert kept(client, "c2")[2] == "none"
    applied = run(service, tmp_path, "compute", *given, "--apply", "-o", "json")
    assert [each["scale_out"] for each in json.loads(applied.stdout)["items"]] == [1, 1]
    assert [kept(client, name)[1:3] for name in ("c1", "c2")] == [
        ((each["new"], 1, 0), "registry") for each in json.loads(applied.stdout)["items"]
    ]


@pytest.mark.parametrize(
    ("given", "kept_then"),
    [
        (("--new", "4"), (4, 2, 0)),
        (("--scale-out", "3"), (3, 3, 0)),
        (("--healing", "1"), (3, 2, 1)),
        (("--new", "5", "--healing", "2"), (5, 2, 2)),
        (("--new", "0", "--scale-out", "0"), (0, 0, 0)),
    ],
)
def test_what_is_left_out_on_the_command_line_stays_as_it_is(
    service: Serving, client: Client, tmp_path: Path, given: tuple[str, ...], kept_then: tuple[int, int, int]
) -> None:
    done = run(service, tmp_path, "set", "c1", *given)
    new, scale_out, healing = kept_then
    assert done.stdout == f"set thresholds of c1: new {new}, scale-out {scale_out}, healing {healing}\n", done.stderr
    assert kept(client, "c1")[1] == kept_then


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "say what: --new, --scale-out or --healing"),
        (("--new", "1"), "--new: is 1, below scale-out, which is 2; give --scale-out, too: 1 at most"),
        (("--scale-out", "4"), "--scale-out: is 4, above new, which is 3; give --new, too: 4 at least"),
        (("--healing", "3"), "--healing: is 3, above scale-out, which is 2; give --scale-out, too: 3 at least"),
        (("--new", "7"), "--new: is 7, and cluster c1 has 6 machines; keep at most 6"),
    ],
)
def test_what_contradicts_the_thresholds_that_stay_names_the_option_to_give(
    service: Serving, client: Client, tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    wrong = run(service, tmp_path, "set", "c1", *given)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert said in wrong.stderr
    assert kept(client, "c1") == (6, (3, 2, 0), "zone", [])


def test_no_cluster_of_that_name_is_said_whatever_is_set(service: Serving, tmp_path: Path) -> None:
    assert "no cluster is called 'c9'" in run(service, tmp_path, "set", "c9", "--scale-out", "1").stderr


def test_a_put_replaces_all_thresholds_of_a_cluster(client: Client) -> None:
    client.set_thresholds("c1", ThresholdWish(new=4))
    assert kept(client, "c1")[1] == (4, 0, 0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--target-healing", "2"), "--target-healing: is 2.0; use a share above 0 and below 1"),
        (("--target-scale-out", "0"), "--target-scale-out: is 0.0; use a share above 0 and below 1"),
        (("--repair-hours", "-1"), "--repair-hours: is -1.0; use a number from 1e-09 to 100,000"),
    ],
)
def test_the_command_names_the_option_that_makes_no_sense(
    service: Serving, tmp_path: Path, given: tuple[str, ...], said: str
) -> None:
    wrong = run(service, tmp_path, "compute", *given)
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert said in wrong.stderr


def test_clusters_that_would_take_no_new_deployments_are_named(
    service: Serving, client: Client, tmp_path: Path
) -> None:
    rare = ("--target-healing", "0.01", "--failures-per-day", "0.01", "--repair-hours", "24")
    assert "careful" not in run(service, tmp_path, "compute", *rare).stderr
    often = ("--failures-per-day", "10", "--repair-hours", "480")
    shown = run(service, tmp_path, "compute", *often)
    heading, *rows = (line.split() for line in shown.stdout.splitlines())
    assert heading[5:7] == ["takes", "new"]
    assert [row[5] for row in rows] == ["no", "no"]
    assert "careful: no new deployment of the highest priority would go to c1, c2 at all" in shown.stderr
    applied = run(service, tmp_path, "compute", *often, "--apply", "-o", "json")
    assert [each["takes_new"] for each in json.loads(applied.stdout)["items"]] == [False, False]
    assert "careful: no new deployment of the highest priority goes to c1, c2 at all" in applied.stderr
    assert kept(client, "c1")[3] == ["new", "scale_out"]
