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

import msgspec
import pytest

from roost.client import Client, HealingWish, MachineChange, ServiceProblem, VMWish
from roost.client.lease import Lease
from roost.client.maintenance import BREATH, Walk
from roost.model.availability import AvailabilitySet
from roost.model.request import Constraints
from roost.wire.healing import YetToUpdate
from roost.wire.maintenance import WalkHold
from tests.e2e.serving import PATIENCE, ROOST, Serving, serving
from tests.e2e.talking import eventually

# Three racks, in which each machine is of another update domain.
ZONE = """
name: kept-up
generations: {v1: {cores: 16, memory: 64}, v2: {cores: 16, memory: 64}}
vm_types:
  quarter: {demand: {cores: 4, memory: 4}, on: [v1]}
  whole: {demand: {cores: 16, memory: 64}, on: [v1]}
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
        with Lease(client) as lease:
            done = Walk(cast(Client, Released(client)), lease, cluster="c1", max_failures=1).run(0)
        assert (done.updated, done.moved, done.unmoved) == (3, 1, ())
        assert len(client.get_tenant("web").vms) == 7
        assert {machine.state for machine in client.machines()} == {"ready"}


def blocking(folder: Path) -> str:
    """An update that is done at once on the machine that is tried out, and then not before it is told to."""
    tried, begun, go = folder / "tried", folder / "begun", folder / "go"
    first = f'import os, sys, time; os.path.exists("{tried}") or (open("{tried}", "w"), sys.exit())'
    return f'{first}; open("{begun}", "w")\nwhile not os.path.exists("{go}"): time.sleep(0.05)'


def interrupted(service: Serving, begun: Path, program: str) -> subprocess.Popen[str]:
    """A walk through a domain, just after Ctrl-C while a machine is updated."""
    walk = walking(service, begun, program)
    walk.send_signal(signal.SIGINT)
    return walk


def walking(service: Serving, begun: Path, program: str) -> subprocess.Popen[str]:
    """A walk through a domain, while a machine is updated."""
    walk = subprocess.Popen(
        [ROOST, "maintenance", "run", "--cluster", "c1", "--domain", "0", "--at-once", "1",
         "--run", f"{sys.executable} -c '{program}' {{machine}}"],
        env={**os.environ, "ROOST_URL": service.url}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    eventually(begun.exists)
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
    walk = interrupted(service, begun, blocking(tmp_path))
    with Client(service.url) as client:

        def out_of_use() -> list[str]:
            return [machine.machine for machine in client.machines() if machine.state == "draining"]

        time.sleep(0.5)
        assert len(out_of_use()) == 2, "as long as it waits for the update to end"
        walk.send_signal(signal.SIGINT)
        eventually(lambda: len(out_of_use()) == 1)
        assert out_of_use() == ["c1-r01-m00"]
    go.touch()
    walk.communicate(timeout=PATIENCE)
    assert walk.returncode == 130


def test_bad_arguments_are_refused_before_anything_is_done(lab: Serving) -> None:
    for arguments, words in (
        (("--domain", "77"), "no update domain is called '77'"),
        (("--run", "update {host}"), "in braces it can name machine"),
        (("--evict", "sport"), "no priority is called 'sport'; did you mean spot"),
        (("--evict", "regular"), "regular is the highest priority; name a lower one: spot"),
        (("--max-failures", "0"), "--max-failures"),
    ):
        done = subprocess.run(
            [ROOST, "maintenance", "run", *arguments], env={**os.environ, "ROOST_URL": lab.url},
            capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode != 0
        assert words in done.stderr
        assert "Traceback" not in done.stderr


# ----------------------------------------------------------------------------------------------- one walk at a time


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A service for several tests, each of which leaves it as it was."""
    folder = tmp_path_factory.mktemp("lab")
    (folder / "zone.yaml").write_text(ZONE)
    with serving(str(folder / "zone.db"), "--zone", str(folder / "zone.yaml"), "--policy", "fast") as running:
        yield running


