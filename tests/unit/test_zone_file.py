"""Zones from files: YAML, with lists of machines in CSV or Parquet."""

import csv
import io
import math
import re
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.engine.invariants import check_rows
from roost.engine.kernel.compiler import compile_rules
from roost.engine.view import View
from roost.model import listed_machines, machine_list, zone_file
from roost.model.availability import MostDomains
from roost.model.errors import InvalidInput, Mistaken, UnknownName
from roost.model.inventory import machine_specs, zone_of
from roost.model.request import VM, Request
from roost.model.rows import MachineState
from roost.model.zone import DEFAULT_RESOURCES, Resource, Zone
from roost.placing.allocator import Allocator
from roost.rules.policy import Policy
from roost.wiring import open_store

ROOT = Path(__file__).parents[2]
ZONE = """\
name: test
generations:
  v1: {cores: 24, memory: 224}
  v2: {cores: 40, memory: 576, ssd: 6400, features: [ssd]}
vm_types:
  small:
    demand: {cores: 2, memory: 7}
    on: [v1, v2]
  fast:
    demand: {cores: 8, ssd: 1500}
    on: {v2: {memory: 8}}
    requires: [ssd]
clusters:
  - name: c1
    generation: v1
    racks: 2
    machines_per_rack: 3
  - {name: c2, generation: v2, racks: 1, machines_per_rack: 4}
"""
LIST = """\
name,cluster,rack,generation,datacenter,update_domain,state,health,features,cores
a1,c8,r1,v1,dc1,0,ready,100,,
a2,c8,r1,v1,dc1,1,down,50,ssd,12.5
a3,c8,r2,v1,dc1,2,,,,
b1,c9,r1,v2,dc2,,draining,,,
"""


def load(folder: Path, zone: str = ZONE, machines: str = "") -> Zone:
    """The zone of these texts."""
    if machines:
        (folder / "machines.csv").write_text(machines)
        zone += "machines: machines.csv\n"
    (folder / "zone.yaml").write_text(zone)
    return Zone.load(folder / "zone.yaml")


def refused(folder: Path, zone: str = ZONE, machines: str = "") -> InvalidInput:
    """The error that these texts give."""
    with pytest.raises(InvalidInput) as caught:
        load(folder, zone, machines)
    return caught.value


def changed(text: str, old: str, new: str) -> str:
    """The text with a mistake in it."""
    assert text.count(old) == 1, f"{old!r} must stand once in the text"
    return text.replace(old, new)


def same_rows(a: Zone, b: Zone) -> bool:
    """Whether every field of every row is the same."""
    return all(
        np.array_equal(mine[field], theirs[field])
        for mine, theirs in ((a.machines, b.machines), (a.racks, b.racks), (a.clusters, b.clusters))
        for field in mine.dtype.names or ()
    )


def as_csv(zone: Zone, rows: list[int] | None = None) -> str:
    """A zone's machines as a list."""
    extra = zone.feature_bits(["infiniband"]) if "infiniband" in zone.features else 0
    text = io.StringIO()
    writer = csv.writer(text)
    numbers = ("update_domain", "health", "failures", "versions_behind")
    writer.writerow(["name", "cluster", "rack", "generation", "datacenter", "state", "features", *numbers])
    for i in range(len(zone.machines)) if rows is None else rows:
        machine = zone.machines[i]
        where = [zone.machine_names[i], zone.cluster_names[machine["cluster"]], zone.rack_names[machine["rack"]]]
        what = [zone.generations[machine["generation"]].name, zone.datacenters[machine["datacenter"]]]
        state = MachineState(int(machine["state"])).name.lower()
        features = "infiniband" if machine["features"] & extra else ""
        writer.writerow([*where, *what, state, features, *(machine[field] for field in numbers)])
    return text.getvalue()


# ------------------------------------------------------------------------------------------------------- what is loaded


def test_a_cluster_of_a_few_words_becomes_racks_of_named_machines_that_take_turns_in_update_domains(
    tmp_path: Path,
) -> None:
    zone = load(tmp_path, changed(ZONE, "machines_per_rack: 3", "machines_per_rack: 3\n    update_domains: 4"))
    assert zone.name == "test"
    assert zone.cluster_names == ("c1", "c2")
    assert zone.rack_names == ("c1-r00", "c1-r01", "c2-r00")
    assert zone.machine_names[:4] == ("c1-r00-m00", "c1-r00-m01", "c1-r00-m02", "c1-r01-m00")
    assert zone.machines["update_domain"].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2, 3]
    assert zone.clusters["machines"].tolist() == [6, 4]
    assert zone.machines["capacity"][0].tolist() == [24_000, 224 * 1024, 0, 0, 0]
    assert zone.datacenters == ("dc1",)
    assert zone.bands == ("regular", "spot")


def test_a_type_takes_its_demand_on_the_generations_it_is_on_with_what_differs_there(tmp_path: Path) -> None:
    zone = load(tmp_path)
    small, fast = zone.vm_type_index["small"], zone.vm_type_index["fast"]
    assert zone.supported.tolist() == [[1, 1], [0, 1]]
    assert zone.demand[small, 0].tolist() == zone.demand[small, 1].tolist() == [2000, 7 * 1024, 0, 0, 0]
    assert zone.demand[fast, 1].tolist() == [8000, 8 * 1024, 0, 1500, 0]
    assert zone.vm_types[fast].requires == ("ssd",)
    assert [t.family for t in zone.vm_types] == ["small", "fast"]


def test_a_generation_without_a_value_has_no_differences(tmp_path: Path) -> None:
    zone = load(tmp_path, changed(ZONE, "on: [v1, v2]", "on:\n      v1:\n      v2: {cores: 1.5}"))
    assert zone.demand[0, :, 0].tolist() == [2000, 1500]


