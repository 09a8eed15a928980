"""Two workers and a cluster that keeps machines empty: however they race, no new deployment takes what is kept.

It is judged by the feed alone, read as plain JSON: after each commit, so many machines are empty. Run a few times here,
and hundreds of times by `make test-deep`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial

import httpx
import pytest

from tests.e2e.racing import Call, Rivals, rivals
from tests.e2e.talking import Json, audit, eventually

CLUSTER, KEPT = "c1", 2
ROUNDS = pytest.mark.parametrize("rounds", [8, pytest.param(300, marks=pytest.mark.deep)])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rivals]:
    """Two workers on one database."""
    with rivals(tmp_path_factory.mktemp("thresholds")) as found:
        yield found
        audit(found.url)


@dataclass
class Watch:
    """Counts the empty machines of the cluster, entry by entry. All VMs here are of the highest priority."""

    machines: set[str] = field(default_factory=set)
    runs: dict[str, str] = field(default_factory=dict)  # VM: machine
    kept: int = 0
    lowest: int = 1_000  # empty machines after a new deployment, while some were kept
    wrong: list[str] = field(default_factory=list)

    @property
    def empty(self) -> int:
        """Machines on which nothing runs."""
        return len(self.machines - set(self.runs.values()))

    def tell(self, entry: Json) -> None:
        """What happened next."""
        before = self.empty
        for name, _, cluster, *_ in entry.get("added", ()):
            if cluster == CLUSTER:
                self.machines.add(name)
        for vm, *_ in entry.get("released", ()):
            del self.runs[vm]
        for vm, _, machine, *_ in entry.get("placed", ()):
            self.runs[vm] = machine
        for kind, name, _, after in entry.get("registered", ()):
            if (kind, name) == ("threshold", CLUSTER):
                self.kept = json.loads(after)["new"] if after else 0
        if self.kept and entry.get("placed") and not entry.get("before"):  # the first VMs of a tenant
            self.lowest = min(self.lowest, self.empty)
            if self.empty < min(self.kept, before):
                self.wrong.append(
                    f"{entry['key']} leaves {self.empty} of {before} empty machines, {self.kept} are kept"
                )


def watched(two: Rivals) -> Watch:
    """The whole feed."""
    watch = Watch()
    for entry in two.entries():
        watch.tell(entry)
    return watch


def create(worker: httpx.Client, tenant: str) -> Call:
    """Ask for a tenant with a VM that leaves no room for another on its machine."""
    body = {"tenant": tenant, "vms": [{"type": "D10", "cluster": CLUSTER}]}
    return partial(worker.post, "/v1/tenants", json=body)


@ROUNDS
def test_new_deployments_never_take_what_is_kept(two: Rivals, rounds: int) -> None:
    one, other = two.workers
    assert one.put(f"/v1/thresholds/{CLUSTER}", json={"new": KEPT}).is_success
    eventually(lambda: [each for each in other.get("/v1/thresholds").json()["items"] if each["new"] == KEPT])
    size = len(watched(two).machines)
    done, refused = 0, 0
    with two.promising() as kept:
        for number in kept.each(rounds):
            tenants = [f"race-{rounds}-{number}-{i}" for i in range(2 * size)]
            answers: list[httpx.Response] = []
            for a, b in zip(tenants[::2], tenants[1::2], strict=True):
                answers += two.at_once(create(one, a), create(other, b))
            codes = {answer.json().get("code", "") for answer in answers if not answer.is_success}
            told = [answer for answer in answers if answer.is_success]
            done, refused = done + len(told), refused + len(answers) - len(told)
            kept.hold("all that may be taken is taken", len(told) == size - KEPT, len(told), size)
            kept.hold("who comes too late is told why", codes == {"roost.threshold"}, codes)
            for answer in told:
                two.delete(one, answer.json()["tenant"])
    found = watched(two)
    assert found.wrong == []
    assert found.lowest == KEPT, "down to the last machine that is not kept"
    assert done
    assert refused
