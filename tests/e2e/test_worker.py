"""A worker and the commands around its store, as a person or a program runs them."""

from __future__ import annotations

import json
import os
import select
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from roost.agent.verbs.entry import SetEntry
from roost.agent.verbs.machines import AddMachines
from roost.agent.verbs.place import PlaceVMs
from roost.bench.postgres import ThrowawayPostgres
from roost.model.inventory import MachineSpec
from roost.model.request import VM, Request
from roost.model.rows import MachineState
from roost.store.ledger import Ledger
from roost.wiring import open_agent, open_store
from tests.e2e.crashing import PATIENCE, ROOST

ZONE = "synthetic:100"
ENVIRONMENT = os.environ | {"COLUMNS": "500", "ROOST_AGENT_SEED": "1"}  # machines are drawn by lot
D2 = {"type": "D2"}

Line = dict[str, Any]


def roost(*arguments: str | Path, lines: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(
        [ROOST, *map(str, arguments)],
        input=lines, capture_output=True, text=True, env=ENVIRONMENT, timeout=PATIENCE, check=False,
    )  # fmt: skip


def said(*arguments: str | Path) -> str:
    """What a command that works prints."""
    done = roost(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(*arguments: str | Path, code: int = 2) -> str:
    """What a command that is refused says: a sentence, and an exit code."""
    done = roost(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def work(store: Path, *lines: Line) -> dict[str, Line]:
    """What a worker answers to lines that come all at once, by key."""
    done = roost("worker", store, lines="".join(json.dumps(line) + "\n" for line in lines))
    assert done.returncode == 0, done.stderr
    answers: list[Line] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(lines)
    return {answer["key"]: answer for answer in answers}


def ledger(store: str | Path) -> Ledger:
    """What a store holds."""
    with closing(open_store(str(store), read_only=True)) as opened:
        return opened.load()


def place(key: str, tenant: str, *vms: Line, **more: Any) -> Line:
    """Ask for VMs."""
    return {"key": key, "do": "place", "request": {"tenant": tenant, "vms": vms, **more}}


class Talk:
    """A conversation with a worker: one question, one answer."""

    def __init__(self, store: str | Path) -> None:
        self._process = subprocess.Popen(
            [ROOST, "worker", str(store)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=ENVIRONMENT,
        )  # fmt: skip

    def ask(self, line: Line) -> Line:
        """Ask, and wait for the answer."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(line).encode() + b"\n")
        assert select.select([self._process.stdout], [], [], PATIENCE)[0], "no answer"
        said = self._process.stdout.readline()
        assert said, self._last_words()
        answer: Line = json.loads(said)
        assert answer["key"] == line["key"]
        return answer

    def _last_words(self) -> str:
        assert self._process.stderr
        return self._process.stderr.read().decode()

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """No more questions: it ends, and well."""
        with self._process:
            assert self._process.stdin
            self._process.stdin.close()
            code = self._process.wait(PATIENCE)
            assert error or code == 0, self._last_words()


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store as it is made. Tests take copies."""
    path = tmp_path_factory.mktemp("stores") / "first.db"
    assert said("store", "create", path, "--zone", ZONE) == f"{path} holds synthetic-100-1: 100 machines\n"
    return path


@pytest.fixture(scope="module")
def used(first: Path) -> Path:
    """A store with a tenant, one that went, and a request that was declined."""
    path = first.with_name("used.db")
    shutil.copy(first, path)
    with Talk(path) as talk:
        assert talk.ask(place("web", "web", D2, D2, constraints={"min_fault_domains": 2}))["status"] == "done"
        assert talk.ask(place("gone", "gone", D2))["status"] == "done"
        assert talk.ask({"key": "go", "do": "release", "tenant": "gone"})["status"] == "done"
        answer = talk.ask(place("huge", "huge", *[{"type": "Full-gen6"}] * 20))
        assert (answer["status"], answer["detail"]) == ("declined", "no machine for VM 9 of the request")
    return path


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[Path], Path]:
    """Makes a store of one's own, like another."""

    def make(original: Path) -> Path:
        return Path(shutil.copy(original, tmp_path / "zone.db"))

    return make


@pytest.fixture
def fresh(first: Path, copy: Callable[[Path], Path]) -> Path:
    """A store without tenants."""
    return copy(first)


@pytest.fixture
def store(used: Path, copy: Callable[[Path], Path]) -> Path:
    """A store with a past."""
    return copy(used)


# --------------------------------------------------------------------------------------------------------- the protocol

SPARE = ["spare", "dc1", "new", "new-r0", "gen6", 0, ["ssd"], [48_000, 786_432, 8_000, 8_000, 50_000]]
EVERY_KIND: tuple[Line, ...] = (
    place("create", "web", D2, D2, constraints={"min_fault_domains": 2}),
    place("scale out", "web", {"type": "A1", "priority": "spot"}),
    {"key": "scale in", "do": "release", "tenant": "web", "vms": ["web/0"]},
    {"key": "hold", "do": "move", "tenant": "web", "vm": "web/2", "machine": "c002-r00-m07", "step": "hold"},
    {"key": "finish", "do": "move", "tenant": "web", "vm": "web/2", "machine": "c002-r00-m07", "step": "finish"},
    place("another", "shop", {"type": "D1", "name": "till"}),
    {"key": "delete", "do": "release", "tenant": "shop"},
    {"key": "machine", "do": "machine", "machine": "c000-r00-m00", "state": "down", "health": 40, "failures": 2},
    {"key": "cluster", "do": "cluster", "cluster": "c001", "quarantined": True},
    {"key": "add", "do": "add_machines", "machines": [SPARE], "conditions": {"spare": {"versions_behind": 3}}},
    {"key": "remove", "do": "remove_machines", "machines": ["c000-r00-m01"]},
    {"key": "remove cluster", "do": "remove_machines", "cluster": "new"},
)


def test_everything_that_can_be_asked_for_is_done_once_and_asked_again_is_answered_the_same(fresh: Path) -> None:
    with Talk(fresh) as talk:
        answers = {line["key"]: talk.ask(line) for line in EVERY_KIND}
    assert {answer["status"] for answer in answers.values()} == {"done"}
    assert not any("replayed" in answer for answer in answers.values())
    names = {key: [each["vm"] for each in answer.get("placements", ())] for key, answer in answers.items()}
    assert names["create"] == ["web/0", "web/1"]
    assert names["another"] == ["till"]
    assert all(not vms for key, vms in names.items() if key not in ("create", "scale out", "another"))
    found = ledger(fresh)
    placed = {each["vm"]: each["machine"] for key in ("create", "scale out") for each in answers[key]["placements"]}
    del placed["web/0"]
    placed["web/2"] = "c002-r00-m07"
    assert {name: vm.machine for name, vm in found.vms.items()} == placed
    assert list(found.tenants) == ["web"]
    sick = found.machines["c000-r00-m00"]
    assert (sick.state, sick.health, sick.failures) == (MachineState.DOWN, 40, 2)
    assert found.clusters["c001"].quarantined
    assert len(found.machines) == 99
    with Talk(fresh) as talk:  # another process, with what it knows from the store alone
        for line in EVERY_KIND:
            again = talk.ask(line)
            assert (again["status"], again["replayed"]) == ("done", True)
            assert again.get("placements") == answers[line["key"]].get("placements")
        for line in EVERY_KIND:
            other = talk.ask(place(line["key"], "somebody", {"type": "A2"}))
            assert other["status"] == "invalid"
            assert f"'{line['key']}' was used for another request; use a new key" in other["detail"]
    assert list(found.differences(ledger(fresh))) == []


BAD: tuple[tuple[Line, str], ...] = (
    ({"do": "dance"}, "line: Invalid value 'dance'"),
    ({}, "line: Object missing required field `do`"),
    (place("", "a", D2) | {"colour": 1}, "line: Object contains unknown field `colour`"),
    (place("", "a", D2, colour=1), "line: Object contains unknown field `colour`"),
    (place("", "a"), "request.vms: is empty"),
    (place("", "", D2), "request.tenant: must be a name"),
    (place("", "a/b", D2), "request.tenant: 'a/b' has '/' in it; use letters, digits, dots, dashes and underscores"),
    (place("", "a\nb", D2), r"request.tenant: 'a\nb' has '\n' in it"),
    (place("", "a", {"type": "D2", "name": "a/b/c"}), "request.vms[0].name: 'b/c' has '/' in it; call it TENANT/NAME"),
    (place("", "a", {"type": "D2", "name": "a/b=c"}), "request.vms[0].name: 'b=c' has '=' in it"),
    ({"do": "add_machines", "machines": [["m/1", *SPARE[1:]]]}, "machines[0].name: 'm/1' has '/' in it"),
    ({"do": "add_machines", "machines": [[*SPARE[:3], "r 1", *SPARE[4:]]]}, "machines[0].rack: 'r 1' has ' ' in it"),
    (
        {"do": "add_machines", "machines": [[*SPARE[:6], ["s|d"], SPARE[7]]]},
        "machines[0].features: 's|d' has '|' in it",
    ),
    ({"do": "entry", "kind": "policy", "name": "p/1", "value": "x"}, "name: 'p/1' has '/' in it"),
    (place("", "a", {"type": "D99"}), "request.vms[0].type: no VM type is called 'D99'"),
    (
        place("", "a", D2, {"type": "D2", "priority": "gold"}),
        "request.vms[1].priority: no priority band is called 'gold'",
    ),
    (place("", "a", *[{"type": "D2", "name": "x"}] * 2), "request.vms[1].name: 'x' is taken"),
    (place("", "a", {"type": "D2", "name": "web/0"}), "request.vms[0].name: 'web/0' is taken"),
    (place("", "a", D2, constraints={"max_per_rack": -1}), "constraints.max_per_rack: is -1"),
    (
        place("", "web", D2, constraints={"max_per_rack": 1}),
        "request.constraints: differ from those that tenant web has",
    ),
    ({"do": "release", "tenant": "wep"}, "tenant: no tenant with VMs is called 'wep'; did you mean web"),
    ({"do": "release", "tenant": "web", "vms": ["web/7"]}, "vms[0]: no VM of tenant web is called 'web/7'"),
    ({"do": "release", "tenant": "web", "vms": ["web/0", "web/0"]}, "vms[1]: web/0 is named twice"),
    ({"do": "machine", "machine": "nowhere", "state": "down"}, "machine: no machine is called 'nowhere'"),
    ({"do": "machine", "machine": "c000-r00-m00", "state": "asleep"}, "line: Invalid enum value 'asleep'"),
    ({"do": "machine", "machine": "c000-r00-m00", "health": 101}, "health: is 101; use a whole number from 0 to 100"),
    ({"do": "machine", "machine": "c000-r00-m00"}, "machine: nothing is said of it"),
    ({"do": "cluster", "cluster": "c999", "quarantined": True}, "cluster: no cluster is called 'c999'"),
    ({"do": "cluster", "cluster": "c000"}, "line: Object missing required field `quarantined`"),
    ({"do": "add_machines", "machines": []}, "machines: are none; name at least one"),
    ({"do": "add_machines", "machines": [["c000-r00-m00", *SPARE[1:]]]}, "machine c000-r00-m00: is there already"),
    ({"do": "add_machines", "machines": [SPARE, SPARE]}, "machine spare: is there already"),
    (
        {"do": "add_machines", "machines": [[*SPARE[:4], "gen9", *SPARE[5:]]]},
        "generation: no generation is called 'gen9'",
    ),
    (
        {"do": "add_machines", "machines": [[*SPARE[:2], "c000", *SPARE[3:]]]},
        "machine spare: does not match cluster c000",
    ),
    ({"do": "add_machines", "machines": [[*SPARE[:7], [1, 2]]]}, "machine spare: capacity: is (1, 2)"),
    (
        {"do": "add_machines", "machines": [SPARE], "conditions": {"other": {"state": 1}}},
        "conditions: speak of other, which is not added",
    ),
    (
        {"do": "add_machines", "machines": [SPARE], "conditions": {"spare": {"colour": 1}}},
        "condition: no condition of a machine is called 'colour'",
    ),
    ({"do": "remove_machines"}, "machines: are none, or repeat themselves"),
    ({"do": "remove_machines", "machines": ["nowhere"]}, "machine: no machine is called 'nowhere'"),
    ({"do": "remove_machines", "machines": ["c000-r00-m00"] * 2}, "machines: are none, or repeat themselves"),
    ({"do": "remove_machines", "cluster": "c999"}, "cluster: no cluster is called 'c999'"),
    ({"do": "remove_machines", "cluster": "c000", "machines": ["a"]}, "names machines and a cluster; name one or the"),
)


@pytest.fixture(scope="module")
def answers_to_bad_lines(used: Path) -> dict[str, Line]:
    """What one worker answers to all of them, by key."""
    path = used.with_name("bad.db")
    shutil.copy(used, path)
    before = ledger(path)
    answers = work(path, *(line | {"key": f"bad {i}"} for i, (line, _) in enumerate(BAD)))
    after = ledger(path)
    assert after.revision == before.revision
    assert list(before.differences(after)) == []
    return answers


@pytest.mark.parametrize("number", range(len(BAD)), ids=[words for _, words in BAD])
def test_a_bad_line_is_answered_with_a_sentence_under_its_key_and_changes_nothing(
    answers_to_bad_lines: dict[str, Line], number: int
) -> None:
    answer = answers_to_bad_lines[f"bad {number}"]
    assert answer["status"] == "invalid"
    assert BAD[number][1] in answer["detail"]


def test_an_unknown_machine_or_cluster_is_not_said_to_be_the_only_one(answers_to_bad_lines: dict[str, Line]) -> None:
    """There are others, so a sentence that ends with "none are defined" misleads."""
    assert [answer for answer in answers_to_bad_lines.values() if "none are defined" in answer["detail"]] == []


def test_what_a_store_holds_under_a_name_that_is_refused_now_can_still_be_taken_away(fresh: Path) -> None:
    spare = msgspec.convert(["m/1", *SPARE[1:]], MachineSpec)
    with closing(open_store(str(fresh))) as opened, closing(open_agent(opened)) as agent:
        agent.submit(PlaceVMs(Request("a/b", (VM("D2"), VM("D2", name="a/b/x=y")))))
        agent.submit(AddMachines((spare,)))
        agent.submit(SetEntry("policy", "p/1", "name: p/1"))
        while not agent.idle:
            agent.step(1.0)
    assert set(ledger(fresh).vms) == {"a/b/0", "a/b/x=y"}
    lines: tuple[Line, ...] = (
        {"do": "move", "tenant": "a/b", "vm": "a/b/0", "machine": "c002-r00-m07"},
        {"do": "release", "tenant": "a/b", "vms": ["a/b/x=y"]},
        {"do": "release", "tenant": "a/b"},
        {"do": "machine", "machine": "m/1", "state": "down"},
        {"do": "remove_machines", "machines": ["m/1"]},
        {"do": "entry", "kind": "policy", "name": "p/1"},
    )
    with Talk(fresh) as talk:
        for i, line in enumerate(lines):
            assert talk.ask(line | {"key": f"k{i}"})["status"] == "done", line
    left = ledger(fresh)
    assert (left.vms, "m/1" in left.machines, left.registry.get(("policy", "p/1"))) == ({}, False, None)


def test_a_line_without_a_key_that_can_be_read_is_answered_all_the_same(fresh: Path) -> None:
    done = roost("worker", fresh, lines='what?\n[1]\n{"key": 7, "do": "release", "tenant": "web"}\n\n   \n')
    assert done.returncode == 0
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(answer["key"], answer["status"]) for answer in answers] == [("", "invalid")] * 3
    assert "line: is no JSON object" in answers[0]["detail"]
    assert "line: is no JSON object" in answers[1]["detail"]
    assert answers[2]["detail"] == "key: is 7; use a text"


def test_a_key_may_not_be_endless(fresh: Path) -> None:
    (answer,) = work(fresh, place("k" * 251, "web", D2)).values()
    assert answer["status"] == "invalid"
    assert "use a text of up to 250 characters" in answer["detail"]


def test_a_machine_that_runs_vms_is_not_removed(store: Path) -> None:
    machine = ledger(store).vms["web/0"].machine
    cluster = machine.partition("-")[0]
    answers = work(
        store,
        {"key": "machine", "do": "remove_machines", "machines": [machine]},
        {"key": "cluster", "do": "remove_machines", "cluster": cluster},
    )
    for answer in answers.values():
        assert answer["status"] == "invalid"
        assert "runs 1 VMs; drain it and release them first" in answer["detail"]
    assert len(ledger(store).machines) == 100


def test_the_last_machine_is_not_removed(fresh: Path) -> None:
    """A zone without machines could not be loaded, so nobody could add one again."""
    *most, last = sorted(ledger(fresh).machines)
    with Talk(fresh) as talk:
        assert talk.ask({"key": "most", "do": "remove_machines", "machines": most})["status"] == "done"
        assert talk.ask({"key": "last", "do": "remove_machines", "machines": [last]})["status"] == "invalid"
    assert list(ledger(fresh).machines) == [last]


def test_a_machine_with_more_features_than_a_zone_can_name_is_not_added(fresh: Path) -> None:
    """Nobody could load the zone afterwards."""
    machine = [*SPARE[:6], [f"feature-{i}" for i in range(40)], SPARE[7]]
    with Talk(fresh) as talk:
        answer = talk.ask({"key": "add", "do": "add_machines", "machines": [machine]})
        assert answer["status"] == "invalid"
        assert "at most 31" in answer["detail"]
        assert talk.ask(place("next", "web", D2))["status"] == "done"


def test_what_was_declined_may_be_asked_for_again_with_the_same_key(store: Path) -> None:
    huge = place("huge", "huge", *[{"type": "Full-gen6"}] * 20)
    racks = [[f"spare-{i}", *SPARE[1:]] for i in range(40)]
    with Talk(store) as talk:
        assert talk.ask(huge)["status"] == "declined"
        assert talk.ask({"key": "more", "do": "add_machines", "machines": racks})["status"] == "done"
        answer = talk.ask(huge)
        assert (answer["status"], "replayed" in answer, len(answer["placements"])) == ("done", False, 20)
        assert talk.ask(huge)["placements"] == answer["placements"]


def test_the_end_of_the_input_finishes_what_is_under_way(fresh: Path) -> None:
    lines = [place(f"k{i}", f"t{i % 50}", D2) for i in range(150)]
    lines += [{"key": f"r{i}", "do": "release", "tenant": f"t{i}"} for i in range(20)]
    answers = work(fresh, *lines)
    assert {answer["status"] for answer in answers.values()} == {"done"}
    assert ledger(fresh).tenants.keys() == {f"t{i}" for i in range(20, 50)}
    assert len(ledger(fresh).vms) == 90


def test_a_worker_knows_what_another_one_has_acknowledged() -> None:
    """What one worker said is done can be asked about at another at once."""
    with ThrowawayPostgres() as server:
        said("store", "create", server.url, "--zone", ZONE)
        with Talk(server.url) as one, Talk(server.url) as other:
            answers = [worker.ask(place(key, key, D2)) for worker, key in ((one, "one"), (other, "other"))]
            for i in range(40):
                one.ask(place(f"k{i}", f"t{i}", D2, D2))
                answers.append(other.ask({"key": f"in{i}", "do": "release", "tenant": f"t{i}", "vms": [f"t{i}/1"]}))
                answers.append(one.ask({"key": f"r{i}", "do": "release", "tenant": f"t{i}"}))
                answers.append(other.ask({"key": f"r{i}", "do": "release", "tenant": f"t{i}"}))
        assert [answer for answer in answers if answer["status"] != "done"] == []
        assert [answer["key"] for answer in answers if "replayed" in answer] == [f"r{i}" for i in range(40)]


def test_a_second_worker_on_the_same_file_is_refused_while_others_may_look(store: Path) -> None:
    with Talk(store) as talk:
        assert talk.ask(place("more", "more", D2))["status"] == "done"
        words = refusal("worker", store)
        assert f"another process has {store} open; stop it, or use PostgreSQL for several processes" in words
        assert json.loads(said("store", "status", store, "-o", "json"))["tenants"] == 2
        assert said("audit", store).endswith("clean\n")
        assert "D2 for more" in said("explain", "--store", store, "more")
        assert talk.ask(place("still", "still", D2))["status"] == "done"


@pytest.mark.parametrize(
    ("address", "words", "code"),
    [
        ("nowhere.db", "there is no file", 2),
        ("text.db", "is no store: file is not a database", 2),
        ("empty.db", "the file holds no zone; make one with `roost store create`", 2),
        ("mysql://x", "use postgresql://…, or the path of a file", 2),
        ("postgresql://nobody@/nothing?host=/nowhere", "PostgreSQL cannot be used", 5),
    ],
)
def test_a_worker_without_a_store_is_refused(tmp_path: Path, address: str, words: str, code: int) -> None:
    (tmp_path / "text.db").write_text("This is no database, but a text that is long enough to be taken for one.")
    (tmp_path / "empty.db").touch()
    where = address if "://" in address else str(tmp_path / address)
    assert words in refusal("worker", where, code=code)


# ----------------------------------------------------------------------------------------------------------- the store


def test_a_store_is_made_once(store: Path) -> None:
    before = store.read_bytes()
    assert "the file holds a zone already" in refusal("store", "create", store, "--zone", ZONE)
    assert store.read_bytes() == before


def test_a_store_can_be_looked_at(store: Path) -> None:
    expected = {
        "zone": "synthetic-100-1",
        "revision": 4,
        "feed_begins_after": 0,
        "clusters": 5,
        "machines": 100,
        "tenants": 1,
        "vms": 2,
    }
    assert json.loads(said("store", "status", store, "-o", "json")) == expected
    rows = [line.rsplit(maxsplit=1) for line in said("store", "status", store).splitlines()]
    assert {name.strip().replace(" ", "_"): value for name, value in rows} == {k: str(v) for k, v in expected.items()}


def test_a_trimmed_store_forgets_the_past_and_goes_on(store: Path) -> None:
    assert said("store", "trim", store, "--keep", "2") == "the feed begins after revision 2\n"
    assert "is forgotten; keep more revisions" in refusal("explain", "--store", store, "web")
    again = work(store, place("web", "web", D2, D2, constraints={"min_fault_domains": 2}))
    assert again["web"]["replayed"], "its key is remembered"
    assert said("store", "trim", store, "--keep", "0", "--decisions-days", "0") == "the feed begins after revision 4\n"
    assert "'web' was never decided, or is forgotten" in refusal("explain", "--store", store, "web")
    assert work(store, place("more", "web", D2))["more"]["status"] == "done"
    assert said("audit", store).endswith("clean\n")


# ----------------------------------------------------------------------------------------------------------- the audit


def everything(store: Path) -> list[str]:
    """All that a file holds."""
    with closing(sqlite3.connect(store)) as connection:
        return list(connection.iterdump())


DAMAGE = """
UPDATE machines SET vms = vms + 1, owner = 'web' WHERE vms > 0;
UPDATE machines SET used_0 = used_0 + 1, is_empty = 1 - is_empty WHERE name = 'c000-r00-m00';
UPDATE tenants SET vms = 7;
"""
FOUND = {"sums": 4, "columns": 2, "tenants": 1, "feed": 3}  # two fields of two machines, two columns, a tenant


def test_sums_that_are_wrong_are_found_and_repaired_if_told_to(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection:
        connection.executescript(DAMAGE)
    damaged = everything(store)
    found = roost("audit", store, "-o", "json")
    assert found.returncode == 1
    assert Counter(each["check"] for each in json.loads(found.stdout)["findings"]) == FOUND
    trial = roost("audit", store, "--repair", "--dry-run")
    assert trial.returncode == 1
    assert trial.stdout.endswith("10 findings\n")
    assert "tenant web counts 7 VMs and has 2 (can be repaired)" in trial.stdout
    assert "3 machines and 1 tenants would be rewritten" in trial.stderr
    assert everything(store) == damaged
    repair = roost("audit", store, "--repair")
    assert repair.returncode == 1
    assert "3 machines and 1 tenants were rewritten" in repair.stderr
    assert said("audit", store).endswith("clean\n")
    answers = work(store, place("more", "web", D2), {"key": "end", "do": "release", "tenant": "web"})
    assert {answer["status"] for answer in answers.values()} == {"done"}
    assert said("audit", store).endswith("clean\n")


def test_a_vm_that_vanished_is_found_and_not_brought_back(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("DELETE FROM vms WHERE name = 'web/0'")
    found = roost("audit", store)
    assert found.returncode == 1
    assert "tenant web counts 2 VMs and has 1 (can be repaired)" in found.stdout
    assert "VM web/0 is missing (look at it)" in found.stdout
    roost("audit", store, "--repair")
    assert list(ledger(store).vms) == ["web/1"]


def test_a_dry_run_goes_with_a_repair(store: Path) -> None:
    assert "goes with --repair" in refusal("audit", store, "--dry-run")


# ----------------------------------------------------------------------------------------------------------- explaining


def test_a_request_that_was_placed_is_explained(store: Path) -> None:
    machine = ledger(store).vms["web/0"].machine
    text = said("explain", "--store", store, "web")
    assert text.startswith(f"D2 for web (VM 0): {machine}: ")
    assert "committed by agent-" in text
    assert json.loads(said("explain", "--store", store, "web", "-o", "json"))["decision"]["outcome"] == "committed"
    assert "c000-r00-m00: VM type not supported\n" in said(
        "why-not", "c000-r00-m00", "--store", store, "--decision", "web"
    )
    assert said("why-not", machine, "--store", store, "--decision", "web", "--which", "1").startswith(f"{machine}: ")


def test_a_request_that_was_declined_is_explained(store: Path) -> None:
    text = said("explain", "--store", store, "huge")
    assert text.startswith("Full-gen6 for huge (VM 9): 0/100 machines are available: ")
    assert "declined by agent-" in text
    assert json.loads(said("explain", "--store", store, "huge", "-o", "json"))["decision"]["outcome"] == "declined"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("explain", "nothing"), "key: 'nothing' was never decided, or is forgotten; use the key of a recent request"),
        (("explain", "go"), "key: 'go' placed nothing; only placements are explained"),
        (("why-not", "nowhere", "--decision", "web"), "machine: no machine is called 'nowhere'"),
        (("why-not", "c000-r00-m00", "--decision", "web", "--which", "9"), "vm: is 9; the request has VMs 0 to 1"),
        (("explain", "web", "--policy", "dense"), "policy: it was decided by default"),
    ],
)
def test_what_cannot_be_explained_is_refused(store: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in refusal(*arguments, "--store", store)


BROKEN_DUTY = """
from roost.cli.main import app
from roost.duties import table

class Broken:
    name, period = "broken", 0.0

    def step(self, now):
        raise RuntimeError("the duty is broken")

table.DUTIES.append(lambda runner: Broken())
app()
"""


def test_what_a_duty_fails_with_is_no_answer(first: Path, copy: Callable[[Path], Path]) -> None:
    """The log is on the error output; the other one has an answer a line, whatever happens."""
    command = [sys.executable, "-c", BROKEN_DUTY, "worker", str(copy(first))]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as worker:
        assert worker.stdin
        assert worker.stdout
        assert worker.stderr
        for line in worker.stderr:
            if "the duty is broken" in line:
                break
        worker.stdin.write('{"key": "k", "do": "release", "tenant": "nobody"}\n')
        worker.stdin.close()
        answers = [json.loads(line) for line in worker.stdout]
        worker.stderr.read()
    assert [answer["key"] for answer in answers] == ["k"]
