"""Machines and racks that fail, over HTTP and on the command line, against a real service."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from roost.bench.postgres import ThrowawayPostgres
from roost.client import AsyncClient, Client, HealingWish, MachineChange, ServiceProblem, VMWish
from roost.duties.heartbeats import MANY
from roost.model.request import Constraints
from roost.wire.healing import HealingResult
from tests.e2e.serving import PATIENCE, ROOST, Serving, serving
from tests.e2e.talking import eventually

# Two racks of three machines, and one more machine of another kind, on which nothing else fits.
ZONE = """
name: failing
generations: {v1: {cores: 16, memory: 64}, v2: {cores: 16, memory: 64}}
vm_types:
  quarter: {demand: {cores: 4, memory: 4}, on: [v1]}
  whole: {demand: {cores: 16, memory: 64}, on: [v1]}
  odd: {demand: {cores: 16, memory: 64}, on: [v2]}
clusters:
  - {name: c1, generation: v1, racks: 2, machines_per_rack: 3}
  - {name: c2, generation: v2, racks: 1, machines_per_rack: 1}
"""
FIRST, SECOND = "c1-r00", "c1-r01"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("failing")
    (folder / "zone.yaml").write_text(ZONE)
    store, zone = str(folder / "zone.db"), str(folder / "zone.yaml")
    with serving(store, "--zone", zone, "--policy", "fast") as running:
        yield running


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service that counts heartbeats, of so many machines that most of them do not fail at once."""
    folder = tmp_path_factory.mktemp("listening")
    (folder / "zone.yaml").write_text(ZONE.replace("machines_per_rack: 3", f"machines_per_rack: {MANY}"))
    store, zone = str(folder / "zone.db"), str(folder / "zone.yaml")
    with serving(store, "--zone", zone, "--policy", "fast", "--set", "healing.heartbeat_seconds=2") as running:
        yield running


@pytest.fixture
def client(service: Serving) -> Iterator[Client]:
    """A service as it was in the beginning, after whatever a test does to it."""
    with Client(service.url) as found:
        yield found
        for line in found.tenants():
            found.delete_tenant(line.tenant)
        for machine in found.machines():
            if machine.state != "ready":
                found.change_machine(machine.machine, MachineChange(state="ready"))


def racks_of(client: Client, tenant: str) -> list[str]:
    """Where its VMs are, by the store."""
    return sorted(vm.machine.rpartition("-")[0] for vm in client.get_tenant(tenant).vms)


