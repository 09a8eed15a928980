"""Words from within, as a token bound to a namespace reads them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from roost.agent.operation import Answer
from roost.api.gate import Asking
from roost.api.problems import Refused, of_answer, of_error
from roost.api.tokens import Principal
from roost.model.errors import InvalidInput, Outdated, UnknownName
from roost.wire.problems import RemedyView

TENANTS = {"shop", "shop.eu", "a", "lead", "lead.eu"}
MACHINES = {"c1-r00-m00": 0, "ada": 1}


def asking(namespace: str, body: bytes = b"") -> Asking:
    """Somebody who asks."""
    zone = SimpleNamespace(machine_index=MACHINES)
    service: Any = SimpleNamespace(
        ready=True, agent=SimpleNamespace(allocator=SimpleNamespace(tenants=TENANTS, zone=zone))
    )
    return Asking(service, Principal("ci", frozenset({"read"}), namespace), "id", said=("/v1/tenants", b"", body))


def _lost(detail: str) -> Refused:
    return of_answer(Answer(key="k", status="conflicts", detail=detail))


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (_lost("VM lead/7 no longer runs on c1-r00-m00 (20 retries)"), "Others were faster too often"),
        (_lost("tenant gone has other VMs by now, which go together"), "Others were faster too often"),
        (of_error(UnknownName("tenant", "tenant with VMs", "shop.e", TENANTS)), "there is no such tenant"),
        (of_error(UnknownName("machine", "machine", "c1", MACHINES)), "there is no such machine"),
        (
            of_error(InvalidInput("victims", "VM lead/0 is not of lower priority")),
            "victims: There is a mistake in the request",
        ),
        (of_error(InvalidInput("what comes next", "anything")), "what comes next: There is a mistake in the request"),
        (of_error(Outdated("vms", "tenant lead runs no VM x")), "vms: Somebody changed it meanwhile"),
        (Refused("roost.conflict", "it is on c1-r00-m00"), "It contradicts what there is"),
        (Refused("roost.conflict", "it is on ada"), "It contradicts what there is"),
        (Refused("roost.conflict", "room is held for gone/x~hold"), "It contradicts what there is"),
    ],
)
def test_what_names_others_is_replaced_by_what_is_the_same_for_all(refused: Refused, told: str) -> None:
    assert refused.problem(asking("shop")).detail == told
    assert refused.problem(asking("")).detail == refused.detail


@pytest.mark.parametrize(
    "refused",
    [
        of_error(UnknownName("request.vms[0].type", "VM type", "D3", ["D2", "D8"])),
        of_error(Outdated("generation", "tenant shop.eu is at generation 7, not 3", "look again, then decide")),
        of_error(UnknownName("vms[0]", "VM of tenant shop", "shop/7", ["shop/0", "shop/1"])),
        of_error(InvalidInput("request.vms[0].name", "'shop/db' is taken", "choose another name, or none")),
        Refused("roost.unsupported_media_type", "send Content-Type: application/json"),
        Refused("roost.conflict", "a request of a tenant finds no room on machines: 0/1,000 would do"),
        Refused("roost.not_found", "there is no VM lead/0"),
    ],
)
def test_what_is_about_the_askers_own_words_is_told_in_full(refused: Refused) -> None:
    assert refused.problem(asking("shop", b'{"vms": ["lead/0"]}')).detail == refused.detail


def test_what_would_have_to_be_freed_is_told_to_those_whose_it_is() -> None:
    own = RemedyView(kind="free", text="free shop/0 (D2) on c1-r00-m00", vms=("shop/0",), machine="c1-r00-m00")
    others = RemedyView(kind="free", text="free lead/0 (D2) on c1-r00-m00", vms=("lead/0",), machine="c1-r00-m00")
    refused = Refused("roost.no_capacity", "no machine for VM 0 of the request", remedies=[own, others])
    assert refused.problem(asking("shop")).remedies == [own]
    assert refused.problem(asking("")).remedies == [own, others]
