"""Two workers are asked for what excludes each other: whatever a client was told, holds.

Each race is run a few times here, and hundreds of times by `make test-deep`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.e2e.racing import READY, Call, Rivals, rivals
from tests.e2e.talking import audit, eventually

FULL = 8  # VMs of type D8 fill the machines of the tiny zone that run them
LOW: dict[str, Any] = {"priority": "spot", "requeue": True}
ROUNDS = pytest.mark.parametrize("rounds", [6, pytest.param(300, marks=pytest.mark.deep)])


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rivals]:
    """Two workers on one database, for all races."""
    with rivals(tmp_path_factory.mktemp("races")) as found:
        yield found
        audit(found.url)


def create(worker: httpx.Client, tenant: str, *names: str) -> Call:
    """Ask for a tenant with some VMs."""
    vms = [{"type": "D2", "name": name} for name in names]
    return partial(worker.post, "/v1/tenants", json={"tenant": tenant, "vms": vms})


def fill(worker: httpx.Client, tenant: str, count: int = FULL, **more: Any) -> Call:
    """Ask for a tenant with large VMs."""
    body = {"tenant": tenant, "vms": [{"type": "D8", "count": count, **more}]}
    return partial(worker.post, "/v1/tenants", json=body)


def grow(worker: httpx.Client, tenant: str, name: str, generation: int | None = None) -> Call:
    """Ask for another VM of a tenant, if it is at a generation."""
    headers = {} if generation is None else {"If-Match": f'"{generation}"'}
    body = {"vms": [{"type": "D2", "name": name}]}
    return partial(worker.post, f"/v1/tenants/{tenant}/vms", json=body, headers=headers)


def made(answer: httpx.Response) -> int:
    """The generation of a tenant that was created, or has grown."""
    assert answer.status_code == 201, answer.text
    return int(answer.json()["generation"])


def code(answer: httpx.Response) -> str:
    """What a problem is called."""
    return "" if answer.is_success else str(answer.json()["code"])


def names(answers: list[httpx.Response]) -> set[str]:
    """The VMs that clients were told run now."""
    return {vm["vm"] for answer in answers if answer.status_code == 201 for vm in answer.json()["vms"]}


@ROUNDS
@pytest.mark.parametrize("together", [True, False], ids=["at once", "one after the other"])
def test_of_two_that_create_a_tenant_one_is_told_that_it_exists(two: Rivals, rounds: int, together: bool) -> None:
    with two.promising() as kept:
        for number in kept.each(rounds):
            tenant = f"new-{rounds}-{together}-{number}"
            one, other = two.pair(number)
            calls = create(one, tenant, "a"), create(other, tenant, "b")
            answers = two.at_once(*calls) if together else [call() for call in calls]
            done = [answer for answer in answers if answer.status_code == 201]
            told = [code(answer) for answer in answers if answer.status_code != 201]
            kept.hold("a tenant is created once", len(done) == 1, *answers)
            kept.hold("whoever comes second hears that it exists", told == ["roost.conflict"], *answers)
            kept.hold("it has the VMs that were asked for", set(two.vms(tenant)) == names(answers), *answers)
            if len(done) == 1:
                kept.hold("it is at the generation that was told", two.stamp(tenant) == made(done[0]), *answers)
            two.delete(one, tenant)


@ROUNDS
@pytest.mark.parametrize("together", [True, False], ids=["at once", "one after the other"])
def test_of_two_that_let_the_same_generation_of_a_tenant_grow_one_is_told_that_it_is_outdated(
    two: Rivals, rounds: int, together: bool
) -> None:
    with two.promising() as kept:
        for number in kept.each(rounds):
            tenant = f"grows-{rounds}-{together}-{number}"
            one, other = two.pair(number)
            seen = made(create(one, tenant, "a")())
            calls = grow(one, tenant, "b", seen), grow(other, tenant, "c", seen)
            answers = two.at_once(*calls) if together else [call() for call in calls]
            done = [answer for answer in answers if answer.status_code == 201]
            told = [code(answer) for answer in answers if answer.status_code != 201]
            kept.hold("a generation grows once", len(done) == 1, *answers)
            kept.hold("whoever comes second hears that it is outdated", told == ["roost.outdated"], *answers)
            kept.hold(
                "it has the VMs that were asked for", set(two.vms(tenant)) == {f"{tenant}/a"} | names(answers), *answers
            )
            if len(done) == 1:
                kept.hold("it is at the generation that was told", two.stamp(tenant) == made(done[0]), *answers)
            two.delete(one, tenant)


@ROUNDS
def test_a_generation_that_one_worker_has_made_is_known_to_the_other(two: Rivals, rounds: int) -> None:
    with two.promising() as kept:
        for number in kept.each(rounds):
            tenant = f"known-{rounds}-{number}"
            one, other = two.pair(number)
            first = grow(other, tenant, "b", made(create(one, tenant, "a")()))()
            kept.hold("what was just made is there", first.status_code == 201, first)
            second = grow(one, tenant, "c", int(first.json().get("generation", 0)))()
            kept.hold("what was just made is there", second.status_code == 201, second)
            gone = two.delete(other, tenant)
            kept.hold(
                "it is deleted, with all that was just made", (gone.status_code, two.vms(tenant)) == (200, {}), gone
            )


@ROUNDS
def test_a_tenant_that_was_deleted_does_not_grow(two: Rivals, rounds: int) -> None:
    with two.promising() as kept:
        for number in kept.each(rounds):
            tenant = f"deleted-{rounds}-{number}"
            one, other = two.pair(number)
            made(create(one, tenant, "a")())
            gone, grown = two.delete(one, tenant), grow(other, tenant, "b")()
            kept.hold("a tenant that is there is deleted", gone.status_code == 200, gone)
            kept.hold("a tenant that was deleted is not found", code(grown) == "roost.not_found", grown)
            kept.hold("a tenant that was deleted has no VMs", not two.vms(tenant), two.vms(tenant))


@ROUNDS
def test_a_tenant_that_is_deleted_while_it_grows_is_gone(two: Rivals, rounds: int) -> None:
    with two.promising() as kept:
        for number in kept.each(rounds):
            tenant = f"torn-{rounds}-{number}"
            one, other = two.pair(number)
            made(create(one, tenant, "a")())
            gone, grown = two.at_once(partial(two.delete, one, tenant), grow(other, tenant, "b"))
            kept.hold("a tenant that is there is deleted", gone.status_code == 200, gone, grown)
            kept.hold("it grew before, or is not found", code(grown) in ("", "roost.not_found"), gone, grown)
            kept.hold("a tenant that was deleted has no VMs", not two.vms(tenant), two.vms(tenant), gone, grown)


@ROUNDS
def test_a_tenant_that_is_deleted_while_it_gives_way_is_gone(two: Rivals, rounds: int) -> None:
    """What gave way waits no longer, whoever was about to place it again."""
    with two.promising() as kept:
        for number in kept.each(rounds):
            spot, urgent = f"spot-{rounds}-{number}", f"urgent-{rounds}-{number}"
            one, other = two.pair(number)
            made(fill(one, spot, **LOW)())
            here = one if number % 3 else other
            gone, placed = two.at_once(partial(two.delete, here, spot), fill(other, urgent, 2))
            kept.hold("a tenant that is there is deleted", gone.status_code == 200, gone, placed)
            kept.hold("what is urgent has room", placed.status_code == 201, gone, placed)
            two.delete(one, urgent)  # there is room again for whatever waits
            left = {**two.vms(spot), **dict.fromkeys(two.waiting(spot), "waits")}
            kept.hold("of a tenant that was deleted nothing runs or waits", not left, left, gone, placed)
            again = other.delete(f"/v1/tenants/{spot}")
            kept.hold("a tenant of which nothing is left is not found", code(again) == "roost.not_found", again)


@ROUNDS
def test_a_tenant_of_which_everything_waits_is_deleted(two: Rivals, rounds: int) -> None:
    with two.promising() as kept:
        for number in kept.each(rounds):
            spot, urgent = f"low-{rounds}-{number}", f"high-{rounds}-{number}"
            one, other = two.pair(number)
            made(fill(one, spot, **LOW)())
            made(fill(other, urgent)())
            gone = two.delete(one, spot)
            kept.hold("a tenant of which all waits is deleted", gone.status_code == 200, gone)
            two.delete(other, urgent)  # there is room again for whatever waits
            again = one.delete(f"/v1/tenants/{spot}")
            kept.hold("a tenant of which nothing is left is not found", code(again) == "roost.not_found", again)
            left = {**two.vms(spot), **dict.fromkeys(two.waiting(spot), "waits")}
            kept.hold("of a tenant that was deleted nothing runs or waits", not left, left)


@ROUNDS
def test_vms_of_a_machine_that_comes_back_while_they_are_healed_run_once(two: Rivals, rounds: int) -> None:
    """Each on a machine that is ready: where it was, or where it was healed to."""
    tenant = f"lost-{rounds}"
    with two.promising() as kept:
        made(create(two.workers[0], tenant, *"abcdef")())
        for number in kept.each(rounds):
            one, other = two.pair(number)
            before = two.vms(tenant)
            machine = max(before.values(), key=list(before.values()).count)
            down = one.patch(f"/v1/machines/{machine}", json={"state": "down"})
            for _ in range(number % 8):  # so that it comes back before, during and after
                other.get("/healthz")
            ready = other.patch(f"/v1/machines/{machine}", json={"state": "ready"})
            kept.hold("a machine fails and comes back", down.is_success and ready.is_success, down, ready)
            after = two.vms(tenant)
            kept.hold("every VM runs", after.keys() == before.keys(), before, after)
            kept.hold("on a machine that is ready", {two.states()[each] for each in after.values()} == {READY}, after)
            eventually(lambda: all(not each.get("/v1/healing").json()["items"] for each in two.workers))
        two.delete(two.workers[0], tenant)