def run(service: Serving, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command, and how it ends."""
    environment = {**os.environ, "ROOST_URL": service.url, "COLUMNS": "200"}
    done = subprocess.run(
        [ROOST, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.returncode == code, done.stderr
    return done


def heal(service: Serving, *arguments: str) -> str:
    """What `roost heal` prints."""
    return run(service, *arguments).stdout


def test_the_vms_of_a_rack_that_fails_run_elsewhere_under_their_names(client: Client, service: Serving) -> None:
    client.create_tenant("web", [VMWish(type="quarter", count=4)], Constraints(min_fault_domains=2))
    before = {vm.vm for vm in client.get_tenant("web").vms}
    assert set(racks_of(client, "web")) == {FIRST, SECOND}
    client.create_tenant("shop", [VMWish(type="quarter", count=2)], Constraints(colocate="rack"))
    done = client.change_rack(racks_of(client, "shop")[0], "down")
    assert (done.machines, done.state) == (3, "down")
    eventually(lambda: done.rack not in racks_of(client, "shop"))
    assert {vm.vm for vm in client.get_tenant("web").vms} == before
    # Its tenant wants two racks, and there is one: so these wait, and say why.
    eventually(lambda: all("too few fault domains" in vm.why for vm in client.unhealed()))  # once it was worked out
    waiting = list(client.unhealed())
    assert {vm.tenant for vm in waiting} == {"web"}
    assert waiting[0].machine.startswith(done.rack)
    assert client.explain_decision(waiting[0].decision).summary.startswith("0/")
    assert "too few fault domains" in heal(service, "heal", "-o", "json")
    # The rack comes back: they never left, so nothing is there twice.
    client.change_rack(done.rack, "ready")
    eventually(lambda: not list(client.unhealed()))
    assert {vm.vm for vm in client.get_tenant("web").vms} == before
    history = list(client.healings(tenant="shop"))
    assert {each.vm for each in history} == {"shop/0", "shop/1"}
    assert {each.source.rpartition("-")[0] for each in history} == {done.rack}
    assert client.explain_decision(history[0].key).summary
    # Its key has two words, and is pasted as it is shown, or in quotes.
    assert "quarter for shop" in run(service, "explain", *history[0].key.split()).stdout
    assert "quarter for shop" in run(service, "explain", history[0].key).stdout
    found = client.summarise_healing()
    assert (found.healed >= 2, found.waiting, found.machines_down, found.whole) == (True, 0, 0, True)
    assert found.took.count == found.healed
    assert json.loads(heal(service, "heal", "summary", "-o", "json"))["healed"] == found.healed
    assert "shop/0" in heal(service, "heal", "history", "--tenant", "shop")


def test_what_waits_is_healed_when_somebody_leaves(client: Client) -> None:
    client.create_tenant("first", [VMWish(type="whole", count=3)])
    client.create_tenant("second", [VMWish(type="whole", count=3)])
    machine = client.get_tenant("first").vms[0].machine
    client.change_machine(machine, MachineChange(state="down"))
    eventually(lambda: any(vm.why for vm in client.unhealed()))
    assert [vm.vm for vm in client.unhealed()] == [client.get_tenant("first").vms[0].vm]
    client.scale_in("second", [client.get_tenant("second").vms[0].vm])
    eventually(lambda: not list(client.unhealed()))
    assert machine not in {vm.machine for vm in client.get_tenant("first").vms}


def test_machines_that_are_drained_are_emptied_when_somebody_says_so(client: Client, service: Serving) -> None:
    client.create_tenant("web", [VMWish(type="quarter", count=3)])
    client.create_tenant("odd", [VMWish(type="odd")])
    (machine,) = {vm.machine for vm in client.get_tenant("web").vms}
    (only,) = (vm.machine for vm in client.get_tenant("odd").vms)
    for name in (machine, only):
        client.change_machine(name, MachineChange(state="draining"))
    assert list(client.unhealed()) == [], "they still run"
    assert [vm.vm for vm in client.heal(HealingWish(vms=("web/1",))).healed] == ["web/1"]
    client.heal(HealingWish(vms=("web/1",)))
    found = client.heal(HealingWish(machines=(machine, only)))
    assert {vm.vm for vm in found.healed} == {"web/0", "web/2"}
    assert {vm.source for vm in found.healed} == {machine}
    assert [(vm.vm, vm.machine) for vm in found.waiting] == [("odd/0", only)]
    assert "0/7 machines are available" in found.waiting[0].why
    assert machine not in {vm.machine for vm in client.get_tenant("web").vms}
    said = run(service, "heal", "now", only, code=3).stdout
    assert "0 VMs run elsewhere, 1 found no machine" in said
    assert json.loads(run(service, "heal", "now", only, "-o", "json", code=3).stdout)["waiting"]
    assert "0 VMs run elsewhere, 0 found no machine" in run(service, "heal", "now", machine).stdout
    assert client.heal(HealingWish()).healed == [], "nothing is down"


def test_what_somebody_else_heals_meanwhile_is_not_told_to_wait(client: Client, service: Serving) -> None:
    for i in range(12):
        client.create_tenant(f"t{i}", [VMWish(type="quarter")])
    names = sorted({vm.machine for vm in client.vms()})
    for name in names:
        client.change_machine(name, MachineChange(state="draining"))

    async def ask() -> list[HealingResult]:
        async with AsyncClient(service.url) as several:
            return await asyncio.gather(*(several.heal(HealingWish(machines=tuple(names))) for _ in range(8)))

    found = asyncio.run(ask())
    assert sorted(vm.vm for each in found for vm in each.healed) == sorted(f"t{i}/0" for i in range(12))
    assert not any(each.waiting for each in found)


def test_bad_wishes_are_refused_and_change_nothing(client: Client) -> None:
    for wish, field in (
        (HealingWish(machines=("c1-r00-m00", "nope")), "machines[1]"),
        (HealingWish(racks=("nope",)), "racks[0]"),
        (HealingWish(vms=("nope/0",)), "vms[0]"),
    ):
        with pytest.raises(ServiceProblem) as refused:
            client.heal(wish)
        assert (refused.value.code, refused.value.problem.field) == ("roost.not_found", field)
    with pytest.raises(ServiceProblem) as refused:
        client.change_rack("nope", "down")
    assert refused.value.code == "roost.not_found"
    assert all(machine.state == "ready" for machine in client.machines())


def test_a_rack_is_changed_once_however_often_it_is_asked(client: Client) -> None:
    client.change_rack(FIRST, "draining", key="once")
    client.change_rack(FIRST, "ready", key="twice")
    assert client.change_rack(FIRST, "draining", key="once").machines == 3
    assert {machine.state for machine in client.machines(rack=FIRST)} == {"ready"}


def test_a_machine_whose_heartbeats_stop_is_down_and_its_vms_are_healed(listening: Serving) -> None:
    with Client(listening.url) as client:
        client.create_tenant("web", [VMWish(type="quarter")])
        (machine,) = (vm.machine for vm in client.get_tenant("web").vms)
        client.change_machine(machine, MachineChange(state="draining"))
        others = [each.machine for each in client.machines() if each.machine != machine]
        heard = client.hear([machine, *others, "nope"])
        assert (heard.heard, list(heard.unknown)) == (2 * MANY + 1, ["nope"])

        def is_healed() -> bool:
            client.hear(others)
            return machine not in {vm.machine for vm in client.get_tenant("web").vms}

        eventually(is_healed)
        assert client.get_machine(machine).state == "down"
        client.hear([machine])
        eventually(lambda: client.get_machine(machine).state == "draining")
        text = client.metrics().decode()
    assert "roost_healed_vms_total" in text
    assert "roost_healing_seconds_count" in text


def test_operators_see_that_most_machines_fell_silent_and_that_nothing_is_done(listening: Serving) -> None:
    with Client(listening.url) as client:
        names = [each.machine for each in client.machines()]
        client.hear(names)
        assert client.summarise_healing().machines_doubted == 0
        eventually(lambda: client.summarise_healing().machines_doubted == len(names))
        eventually(lambda: f"roost_doubted_machines {len(names)}.0" in client.metrics().decode())
        assert "down" not in {each.state for each in client.machines()}
        said = run(listening, "heal", "summary")
        assert f"machines doubted  {len(names)}" in said.stdout
        assert "look at what sends the heartbeats" in said.stderr

        def is_over() -> bool:
            client.hear(names)
            return client.summarise_healing().machines_doubted == 0

        eventually(is_over)


def test_healing_is_asked_for_in_the_same_words_by_programs_that_wait_for_nothing(service: Serving) -> None:
    async def ask() -> tuple[int, int]:
        async with AsyncClient(service.url) as client:
            found = await client.heal(HealingWish())
            return len(found.healed), len([vm async for vm in client.unhealed()])

    assert asyncio.run(ask()) == (0, 0)


def test_a_service_that_does_not_listen_says_so(tmp_path: Path) -> None:
    (tmp_path / "zone.yaml").write_text(ZONE)
    options = ("--zone", str(tmp_path / "zone.yaml"), "--policy", "fast", "--set", "healing.retry_seconds=0")
    with serving(str(tmp_path / "zone.db"), *options) as service, Client(service.url) as client:
        with pytest.raises(ServiceProblem, match=r"healing\.heartbeat_seconds"):
            client.hear(["c1-r00-m00"])
        client.create_tenant("web", [VMWish(type="quarter")])
        (machine,) = (vm.machine for vm in client.get_tenant("web").vms)
        client.change_machine(machine, MachineChange(state="down"))
        eventually(lambda: [vm.vm for vm in client.unhealed()] == ["web/0"])
        assert client.heal(HealingWish()).healed[0].vm == "web/0", "it heals when it is told to, not by itself"


def test_healing_goes_on_after_the_service_was_killed(tmp_path: Path) -> None:
    (tmp_path / "zone.yaml").write_text(ZONE)
    options: tuple[Any, ...] = ("--zone", str(tmp_path / "zone.yaml"), "--policy", "fast")
    store = str(tmp_path / "zone.db")
    with serving(store, *options, "--set", "healing.retry_seconds=0") as service, Client(service.url) as client:
        client.create_tenant("web", [VMWish(type="quarter", count=6)], Constraints(colocate="rack"))
        before = {vm.vm: vm.machine for vm in client.get_tenant("web").vms}
        (rack,) = set(racks_of(client, "web"))
        client.change_rack(rack, "down")
        os.kill(service.process.pid, signal.SIGKILL)
        service.process.wait()
    with serving(store, *options) as service, Client(service.url) as client:
        eventually(lambda: rack not in racks_of(client, "web"))
        assert {vm.vm for vm in client.get_tenant("web").vms} == set(before)


# ------------------------------------------------------------------------------------------------- several servers

HALL = """
name: hall
generations: {v1: {cores: 16, memory: 64}}
vm_types:
  quarter: {demand: {cores: 4, memory: 4}, on: [v1]}
  whole: {demand: {cores: 16, memory: 64}, on: [v1]}
clusters:
  - {name: c1, generation: v1, racks: 5, machines_per_rack: 5}
"""
SILENT_SECONDS, BEAT_SECONDS = 2.0, 1.3


@pytest.fixture(scope="module")
def hall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, Serving]]:
    """Two servers that count heartbeats, on one database."""
    file = tmp_path_factory.mktemp("hall") / "zone.yaml"
    file.write_text(HALL)
    options = ("--zone", str(file), "--policy", "fast", "--set", f"healing.heartbeat_seconds={SILENT_SECONDS}")
    with ThrowawayPostgres() as postgres:
        store = postgres.create_database("hall")
        with serving(store, *options) as first, serving(store, *options) as second:
            yield first, second


@pytest.mark.parametrize("rounds", [3, pytest.param(60, marks=pytest.mark.deep)])
def test_machines_whose_heartbeats_are_spread_over_two_servers_stay_up_until_they_stop_on_both(
    hall: tuple[Serving, Serving], rounds: int
) -> None:
    """Each server hears of a machine every other time, so less often than it would have to by itself."""
    with Client(hall[0].url) as first, Client(hall[1].url) as second:
        names = [machine.machine for machine in first.machines()]
        last, turn = names[-1], 0

        def beat(alive: list[str]) -> set[str]:
            nonlocal turn
            turn += 1
            here, there = (first, second) if turn % 2 else (second, first)
            here.hear(alive[::2])
            there.hear(alive[1::2])
            time.sleep(BEAT_SECONDS)
            return {machine.machine for machine in first.machines(state="down")}

        for _ in range(rounds):
            assert beat(names) == set()
        stopped = time.monotonic()
        while not (down := beat(names[:-1])):
            assert time.monotonic() - stopped < 5 * SILENT_SECONDS
        assert down == {last}
        second.hear([last])
        eventually(lambda: second.get_machine(last).state == "ready")