def test_resources_bands_classes_features_and_exclusions_are_the_files_own(tmp_path: Path) -> None:
    zone = load(
        tmp_path,
        """\
name: own
resources:
  gpu: {unit: cards}
  memory: {unit: GiB, per_unit: 4}
  nic:
bands: [gold, silver, lead]
generations:
  g: {gpu: 8, memory: 64.5, features: [nvlink]}
vm_types:
  one: {family: gpus, demand: {gpu: 1, memory: 0.3}, on: [g], requires: [pool]}
  two: {demand: {gpu: 2}, on: [g]}
anti_colocation:
  - [noisy, quiet]
  - [single, single]
clusters:
  - {name: c, generation: g, racks: 1, machines_per_rack: 1, features: [pool], excludes: [two], datacenter: west}
""",
    )
    assert [r.name for r in zone.resources] == ["cores", "disk", "ssd", "gpu", "memory"], "the usual ones, but for nic"
    assert zone.bands == ("gold", "silver", "lead")
    assert zone.machines["free"].tolist() == [[[0, 0, 0, 8, 258]] * 3]
    assert zone.demand[0, 0].tolist() == [0, 0, 0, 1, 2], "0.3 GiB is rounded up to 2 quarters"
    assert zone.vm_types[0].family == "gpus"
    assert zone.classes == ("noisy", "quiet", "single")
    assert zone.conflicts.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert zone.machines["features"][0] == zone.feature_bits(["nvlink", "pool"])
    assert zone.clusters["supports"].tolist() == [[1, 0]]
    assert zone.datacenters == ("west",)


def test_listed_machines_come_after_described_ones_with_what_is_their_own(tmp_path: Path) -> None:
    zone = load(tmp_path, ZONE, LIST)
    assert zone.cluster_names == ("c1", "c2", "c8", "c9")
    assert zone.rack_names[-3:] == ("r1", "r2", "r1"), "a rack's name need only be unique in its cluster"
    a1, a2, a3, b1 = (zone.machines[zone.machine(name)] for name in ("a1", "a2", "a3", "b1"))
    assert [m["state"] for m in (a1, a2, a3, b1)] == [0, MachineState.DOWN, 0, MachineState.DRAINING]
    assert [m["health"] for m in (a1, a2, a3, b1)] == [100, 50, 100, 100]
    assert a1["capacity"].tolist() == [24_000, 224 * 1024, 0, 0, 0]
    assert a2["capacity"].tolist() == [12_500, 224 * 1024, 0, 0, 0]
    assert (a1["features"], a2["features"], b1["features"]) == (0, zone.feature_bits(["ssd"]), a2["features"])
    assert zone.clusters["features"][2] == a2["features"], "a cluster has what any of its machines has"
    assert zone.datacenters == ("dc1", "dc2")


def test_a_list_alone_makes_a_zone_and_needs_four_columns(tmp_path: Path) -> None:
    bare = "name,cluster,rack,generation\n" + "".join(f"m{i},c1,r{i // 15},v1\n" for i in range(25))
    zone = load(tmp_path, ZONE[: ZONE.index("clusters:")], bare)
    assert zone.racks["machines"].tolist() == [15, 10]
    assert zone.machines["update_domain"].tolist() == [i % 20 for i in range(25)]
    assert zone.machines["health"].tolist() == [100] * 25


def test_spaces_empty_lines_quotes_and_a_byte_order_mark_do_not_matter_in_a_list(tmp_path: Path) -> None:
    plain = load(tmp_path, ZONE, LIST)
    untidy = "\ufeff" + LIST.replace(",", " , ").replace("a3 ,", '\n"a3",').replace("\n", "\r\n")
    assert same_rows(plain, load(tmp_path, ZONE, untidy))


def test_a_zone_says_how_many_domains_an_availability_set_may_have(tmp_path: Path) -> None:
    assert load(tmp_path, ZONE).availability == MostDomains(fault_domains=3, update_domains=20)
    zone = load(tmp_path, changed(ZONE, "name: test", "name: test\navailability: {fault_domains: 5}"))
    assert zone.availability == MostDomains(fault_domains=5, update_domains=20)
    with closing(open_store("memory:", create=zone)) as store:
        assert zone_of(store.catalogue, machine_specs(zone)).availability == zone.availability
    with closing(open_store(str(tmp_path / "zone.db"), create=zone)):
        pass
    with closing(open_store(str(tmp_path / "zone.db"))) as store:
        assert store.catalogue.availability == zone.availability


def test_clusters_keep_their_own_thresholds_or_else_those_of_the_zone(tmp_path: Path) -> None:
    own = changed(ZONE, "    racks: 2", "    racks: 2\n    thresholds: {new: 5, scale_out: 2, healing: 1}")
    zone = load(tmp_path, changed(own, "name: test", "name: test\nthresholds: {new: 1}"), LIST)
    assert zone.clusters["thresholds"].tolist() == [[5, 2, 1], [1, 0, 0], [1, 0, 0], [1, 0, 0]]
    assert not load(tmp_path, ZONE).clusters["thresholds"].any()


def test_the_same_clusters_described_and_listed_are_the_same_zone(tmp_path: Path) -> None:
    described = load(tmp_path)
    listed = load(tmp_path, ZONE[: ZONE.index("clusters:")], as_csv(described))
    assert same_rows(described, listed)
    assert (described.machine_names, described.rack_names) == (listed.machine_names, listed.rack_names)


def test_a_synthetic_zone_written_as_files_is_the_same_zone(tmp_path: Path) -> None:
    synthetic = Zone.synthetic(400, seed=3)
    text = """\
name: synthetic-400-3
generations: standard
vm_types: standard
anti_colocation: [[disk-heavy, latency-critical], [licensed, licensed]]
"""
    zone = load(tmp_path, text, as_csv(synthetic))
    assert same_rows(zone, synthetic)
    for field in ("name", "resources", "bands", "generations", "vm_types", "features", "classes", "machine_names"):
        assert getattr(zone, field) == getattr(synthetic, field)
    assert np.array_equal(zone.demand, synthetic.demand)
    assert np.array_equal(zone.conflicts, synthetic.conflicts)


