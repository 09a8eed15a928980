"""Traces of others, in small files of their forms: what they mean, and mistakes in them."""

import gzip
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roost.model.errors import InvalidInput, UnknownName
from roost.model.request import Constraints
from roost.model.zone import Zone
from roost.traces.azure_packing import read_azure_packing
from roost.traces.azure_v1 import read_azure_v1
from roost.traces.description import describe
from roost.traces.huawei_east import read_huawei_east
from roost.traces.huawei_topology import read_huawei_topology
from roost.traces.node_list import read_node_list, write_machines, zone_file
from roost.traces.reading import Reading
from roost.traces.sources import find_workload
from roost.traces.workload import ANY, Workload

LENIENT = Reading(skip=True)


def saved(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def kinds(workload: Workload) -> list[str]:
    return [workload.types[number].name for number in workload.type]


def refused(read: Callable[..., Any], path: Path) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(path)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------ Azure V1

AZURE = """\
vm_id,batch_id,arrival_s,flavor,vcpus,mem_gb,censored,dur_bin,dur_lo_s,dur_hi_s
0,0,900,m,8,14.0,0,1,300,300
1,1,900,a,1,0.75,0,30,900,1800
2,1,900,a,1,0.75,0,30,900,1800
3,1,900,a,1,0.75,1,30,900,1800
4,2,1500,m,8,14.0,0,0,0,0
"""


def test_azure_batches_are_requests_that_arrive_within_their_five_minutes(tmp_path: Path) -> None:
    workload = read_azure_v1(saved(tmp_path, AZURE))
    assert list(workload.tenants) == ["b0", "b1", "b2"]
    assert workload.sizes.tolist() == [1, 3, 1]
    assert kinds(workload) == ["m", "a", "a", "a", "m"]
    assert workload.types[0].demand == {ANY: (8.0, 14.0)}
    assert 0 <= workload.arrival[0] <= workload.arrival[1] < 300
    assert 600 <= workload.arrival[2] < 900


def test_azure_lifetimes_lie_in_their_bounds_and_vms_leave_together(tmp_path: Path) -> None:
    first, together, again, stays, short = read_azure_v1(saved(tmp_path, AZURE)).lifetime.tolist()
    assert first == 300
    assert 900 <= together <= 1800
    assert together == again
    assert stays == np.inf
    assert 0 < short <= 300


def test_azure_draws_depend_on_the_seed_alone(tmp_path: Path) -> None:
    path = saved(tmp_path, AZURE)
    one, same, other = (read_azure_v1(path, Reading(seed=seed)) for seed in (3, 3, 4))
    assert one.arrival.tolist() == same.arrival.tolist()
    assert one.lifetime.tolist() == same.lifetime.tolist()
    assert one.arrival.tolist() != other.arrival.tolist()


def test_azure_vms_stay_where_no_duration_is_known(tmp_path: Path) -> None:
    text = "\n".join(",".join(line.split(",")[:6]) for line in AZURE.splitlines()) + "\n"
    assert np.isinf(read_azure_v1(saved(tmp_path, text)).lifetime).all()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (",1500,", ",1501,", "trace.csv:6: arrival_s: is no multiple of 300: 1501.0"),
        (",1500,", ",-300,", "trace.csv:6: arrival_s: is negative"),
        ("0,1,300,300", "0,1,300,200", "trace.csv:2: dur_hi_s: is below dur_lo_s"),
        ("4,2,1500,m,8", "4,2,1500,m,9", "trace.csv:6: vcpus: differs from an earlier row of the same flavor: 9.0"),
        ("14.0,0,1,", "14.0,2,1,", "trace.csv:2: censored: is above 1"),
        ("dur_hi_s", "dur_high", "has no column dur_hi_s"),
        ("flavor", "flavour", "has no column flavor"),
    ],
)
def test_azure_mistakes_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = saved(tmp_path, AZURE.replace(old, new, 1))
    assert said in refused(read_azure_v1, path)
    if said.startswith("trace.csv"):
        assert sum(read_azure_v1(path, LENIENT).skipped.values()) == 1


# ---------------------------------------------------------------------------------------------------------- the sample


