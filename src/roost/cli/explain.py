"""`roost explain`: why a past request was decided as it was."""

from __future__ import annotations

from typing import Annotated

import typer

from roost.cli.output import STORE, console, print_json


def explain(
    store: Annotated[str, typer.Argument(help=STORE)],
    key: Annotated[str, typer.Argument(help="The key of the request.")],
    why_not: Annotated[str, typer.Option(help="Explain instead why this machine did not get it.")] = "",
    vm: Annotated[int | None, typer.Option(help="Which VM of the request, from 0 (with --why-not).", min=0)] = None,
    policy: Annotated[str, typer.Option(help="The policy it was decided by, if it does not come with Roost.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of text.")] = False,
) -> None:
    """Rebuild the zone as the agent saw it when it decided a request, and explain the decision.

    \b
      roost explain zone.db k1
      roost explain zone.db k1 --why-not c000-r00-m00
    """
    from roost.agent.past import recall
    from roost.wiring import find_policy, open_store, recorded_policy

    given = find_policy(policy) if policy else None
    opened = open_store(store, read_only=True)
    try:
        decision = recall(opened, key, lambda recorded: recorded_policy(recorded, given))
        decided = opened.decided(key)
    finally:
        opened.close()
    found = decision.why_not(why_not, vm) if why_not else decision.explanation
    if json:
        print_json({"decision": decided, "why_not" if why_not else "explanation": found})
        return
    console().print(str(found), markup=False, highlight=False, soft_wrap=True)
    assert decided is not None
    record = decided.record
    by = f"{record.agent or 'nobody'}, round {record.round}, policy {record.policy}"
    cost = f"waited {record.waited_us:,} µs, decided in {record.decided_us:,} µs"
    console().print(f"{decided.outcome} by {by}; {record.retries} retries, {cost}", markup=False, highlight=False)