def test_the_default_resources_written_out_go_with_the_standard_generations(tmp_path: Path) -> None:
    written = "".join(f"  {r.name}: {{unit: {r.unit}, per_unit: {r.per_unit}}}\n" for r in DEFAULT_RESOURCES)
    clusters = "clusters: [{name: c, generation: gen3, racks: 1, machines_per_rack: 1}]\n"
    zone = load(tmp_path, f"name: z\nresources:\n{written}generations: standard\nvm_types: standard\n{clusters}")
    assert zone.resources == DEFAULT_RESOURCES


@pytest.mark.parametrize("features", [["ssd", None], [["ssd"], []]], ids=["text", "lists"])
def test_a_parquet_list_is_read_like_a_csv_list(tmp_path: Path, features: list[Any]) -> None:
    rows = {"name": ["a1", "a2"], "cluster": ["c8", "c8"], "rack": ["r1", "r2"], "generation": ["v1", "v1"]}
    pl.DataFrame({**rows, "features": features, "health": [None, 70], "cores": [12.5, None]}).write_parquet(
        tmp_path / "machines.parquet"
    )
    (tmp_path / "zone.yaml").write_text(ZONE + "machines: machines.parquet\n")
    listed = "name,cluster,rack,generation,features,health,cores\na1,c8,r1,v1,ssd,,12.5\na2,c8,r2,v1,,70,\n"
    assert same_rows(Zone.load(tmp_path / "zone.yaml"), load(tmp_path, ZONE, listed))


def test_the_example_loads() -> None:
    zone = Zone.load(ROOT / "examples" / "zone.yaml")
    assert zone.clusters["machines"].tolist() == [400, 80, 8]
    assert zone.clusters["empty"][:, 0].tolist() == [400, 80, 6]


def test_a_resource_that_a_file_adds_stands_beside_the_usual_ones(tmp_path: Path) -> None:
    zone = load(tmp_path, changed(ZONE, "name: test", "name: test\nresources: {gpu: {unit: cards}}"))
    assert zone.resources == (*DEFAULT_RESOURCES, Resource("gpu", "cards", 1))
    plain = load(tmp_path)
    assert np.array_equal(zone.machines["capacity"][:, :5], plain.machines["capacity"])
    assert np.array_equal(zone.demand[:, :, :5], plain.demand)


def test_the_example_with_gpus_has_cards_beside_the_usual_resources() -> None:
    zone = Zone.load(ROOT / "examples" / "gpu-zone.yaml")
    assert [r.name for r in zone.resources] == [*(r.name for r in DEFAULT_RESOURCES), "gpu"]
    cards = dict(zip(zone.machine_names, zone.machines["capacity"][:, 5].tolist(), strict=True))
    assert {name.partition("-")[0]: count for name, count in cards.items()} == {"c1": 0, "g1": 8}
    assert zone.demand[zone.vm_type("one-gpu"), zone.generation_index["a100"], 5] == 1
    assert not zone.supported[zone.vm_type("small"), zone.generation_index["a100"]], "it would be in their way"


@pytest.mark.deep  # a kernel of its own is compiled for a zone of six resources
def test_the_example_with_gpus_gives_cards_away_and_no_more_than_there_are() -> None:
    zone = Zone.load(ROOT / "examples" / "gpu-zone.yaml")
    allocator = Allocator(zone, Policy.named("fast"), seed=1)
    first = allocator.allocate(Request("training", [VM("eight-gpus")] * 3 + [VM("one-gpu")] * 8))
    assert first.ok
    cards = {placed.machine: 0 for placed in first.placements}
    for placed in first.placements:
        cards[placed.machine] += 8 if placed.type == "eight-gpus" else 1
    assert max(cards.values()) == 8
    assert all(machine.startswith("g1") for machine in cards)
    assert allocator.allocate(Request("web", [VM("small")])).placements[0].machine.startswith("c1")
    assert not allocator.allocate(Request("more", [VM("eight-gpus")] * 6)).ok


def test_the_guide_shows_zones_that_load_and_the_error_it_promises(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "how-to" / "describe-a-zone.md").read_text()
    whole, shortest, gpus = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    assert gpus == (ROOT / "examples" / "gpu-zone.yaml").read_text()
    (tmp_path / "machines.csv").write_text(re.findall(r"```csv\n(.*?)```", guide, re.DOTALL)[0])
    assert len(load(tmp_path, whole).machines) == 483
    assert len(load(tmp_path, shortest).machines) == 1000
    promised = re.findall(r"^    (zone\.yaml:\d.*)$", guide, re.MULTILINE)[0]
    assert str(refused(tmp_path, changed(whole, "{name: c1, generation: v1,", "{name: c1, generation: v3,"))).endswith(
        promised
    )


@pytest.mark.parametrize(
    "word",
    [
        *machine_list.COLUMNS,
        *(f for s in (zone_file._ZoneFile, zone_file._VMType, zone_file._Cluster) for f in s.__struct_fields__),
    ],
)
def test_every_field_and_column_is_in_the_guide(word: str) -> None:
    assert f"`{word}`" in (ROOT / "docs" / "how-to" / "describe-a-zone.md").read_text()


# ------------------------------------------------------------------------------------------ machines that are not ready


def test_only_ready_machines_count_as_free_and_empty_in_racks_and_clusters(tmp_path: Path) -> None:
    zone = load(tmp_path, ZONE, LIST)
    assert zone.racks["empty"][:, 0].tolist() == [3, 3, 4, 1, 1, 0]
    assert zone.racks["free"][3:, :, 0].tolist() == [[24_000] * 2, [24_000] * 2, [0] * 2]
    assert zone.racks["capacity"][3:, 0].tolist() == [36_500, 24_000, 40_000]
    assert zone.clusters["empty"][:, 0].tolist() == [6, 4, 2, 0]
    assert zone.clusters["free"][2:, 0, 0].tolist() == [48_000, 0]
    assert zone.clusters["machines"].tolist() == [6, 4, 3, 1]