def test_the_sample_is_whole_and_loads_at_once() -> None:
    find_workload("azure-2017")  # whatever is imported the first time
    began = time.perf_counter()
    workload = find_workload("azure-2017")
    took = time.perf_counter() - began
    assert (workload.vms, workload.requests, len(workload.types)) == (259_159, 53_109, 16)
    assert "CC-BY-4.0" in workload.source
    assert int(np.isinf(workload.lifetime).sum()) == 14_317
    assert (np.diff(workload.arrival) >= 0).all()
    assert workload.lifetime.min() > 0
    assert workload.sizes.max() == 587
    assert took < 3, "about half a second on an idle machine"


def test_the_sample_says_whose_it_is() -> None:
    from importlib.resources import files

    said = (files("roost.traces") / "sample" / "ATTRIBUTION.md").read_text()
    for word in ("CC-BY-4.0", "Cortez", "Resource Central", "trace_generation_rnn", "What was changed"):
        assert word in said


# ------------------------------------------------------------------------------------------------------- Azure packing

TYPES = [(1, 10, 0, 0.25, 0.125, None, 0.5, 0.1), (2, 10, 1, 0.5, 0.25, 0.0, 0.5, 0.2), (3, 11, 1, 1, 1, 0, 0, 0)]
VMS = [
    (1, 5, 10, 0, -3.5, 1.0),
    (2, 6, 10, 1, 0.5, None),
    (3, 6, 11, 0, 0.5, 0.75),
    (4, 6, 10, 0, 2.0, 2.0),
    (5, 7, 10, 0, -2.0, -1.0),
]


def packing(folder: Path, vms: list[tuple[Any, ...]] = VMS, types: list[tuple[Any, ...]] = TYPES) -> Path:
    path = folder / "trace.sqlite"
    path.unlink(missing_ok=True)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE vm (vmId, tenantId, vmTypeId, priority, starttime, endtime)")
        database.execute("CREATE TABLE vmType (id, vmTypeId, machineId, core, memory, hdd, ssd, nic)")
        database.executemany("INSERT INTO vm VALUES (?, ?, ?, ?, ?, ?)", vms)
        database.executemany("INSERT INTO vmType VALUES (?, ?, ?, ?, ?, ?, ?, ?)", types)
    database.close()
    return path


def test_packing_shares_become_amounts_and_days_seconds(tmp_path: Path) -> None:
    workload = read_azure_packing(packing(tmp_path))
    assert workload.resources == ("cores", "memory", "disk", "ssd", "nic")
    assert workload.types[0].name == "type-10"
    assert workload.types[0].demand["m0"] == pytest.approx((25, 125, 0, 5_000, 10))
    assert workload.types[0].demand["m1"] == pytest.approx((50, 250, 0, 5_000, 20))
    assert list(workload.tenants) == ["tenant-5", "tenant-6", "tenant-6"]
    assert workload.arrival.tolist() == [0, 43_200, 172_800]
    assert workload.sizes.tolist() == [1, 2, 1]
    assert workload.lifetime.tolist() == [86_400, np.inf, 21_600, 0]
    assert [vm.priority for vm in workload.request(1).vms] == ["spot", ""]
    assert workload.skipped == {"left before the trace begins": 1}


@pytest.mark.parametrize(
    ("vm", "said"),
    [
        ((6, 5, 12, 0, 1, 2), "trace.sqlite: vm row 6: vmTypeId: no row of vmType is called '12'"),
        ((6, 5, 10, 0, 2, 1), "trace.sqlite: vm row 6: endtime: is before starttime"),
        ((6, 5, 10, 2, 1, 2), "trace.sqlite: vm row 6: priority: is above 1"),
        ((6, 5, 10, 0, "soon", 2), "trace.sqlite: vm row 6: starttime: is no number: soon"),
        ((6, 5, 10, 0, None, 2), "trace.sqlite: vm row 6: starttime: is empty"),
        ((6, None, 10, 0, 1, 2), "trace.sqlite: vm row 6: tenantId: is empty"),
    ],
)
def test_packing_mistakes_are_named(tmp_path: Path, vm: tuple[Any, ...], said: str) -> None:
    path = packing(tmp_path, [*VMS, vm])
    assert said in refused(read_azure_packing, path)
    assert sum(read_azure_packing(path, LENIENT).skipped.values()) == 2


def test_packing_types_are_never_left_out(tmp_path: Path) -> None:
    for row, said in (
        ((4, 10, 1, 0.1, 0, 0, 0, 0), "vmType row 4: machineId: is there twice for one vmTypeId"),
        ((4, 12, 1, 1.5, 0, 0, 0, 0), "vmType row 4: core: is above 1"),
    ):
        path = packing(tmp_path, types=[*TYPES, row])
        assert said in refused(lambda path: read_azure_packing(path, LENIENT), path)


