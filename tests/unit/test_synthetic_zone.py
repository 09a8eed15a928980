"""Made-up zones have the hardware mix that Protean reports, at any size, by seed."""

import numpy as np
import pytest

from roost import InvalidInput, Zone
from roost.model.synthetic import GENERATIONS


@pytest.mark.parametrize("machines", [100, 777, 5_000, 61_583, 200_000])
def test_a_zone_has_the_size_asked_for_and_the_generations_of_table_1(machines: int) -> None:
    zone = Zone.synthetic(machines, seed=3)
    assert len(zone.machines) == machines
    total = sum(count for count, _, _ in GENERATIONS.values())
    for i, (count, _, _) in enumerate(GENERATIONS.values()):
        share = float((zone.machines["generation"] == i).mean())
        assert share == pytest.approx(count / total, abs=max(0.005, 15 / machines))


def test_large_zones_have_clusters_of_about_1000_and_racks_of_about_40() -> None:
    zone = Zone.synthetic(100_000, seed=1)
    assert np.all(np.abs(zone.clusters["machines"].astype(int) - 1_000) < 400)
    assert np.median(zone.racks["machines"]) == 40
    assert zone.racks["machines"].max() == 40


def test_the_same_seed_gives_the_same_zone_and_another_seed_another() -> None:
    one, same, other = (Zone.synthetic(2_000, seed=s) for s in (1, 1, 2))
    assert np.array_equal(one.machines, same.machines)
    assert not np.array_equal(one.machines, other.machines)


def test_sums_of_racks_and_clusters_are_those_of_their_machines() -> None:
    zone = Zone.synthetic(1_500, seed=1)
    for i, rack in enumerate(zone.racks):
        mine = zone.machines[zone.machines["rack"] == i]
        assert np.array_equal(rack["capacity"], mine["capacity"].sum(axis=0))
        assert len(mine) == rack["machines"]
        assert rack["empty"].tolist() == [len(mine)] * len(zone.bands)
    for i, cluster in enumerate(zone.clusters):
        mine = zone.machines[zone.machines["cluster"] == i]
        assert np.array_equal(cluster["capacity"], mine["capacity"].sum(axis=0))
        assert len(set(mine["generation"])) == 1
        assert len(set(mine["update_domain"])) > 1


def test_every_vm_type_fits_an_empty_machine_of_each_generation_that_supports_it() -> None:
    zone = Zone.synthetic(100, seed=1)
    for t, g in np.argwhere(zone.supported):
        assert np.all(zone.demand[t, g] <= zone.generations[g].capacity)
    assert all(vm_type.demand for vm_type in zone.vm_types)
    assert {"A0", "A11", "D14", "G5", "Full-gen3", "Full-gen6"} <= set(zone.vm_type_index)


@pytest.mark.parametrize("machines", [0, 99, 200_001, "many", 1e3])
def test_a_size_out_of_range_is_refused(machines: object) -> None:
    with pytest.raises(InvalidInput, match="100 to 200,000"):
        Zone.synthetic(machines)  # type: ignore[arg-type]