def test_a_zone_with_machines_down_has_the_rows_of_one_whose_machines_went_down(tmp_path: Path) -> None:
    kernel = compile_rules(Policy.default().rules, load(tmp_path))
    view = View(load(tmp_path, ZONE, LIST.replace("down", "ready").replace("draining", "ready")), kernel)
    view.set_state(view.zone.machine("a2"), MachineState.DOWN)
    view.set_state(view.zone.machine("b1"), MachineState.DRAINING)
    fresh = View(load(tmp_path, ZONE, LIST), kernel)
    for mine, theirs in ((view.machines, fresh.machines), (view.racks, fresh.racks), (view.clusters, fresh.clusters)):
        for field in ("state", "free", "empty", "capacity"):
            assert field not in (mine.dtype.names or ()) or np.array_equal(mine[field], theirs[field])


def test_a_view_of_a_zone_with_machines_down_keeps_its_invariants(tmp_path: Path) -> None:
    zone = load(tmp_path, ZONE, LIST)
    view = View(zone, compile_rules(Policy.default().rules, zone))
    check_rows(view, [])
    view.set_state(zone.machine("a2"), MachineState.READY)
    view.set_state(zone.machine("a3"), MachineState.QUARANTINED)
    check_rows(view, [])


def test_the_order_in_which_capacity_and_condition_are_set_does_not_matter(tmp_path: Path) -> None:
    a, b = load(tmp_path), load(tmp_path)
    capacity = np.arange(a.machines["capacity"].size, dtype=np.int32).reshape(a.machines["capacity"].shape)
    state = np.arange(len(a.machines)) % 4
    a.set_capacity(capacity)
    a.set_condition(state=state)
    b.set_condition(state=state)
    b.set_capacity(capacity)
    assert same_rows(a, b)


def test_what_is_no_condition_of_a_machine_cannot_be_set_as_one(tmp_path: Path) -> None:
    zone = load(tmp_path)
    with pytest.raises(UnknownName, match="did you mean health"):
        zone.set_condition(helth=zone.machines["health"])


# ------------------------------------------------------------------------------------------------------------- mistakes