def test_packing_files_that_are_damaged_are_refused(tmp_path: Path) -> None:
    path = packing(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is cut off or no SQLite file" in refused(read_azure_packing, path)
    path.write_text("vmId,tenantId\n" * 100)
    assert "is cut off or no SQLite file" in refused(read_azure_packing, path)
    path.unlink()
    assert "no such file" in refused(read_azure_packing, path)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE vm (vmId, tenantId)")
    database.close()
    assert "has no table vmType" in refused(read_azure_packing, path)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE vmType (name, cores)")
    database.close()
    assert "trace.sqlite: table vmType: has no column vmTypeId, machineId" in refused(read_azure_packing, path)


# -------------------------------------------------------------------------------------------------------------- Huawei

EAST = "vmid,cpu,memory,time,type\n0,4,16,0.0,0\n1,8,16,2.0,0\n0,4,16,50.0,1\n2,4,16,55.0,0\n"


def test_huawei_east_vms_live_from_creation_to_deletion(tmp_path: Path) -> None:
    workload = read_huawei_east(saved(tmp_path, EAST))
    assert workload.arrival.tolist() == [0, 2, 55]
    assert workload.lifetime.tolist() == [50, np.inf, np.inf]
    assert kinds(workload) == ["4U16G", "8U16G", "4U16G"]
    assert list(workload.tenants) == ["vm0", "vm1", "vm2"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("9,4,16,60,1", "trace.csv:6: vmid: is deleted but never created: 9"),
        ("2,4,16,54,1", "trace.csv:6: vmid: is deleted before it is created: 2"),
        ("1,4,16,60,0", "trace.csv:6: vmid: is created twice: 1"),
        ("0,4,16,60,1", "trace.csv:6: vmid: is deleted twice: 0"),
        ("3,4,16,-1,0", "trace.csv:6: time: is negative: -1"),
        ("3,4,16,60,2", "trace.csv:6: type: is above 1: 2"),
    ],
)
def test_huawei_east_mistakes_are_named(tmp_path: Path, row: str, said: str) -> None:
    path = saved(tmp_path, f"{EAST}{row}\n")
    assert said in refused(read_huawei_east, path)
    workload = read_huawei_east(path, LENIENT)
    assert (workload.vms, sum(workload.skipped.values())) == (3, 1)


TOPOLOGY = """\
seq,flavor_vcpus,flavor_ram,numa,strategy,group,domain
0,8,16,1,fault_domain,0,1
1,8,16,1,fault_domain,0,2
2,4,8,1,,,
3,4,8,1,,,
4,2,4,1,affinity,0,
5,2,4,2,affinity,0,
6,8,16,1,fault_domain,0,1
7,2,4,1,anti-affinity,0,
"""


def test_huawei_groups_are_tenants_that_come_in_several_goes(tmp_path: Path) -> None:
    workload = read_huawei_topology(saved(tmp_path, TOPOLOGY), Reading(interval=10))
    groups = ["fault_domain-0", "vm2", "vm3", "affinity-0", "fault_domain-0", "anti-affinity-0"]
    assert list(workload.tenants) == groups
    assert workload.sizes.tolist() == [2, 1, 1, 2, 1, 1]
    assert workload.arrival.tolist() == [0, 20, 30, 40, 60, 70]
    over_racks = Constraints(min_fault_domains=2)
    near, apart = Constraints(colocate="rack"), Constraints(max_per_machine=1)
    assert workload.constraints == {0: over_racks, 3: near, 4: over_racks, 5: apart}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("8,2,4,1,near,0,", "trace.csv:10: strategy: no strategy is called 'near'"),
        ("8,2,4,1,affinity,,", "trace.csv:10: group: is empty"),
        ("8,2,4,1,fault_domain,0,", "trace.csv:10: domain: is empty"),
        ("7,2,4,1,,,", "trace.csv:10: seq: is not above the row before it: 7"),
        ("8,-2,4,1,,,", "trace.csv:10: flavor_vcpus: is negative"),
    ],
)
def test_huawei_topology_mistakes_are_named(tmp_path: Path, row: str, said: str) -> None:
    path = saved(tmp_path, f"{TOPOLOGY}{row}\n")
    assert said in refused(read_huawei_topology, path)
    assert read_huawei_topology(path, LENIENT).vms == 8


