"""What a tenant asks for holds, or is refused, or is told of: over HTTP and on the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.serving import ROOST, serving
from tests.e2e.talking import problem, tidy_client

# A cluster of three racks, and one of a single machine.
ZONE = """
name: duo
generations: {v1: {cores: 16, memory: 64}}
vm_types:
  D2: {demand: {cores: 2, memory: 4}, on: [v1]}
clusters:
  - {name: c1, generation: v1, racks: 3, machines_per_rack: 2, update_domains: 6}
  - {name: c2, generation: v1, racks: 1, machines_per_rack: 1}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service, for all tests, where nobody needs a token."""
    folder = tmp_path_factory.mktemp("wishes")
    (folder / "duo.yaml").write_text(ZONE)
    zone = ("--zone", str(folder / "duo.yaml"))
    with serving(str(folder / "duo.db"), *zone, "--policy", "fast") as service:
        yield service.url


@pytest.fixture
def http(url: str) -> Iterator[httpx.Client]:
    """A client, and no tenants afterwards."""
    with tidy_client(url) as client:
        yield client


def clusters(http: httpx.Client, tenant: str) -> set[str]:
    """The clusters that a tenant's VMs are in, by the names of their machines."""
    return {vm["machine"].partition("-")[0] for vm in http.get(f"/v1/tenants/{tenant}").json()["vms"]}


def test_what_would_promise_nothing_is_invalid(http: httpx.Client) -> None:
    sets = {"db": {"fault_domains": 3}, "web": {"update_domains": 6}}
    idle = {"tenant": "idle", "vms": [{"type": "D2", "set": "web"}], "constraints": {"sets": sets}}
    found = problem(http.post("/v1/tenants", json=idle), "roost.invalid_request")
    assert (found.field, "no VM of the request is in it" in found.detail) == ("constraints.sets.db", True)
    wish = {"tenant": "five", "vms": [{"type": "D2", "count": 3}], "constraints": {"min_fault_domains": 5}}
    found = problem(http.post("/v1/tenants", json=wish), "roost.invalid_request")
    assert found.field == "constraints.min_fault_domains"
    assert "is 5, for 3 VMs; ask for at most 3, or for more VMs" in found.detail
    (result,) = http.post("/v1/batch", json={"requests": [wish]}).json()["results"]
    assert result["problem"]["field"] == "constraints.min_fault_domains"


def test_an_answer_tells_how_vms_lie_the_first_time_and_again(http: httpx.Client) -> None:
    wish = {"tenant": "six", "vms": [{"type": "D2", "count": 6}], "constraints": {"min_fault_domains": 3}}
    first, again = (http.post("/v1/tenants", json=wish, headers={"Idempotency-Key": "six"}).json() for _ in range(2))
    machines = [vm["machine"] for vm in first["vms"]]
    (spread,) = first["spread"]
    assert (spread["vms"], spread["fault_domains"]) == (6, 3)
    assert spread["most_on_machine"] == max(machines.count(machine) for machine in machines)
    assert again["replayed"]
    assert again["spread"] == first["spread"]


def test_a_tenant_grows_in_the_cluster_it_was_created_in_unless_it_is_told_otherwise(
    http: httpx.Client, url: str
) -> None:
    def roost(*arguments: str) -> str:
        line = [ROOST, "tenant", *arguments, "--url", url]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout + done.stderr

    roost("create", "here", "--vm", "D2=2", "--cluster", "c2")
    assert "constraints  cluster c2" in roost("show", "here")
    for _ in range(3):
        assert "here has generation" in roost("scale-out", "here", "--vm", "D2=2")
    assert clusters(http, "here") == {"c2"}
    assert "take any cluster, not only c2" in roost("scale-out", "here", "--vm", "D2")
    assert "here has generation" in roost("scale-out", "here", "--vm", "D2", "--cluster", "*")
    assert clusters(http, "here") == {"c1", "c2"}
