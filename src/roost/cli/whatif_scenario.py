"""`roost whatif lose`, `add-racks`, `remove-rack`, `mix`, `more`, `policy`: changes tried on a copy of the zone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import flat
from roost.cli.output import Form, Output, advise, errors, print_json, print_table, progress, say
from roost.cli.whatif_source import PolicyOption, Source
from roost.model.errors import InvalidInput

if TYPE_CHECKING:
    from roost.whatif.scenario import Effect, Repacked
    from roost.whatif.trial_zone import ZoneState

SHOWN = 10  # VMs without a machine
Racks = Annotated[int, typer.Option("--racks", help="How many.", min=1)]


@flat
def lose(
    source: Source,
    policy: PolicyOption = "",
    rack: Annotated[str, typer.Option("--rack", help="This rack.")] = "",
    cluster: Annotated[str, typer.Option("--cluster", help="This cluster.")] = "",
    generation: Annotated[str, typer.Option("--generation", help="All machines of this generation.")] = "",
    share: Annotated[float, typer.Option("--share", help="This share of the machines, drawn: 0.03.", min=0, max=1)] = 0,
    seed: Annotated[int, typer.Option("--seed", help="Of the draw.", min=0)] = 1,
    output: Output = Form.TABLE,
) -> None:
    """Machines fail all at once: which VMs find another machine, which do not, whose fault domains break.

    VMs of the highest priority are healed first.

    \b
      roost whatif lose --rack c000-r01
      roost whatif lose --share 0.03 --snapshot zone-now.json
      roost whatif lose --generation gen4 -o json
    """
    from roost.whatif.scenario import lose as answer
    from roost.whatif.scenario import machines_where, share_of_machines

    given = {name: value for name, value in (("rack", rack), ("cluster", cluster), ("generation", generation)) if value}
    if len(given) + bool(share) != 1:
        raise InvalidInput(
            "lose", "names nothing, or several things", "give --rack, --cluster, --generation or --share"
        )
    ledger = source.ledger()
    if share:
        machines, what = share_of_machines(ledger, share, seed), f"{share:.3g} of the machines"
    else:
        machines, what = machines_where(ledger, **given), " ".join(*given.items())
    chosen = source.policy(ledger, policy)
    with errors().status("Trying it out"):
        found = answer(ledger, chosen, machines, what)
    _show(found, output)


@flat
def remove_rack(
    racks: Annotated[list[str], typer.Argument(help="The racks.", metavar="RACK…")],
    source: Source,
    policy: PolicyOption = "",
    output: Output = Form.TABLE,
) -> None:
    """Racks are taken out of the zone: where their VMs would go, and which have nowhere to go.

    \b
      roost whatif remove-rack c000-r01 c000-r02
    """
    from roost.whatif.scenario import machines_where, remove

    ledger = source.ledger()
    machines = [machine for rack in dict.fromkeys(racks) for machine in machines_where(ledger, rack=rack)]
    chosen = source.policy(ledger, policy)
    with errors().status("Trying it out"):
        found = remove(ledger, chosen, machines, ", ".join(dict.fromkeys(racks)))
    _show(found, output)


@flat
def add_racks(
    source: Source,
    like: Annotated[str, typer.Option("--like", help="The cluster that gets them, like those it has.")],
    racks: Racks = 1,
    policy: PolicyOption = "",
    output: Output = Form.TABLE,
) -> None:
    """A cluster gets more racks, like those that it has: what more would fit.

    \b
      roost whatif add-racks --like c000 --racks 2
    """
    from roost.whatif.scenario import add_racks as answer

    ledger = source.ledger()
    chosen = source.policy(ledger, policy)
    with errors().status("Trying it out"):
        found = answer(ledger, chosen, like, racks)
    _show(found, output)


@flat
def mix(
    source: Source,
    cluster: Annotated[str, typer.Option("--cluster", help="Its last racks give way.")],
    generation: Annotated[str, typer.Option("--generation", help="What they are replaced by.")],
    racks: Racks = 1,
    policy: PolicyOption = "",
    output: Output = Form.TABLE,
) -> None:
    """Racks of a cluster are replaced by as many machines of another generation, in a cluster beside it.

    \b
      roost whatif mix --cluster c000 --racks 2 --generation gen6
    """
    from roost.whatif.scenario import replace_racks

    ledger = source.ledger()
    chosen = source.policy(ledger, policy)
    with errors().status("Trying it out"):
        found = replace_racks(ledger, chosen, cluster, racks, generation)
    _show(found, output)


@flat
def more(
    vm_type: Annotated[str, typer.Argument(help="The VM type.", metavar="TYPE")],
    source: Source,
    number: Annotated[
        int | None, typer.Argument(help="How many; else as many as fit.", metavar="[N]", min=1, show_default=False)
    ] = None,
    policy: PolicyOption = "",
    priority: Annotated[str, typer.Option("--priority", help="Of this priority band.")] = "",
    output: Output = Form.TABLE,
) -> None:
    """More VMs of a type, each of a new tenant: how many fit, one after another, and what stops the next one.

    \b
      roost whatif more D4 500
      roost whatif more D4
    """
    from roost.whatif.scenario import more as answer

    ledger = source.ledger()
    chosen = source.policy(ledger, policy)
    with errors().status("Trying it out"):
        found = answer(ledger, chosen, vm_type, number, priority)
    if output is Form.JSON:
        print_json(found)
        return
    say(found.answer)
    _compare(found.before, found.after)


@flat
def policy(
    policies: Annotated[list[str], typer.Argument(help="By name or file.", metavar="POLICY…")],
    source: Source,
    seeds: Annotated[int, typer.Option("--seeds", help="Orders to place the tenants in.", min=1, max=100)] = 3,
    output: Output = Form.TABLE,
) -> None:
    """All tenants are placed anew by each policy, in several orders: how dense it gets, and who finds no room.

    \b
      roost whatif policy default dense
      roost whatif policy default mine.yaml --seeds 5
    """
    from roost.agent.replica import Replica
    from roost.store.columns import ZoneColumns
    from roost.whatif.measures import measure, type_mix
    from roost.whatif.scenario import repack

    ledger = source.ledger()
    chosen = [source.named_policy(ledger, name) for name in dict.fromkeys(policies)]
    for place, each in enumerate(chosen):
        if any(each.name == other.name for other in chosen[:place]):
            raise InvalidInput("policy", f"two are called {each.name}", "give one of them another name in its file")
    found: list[Repacked] = []
    with progress("placing anew") as show:
        for place, each in enumerate(chosen):
            for seed in range(1, seeds + 1):
                show(f"{each.name}, order {seed}", (place * seeds + seed - 1) / (len(chosen) * seeds))
                found.append(repack(ledger, each, seed))
    allocator = Replica(ZoneColumns.of(ledger), chosen[0]).allocator
    now = measure(allocator, type_mix(allocator.zone, (vm.spec for vm in ledger.vms.values())))
    if output is Form.JSON:
        print_json({"now": now, "anew": found})
        return
    rows = [("as it is now", f"{now.density:.2%}", f"{now.machines_in_use:,}", "")]
    for each in chosen:
        runs = [run for run in found if run.policy == each.name]
        density, in_use, refused = (
            [100 * run.measures.density for run in runs],
            [float(run.measures.machines_in_use) for run in runs],
            [float(run.refused) for run in runs],
        )
        rows.append((each.name, f"{_interval(density, 2)} %", _interval(in_use, 0), _interval(refused, 0)))
    print_table(("policy", "packing density", "machines in use", "VMs without room"), rows)


def _interval(values: list[float], digits: int) -> str:
    from roost.sim.statistics import estimate

    found = estimate(values)
    margin = f" ± {found.margin:,.{digits}f}" if found.margin else ""
    return f"{found.mean:,.{digits}f}{margin}"


# ------------------------------------------------------------------------------------------------------------ showing


def _show(effect: Effect, output: Form) -> None:
    if output is Form.JSON:
        print_json(effect)
        return
    say(f"{effect.question}: {effect.answer}")
    _compare(effect.before, effect.after)
    if effect.homeless:
        rows = ((vm.vm, vm.type, vm.priority, vm.why) for vm in effect.homeless[:SHOWN])
        print_table(("no machine for", "type", "priority", "why"), rows)
    if (left := len(effect.homeless) - SHOWN) > 0:
        advise(f"… and {left:,} more: see them with -o json")
    if effect.unspread:
        shown = ", ".join(effect.unspread[:SHOWN])
        say(f"in fewer fault domains than they ask for: {shown}{' …' if len(effect.unspread) > SHOWN else ''}")


def _compare(before: ZoneState, after: ZoneState) -> None:
    rows: list[tuple[str, str, str]] = []
    for name in ("utilisation", "density"):
        rows.append((name, f"{getattr(before, name):.2%}", f"{getattr(after, name):.2%}"))
    for name in ("machines", "machines_down", "machines_in_use", "empty_machines", "vms"):
        if name == "machines_down" and not (before.machines_down or after.machines_down):
            continue
        rows.append((name.replace("_", " "), f"{getattr(before, name):,}", f"{getattr(after, name):,}"))
    for name, share in before.stranded.items():
        rows.append((f"stranded {name}", f"{share:.2%}", f"{after.stranded[name]:.2%}"))
    for name, room in before.room.items():
        if room != after.room[name]:
            rows.append((f"room for {name}", f"{room:,}", f"{after.room[name]:,}"))
    print_table(("", "now", "then"), rows)
