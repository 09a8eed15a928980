"""`roost why-not`: why one machine does not get a VM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.explain import TENANT, PolicyOption, Tenant, decision_of, find_given, recalled
from roost.cli.options import ConstraintOptions, Rules, ServiceOptions, StoreOption, VMs, Which, flat
from roost.cli.output import Form, Output, print_json, say
from roost.model.request import UNCONSTRAINED

if TYPE_CHECKING:
    from roost.engine.explain import WhyNot
    from roost.wire.decisions import WhyNotView


@flat
def why_not(
    machine: Annotated[str, typer.Argument(help="The machine.", metavar="MACHINE")],
    vms: VMs,
    constraints: ConstraintOptions,
    service: ServiceOptions,
    decision: Annotated[
        str,
        typer.Option(
            "--decision", help="The key of a past request, in quotes if it has a space, or a VM's name.", metavar="KEY"
        ),
    ] = "",
    tenant: Tenant = TENANT,
    which: Which = None,
    store: StoreOption = None,
    policy: PolicyOption = "",
    rules: Rules = None,
    output: Output = Form.TABLE,
) -> None:
    """Why a machine would not get a VM now, or did not: the rule that refuses it, or the preference by which it loses.

    \b
      roost why-not c000-r00-m00 --vm D2
      roost why-not c000-r00-m00 --decision 6605c956f5d04bcf13cc68f25 --which 1
      roost why-not c000-r00-m00 --store zone.db --decision k1
    """
    wishes = vms.wishes()
    if bool(decision) == bool(wishes):
        raise typer.BadParameter("give --vm, or --decision for a past request", param_hint="--vm")
    if store is not None:
        if wishes:
            raise typer.BadParameter("explains past requests only; for --vm ask a service", param_hint="--store")
        past, _, which = recalled(store, decision, find_given(policy, rules), which)
        _show(past.why_not(machine, which), output)
        return
    with service.open() as client:
        if wishes:
            wanted = constraints.chosen()
            found = client.why_not(machine, tenant, wishes, wanted if wanted != UNCONSTRAINED else None, vm=which)
        else:
            key, which = decision_of(client, decision, which)
            found = client.why_not_decision(key, machine, vm=which)
    _show(found, output)


def _show(found: WhyNot | WhyNotView, output: Form) -> None:
    if output is Form.JSON:
        print_json(found)
    else:
        say(f"{found.machine}: {found.reason}")