# ------------------------------------------------------------------------------------------------------------ machines

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,32000,262144,0,\nn1,96000,393216,8,G2\nn2,32000,262144,0,\n"


def zone_of(folder: Path, nodes: str, on: str, racks: Path | None = None) -> Zone:
    found = read_node_list(saved(folder, nodes, "nodes.csv"), racks)
    write_machines(found, folder / "machines.csv")
    types = f"\nvm_types:\n  small: {{demand: {{cores: 1}}, on: ['{on}']}}\n"
    return Zone.load(saved(folder, zone_file(found, "machines.csv") + types, "zone.yaml"))


def test_a_list_of_nodes_becomes_a_zone_with_a_cluster_for_each_shape(tmp_path: Path) -> None:
    zone = zone_of(tmp_path, NODES, "c32-m256")
    assert list(zone.cluster_names) == ["c32-m256", "c96-m384-8xG2"]
    assert zone.clusters["machines"].tolist() == [2, 1]
    assert zone.generations[1].features == ("G2",)
    assert zone.machines["capacity"][0].tolist()[:2] == [32_000, 256 * 1024]


def test_free_capacity_becomes_machines_with_amounts_of_their_own_in_their_racks(tmp_path: Path) -> None:
    racks = saved(tmp_path, "host_id,rack_id\nhost-0,7\nhost-1,8\nhost-2,8\n", "racks.csv")
    free = "pm,cpu_numa0,ram_numa0,cpu_numa1,ram_numa1\n0,16,32,32,64\n1,34,68,36,72\n"
    zone = zone_of(tmp_path, free, "server", racks)
    assert zone.machines["capacity"][:, :2].tolist() == [[48_000, 96 * 1024], [70_000, 140 * 1024]]
    assert zone.clusters["racks"].tolist() == [2]


def test_mistakes_in_lists_of_machines_are_named(tmp_path: Path) -> None:
    twice = saved(tmp_path, f"{NODES}n1,1000,1024,0,\n")
    assert "trace.csv:5: sn: is there twice: n1" in refused(read_node_list, twice)
    assert read_node_list(twice, skip=True).skipped == {"sn is there twice": 1}
    assert "cpu_milli: is below 1" in refused(read_node_list, saved(tmp_path, f"{NODES}n3,0,1024,0,\n"))
    assert "no list of machines that Roost knows" in refused(read_node_list, saved(tmp_path, "sn,cpu\na,1\n"))
    racks = saved(tmp_path, "host_id,rack_id\nn0,7\n", "racks.csv")
    with pytest.raises(InvalidInput, match="says nothing about n1"):
        read_node_list(saved(tmp_path, NODES), racks)


# --------------------------------------------------------------------------------------------- by name, at a glance


def test_workloads_are_found_by_name_kind_or_path(tmp_path: Path) -> None:
    path = saved(tmp_path, EAST)
    assert find_workload(f"huawei-east:{path}").vms == 3
    zipped = tmp_path / "azure.csv.gz"
    zipped.write_bytes(gzip.compress(AZURE.encode()))
    assert find_workload(f"azure-v1:{zipped}").vms == 5
    with pytest.raises(InvalidInput, match="has no column time_s"):
        find_workload(str(path))
    with pytest.raises(UnknownName, match="did you mean azure-2017"):
        find_workload("azure-2016")


def test_a_workload_at_a_glance(tmp_path: Path) -> None:
    seen = describe(read_huawei_east(saved(tmp_path, EAST)))
    assert (seen.requests, seen.vms, seen.tenants, seen.span_s) == (3, 3, 3, 55)
    assert seen.types == pytest.approx({"4U16G": 2 / 3, "8U16G": 1 / 3})
    assert seen.cores == pytest.approx({"4": 2 / 3, "8": 1 / 3})
    assert seen.tenant_sizes["1"] == 1
    assert seen.stay == pytest.approx(2 / 3)
    assert seen.lifetimes_s["p50"] == 50
    assert (seen.peak_vms, seen.peak_cores) == (2, 12), "one leaves at 50, another comes at 55"


def test_a_vm_that_leaves_makes_room_for_one_that_comes_at_that_time(tmp_path: Path) -> None:
    text = "vmid,cpu,memory,time,type\n0,4,16,0,0\n1,4,16,50,0\n0,4,16,50,1\n"
    assert describe(read_huawei_east(saved(tmp_path, text))).peak_cores == 4