MANY = ", ".join(f"f{i}" for i in range(31))
# what stands in ZONE, what stands there instead, the line that is blamed, words of the message
ZONE_MISTAKES = [
    ("name: test\n", "", 1, "missing required field `name`"),
    ("name: test", "name: [test]", 1, "name: Expected `str`, got `array`"),
    ("name: test", 'name: ""', 1, "name: Expected `str` of length >= 1"),
    ("name: test", "name: test\nname: again", 2, "name: this key appears twice"),
    ("name: test", "name: test\nclutsers: []", 2, "clutsers.*the fields here are name.*clusters"),
    ("name: test", "name: test\nmax-vms: 3", 2, "max-vms.*unknown field"),
    ("name: test", "name: 2024-13-45", 1, "name: '2024-13-45' is not a timestamp; quote a text"),
    ("name: test", "name: test\n? [a, b]\n: c", 1, "use plain names as keys"),
    ("name: test", "name: {test", 2, "not valid YAML"),
    ("name: test", "name: test\nbands: []", 2, "bands: Expected `array` of length >= 1"),
    ("name: test", "name: test\nbands: [a, b, a]", 2, r"bands\[2\]: 'a' is there twice; .*remove one"),
    (
        "name: test",
        "name: test\nresources: {cores: , memory: , disk: , ssd: , nic: }",
        2,
        "resources: leaves none of the usual five, and adds none; keep one, or describe one",
    ),
    ("name: test", "name: test\nresources: {gpu: }", 2, "resources.gpu: Expected `object`, got `null`"),
    ("name: test", "name: test\nresources:\n  gpu: {}", 3, "resources.gpu: .*`unit`"),
    ("name: test", "name: test\nresources:\n  gpu: {unit: cards, per_unit: 0}", 3, "gpu.per_unit: Expected `int` >= 1"),
    ("name: test", "name: test\nresources:\n  rack: {unit: U}", 3, "resources.rack: .*another name"),
    (
        "name: test",
        "name: test\nresources: {memory: }",
        4,
        "v1.memory: no resource is called 'memory'; known are cores",
    ),
    ("name: test", "name: test\nanti_colocation: [[a, b], [c]]", 2, r"anti_colocation\[1\]: .*length 2"),
    ("name: test", f"name: test\nfeatures: [{MANY}]", 5, r"v2.features\[0\]: the zone names 32 .*31 is the most"),
    ("  v1: {cores: 24, memory: 224}", "  v1: {cores: many}", 3, "v1.cores: is 'many'; give cores in cores, from 0 to"),
    ("  v1: {cores: 24, memory: 224}", "  v1: {cores: -1}", 3, "v1.cores: is -1; .*from 0 to 2,147,483"),
    ("  v1: {cores: 24, memory: 224}", "  v1: {cores: 3e9}", 3, "v1.cores: is .*from 0 to 2,147,483"),
    ("  v1: {cores: 24, memory: 224}", "  v1: {cores: .nan}", 3, "v1.cores: is nan; "),
    ("  v1: {cores: 24, memory: 224}", "  v1: {cores: true}", 3, "v1.cores: is True; "),
    ("  v1: {cores: 24, memory: 224}", "  v1: {core: 24}", 3, "v1.core: no resource .*did you mean cores"),
    ("  v1: {cores: 24, memory: 224}", "  v1: {features: [x]}", 3, "v1: has nothing .*; give it cores"),
    ("  v1: {cores: 24, memory: 224}", "  v1: 24", 3, "v1: Expected `object`, got `int`"),
    ("features: [ssd]", "features: ssd", 4, "v2.features: Expected `array`, got `str`"),
    ("    demand: {cores: 2, memory: 7}\n", "", 6, "small: .*missing required field `demand`"),
    ("demand: {cores: 2, memory: 7}", "demand: {cores: 2, memry: 7}", 7, "demand.memry: no resource .*mean memory"),
    ("demand: {cores: 2, memory: 7}", "demand: {}", 7, "demand: asks for nothing on v1; give an amount"),
    (
        "demand: {cores: 2, memory: 7}",
        "demand: {cores: 25}",
        7,
        "cores: asks for 25 cores, but v1 has 24 cores; .*`on`",
    ),
    ("on: {v2: {memory: 8}}", "on:\n      v2: {memory: 999}", 12, "on.v2.memory: asks for 999 GiB, but v2 has 576 GiB"),
    ("on: {v2: {memory: 8}}", "on:\n      v2: {mem: 8}", 12, "on.v2.mem: no resource .*memory"),
    ("on: {v2: {memory: 8}}", "on:\n      v2: 8", 12, "on.v2: Expected `object`, got `int`"),
    ("on: {v2: {memory: 8}}", "on:\n      v3: {}", 12, "on.v3: no generation is called 'v3'; did you mean"),
    ("    on: [v1, v2]\n", "", 6, "small: .*missing required field `on`"),
    ("on: [v1, v2]", "on: []", 8, "small.on: names no generation: it could never run; list some of v1, v2"),
    ("on: [v1, v2]", "on: [v1, v4]", 8, r"small.on\[1\]: no generation is called 'v4'"),
    ("requires: [ssd]", "requires: [sdd]", 12, r"fast.requires\[0\]: no hardware feature .*did you mean ssd"),
    ("requires: [ssd]", "require: [ssd]", 12, "fast.require: .*the fields here are demand, on, family, requires"),
    ("  fast:", "  small:", 9, "vm_types.small: this key appears twice; keep one"),
    ("  - name: c1", "  - name: c2", 18, r"clusters\[1\].name: 'c2' is there twice; names must differ"),
    ("    generation: v1", "    generation: V1", 15, r"clusters\[0\].generation: no generation is called 'V1'; .*v1"),
    ("    racks: 2", "    racks: 0", 16, r"clusters\[0\].racks: Expected `int` >= 1"),
    ("    racks: 2", "    racks: two", 16, r"clusters\[0\].racks: Expected `int`, got `str`"),
    ("    racks: 2", "    racks: 999999", 16, "racks: brings the zone to 2,999,997 machines; .*at most 1,000,000"),
    ("    racks: 2", "    racks: 2000000", 16, "racks: Expected `int` <= 1000000"),
    ("    racks: 2\n", "", 14, r"clusters\[0\]: .*missing required field `racks`"),
    (
        "    racks: 2",
        "    racks: 2\n    rows: 2",
        17,
        r"clusters\[0\].rows: .*the fields here are name, generation, racks",
    ),
    ("    racks: 2", "    racks: 2\n    update_domains: 0", 17, "update_domains: Expected `int` >= 1"),
    (
        "    racks: 2",
        "    racks: 2\n    thresholds: {new: 2, scale_out: 3}",
        17,
        r"clusters\[0\].thresholds.new: is 2, below scale_out, which is 3; new deployments stop first: .* 3",
    ),
    ("    racks: 2", "    racks: 2\n    thresholds: {news: 2}", 17, "thresholds.news: no threshold .*did you mean new"),
    ("    racks: 2", "    racks: 2\n    thresholds: {new: two}", 17, "thresholds.new: is 'two'; use a whole number"),
    ("    racks: 2", "    racks: 2\n    thresholds: {new: -2}", 17, "thresholds.new: is -2; use a whole number"),
    ("    racks: 2", "    racks: 2\n    thresholds: {new: 7}", 17, "new: is 7, and cluster c1 has 6 .*at most 6"),
    ("name: test", "name: test\nthresholds: {new: 5}", 2, "thresholds.new: is 5, and cluster c2 has 4 .*at most 4"),
    ("    racks: 2", "    racks: 2\n    excludes: [smal]", 17, r"excludes\[0\]: no VM type .*did you mean small"),
    (ZONE[ZONE.index("clusters:") :], "", 1, "describes no machines; give it `clusters`, or a list of `machines`"),
    (ZONE[ZONE.index("vm_types:") : ZONE.index("clusters:")], "vm_types: {}\n", 5, "vm_types: is empty"),
    (ZONE[ZONE.index("vm_types:") : ZONE.index("clusters:")], "vm_types: standard\n", 5, "standard generations only"),
    (
        ZONE[ZONE.index("vm_types:") : ZONE.index("clusters:")],
        "vm_types: usual\n",
        5,
        "is 'usual'; .*vm_types: standard",
    ),
    (ZONE[ZONE.index("generations:") : ZONE.index("vm_types:")], "generations: {}\n", 2, "there are 0; describe 1 to"),
    (ZONE[ZONE.index("generations:") : ZONE.index("vm_types:")], "generations: new\n", 2, "generations: standard"),
    (
        ZONE[ZONE.index("generations:") : ZONE.index("vm_types:")],
        "resources: {gpu: {unit: cards}}\ngenerations: standard\n",
        3,
        "generations: the standard ones know nothing of your `resources`; describe",
    ),
    (ZONE, "", 1, "the file must hold a mapping"),
    (ZONE, "- name\n", 1, "the file must hold a mapping"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), ZONE_MISTAKES, ids=[words for *_, words in ZONE_MISTAKES])
