"""`roost maintenance` against a real service: every machine is updated while empty, and every VM still runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from roost.client import Client, HealingWish, MachineChange, VMWish
from roost.client.maintenance import Walk
from roost.model.availability import AvailabilitySet
from roost.model.request import Constraints
from tests.e2e.serving import PATIENCE, ROOST, Serving, serving
from tests.e2e.talking import eventually

# Three racks, in which each machine is of another update domain.
ZONE = """
name: kept-up
generations: {v1: {cores: 16, memory: 64}, v2: {cores: 16, memory: 64}}
vm_types:
  quarter: {demand: {cores: 4, memory: 4}, on: [v1]}
  odd: {demand: {cores: 16, memory: 64}, on: [v2]}
clusters:
  - {name: c1, generation: v1, racks: 3, machines_per_rack: 4, update_domains: 4}
  - {name: c2, generation: v2, racks: 1, machines_per_rack: 1, update_domains: 4}
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serving]:
    (tmp_path / "zone.yaml").write_text(ZONE)
    with serving(str(tmp_path / "zone.db"), "--zone", str(tmp_path / "zone.yaml"), "--policy", "fast") as running:
        yield running


def maintenance(service: Serving, *arguments: str, code: int = 0) -> Any:
    """What `roost maintenance` says, as JSON."""
    done = subprocess.run(
        [ROOST, "maintenance", *arguments, "-o", "json"], env={**os.environ, "ROOST_URL": service.url},
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def test_one_update_domain_after_another_is_updated_and_sets_keep_their_terms(service: Serving, tmp_path: Path) -> None:
    log = tmp_path / "updated"
    with Client(service.url) as client:
        wish = Constraints(sets={"db": AvailabilitySet(fault_domains=3, update_domains=3)}, max_per_machine=1)
        vms = [VMWish(type="quarter", count=3, set="db"), VMWish(type="quarter", count=2)]
        client.create_tenant("shop", vms, wish)
        client.create_tenant("web", [VMWish(type="quarter", count=8)])
        before = {vm.vm for vm in client.vms()}
        plan = maintenance(service, "plan", "--cluster", "c1")
        assert [(row["update_domain"], row["machines"], row["ready"]) for row in plan] == [(d, 3, 3) for d in range(4)]
        program = f'{sys.executable} -c \'import sys; open("{log}", "a").write(sys.argv[1] + "\\n")\' {{machine}}'
        done = maintenance(service, "run", "--cluster", "c1", "--run", program, "--at-once", "2")
        assert [(each["domain"], each["updated"]) for each in done] == [(d, 3) for d in range(4)]
        assert sorted(log.read_text().split()) == sorted(m.machine for m in client.machines(cluster="c1"))
        assert {vm.vm for vm in client.vms()} == before
        assert {machine.state for machine in client.machines()} == {"ready"}
        homes = [vm.machine for vm in client.get_tenant("shop").vms if vm.set == "db"]
        found = {machine.machine: machine for machine in client.machines()}
        assert len({found[home].rack for home in homes}) == 3
        assert len({found[home].update_domain for home in homes}) == 3
        moved = sum(each["moved"] for each in done)
        assert moved >= len(before), "everything was somewhere when it was its turn"
        assert len(list(client.healings())) == moved
        assert client.summarise_healing().healed == 0, "no machine was down"


def test_what_cannot_be_moved_is_told_and_its_machine_stays_in_use(service: Serving) -> None:
    with Client(service.url) as client:
        client.create_tenant("odd", [VMWish(type="odd")])
        client.change_machine("c1-r01-m00", MachineChange(state="down"))
        done = maintenance(service, "run", "--domain", "0", "--domain", "1", code=3)
        (first,) = done  # it stops there
        assert first["unmoved"][0]["vm"] == "odd/0"
        assert "0/13 machines are available" in first["unmoved"][0]["why"]
        assert first["left_alone"] == ["c1-r01-m00"]
        assert (first["machines"], first["updated"]) == (3, 2)
        done = maintenance(service, "run", "--domain", "0", "--domain", "1", "--go-on", code=3)
        assert [each["domain"] for each in done] == [0, 1]
        assert {m.machine for m in client.machines() if m.state != "ready"} == {"c1-r01-m00"}


def test_an_update_that_fails_puts_its_machine_in_quarantine(service: Serving) -> None:
    program = f'{sys.executable} -c \'import sys; sys.exit("no" if "r01" in "{{machine}}" else 0)\''
    done = maintenance(service, "run", "--cluster", "c1", "--domain", "2", "--run", program, code=3)
    assert [each["machine"] for each in done[0]["failed"]] == ["c1-r01-m02"]
    assert done[0]["failed"][0]["why"].endswith("ended with 1: no")
    with Client(service.url) as client:
        assert client.get_machine("c1-r01-m02").state == "quarantined"


def test_a_machine_that_goes_down_during_the_walk_is_left_alone_and_stays_down(service: Serving) -> None:
    program = f"{ROOST} machine down c1-r02-m01"  # by whichever of the three comes first
    done = maintenance(service, "run", "--cluster", "c1", "--domain", "1", "--run", program, "--at-once", "1")
    assert done[0]["left_alone"] == ["c1-r02-m01"]
    assert (done[0]["machines"], done[0]["updated"]) == (2, 2)
    with Client(service.url) as client:
        assert {m.machine: m.state for m in client.machines() if m.state != "ready"} == {"c1-r02-m01": "down"}


class Released:
    """A client; just before the first VMs are healed, their owners release some of them."""

    def __init__(self, client: Client) -> None:
        self._client, self._done = client, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def heal(self, wish: HealingWish) -> Any:
        if not self._done:
            self._done = True
            self._client.delete_tenant("gone")
            self._client.delete_vm(next(vm for vm in wish.vms if vm.startswith("web/")))
        return self._client.heal(wish)


def test_vms_that_are_released_during_the_walk_do_not_end_it(service: Serving) -> None:
    with Client(service.url) as client:
        evenly = Constraints(sets={"all": AvailabilitySet(update_domains=4, best_effort=True)})
        for name in ("gone", "web"):  # two of each in every domain
            client.create_tenant(name, [VMWish(type="quarter", count=8, set="all")], evenly)
        done = Walk(cast(Client, Released(client)), cluster="c1").run(0)
        assert (done.updated, done.moved, done.unmoved) == (3, 1, ())
        assert len(client.get_tenant("web").vms) == 7
        assert {machine.state for machine in client.machines()} == {"ready"}


def interrupted(service: Serving, begun: Path, program: str) -> subprocess.Popen[str]:
    """A walk through a domain, just after Ctrl-C while its first machine is updated."""
    walk = subprocess.Popen(
        [ROOST, "maintenance", "run", "--cluster", "c1", "--domain", "0", "--at-once", "1",
         "--run", f"{sys.executable} -c '{program}' {{machine}}"],
        env={**os.environ, "ROOST_URL": service.url}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    eventually(begun.exists)
    walk.send_signal(signal.SIGINT)
    return walk


def test_interrupted_it_lets_updates_end_and_those_that_fail_are_quarantined(service: Serving, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    program = f'import sys, time; open("{begun}", "w"); time.sleep(1); sys.exit("no")'
    walk = interrupted(service, begun, program)
    _, said = walk.communicate(timeout=PATIENCE)
    assert walk.returncode == 130
    assert "the update failed on c1-r00-m00: " in said
    with Client(service.url) as client:
        assert {m.machine: m.state for m in client.machines() if m.state != "ready"} == {"c1-r00-m00": "quarantined"}


def test_interrupted_twice_it_does_not_use_a_machine_that_is_being_updated(service: Serving, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    program = f'import os, time; open("{begun}", "w")\nwhile not os.path.exists("{go}"): time.sleep(0.05)'
    walk = interrupted(service, begun, program)
    with Client(service.url) as client:

        def out_of_use() -> list[str]:
            return [machine.machine for machine in client.machines() if machine.state == "draining"]

        time.sleep(0.5)
        assert len(out_of_use()) == 3, "as long as it waits for the update to end"
        walk.send_signal(signal.SIGINT)
        eventually(lambda: len(out_of_use()) == 1)
        assert out_of_use() == ["c1-r00-m00"]
    go.touch()
    walk.communicate(timeout=PATIENCE)
    assert walk.returncode == 130


def test_bad_arguments_are_refused_before_anything_is_done(service: Serving) -> None:
    for arguments, words in (
        (("--domain", "77"), "no update domain is called '77'"),
        (("--run", "update {host}"), "in braces it can name machine"),
    ):
        done = subprocess.run(
            [ROOST, "maintenance", "run", *arguments], env={**os.environ, "ROOST_URL": service.url},
            capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr
