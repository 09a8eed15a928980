"""`roost explain`: why a request was decided as it was, or would be now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import ConstraintOptions, Rules, ServiceOptions, StoreOption, VMs, Which, flat, own_rules
from roost.cli.output import Form, Output, print_json, say
from roost.model.errors import InvalidInput
from roost.model.request import UNCONSTRAINED

if TYPE_CHECKING:
    from roost.client import Client
    from roost.placing.decision import Decision
    from roost.rules.policy import Policy
    from roost.store.contract import Decided

TENANT = "somebody"  # who asks, if nobody is named
Tenant = Annotated[str, typer.Option("--tenant", help="Whose VMs; one that exists brings its VMs and constraints.")]
PolicyOption = Annotated[
    str, typer.Option("--policy", help="With --store: the policy it was decided by, if Roost does not come with it.")
]


@flat
def explain(
    vms: VMs,
    constraints: ConstraintOptions,
    service: ServiceOptions,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            help="The key of a past request, or a VM's name: TENANT/NAME. That of a healing has two words.",
            metavar="KEY",
        ),
    ] = None,
    tenant: Tenant = TENANT,
    which: Which = None,
    store: StoreOption = None,
    policy: PolicyOption = "",
    rules: Rules = None,
    output: Output = Form.TABLE,
) -> None:
    """Why a request was placed as it was, or not at all; or how it would be decided now.

    A past decision is explained on the zone as the agent saw it. With --store this needs no service.

    \b
      roost explain web/1
      roost explain 6605c956f5d04bcf13cc68f25
      roost explain heal fd3e61d7a24b4a0e9e7f6c1b2d8a9054
      roost explain --vm D2=3 --tenant web --min-fault-domains 3
      roost explain --store zone.db k1
    """
    key, wishes = " ".join(words or ()), vms.wishes()
    if bool(key) == bool(wishes):
        raise typer.BadParameter("give the key of a past request, or --vm for one that might come", param_hint="KEY")
    if store is not None:
        if wishes:
            raise typer.BadParameter("explains past requests only; for --vm ask a service", param_hint="--store")
        explain_offline(store, key, find_given(policy, rules), which, output)
        return
    with service.open() as client:
        if wishes:
            wanted = constraints.chosen()
            found = client.explain(tenant, wishes, wanted if wanted != UNCONSTRAINED else None, vm=which)
        else:
            key, which = decision_of(client, key, which)
            found = client.explain_decision(key, vm=which)
    if output is Form.JSON:
        print_json(found)
    else:
        say(found.text)


def find_given(policy: str, rules: str | None) -> Policy | None:
    """The policy that somebody names, if one is named."""
    from roost.wiring import find_policy

    return find_policy(policy, own_rules(rules)) if policy else None


def decision_of(client: Client, key: str, which: int | None) -> tuple[str, int | None]:
    """The key of a decision, and which of its VMs is meant; a VM stands for the decision that put it where it is."""
    if "/" not in key:  # no key has a slash
        return key, which
    found = client.get_vm(key)
    if not found.decision:
        raise InvalidInput(key, "was placed long ago: its decision is forgotten", "ask with --vm how it would be now")
    return found.decision, found.which if which is None else which


def explain_offline(store: str, key: str, policy: Policy | None, which: int | None, output: Form) -> None:
    """The decision on a key, from a store alone."""
    decision, decided, which = recalled(store, key, policy, which)
    found = decision.explain(which)
    if output is Form.JSON:
        print_json({"decision": decided, "explanation": found})
        return
    say(str(found))
    record = decided.record
    by = f"{record.agent or 'nobody'}, round {record.round}, policy {record.policy}"
    cost = f"waited {record.waited_us:,} µs, decided in {record.decided_us:,} µs"
    say(f"{decided.outcome} by {by}; {record.retries} retries, {cost}")


def recalled(store: str, key: str, given: Policy | None, which: int | None) -> tuple[Decision, Decided, int | None]:
    """A past decision, as a store has it, and which of its VMs is meant."""
    from roost.agent.past import recall
    from roost.api.origin import origin_of
    from roost.wiring import open_store, recorded_policy

    opened = open_store(store, read_only=True)
    try:
        if "/" in key and (row := opened.vm(key)) is not None:
            origin = origin_of(opened, key, row)
            key, which = origin.key, origin.which if which is None else which
        decision = recall(opened, key, lambda recorded: recorded_policy(recorded, given))
        decided = opened.decided(key)
    finally:
        opened.close()
    assert decided is not None
    return decision, decided, which
