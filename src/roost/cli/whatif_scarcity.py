"""`roost whatif stranding` and `weights`: which resources are short, and what they are worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import flat
from roost.cli.output import Form, Output, print_json, print_table, progress, say
from roost.cli.whatif_source import PolicyOption, Source
from roost.model.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roost.placing.allocator import Allocator
    from roost.rules.policy import Policy
    from roost.store.ledger import Ledger

SEEDS = 3  # orders in which tenants are placed anew


def _loaded(ledger: Ledger) -> tuple[Allocator, dict[int, int]]:
    """The zone's rows, and its own mix of VM types."""
    from roost.agent.replica import Replica
    from roost.rules.policy import Policy
    from roost.store.columns import ZoneColumns
    from roost.whatif.measures import type_mix

    allocator = Replica(ZoneColumns.of(ledger), Policy.default()).allocator
    return allocator, type_mix(allocator.zone, (vm.spec for vm in ledger.vms.values()))


@flat
def stranding(
    source: Source,
    worst: Annotated[int, typer.Option("--worst", help="Show so many of the most fragmented machines.", min=0)] = 10,
    output: Output = Form.TABLE,
) -> None:
    """Which resource runs out first on the machines in use, and what will be left of the others by then.

    By the zone's own mix of VM types. Stranded is what is left where none of them fits even now.

    \b
      roost whatif stranding
      roost whatif stranding --snapshot zone-now.json --worst 3
    """
    from roost.whatif.stranding import report_stranding

    allocator, mix = _loaded(source.ledger())
    found = report_stranding(allocator.zone, allocator.view.machines, mix, worst)
    if output is Form.JSON:
        print_json(found)
        return
    rows = []
    for name, share in found.beside.items():
        bound = found.bound_by.get(name, 0)
        rows.append((name, f"{found.stranded[name]:.1%}", f"{share:.1%}", bound))
    print_table(("resource", "stranded now", "left over in the end", "machines it runs out on"), rows)
    if found.worst:
        print_table(
            ("most fragmented", "runs out of", "left over of the others", "takes more"),
            (
                (m.machine, m.binding, ", ".join(f"{n} {s:.0%}" for n, s in m.beside.items()), not m.stranded)
                for m in found.worst
            ),
        )


@flat
def weights(
    source: Source,
    policy: PolicyOption = "",
    policy_to: Annotated[
        Path | None, typer.Option("--policy-to", help="Write the policy with these weights here.")
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Place the zone's tenants anew by both, and compare the density.")
    ] = False,
    output: Output = Form.TABLE,
) -> None:
    """What each resource is worth in this zone, as weights for the rule best_fit, beside those that the policy has.

    They are shadow prices: how many more VMs of the zone's own mix would fit, if there were more of it.

    \b
      roost whatif weights
      roost whatif weights --policy dense --policy-to priced.yaml --simulate
    """
    from roost.rules.policy import Policy
    from roost.whatif.prices import hand_set, shadow_prices, with_weights

    ledger = source.ledger()
    chosen, text, path = source.policy_text(ledger, policy)
    allocator, mix = _loaded(ledger)
    found, now = shadow_prices(allocator.zone, allocator.view.machines, mix), hand_set(text)
    priced = with_weights(text, found.weights, f"{chosen.name}-priced")
    if policy_to is not None:
        try:
            policy_to.write_text(priced)
        except OSError as error:
            raise InvalidInput(str(policy_to), f"cannot be written: {error.strerror}") from None
    tried = _tried(ledger, (chosen, Policy.parse(priced, path, source.own_rules()))) if simulate else {}
    if output is Form.JSON:
        print_json({"policy": chosen.name, "now": now, "prices": found, "density": tried})
        return
    print_table(
        ("resource", "weight now", "by its price"),
        ((each, now.get(each, 0.0), weight) for each, weight in found.weights.items()),
    )
    say(f"of the zone's own mix at most {found.more:,.0f} more VMs fit, whatever the policy")
    if policy_to is not None:
        say(f"policy: {policy_to}; use it with `roost policy put {policy_to}`")
    if tried:
        _show_tried(tried)


def _tried(ledger: Ledger, policies: tuple[Policy, Policy]) -> dict[str, list[float]]:
    """The density after placing all tenants anew by each policy, in several orders."""
    from roost.whatif.scenario import repack

    found: dict[str, list[float]] = {}
    with progress("placing anew") as show:
        for place, each in enumerate(policies):
            for seed in range(1, SEEDS + 1):
                show(f"{each.name}, order {seed}", (place * SEEDS + seed - 1) / (2 * SEEDS))
                found.setdefault(each.name, []).append(repack(ledger, each, seed).measures.density)
    return found


def _show_tried(tried: Mapping[str, list[float]]) -> None:
    from roost.sim.statistics import compare, estimate

    by_seed = [dict(enumerate(values)) for values in tried.values()]
    rows = []
    for name, values in tried.items():
        found = estimate([100 * value for value in values])
        rows.append((name, f"{found.mean:.2f} ± {found.margin or 0.0:.2f} %"))
    print_table(("all tenants placed anew by", "packing density"), rows)
    difference = compare(by_seed[0], by_seed[1], "higher")
    assert difference is not None
    change = difference.difference
    points = f"{100 * change.mean:+.2f} ± {100 * (change.margin or 0.0):.2f} points"
    say(f"by prices: {points}, {difference.verdict}")