def refused(service: Serving, *arguments: str, code: int) -> str:
    """What a walk that does not begin says."""
    done = subprocess.run(
        [ROOST, "maintenance", "run", *arguments], env={**os.environ, "ROOST_URL": service.url},
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def test_while_one_walks_no_other_begins_and_it_is_told_who_does(lab: Serving, tmp_path: Path) -> None:
    walk = walking(lab, tmp_path / "begun", blocking(tmp_path))
    try:
        with Client(lab.url) as client:
            found = client.get_walk()
            assert f"process {walk.pid}" in found.owner
            assert (found.domain, list(found.machines)) == (0, ["c1-r01-m00", "c1-r02-m00"])
            said = refused(lab, "--domain", "1", code=4)
            assert f"process {walk.pid} walks through the zone, in update domain 0 and was heard of" in said
            assert "take over when it has been silent for 60 s" in refused(lab, "--take-over", code=4)
            assert {machine.update_domain for machine in client.machines(state="draining")} == {0}
            assert maintenance(lab, "status")["owner"] == found.owner
    finally:
        (tmp_path / "go").touch()
        walk.communicate(timeout=PATIENCE)
    assert walk.returncode == 0
    assert len(maintenance(lab, "run", "--domain", "1")) == 1
    with Client(lab.url) as client, pytest.raises(ServiceProblem, match="nobody walks"):
        client.get_walk()


def test_whoever_takes_over_from_a_walk_that_was_killed_goes_on_where_it_was(lab: Serving) -> None:
    with Client(lab.url) as client:
        killed = WalkHold(walk="killed", owner="somebody", seconds=1.0, domain=2)
        client.hold_walk(killed)
        client.hold_walk(msgspec.structs.replace(killed, machines=("c1-r00-m02", "c1-r01-m02")))
        for machine in ("c1-r00-m02", "c1-r02-m02"):  # the second by somebody else
            client.change_machine(machine, MachineChange(state="draining"))
        eventually(lambda: client.get_walk().silent > 1.0)
        said = refused(lab, "--domain", "2", code=4)
        assert "has not been heard of for" in said
        assert "take over from it" in said
        assert "left c1-r00-m02 draining" in refused(lab, "--domain", "1", "--take-over", code=2)
        done = maintenance(lab, "run", "--cluster", "c1", "--take-over", "--domain", "1", "--domain", "2")
        assert [(each["domain"], each["updated"], each["left_alone"]) for each in done] == [
            (2, 2, ["c1-r02-m02"]), (1, 3, []),
        ]  # fmt: skip
        assert [machine.machine for machine in client.machines(state="draining")] == ["c1-r02-m02"]
        client.change_machine("c1-r02-m02", MachineChange(state="ready"))
        with Lease(client):
            for again in (killed, msgspec.structs.replace(killed, take_over=True)):
                with pytest.raises(ServiceProblem, match="walks through the zone"):
                    client.hold_walk(again)  # whoever was taken for dead learns of it
            with pytest.raises(ServiceProblem, match="does not have the zone"):
                client.end_walk("killed")


def test_no_vm_is_moved_twice_while_updated_machines_have_room_and_updated_ones_are_current(lab: Serving) -> None:
    with Client(lab.url) as client:
        others = [m.machine for m in client.machines(cluster="c1") if m.machine != "c1-r00-m00"]
        for machine in others:
            client.change_machine(machine, MachineChange(state="draining", versions_behind=2))
        client.change_machine("c2-r00-m00", MachineChange(versions_behind=2))
        client.create_tenant("web", [VMWish(type="quarter", count=4)])  # in the first domain, so that all are to come
        for machine in others:
            client.change_machine(machine, MachineChange(state="ready"))
        done = maintenance(lab, "run", "--cluster", "c1", "--run", "true {machine}")
        assert [each["moved"] for each in done] == [4, 0, 0, 0], "to the machine that was updated before"
        behind = {m.machine for m in client.machines() if client.get_machine(m.machine).versions_behind}
        assert behind == {"c2-r00-m00"}
        client.delete_tenant("web")


def test_vms_go_to_machines_that_are_yet_to_be_updated_where_no_other_has_room(lab: Serving) -> None:
    with Client(lab.url) as client:
        client.create_tenant("web", [VMWish(type="quarter", count=1, cluster="c1")])
        (vm,) = client.vms()
        client.change_machine(vm.machine, MachineChange(state="draining"))
        everything = YetToUpdate(update_domains=tuple(range(4)))
        (moved,) = client.heal(HealingWish(vms=(vm.vm,), later=everything)).healed
        where = client.get_machine(moved.machine)
        client.change_machine(vm.machine, MachineChange(state="ready"))
        client.change_machine(moved.machine, MachineChange(state="draining"))
        others = tuple(domain for domain in range(4) if domain != where.update_domain)
        (again,) = client.heal(HealingWish(vms=(vm.vm,), later=YetToUpdate(update_domains=others, cluster="c1"))).healed
        assert client.get_machine(again.machine).update_domain == where.update_domain
        refused = next(m.machine for m in client.machines(cluster="c1") if m.update_domain in others)
        assert "yet to be updated" in client.why_not_decision(again.key, refused).reason
        with pytest.raises(ServiceProblem, match="no cluster is called 'c9'") as wrong:
            client.heal(HealingWish(vms=(vm.vm,), later=YetToUpdate(update_domains=others, cluster="c9")))
        assert wrong.value.problem.field == "later.cluster"
        client.change_machine(moved.machine, MachineChange(state="ready"))
        client.delete_tenant("web")


def test_a_wrong_command_costs_one_machine_and_the_others_are_as_they_were(lab: Serving) -> None:
    (done,) = maintenance(lab, "run", "--cluster", "c1", "--run", "false", code=3)
    assert [each["machine"] for each in done["failed"]] == ["c1-r00-m00"]
    assert done["untouched"] == ["c1-r01-m00", "c1-r02-m00"]
    with Client(lab.url) as client:
        assert {m.machine: m.state for m in client.machines() if m.state != "ready"} == {"c1-r00-m00": "quarantined"}
        client.change_machine("c1-r00-m00", MachineChange(state="ready"))


def test_vms_of_a_lower_priority_are_evicted_wait_and_come_back(lab: Serving) -> None:
    with Client(lab.url) as client:
        client.create_tenant("render", [VMWish(type="quarter", count=6, priority="spot", requeue=True)])
        client.create_tenant("web", [VMWish(type="quarter", count=2)])
        graces = list[float]()
        with Lease(client) as lease:
            walk = Walk(client, lease, cluster="c1", max_failures=1, evict="spot", sleep=graces.append)
            done = [walk.run(domain) for domain in range(4)]
        evicted = sum(each.evicted for each in done)
        assert (evicted > 0, all(each.whole for each in done)) == (True, True)
        # A VM that waited may come to a machine that is just being drained: then that is tried again after a breath.
        assert set(graces) - {BREATH} == {30.0}, "they get the time that the policy gives them"
        eventually(lambda: len(client.list_vms(tenant="render").items) == 6)
        found = list(client.evictions(tenant="render"))
        assert len(found) == evicted
        assert {(each.cause_priority, each.cause_tenant, each.grace) for each in found} == {("", "", 30.0)}
        assert not {each.tenant for each in client.healings()} & {"render"}, "none was moved"
        said = subprocess.run(
            [ROOST, "changes", "--last", "60", "--url", lab.url], capture_output=True, text=True, check=True
        ).stdout
        assert "for maintenance, 30 s to finish" in " ".join(said.split())
        with pytest.raises(ServiceProblem, match="highest priority") as wrong:
            client.evict(["render/0", "web/0"])
        assert wrong.value.problem.field == "vms[1]"
        assert client.evict(["gone/0"]).evicted == []
        for tenant in ("render", "web"):
            client.delete_tenant(tenant)