def test_a_mistake_in_a_zone_file_is_refused_with_its_line_and_what_would_be_right(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    error = refused(tmp_path, changed(ZONE, old, new))
    assert re.match(re.escape(f"{tmp_path / 'zone.yaml'}:{line}: ") + ".*" + words, str(error)), str(error)


HEADER = LIST.partition("\n")[0]
# what stands in LIST, what stands there instead, the line that is blamed, words of the message
LIST_MISTAKES = [
    (LIST, "\n", 1, "there are no columns; start with name,cluster,rack,generation"),
    (LIST, HEADER + "\n\n", 1, "lists no machines; give each machine a row"),
    (",health,", ",helth,", 1, "no column is called 'helth'; did you mean health"),
    (",rack,", ",cluster,", 1, "the column 'cluster' is there twice"),
    ("name,cluster,rack,", "name,cluster,memory,", 1, "has no column rack; needed are name, cluster, rack, generation"),
    ("a1,c8,r1,v1,dc1,0,ready,100,,", "a1,c8,r1,v1", 2, "has 4 cells, but there are 10 columns; "),
    ("a1,", '"a1" x,', 2, "not valid CSV"),
    ("a1,", ",", 2, "name: is empty; every machine has one"),
    ("a3,c8,r2,", "a3,c8,,", 4, "rack: is empty"),
    ("a3,", "a1,", 4, "name: there is a machine a1 already; names must differ"),
    ("a3,", "c2-r00-m03,", 4, "name: there is a machine c2-r00-m03 already"),
    ("a3,c8,", "a3,c2,", 4, "cluster: the zone file describes c2 already; list it or describe it, not both"),
    ("r2,v1", "r2,v3", 4, "generation: no generation is called 'v3'; did you mean v"),
    ("r2,v1", "r2,v2", 4, "generation: is v2, but cluster c8 has machines of v1 too; a cluster is of one generation"),
    ("dc1,2", "dc5,2", 4, "datacenter: is dc5, but cluster c8 has machines of dc1 too; .*split it"),
    ("dc1,2", "dc1,two", 4, "update_domain: is 'two'; use a whole number from 0 to 32,767"),
    ("dc1,2", "dc1,-1", 4, "update_domain: is '-1'; use a whole number"),
    ("draining", "drained", 5, "state: no state of a machine is called 'drained'; did you mean .*draining"),
    (",down,50", ",down,101", 3, "health: is '101'; use a whole number from 0 to 100"),
    (",down,50", ",down,49.5", 3, "health: is '49.5'; use a whole number from 0 to 100"),
    (",down,50", ",down,nan", 3, "health: is 'nan'; use a whole number"),
    (",ssd,", ",ssd|sdd,", 3, "features: no hardware feature is called 'sdd'; did you mean ssd"),
    ("12.5", "12,5", 3, "has 11 cells, but there are 10 columns"),
    ("12.5", "a dozen", 3, "cores: is 'a dozen'; give it in cores, from 0 to 2,147,483"),
    ("12.5", "-3", 3, "cores: is '-3'; give it in cores"),
    ("12.5", "1e308", 3, "cores: is '1e308'; give it in cores"),
    ("12.5", "inf", 3, "cores: is 'inf'; give it in cores"),
]


@pytest.mark.parametrize(("old", "new", "line", "words"), LIST_MISTAKES, ids=[words for *_, words in LIST_MISTAKES])
def test_a_mistake_in_a_list_of_machines_is_refused_with_its_line_and_what_would_be_right(
    tmp_path: Path, old: str, new: str, line: int, words: str
) -> None:
    error = refused(tmp_path, ZONE, changed(LIST, old, new))
    assert re.match(re.escape(f"{tmp_path / 'machines.csv'}:{line}: ") + words, str(error)), str(error)


WRONG = """\
name: test
bands: [regular, spot, regular]
resources:
  gpu: {per_unit: 0}
generations:
  v1: {cores: many, memroy: 224, gpu: 1}
  v2: {cores: 40, memory: 576, features: [ssd]}
vm_types:
  small:
    demand: {cores: 99, gpu: 1}
    on: [v1, v2, v3]
  fast:
    demand: {cores: 8}
clusters:
  - {name: c1, generation: v1, racks: 0, machines_per_rack: none}
  - {name: c2, generation: v9, racks: 1, machines_per_rack: 4, excludes: [smal]}
spares: 3
machines: machines.csv
"""


def test_all_mistakes_of_a_file_and_its_list_are_told_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    (tmp_path / "machines.csv").write_text(
        changed(changed(LIST, "a3,c8,r2,v1,dc1,2", "a1,c8,r2,v7,dc1,two"), ",down,50", ",asleep,101")
    )
    error = refused(tmp_path, WRONG)
    told = [line.removeprefix(f"{tmp_path}/") for line in str(error).splitlines()]
    wanted = [
        "machines.csv:3: health: is '101'",
        "machines.csv:3: state: no state of a machine is called 'asleep'",
        "machines.csv:4: generation: is v7, but cluster c8 has machines of v1 too",
        "machines.csv:4: generation: no generation is called 'v7'",
        "machines.csv:4: name: there is a machine a1 already",
        "machines.csv:4: update_domain: is 'two'",
        "zone.yaml:2: bands[2]: 'regular' is there twice",
        "zone.yaml:4: resources.gpu: Object missing required field `unit`",
        "zone.yaml:4: resources.gpu.per_unit: Expected `int` >= 1",
        "zone.yaml:6: generations.v1.cores: is 'many'",
        "zone.yaml:6: generations.v1.memroy: no resource is called 'memroy'; did you mean memory",
        "zone.yaml:10: vm_types.small.demand.cores: asks for 99 cores, but v2 has 40 cores",
        "zone.yaml:11: vm_types.small.on[2]: no generation is called 'v3'",
        "zone.yaml:12: vm_types.fast: Object missing required field `on`",
        "zone.yaml:15: clusters[0].machines_per_rack: Expected `int`, got `str`",
        "zone.yaml:15: clusters[0].racks: Expected `int` >= 1",
        "zone.yaml:16: clusters[1].excludes[0]: no VM type is called 'smal'; did you mean small",
        "zone.yaml:16: clusters[1].generation: no generation is called 'v9'",
        "zone.yaml:17: spares: Object contains unknown field `spares`; the fields here are name",
        "19 mistakes",
    ]
    assert isinstance(error, Mistaken)
    assert len(told) == len(wanted), str(error)
    assert all(line.startswith(words) for line, words in zip(sorted(told), sorted(wanted), strict=True)), str(error)
    lines = [int(line.split(":")[1]) for line in told if line.startswith("zone.yaml")]
    assert lines == sorted(lines)


def test_what_follows_from_a_mistake_is_no_further_one(tmp_path: Path) -> None:
    """What is said elsewhere of a generation, a type or a resource that is described wrong may well be right."""
    hardware = refused(tmp_path, changed(ZONE, "ssd: 6400, features: [ssd]", "ssd: much, features: [ssd]"))
    assert str(hardware).endswith("v2.ssd: is 'much'; give ssd in GiB, from 0 to 2,147,483,647")
    own = changed(ZONE, "name: test", "name: test\nresources: {gpu: {per_unit: 2}}")
    own = changed(own, "memory: 576", "memory: 576, gpu: 4")
    assert str(refused(tmp_path, own)).endswith("resources.gpu: Object missing required field `unit`")


def test_of_many_mistakes_the_first_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    rows = "".join(f"m{i},c9,r1,v1,ill\n" for i in range(100))
    error = refused(tmp_path, ZONE, f"name,cluster,rack,generation,health\n{rows}")
    assert str(error).splitlines()[-2:] == ["and 80 more", "100 mistakes"]
    assert isinstance(error, Mistaken)
    assert len(error.mistakes) == 100


# What nobody could ask for: where it stands, and what there.
UNSPEAKABLE = [
    ("generations:\n  v1:", "generations:\n  v/1:", "generations.v/1: 'v/1' has '/' in it"),
    ("  small:", "  D=4:", "vm_types.D=4: 'D=4' has '=' in it; use letters, digits, dots, dashes and underscores"),
    ("  small:", "  D@4:", "vm_types.D@4: 'D@4' has '@' in it"),
    ("  small:", '  "a b":', "vm_types.a b: 'a b' has ' ' in it"),
    ("  small:", '  "":', "vm_types.: is empty"),
    ("  small:", f"  {'x' * 201}:", "has 201 characters, 200 is the most"),
    ("  - name: c1", '  - name: "c\\n1"', r"clusters[0].name: 'c\n1' has '\n' in it"),
    ("  - name: c1", "  - name: -c1", "clusters[0].name: '-c1' begins with '-'"),
    ("  - name: c1", "  - name: c1\n    datacenter: a/b", "clusters[0].datacenter: 'a/b' has '/' in it"),
    ("    racks: 2", "    racks: 2\n    features: [a/b]", "clusters[0].features[0]: 'a/b' has '/' in it"),
    ("features: [ssd]", "features: [ssd, s|d]", "generations.v2.features[1]: 's|d' has '|' in it"),
    ("name: test", "name: test\nbands: [high, lo/w]", "bands[1]: 'lo/w' has '/' in it"),
    ("name: test", "name: test\nfeatures: ['a,b']", "features[0]: 'a,b' has ',' in it"),
    ("name: test", "name: test\nanti_colocation: [[a, 'b:c']]", "anti_colocation[0][1]: 'b:c' has ':' in it"),
    ("name: test", "name: test\nresources: {g/pu: {unit: cards}}", "resources.g/pu: 'g/pu' has '/' in it"),
]


@pytest.mark.parametrize(("old", "new", "words"), UNSPEAKABLE, ids=[words[:40] for *_, words in UNSPEAKABLE])
def test_names_that_nothing_could_address_are_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert words in str(refused(tmp_path, changed(ZONE, old, new)))


@pytest.mark.parametrize("column", ["name", "cluster", "rack", "datacenter"])
def test_names_in_a_list_of_machines_that_nothing_could_address_are_refused(tmp_path: Path, column: str) -> None:
    rows = list(csv.DictReader(io.StringIO(LIST)))
    rows[3][column] = "b/1\nx"
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    assert f": {column}: 'b/1\\nx' has '/' in it; use letters" in str(refused(tmp_path, ZONE, text.getvalue()))


def test_an_unknown_name_is_told_from_other_mistakes(tmp_path: Path) -> None:
    assert isinstance(refused(tmp_path, changed(ZONE, "    generation: v1", "    generation: v9")), UnknownName)
    assert isinstance(refused(tmp_path, ZONE, changed(LIST, "draining", "asleep")), UnknownName)
    assert not isinstance(refused(tmp_path, changed(ZONE, "    racks: 2", "    racks: -2")), UnknownName)


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        ("none.csv", r"there is no file .*none\.csv; the path starts at the zone file"),
        ("list.txt", r"'list\.txt' is not a list of machines; use a \.csv or \.parquet file"),
        ("folder.csv", "cannot be read: "),
    ],
)
def test_a_list_that_cannot_be_opened_is_a_mistake_of_the_line_that_names_it(
    tmp_path: Path, machines: str, words: str
) -> None:
    (tmp_path / "folder.csv").mkdir()
    error = refused(tmp_path, f"{ZONE}machines: {machines}\n")
    assert re.match(re.escape(f"{tmp_path / 'zone.yaml'}:19: machines: ") + words, str(error)), str(error)


def test_a_parquet_list_without_polars_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "polars", None)
    assert re.search(r"zone\.yaml:19: machines: .*`data` extra", str(refused(tmp_path, ZONE + "machines: m.parquet\n")))


def test_a_mistake_in_a_parquet_list_names_the_row(tmp_path: Path) -> None:
    rows = {"name": ["a1", "a2"], "cluster": ["c8", "c8"], "rack": ["r1", "r2"], "generation": ["v1", "v1"]}
    pl.DataFrame({**rows, "health": [100, 101]}).write_parquet(tmp_path / "m.parquet")
    assert f"{tmp_path / 'm.parquet'}: row 2: health: is '101'" in str(
        refused(tmp_path, ZONE + "machines: m.parquet\n")
    )


@pytest.mark.parametrize(("name", "words"), [("m.parquet", "not a Parquet file"), ("m.csv", "not valid UTF-8")])
def test_a_list_that_is_something_else_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe\x00PAR1 is not what this is")
    assert re.search(
        re.escape(str(tmp_path / name)) + ".*" + words, str(refused(tmp_path, f"{ZONE}machines: {name}\n"))
    )


def test_a_zone_has_no_more_machines_than_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_machines, "MOST_MACHINES", 12)
    assert "machines.csv:4: name: is one too many; a zone has at most 12" in str(refused(tmp_path, ZONE, LIST))


