"""`roost decisions`: what was decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roost.cli.options import Paging, ServiceOptions, flat
from roost.cli.output import Form, Output, print_json, print_table, when

if TYPE_CHECKING:
    from roost.wire.decisions import DecisionView


@flat
def decisions(paging: Paging, service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """What was decided, latest first: every write, and every request that found no room.

    JSON has more: the whole request, where its VMs went, the policy, the agent, and how long it took.

    \b
      roost decisions --limit 10
      roost explain KEY                why one of them was decided so
    """
    with service.open() as client:
        found = paging.of(client.decisions(limit=paging.page))
    if output is Form.JSON:
        print_json(found)
        return
    print_table(
        ("key", "when", "outcome", "by", "what", "retries"),
        ((d.key, when(d.at), d.outcome, d.by, _what(d), d.retries) for d in found),
    )


def _what(decision: DecisionView) -> str:
    """The operation in a few words."""
    what = decision.what
    kind = str(what.get("do", "")).replace("_", " ")
    if isinstance(request := what.get("request"), dict):
        return f"{kind} {len(request.get('vms', ()))} VMs of {request.get('tenant', '')}"
    if kind == "move":
        return f"{kind} {what['vm']} to {what['machine']}, {what.get('step', 'whole')}"
    named = (str(what[name]) for name in ("tenant", "machine", "cluster", "kind", "name") if what.get(name))
    return " ".join((kind, *named))
