"""Every command that talks to the service, as a person or a script runs it against a real one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.serving import PATIENCE, ROOST, Serving, serving

ZONE = "synthetic:200"
NO_ROOM = ("--vm", "Full-gen6=200")  # there are ten such machines


class Shell:
    """Runs commands against one service."""

    def __init__(self, url: str, folder: Path, **more: str) -> None:
        hidden = ("ROOST_TOKEN", "ROOST_URL", "ROOST_CONFIG")
        self.folder = folder
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environment |= {"ROOST_URL": url, "COLUMNS": "200", **more}

    def run(self, *arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [ROOST, *arguments],
            input=lines, capture_output=True, text=True, env=self.environment, cwd=self.folder, timeout=PATIENCE,
            check=False,
        )  # fmt: skip

    def said(self, *arguments: str, lines: str = "") -> str:
        """What a command that works prints."""
        done = self.run(*arguments, lines=lines)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def json(self, *arguments: str, lines: str = "") -> Any:
        """What a command that works says to programs."""
        return json.loads(self.said(*arguments, "-o", "json", lines=lines))

    def fails(self, code: int, *arguments: str, lines: str = "") -> str:
        """What a command says that ends with an exit code."""
        done = self.run(*arguments, lines=lines)
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    store = tmp_path_factory.mktemp("service") / "zone.db"
    with serving(str(store), "--zone", ZONE) as running:
        yield running


@pytest.fixture
def shell(service: Serving, tmp_path: Path) -> Shell:
    return Shell(service.url, tmp_path)


# ------------------------------------------------------------------------------------------------------------ tenants


def test_a_tenant_is_created_scaled_looked_at_and_deleted(shell: Shell) -> None:
    made = shell.run("tenant", "create", "web", "--vm", "D2=2", "--vm", "D4", "--min-fault-domains", "2")
    assert made.returncode == 0, made.stderr
    assert [line.split()[0] for line in made.stdout.splitlines()] == ["vm", "web/0", "web/1", "web/2"]
    assert "web has generation" in made.stderr
    generation = str(shell.json("tenant", "show", "web")["generation"])
    assert "min_fault_domains 2" in shell.said("tenant", "show", "web")
    more = shell.json("tenant", "scale-out", "web", "--vm", "D2=2", "--if-match", generation)
    assert [vm["vm"] for vm in more["vms"]] == ["web/3", "web/4"]
    assert "web/0, web/3" in shell.said("tenant", "scale-in", "web", "web/0", "web/3")
    assert [vm["vm"] for vm in shell.json("tenant", "show", "web")["vms"]] == ["web/1", "web/2", "web/4"]
    stale = shell.fails(4, "tenant", "delete", "web", "--if-match", generation)
    assert "Somebody changed it meanwhile" in stale
    assert shell.said("tenant", "delete", "web", "--dry-run") == "would have deleted web\n"
    assert shell.said("tenant", "delete", "web") == "deleted web\n"
    assert "there is no tenant web" in shell.fails(2, "tenant", "show", "web")


def test_a_dry_run_changes_nothing_and_a_key_is_done_once(shell: Shell) -> None:
    trial = shell.run("tenant", "create", "trial", "--vm", "D2", "--dry-run")
    assert trial.returncode == 0
    assert "nothing was placed" in trial.stderr
    shell.fails(2, "tenant", "show", "trial")
    first = shell.json("tenant", "create", "once", "--vm", "D2", "--key", "only-once")
    again = shell.json("tenant", "create", "once", "--vm", "D2", "--key", "only-once")
    assert (again["vms"], again["decision"], again["replayed"]) == (first["vms"], "only-once", True)
    assert "tenant once exists" in shell.fails(4, "tenant", "create", "once", "--vm", "D2")
    shell.said("tenant", "delete", "once")


def test_a_request_can_come_from_a_file_or_the_input(shell: Shell) -> None:
    wish = {"tenant": "filed", "vms": [{"type": "D2", "count": 2, "priority": "spot"}]}
    (shell.folder / "request.json").write_text(json.dumps(wish))
    assert shell.json("tenant", "create", "--file", "request.json")["tenant"] == "filed"
    assert shell.json("tenant", "create", "piped", "--file", "-", lines=json.dumps(wish))["tenant"] == "piped"
    assert {vm["priority"] for vm in shell.json("vm", "list", "--tenant", "piped")} == {"spot"}
    for name in ("filed", "piped"):
        shell.said("tenant", "delete", name)
    wish["vms"][0]["colour"] = "red"  # type: ignore[index]
    assert "vms[0]: no field is called 'colour'" in shell.fails(
        2, "tenant", "create", "--file", "-", lines=json.dumps(wish)
    )
    assert "no such file" in shell.fails(2, "tenant", "create", "--file", "nowhere.json")


def test_what_vms_ask_for_is_asked_for(shell: Shell) -> None:
    asked = ("--cluster", "c001", "--isolated", "--requires", "ssd", "--generation", "gen4")
    placed = shell.json("tenant", "create", "picky", "--vm", "D2", *asked)
    machine = shell.json("machine", "show", placed["vms"][0]["machine"])
    assert (machine["cluster"], machine["hardware"]) == ("c001", "gen4")
    shell.said("tenant", "delete", "picky")


def test_tenants_are_listed_by_pages(shell: Shell) -> None:
    lines = "\n".join(json.dumps({"tenant": f"page{i}", "vms": [{"type": "A0"}]}) for i in range(5))
    done = shell.run("tenant", "batch", "-", "--at-once", "2", lines=lines)
    assert done.returncode == 0, done.stderr
    assert "5 done, 0 failed" in done.stderr
    listed = shell.run("tenant", "list", "--prefix", "page", "--limit", "3")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["tenant", "page0", "page1", "page2"]
    assert "there are more than 3" in listed.stderr
    assert len(shell.json("tenant", "list", "--prefix", "page", "--all")) == 5
    for i in range(5):
        shell.said("tenant", "delete", f"page{i}")


def test_a_batch_tells_what_came_of_each_and_exits_with_3_if_any_found_no_room(shell: Shell) -> None:
    items: list[Any] = [
        {"tenant": "fits", "vms": [{"type": "D2"}]},
        {"tenant": "huge", "vms": [{"type": "Full-gen6", "count": 200}]},
    ]
    done = shell.run("tenant", "batch", "-", "-o", "json", lines=json.dumps({"requests": items}))
    assert done.returncode == 3
    assert [result["status"] for result in json.loads(done.stdout)["results"]] == [201, 409]
    done = shell.run("tenant", "batch", "-", lines=json.dumps([{**items[0], "scale_out": True}, items[0]]))
    assert done.returncode == 4
    assert "fits/1 on " in done.stdout
    assert "conflict: " in done.stdout
    assert "-:2: " in shell.fails(2, "tenant", "batch", "-", lines='{"tenant": "a", "vms": [{"type": "D2"}]}\nnonsense')
    shell.said("tenant", "delete", "fits")


# ------------------------------------------------------------------------------------------------------------ refusals


def test_a_request_without_room_says_why_and_how_to_learn_more(shell: Shell) -> None:
    words = shell.fails(3, "tenant", "create", "giant", *NO_ROOM)
    assert words.startswith("error: Not enough capacity: ")
    assert "190 machines: VM type not supported (type_supported)" in words
    key = words.partition("roost explain ")[2].strip()
    assert "Full-gen6 for giant" in shell.said("explain", key)
    assert "c000-r00-m00: VM type not supported" in shell.said("why-not", "c000-r00-m00", "--decision", key)
    assert shell.json("why-not", "c000-r00-m00", "--decision", key, "--which", "0")["verdict"] == "refused"


def test_a_request_that_never_fits_or_makes_no_sense_is_bad_input(shell: Shell) -> None:
    assert "No machine of the zone could ever take it" in shell.fails(
        2, "tenant", "create", "never", "--vm", "D2", "--cluster", "c000"
    )
    assert "D22" in shell.fails(2, "tenant", "create", "wrong", "--vm", "D22")
    assert "--vm" in shell.fails(2, "tenant", "create", "wrong")
    assert "write D2, or D2=3" in shell.fails(2, "tenant", "create", "wrong", "--vm", "D2=many")
    assert "key" in shell.fails(2, "tenant", "create", "wrong", "--vm", "D2", "--key", "ein Schlüssel")
    assert "max_fault_domains" in shell.fails(
        2, "tenant", "create", "wrong", "--vm", "D2", "--min-fault-domains", "3", "--max-fault-domains", "2"
    )


def test_no_service_is_exit_code_5_and_says_where_it_was_looked_for(shell: Shell) -> None:
    words = shell.fails(5, "tenant", "list", "--url", "http://127.0.0.1:9")
    assert "http://127.0.0.1:9: " in words
    assert "`roost serve`" in words
    assert "client.url" in shell.fails(2, "tenant", "list", "--url", "nowhere")
    (shell.folder / "there.toml").write_text('[client]\nurl = "http://127.0.0.1:9"\n')
    del shell.environment["ROOST_URL"]
    assert "http://127.0.0.1:9: " in shell.fails(5, "capacity", "--config", "there.toml")


# ------------------------------------------------------------------------------------------- VMs, machines, clusters


def test_vms_are_listed_shown_and_deleted(shell: Shell) -> None:
    machine = shell.json("tenant", "create", "some", "--vm", "D2=3", "--max-per-machine", "3")["vms"][0]["machine"]
    assert [vm["vm"] for vm in shell.json("vm", "list", "--tenant", "some")] == ["some/0", "some/1", "some/2"]
    assert "some/0" in shell.said("vm", "list", "--machine", machine)
    assert f"machine   {machine}" in shell.said("vm", "show", "some/0")
    assert shell.json("vm", "show", "some/0")["machine"] == machine
    assert shell.said("vm", "delete", "some/0") == "released some/0\n"
    assert "there is no VM some/0" in shell.fails(2, "vm", "delete", "some/0")
    shell.said("tenant", "delete", "some")


def test_a_vm_is_moved_and_the_trail_says_so(shell: Shell) -> None:
    source = shell.json("tenant", "create", "goes", "--vm", "D2", "--cluster", "c001")["vms"][0]["machine"]
    target = next(name for name in ("c001-r00-m05", "c001-r00-m06") if name != source)
    move = ("vm", "move", "goes/0", "--to", target)
    assert shell.said(*move, "--step", "hold", "--dry-run") == f"would have held room for goes/0 on {target}\n"
    assert shell.said(*move, "--step", "hold") == f"held room for goes/0 on {target}\n"
    assert shell.said(*move, "--step", "cancel") == f"gave back the room for goes/0 on {target}\n"
    assert shell.said(*move, "--step", "cancel") == f"nothing was held for goes/0 on {target}\n"
    assert "no room is held for goes/0" in shell.fails(2, *move, "--step", "finish")
    shell.said(*move, "--step", "hold")
    assert shell.said(*move, "--step", "hold") == f"room for goes/0 is held on {target} already\n"
    assert shell.said(*move, "--step", "finish") == f"moved goes/0 to {target}\n"
    assert shell.said(*move) == f"goes/0 runs on {target} already\n"
    back = ("vm", "move", "goes/0", "--to", source, "--key", "back")
    assert shell.said(*back) == f"moved goes/0 to {source}\n"
    assert shell.said(*back) == f"moved goes/0 to {source} before, under the same key\n"
    trail = shell.said("changes", "--last", "5").splitlines()
    assert [line.partition("anonymous")[2].strip() for line in trail] == [
        f"held room for goes/0 on {target}",
        f"gave back room for goes/0 on {target}",
        f"held room for goes/0 on {target}",
        f"moved goes/0 from {source} to {target}",
        f"moved goes/0 from {target} to {source}",
    ]
    assert f"move goes/0 to {source}, whole" in shell.said("decisions", "--limit", "1")
    shell.said("machine", "down", target)
    assert "cannot have goes/0: machine down (is_ready)" in shell.fails(4, *move)
    shell.said("machine", "ready", target)
    shell.said("tenant", "delete", "goes")


def test_machines_are_taken_out_of_use_and_back(shell: Shell) -> None:
    name = "c001-r00-m00"
    assert shell.said("machine", "drain", name, "c001-r00-m01") == f"{name} is draining\nc001-r00-m01 is draining\n"
    assert {m["machine"] for m in shell.json("machine", "list", "--state", "draining")} == {name, "c001-r00-m01"}
    assert "goes with one machine" in shell.fails(2, "machine", "ready", name, "c001-r00-m01", "--if-match", "1")
    for command, state in (("down", "down"), ("quarantine", "quarantined"), ("ready", "ready")):
        shell.said("machine", command, name)
        assert shell.json("machine", "show", name)["state"] == state
    shell.said("machine", "ready", "c001-r00-m01")
    generation = str(shell.json("machine", "show", name)["generation"])
    set_health = ("machine", "set", name, "--health", "80", "--failures", "2", "--if-match", generation)
    assert shell.said(*set_health) == f"{name}: health 80, failures 2\n"
    shown = shell.said("machine", "show", name)
    assert "health           80" in shown
    assert "free cores       24/24 cores" in shown
    shell.fails(4, *set_health)
    shell.fails(2, "machine", "set", name)
    shell.fails(2, "machine", "drain", "nowhere")
    assert len(shell.json("machine", "list", "--rack", "c001-r00", "--empty", "--all")) > 1
    assert shell.json("machine", "list", "--cluster", "c001", "--used") == []
    assert "free memory" in shell.said("machine", "list", "--cluster", "c001", "--hardware", "gen4", "--limit", "2")


def test_machines_and_clusters_come_and_go(shell: Shell) -> None:
    new = [
        {"name": f"extra-{i}", "datacenter": "dc1", "cluster": "extra", "rack": "extra-r0", "generation": "gen4"}
        for i in range(3)
    ]
    adding = ("machine", "add", "--file", "-")
    assert shell.said(*adding, "--dry-run", lines=json.dumps(new)) == "would have added 3 machines\n"
    assert shell.said(*adding, lines=json.dumps({"machines": new})) == "added 3 machines\n"
    assert "extra-0" in shell.fails(2, *adding, lines=json.dumps(new))
    assert shell.said("machine", "remove", "extra-0", "extra-1") == "removed extra-0\nremoved extra-1\n"
    assert shell.json("cluster", "show", "extra")["machines"] == 1
    assert shell.said("cluster", "quarantine", "extra") == "quarantined extra\n"
    assert shell.json("cluster", "show", "extra")["quarantined"] is True
    assert shell.said("cluster", "release", "extra") == "released extra\n"
    assert "extra" in shell.said("cluster", "list")
    assert shell.said("cluster", "remove", "extra") == "removed extra\n"
    assert "extra" in shell.fails(2, "cluster", "show", "extra")


def test_names_are_listed_as_people_count_page_by_page(shell: Shell) -> None:
    place = {"datacenter": "dc1", "cluster": "k", "rack": "k-r0", "generation": "gen4"}
    counted = [f"k-m{i}" for i in range(1, 13)]
    shell.said("machine", "add", "--file", "-", lines=json.dumps([{"name": name, **place} for name in counted]))
    lines = shell.said("machine", "list", "--cluster", "k").splitlines()
    assert [line.split()[0] for line in lines[1:]] == counted
    found, cursor = list[str](), ""
    for _ in range(3):
        page = httpx.get(
            f"{shell.environment['ROOST_URL']}/v1/machines", params={"cluster": "k", "limit": 5, "cursor": cursor}
        ).json()
        found, cursor = [*found, *(machine["machine"] for machine in page["items"])], page["next"] or ""
    assert (found, cursor) == (counted, "")
    shell.said("tenant", "create", "many", "--vm", "A0=12")
    vms = [f"many/{i}" for i in range(12)]
    for command in (("vm", "list", "--tenant", "many"), ("tenant", "show", "many")):
        assert re.findall(r"^many/\d+", shell.said(*command), re.MULTILINE) == vms
    shell.said("tenant", "delete", "many")
    shell.said("cluster", "remove", "k")


def test_what_people_copy_is_whole_at_eighty_columns(shell: Shell) -> None:
    key = shell.json("tenant", "create", "narrow", "--vm", "D2")["decision"]
    shell.environment["COLUMNS"] = "80"
    try:
        assert key in shell.said("decisions", "--limit", "1")
        lines = shell.said("machine", "list", "--limit", "1").splitlines()
        assert lines[-1].split()[:3] == ["c000-r00-m00", "gen3", "ready"]
        assert all(len(line) <= 80 for line in lines)
    finally:
        shell.environment["COLUMNS"] = "200"
    shell.said("tenant", "delete", "narrow")


def test_capacity_is_counted_by_type_and_cluster(shell: Shell) -> None:
    (found,) = shell.json("capacity", "D4")["types"]
    assert sum(found["clusters"].values()) == found["count"] > 0
    assert "D14" in shell.said("capacity")
    lines = shell.said("capacity", "D4", "--by-cluster", "--priority", "spot").splitlines()
    assert lines[0].split() == ["type", "cluster", "fit"]
    shell.fails(2, "capacity", "D99")


# ---------------------------------------------------------------------------------------------------------- explaining


def test_what_would_be_decided_now_is_explained(shell: Shell) -> None:
    text = shell.said("explain", "--vm", "D2=3", "--min-fault-domains", "3", "--which", "2")
    assert text.startswith("D2 for somebody (VM 2): ")
    assert shell.json("explain", "--vm", "D2", "--tenant", "who")["tenant"] == "who"
    assert shell.said("why-not", "c000-r00-m00", "--vm", "D2") == "c000-r00-m00: VM type not supported\n"
    assert "give the key of a past request" in shell.fails(2, "explain")
    assert "give the key of a past request" in shell.fails(2, "explain", "k1", "--vm", "D2")
    assert "give --vm" in shell.fails(2, "why-not", "c000-r00-m00")
    assert "never decided" in shell.fails(2, "explain", "no-such-key")


def test_a_vm_tells_its_age_and_its_decision_and_is_explained_by_its_name(shell: Shell) -> None:
    shell.said("tenant", "create", "aged", "--vm", "A1=3", "--key", "aged-1")
    shown = shell.run("vm", "show", "aged/1")
    assert re.search(r"^age +\d+ m?s, since \d{4}-", shown.stdout, re.MULTILINE)
    assert "decision  aged-1\n" in shown.stdout
    assert shown.stderr == "why there: roost explain aged/1\n"
    detail = shell.json("vm", "show", "aged/1")
    assert (detail["decision"], detail["which"], detail["lost"]) == ("aged-1", 1, False)
    assert shell.said("explain", "aged/1") == shell.said("explain", "aged-1", "--which", "1")
    assert "(VM 2)" in shell.said("explain", "aged/2")
    machine = "c000-r00-m00"
    assert shell.said("why-not", machine, "--decision", "aged/1") == shell.said(
        "why-not", machine, "--decision", "aged-1", "--which", "1"
    )
    assert "there is no VM aged/7" in shell.fails(2, "explain", "aged/7")
    moved = shell.json("vm", "show", "aged/0")["machine"]
    shell.said("machine", "drain", moved)
    shell.said("heal", "now", moved)
    again = shell.json("vm", "show", "aged/0")
    assert (again["machine"] != moved, again["decision"].split()[0]) == (True, "heal")
    assert again["since"] == detail["since"]
    assert again["machine"] in shell.said("explain", "aged/0")
    shell.said("machine", "ready", moved)
    shell.said("tenant", "delete", "aged")


def test_draining_says_that_vms_stay_and_what_moves_them(shell: Shell) -> None:
    (placed,) = shell.json("tenant", "create", "stays", "--vm", "D2", "--cluster", "c002")["vms"]
    machine = placed["machine"]
    for command in ("drain", "quarantine"):
        done = shell.run("machine", command, machine)
        assert done.stderr == f"the VM that runs there stays; to move it elsewhere: roost heal now {machine}\n"
        assert shell.json("vm", "show", "stays/0")["machine"] == machine
        shell.said("machine", "ready", machine)
    rack = machine.rpartition("-")[0]
    assert f"roost heal now --rack {rack}" in shell.run("machine", "drain", "--rack", rack).stderr
    shell.said("heal", "now", machine)
    assert shell.json("vm", "show", "stays/0")["machine"] != machine
    assert shell.run("machine", "drain", machine).stderr == ""
    shell.said("machine", "ready", "--rack", rack)
    shell.said("tenant", "delete", "stays")


def test_a_tenant_on_a_machine_that_failed_is_told_to_wait_for_healing(shell: Shell) -> None:
    """All machines that could have it are in one rack, so that there is nowhere to go."""
    (placed,) = shell.json("tenant", "create", "failed", "--vm", "Full-gen6")["vms"]
    rack = placed["machine"].rpartition("-")[0]
    shell.said("machine", "down", "--rack", rack)
    shown = shell.run("tenant", "show", "failed")
    assert re.search(rf"failed/0 .*{placed['machine']} .*lost$", shown.stdout, re.MULTILINE)
    assert f"1 of its VMs wait to be healed, as {placed['machine']} is down: roost heal --tenant failed" in shown.stderr
    assert "its machine is down: it waits to be healed" in shell.said("vm", "show", "failed/0")
    assert "failed/0" in shell.said("heal", "--tenant", "failed")
    shell.said("tenant", "delete", "failed")
    shell.said("machine", "ready", "--rack", rack)


def test_a_flag_that_stands_too_early_is_called_by_its_name(shell: Shell) -> None:
    assert "--all: stands before summary; write it after summary" in shell.fails(2, "evictions", "--all", "summary")


def test_an_option_that_is_empty_is_refused(shell: Shell) -> None:
    words = shell.fails(2, "tenant", "create", "empty", "--vm", "D2", "--priority", "")
    assert "--priority: is empty; leave it out, or say what you want" in words
    assert "--cluster: is empty" in shell.fails(2, "machine", "list", "--cluster", "")
    shell.fails(2, "tenant", "show", "empty")


def test_decisions_and_changes_tell_who_did_what(shell: Shell) -> None:
    shell.said("tenant", "create", "traced", "--vm", "D2", "--key", "traced-1")
    shell.said("machine", "set", "c002-r00-m00", "--health", "70")
    shell.said("tenant", "delete", "traced")
    latest = shell.json("decisions", "--limit", "3")
    assert [each["key"] for each in latest][2] == "traced-1"
    assert "place 1 VMs of traced" in shell.said("decisions", "--limit", "3")
    placed, condition, released = shell.said("changes", "--last", "3").splitlines()
    assert "anonymous" in placed
    assert "placed traced/0 on " in placed
    assert "c002-r00-m00: health 100 → 70" in condition
    assert "released traced/0 from " in released
    since = str(int(placed.split()[0]) - 1)
    lines = shell.said("changes", "--since", since, "-o", "json").splitlines()
    assert json.loads(lines[0])["key"] == "traced-1"


def test_changes_can_be_followed_until_interrupted(shell: Shell) -> None:
    command = [ROOST, "changes", "--follow", "--last", "0", "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=shell.environment, cwd=shell.folder) as following:
        assert following.stdout is not None
        time.sleep(1.5)
        shell.said("tenant", "create", "live", "--vm", "D2", "--key", "live-1")
        assert json.loads(following.stdout.readline())["key"] == "live-1"
        following.send_signal(2)
        assert following.wait(10) == 130
    shell.said("tenant", "delete", "live")


# ------------------------------------------------------------------------------------------------------------ policies


def test_policies_are_kept_activated_compared_and_forgotten(shell: Shell) -> None:
    text = shell.said("policy", "text", "dense").replace("name: dense", "name: mine")
    (shell.folder / "mine.yaml").write_text(text)
    assert "mine" in shell.said("policy", "put", "mine.yaml", "--dry-run")
    assert "is kept" in shell.said("policy", "put", "mine.yaml")
    assert shell.said("policy", "activate", "mine", "--dry-run") == "mine would decide\n"
    activated = shell.said("policy", "activate", "default", "--against", "mine", "--share", "0.1")
    assert activated == "default decides, mine for 10% of the tenants\n"
    assert {p["name"]: p["share"] for p in shell.json("policy", "available") if p["share"]} == {
        "default": 0.9,
        "mine": 0.1,
    }
    assert "mine" in shell.said("policy", "active")
    shell.said("tenant", "create", "judged", "--vm", "D2")
    results = shell.json("policy", "results")
    assert sum(each["requests"] for each in results["results"]) >= 1
    assert "declined" in shell.said("policy", "results", "--hours", "1")
    shell.said("tenant", "delete", "judged")
    shell.said("policy", "activate", "default")
    assert "no policy decides in the shadow" in shell.said("policy", "differences")
    assert shell.said("policy", "shadow", "mine", "--dry-run") == "mine would decide in the shadow\n"
    assert shell.said("policy", "shadow", "mine", "--share", "0.5").endswith("for 50% of the tenants\n")
    assert shell.said("policy", "shadow", "mine") == "mine decides in the shadow\n"
    shell.said("tenant", "create", "shadowed", "--vm", "D2")
    assert "decisions  1\n" in shell.said("policy", "differences")
    assert shell.json("policy", "differences")["decisions"] == 1
    shell.said("tenant", "delete", "shadowed")
    assert "give a policy, or --off" in shell.fails(2, "policy", "shadow")
    assert shell.said("policy", "shadow", "--off", "--dry-run") == "no policy would decide in the shadow\n"
    assert shell.json("policy", "differences")["shadow"]["policy"] == "mine"
    assert shell.said("policy", "shadow", "--off") == "no policy decides in the shadow\n"
    assert shell.json("policy", "shadow", "--off")["policy"] == ""
    assert shell.said("policy", "delete", "mine") == "forgot mine\n"
    shell.fails(2, "policy", "activate", "mine")
    assert "has_rom" in shell.fails(2, "policy", "put", "-", lines="name: bad\nmachines:\n  validators: [has_rom]\n")


# -------------------------------------------------------------------------------------------------------------- tokens


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Serving, str]]:
    """A service with a token, which was made before it started."""
    folder = tmp_path_factory.mktemp("guarded")
    store = str(folder / "zone.db")
    offline = Shell("http://127.0.0.1:9", folder)
    offline.said("store", "create", store, "--zone", "synthetic:100")
    assert "must have scope admin" in offline.fails(2, "token", "create", "ci", "--scope", "read", "--store", store)
    made = offline.run("token", "create", "root", "--scope", "admin", "--store", store)
    assert made.returncode == 0, made.stderr
    assert "shown this once" in made.stderr
    assert "there is a token root" in offline.fails(2, "token", "create", "root", "--scope", "admin", "--store", store)
    with serving(store) as running:
        yield running, made.stdout.strip()
    assert [token["name"] for token in offline.json("token", "list", "--store", store)] == ["root"]
    assert offline.said("audit", store).endswith("clean\n")
    assert offline.said("token", "revoke", "root", "--force", "--store", store) == "revoked root\n"


def test_a_program_that_is_refused_gets_the_problem_as_json(shell: Shell) -> None:
    done = shell.run("tenant", "create", "wide", "--vm", "A1=90", "--max-per-rack", "1", "-o", "json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["code"] == "roost.tenant_constraint"
    assert "error:" in done.stderr


def test_each_vm_of_a_past_request_is_explained_and_no_other(shell: Shell) -> None:
    shell.said("tenant", "create", "trio", "--vm", "A1=3", "--min-fault-domains", "3", "--key", "trio-1")
    for which in range(3):
        assert f"(VM {which})" in shell.said("explain", "trio-1", "--which", str(which))
    assert "the request has VMs 0 to 2" in shell.fails(2, "explain", "trio-1", "--which", "7")


def test_tokens_open_what_they_are_for_until_they_are_revoked(guarded: tuple[Serving, str], tmp_path: Path) -> None:
    running, root = guarded
    nobody, admin = Shell(running.url, tmp_path), Shell(running.url, tmp_path, ROOST_TOKEN=root)
    words = nobody.fails(6, "tenant", "list")
    assert "A valid token is needed" in words
    assert "--token" in words
    reader = admin.said("token", "create", "reader", "--scope", "read", "--days", "1").strip()
    assert reader.startswith("roost_reader_")
    assert nobody.said("tenant", "list", "--token", reader)
    assert "needs a token with scope allocate" in nobody.fails(
        6, "tenant", "create", "web", "--vm", "D2", "--token", reader
    )
    bound = admin.json("token", "create", "shop", "--scope", "allocate", "--namespace", "shop")["token"]
    shop = Shell(running.url, tmp_path, ROOST_TOKEN=bound)
    shop.said("tenant", "create", "shop.web", "--vm", "D2")
    shop.fails(6, "tenant", "create", "web", "--vm", "D2")
    assert "placed shop.web/0" in shop.said("changes")
    shop.said("tenant", "delete", "shop.web")
    assert {token["name"] for token in admin.json("token", "list")} == {"root", "reader", "shop"}
    assert "never" in admin.said("token", "list")
    for name in ("reader", "shop"):
        assert admin.said("token", "revoke", name) == f"revoked {name}\n"
    assert nobody.fails(6, "tenant", "list", "--token", reader)
    assert "there is no token reader" in admin.fails(2, "token", "revoke", "reader")
    assert "there is a token root" in admin.fails(4, "token", "create", "root", "--scope", "admin")


# ---------------------------------------------------------------------------------------------------------------- help


def test_every_command_has_help_with_the_same_way_to_say_where_the_service_is(tmp_path: Path) -> None:
    import typer.main

    from roost.cli.main import app

    groups: dict[str, Any] = dict(vars(typer.main.get_command(app))["commands"])
    for name in ("tenant", "vm", "machine", "cluster"):
        for command in groups[name].commands.values():
            options = {option for parameter in command.params for option in parameter.opts}
            assert {"--url", "--token", "--config", "--output"} <= options, command.name
            assert command.help
    shell = Shell("http://127.0.0.1:9", tmp_path)
    for panel in ("Serve", "Use", "Operate", "Measure"):
        assert panel in shell.said("--help")
    assert "roost tenant create shop --vm D2=2" in shell.said("tenant", "create", "--help")