def test_a_feature_that_only_the_list_has_is_known_once_it_is_declared(tmp_path: Path) -> None:
    listed = changed(LIST, ",ssd,", ",ssd|water-cooled,")
    assert "no hardware feature is called 'water-cooled'" in str(refused(tmp_path, ZONE, listed))
    zone = load(tmp_path, ZONE + "features: [water-cooled]\n", listed)
    assert zone.machines["features"][zone.machine("a2")] == zone.feature_bits(["ssd", "water-cooled"])


def test_a_feature_that_a_type_requires_may_be_in_the_list_only(tmp_path: Path) -> None:
    needy = changed(ZONE, "requires: [ssd]", "requires: [ssd, infiniband]")
    assert "no hardware feature is called 'infiniband'" in str(refused(tmp_path, needy, LIST))
    assert "infiniband" in load(tmp_path, needy, changed(LIST, ",ssd,", ",infiniband,")).features


# ------------------------------------------------------------------------------------------------------- for all inputs


@settings(deadline=None)
@given(
    sizes=st.lists(
        st.tuples(st.sampled_from(["v1", "v2"]), st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=4
    ),
    data=st.data(),
)
def test_the_order_of_rows_changes_neither_what_a_machine_is_nor_any_sum(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("zone", numbered=True)
    clusters = [
        {"name": f"k{i}", "generation": generation, "racks": racks, "machines_per_rack": machines}
        for i, (generation, racks, machines) in enumerate(sizes)
    ]
    head = ZONE[: ZONE.index("clusters:")]
    zone = load(folder, head + yaml.safe_dump({"clusters": clusters}))
    count = len(zone.machines)
    states = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    zone.set_condition(state=np.array(states))
    listed = load(folder, head, as_csv(zone, data.draw(st.permutations(range(count)))))
    for i, name in enumerate(zone.machine_names):
        mine, theirs = zone.machines[i], listed.machines[listed.machine(name)]
        assert zone.rack_names[mine["rack"]] == listed.rack_names[theirs["rack"]]
        for field in ("state", "update_domain", "generation", "features", "health"):
            assert mine[field] == theirs[field]
    for names, others, rows, their_rows in (
        (zone.rack_names, listed.rack_names, zone.racks, listed.racks),
        (zone.cluster_names, listed.cluster_names, zone.clusters, listed.clusters),
    ):
        for i, name in enumerate(names):
            row = their_rows[others.index(name)]
            for field in ("machines", "empty", "free", "capacity"):
                assert np.array_equal(rows[i][field], row[field])


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=10, max_size=10))
def test_sums_are_what_adding_up_the_ready_machines_gives(
    tmp_path_factory: pytest.TempPathFactory, states: list[int]
) -> None:
    zone = load(tmp_path_factory.mktemp("zone", numbered=True))
    zone.set_condition(state=np.array(states))
    for rows, belongs in ((zone.racks, "rack"), (zone.clusters, "cluster")):
        for i, row in enumerate(rows):
            ready = [m for m in zone.machines if m[belongs] == i and m["state"] == MachineState.READY]
            assert row["empty"].tolist() == [len(ready)] * len(zone.bands)
            assert row["free"].tolist() == sum((m["free"].astype(int) for m in ready), np.zeros((2, 5), int)).tolist()


def blamed(folder: Path, zone: str, machines: str = "") -> Path | None:
    """The file that an error puts the blame on, line and all, or None if the zone loads."""
    try:
        load(folder, zone, machines)
    except InvalidInput as error:
        file, line, problem = str(error).split(":", 2)
        return Path(file) if line.isdecimal() and problem else Path("no file and line")
    return None


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, inner in items for place in places(inner, (*at, key)))]


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([-1, 0, 1, 3, 2**31, 10**40, 0.5, math.nan, math.inf])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


@settings(deadline=None)
@given(data=st.data(), value=ANYTHING)
def test_whatever_stands_anywhere_in_a_zone_file_loads_or_is_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, value: Any
) -> None:
    folder = tmp_path_factory.mktemp("zone", numbered=True)
    document = yaml.safe_load(ZONE.replace("on:", '"on":'))
    *path, last = data.draw(st.sampled_from(places(document)[1:]))
    inner = document
    for step in path:
        inner = inner[step]
    inner[last] = value
    assert blamed(folder, yaml.safe_dump(document, allow_unicode=True)) in (None, folder / "zone.yaml")


@settings(deadline=None)
@given(row=st.integers(0, 4), column=st.integers(0, 9), cell=st.text(max_size=6))
def test_whatever_stands_in_a_cell_loads_or_is_refused_with_its_line(
    tmp_path_factory: pytest.TempPathFactory, row: int, column: int, cell: str
) -> None:
    folder = tmp_path_factory.mktemp("zone", numbered=True)
    rows = list(csv.reader(io.StringIO(LIST)))
    rows[row][column] = cell
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    assert blamed(folder, ZONE, text.getvalue()) in (None, folder / "machines.csv")
