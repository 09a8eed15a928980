"""`roost maintenance`: update the machines of a zone, one update domain after another, through the service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.exits import Exit
from roost.cli.options import ServiceOptions, flat
from roost.cli.output import Form, Output, advise, print_facts, print_json, print_table, progress, say, when

if TYPE_CHECKING:
    from roost.client import Client
    from roost.client.maintenance import DomainDone
    from roost.wire.machines import MachineLine

app = typer.Typer(help="Update the machines of a zone, one update domain after another.", no_args_is_help=True)

MOST_AT_ONCE = 1_000
SHOWN = 20  # VMs that could not be moved
Cluster = Annotated[str, typer.Option("--cluster", help="Only machines of this cluster.")]


@app.command()
@flat
def plan(service: ServiceOptions, cluster: Cluster = "", output: Output = Form.TABLE) -> None:
    """The update domains in the order in which they are walked: machines, those that are ready, and VMs to move.

    \b
      roost maintenance plan
      roost maintenance plan --cluster c000 -o json
    """
    from roost.client.maintenance import domains_of, machines_of

    with service.open() as client:
        found = domains_of(machines_of(client, cluster))
    rows = [
        {
            "update_domain": domain,
            "machines": len(here),
            "ready": sum(machine.state == "ready" for machine in here),
            "racks": len({machine.rack for machine in here}),
            "vms": sum(machine.vms for machine in here if machine.state == "ready"),
        }
        for domain, here in found.items()
    ]
    if output is Form.JSON:
        print_json(rows)
        return
    print_table(("update domain", "machines", "ready", "racks", "VMs to move"), (tuple(row.values()) for row in rows))


@app.command()
@flat
def status(service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """Who walks through the zone, where it is, and when it was last heard of. Exit code 2 if nobody does.

    \b
      roost maintenance status
    """
    with service.open() as client:
        walk = client.get_walk()
    if output is Form.JSON:
        print_json(walk)
        return
    print_facts(
        {
            "who": walk.owner,
            "token": walk.by or "-",
            "since": when(walk.since),
            "update domain": "-" if walk.domain is None else walk.domain,
            "machines out of use": _some(walk.machines) or "-",
            "last heard of": f"{walk.silent:,.0f} s ago",
        }
    )
    if walk.silent >= walk.seconds:
        advise("it has ended without a word: go on where it stopped with roost maintenance run --take-over")


@app.command()
@flat
def run(
    service: ServiceOptions,
    domain: Annotated[
        list[int] | None, typer.Option("--domain", help="Only this update domain; repeatable.", min=0)
    ] = None,
    cluster: Cluster = "",
    command: Annotated[
        str,
        typer.Option(
            "--run", help="What updates an empty machine: 'update-host {machine}'. No shell: use sh -c for && or >."
        ),
    ] = "",
    at_once: Annotated[
        int, typer.Option("--at-once", help="Machines that are updated at once.", min=1, max=MOST_AT_ONCE)
    ] = 10,
    pause: Annotated[
        float, typer.Option("--pause", help="Seconds that VMs get to start, before more of their set move.", min=0)
    ] = 0.0,
    max_failures: Annotated[
        int, typer.Option("--max-failures", help="Updates that may fail before no more are begun.", min=1)
    ] = 3,
    evict: Annotated[
        str, typer.Option("--evict", help="VMs of this priority are evicted, not moved.", metavar="PRIORITY")
    ] = "",
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Go on where another walk stopped that has ended without a word.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop/--go-on", help="Stop after an update domain of which something was left.")
    ] = True,
    output: Output = Form.TABLE,
) -> None:
    """Empty the machines of an update domain, update them, use them again; then the next domain. One walk at a time.

    VMs are placed elsewhere as when a machine fails: under their names, within their tenants' constraints, each in one
    commit. Of a tenant or set that asked for so many update domains, no more VMs are gone at once than one of these may
    hold, those on machines that are down included. A machine whose VMs find no other place is not updated, and in use
    again; one whose update fails is quarantined; one that goes down meanwhile, or of which somebody says otherwise, is
    left alone. The emptiest machine of a domain goes first, by itself: if its update fails, the others are left as they
    are. Exit code 3 if something was left.

    \b
      roost maintenance plan
      roost maintenance run --run 'ssh {machine} update-and-reboot' --at-once 20
      roost maintenance run --run 'sh -c "fetch {machine} && reboot {machine}"'
      roost maintenance run --run 'update-host {machine}' --domain 3 --go-on
    """
    from roost.client.lease import Lease
    from roost.client.maintenance import Walk, domains_of, machines_of
    from roost.whatif.commands import command as command_of

    start = command_of(command, ("machine",), "update-host {machine}") if command else None
    update = (lambda machine: start({"machine": machine})) if start else None
    done: list[DomainDone] = []
    with service.open() as client, progress("maintaining") as show:
        known = domains_of(machines_of(client, cluster))
        chosen = _chosen(domain or (), known)
        _check_evicted(client, evict)
        if take_over:
            chosen = _left_first(client, chosen, known)

        def tell(each: int, what: str) -> None:
            show(f"update domain {each}: {what}", chosen.index(each) / len(chosen))

        with Lease(client, take_over=take_over) as lease:
            walk = Walk(
                client, lease, update=update, cluster=cluster, at_once=at_once, pause=pause,
                max_failures=max_failures, evict=evict, tell=tell, warn=advise,
            )  # fmt: skip
            for place, each in enumerate(chosen, 1):
                done.append(walk.run(each, later=chosen[place:]))
                if walk.stopped or (stop and not done[-1].whole):
                    break
    _show(done, len(chosen), output)
    if len(done) < len(chosen) or not all(each.whole for each in done):
        raise typer.Exit(Exit.NO_ROOM)


def _chosen(domains: Sequence[int], known: Mapping[int, Sequence[MachineLine]]) -> list[int]:
    """The domains that are walked; those that there are not are refused."""
    from roost.model.errors import UnknownName

    for wanted in domains:
        if wanted not in known:
            raise UnknownName("--domain", "update domain", str(wanted), [str(each) for each in known])
    return sorted(set(domains)) if domains else list(known)


def _check_evicted(client: Client, priority: str) -> None:
    """Refuse a priority that there is not, or that gives way to nobody."""
    from roost.model.errors import InvalidInput, UnknownName

    if not priority:
        return
    bands = client.get_zone().bands
    if priority not in bands:
        raise UnknownName("--evict", "priority", priority, bands)
    if priority == bands[0]:
        lower = ", ".join(bands[1:]) or "there is none"
        raise InvalidInput("--evict", f"{priority} is the highest priority", f"name a lower one: {lower}")


def _left_first(client: Client, chosen: list[int], known: Mapping[int, Sequence[MachineLine]]) -> list[int]:
    """What another walk left draining is walked first; it must be among what is walked."""
    from roost.client.errors import ServiceProblem
    from roost.model.errors import InvalidInput

    try:
        left = set(client.get_walk().machines)
    except ServiceProblem as problem:
        if problem.code != "roost.not_found":
            raise
        return chosen  # there is nothing to take over
    draining = {machine.machine for machine in client.machines(state="draining")} & left
    where = {each: [m.machine for m in known[each] if m.machine in draining] for each in chosen}
    if missing := sorted(draining.difference(*where.values())):
        some = ", ".join(missing[:SHOWN])
        remedy = "walk through their update domain and cluster, too, or say of each what it is: roost machine ready"
        raise InvalidInput("--take-over", f"the other walk left {some} draining", remedy)
    return sorted(chosen, key=lambda each: (not where[each], each))


def _show(done: list[DomainDone], wanted: int, output: Form) -> None:
    if output is Form.JSON:
        print_json(done)
        return
    print_table(
        (
            "update domain", "machines", "updated", "VMs moved", "waves", "gave way", "evicted", "not moved", "failed",
            "left alone", "untouched",
        ),
        (
            (
                each.domain, each.machines, each.updated, each.moved, each.waves, each.evictions, each.evicted,
                len(each.unmoved), len(each.failed), len(each.left_alone), len(each.untouched),
            )
            for each in done
        ),
    )  # fmt: skip
    unmoved = [vm for each in done for vm in each.unmoved]
    if unmoved:
        print_table(("not moved", "stays on", "why"), ((vm.vm, vm.machine, vm.why) for vm in unmoved[:SHOWN]))
    if (left := len(unmoved) - SHOWN) > 0:
        advise(f"… and {left:,} more: see them with -o json")
    if failed := [machine for each in done for machine in each.failed]:
        print_table(("quarantined", "why"), ((machine.machine, machine.why) for machine in failed[:SHOWN]))
    if unsettled := [machine for each in done for machine in each.unsettled]:
        print_table(("stays as it is", "why"), ((machine.machine, machine.why) for machine in unsettled[:SHOWN]))
    if left_alone := [machine for each in done for machine in each.left_alone]:
        advise(f"not updated, as they were not ready or somebody changed them: {_some(left_alone)}")
    if untouched := [machine for each in done for machine in each.untouched]:
        advise(f"not updated, as updates of others failed; they are in use: {_some(untouched)}")
    whole = sum(each.whole for each in done)
    say(f"{whole:,} of {wanted:,} update domains are done")
    if len(done) < wanted:
        advise("stopped there; mend what is left, or go on all the same with --go-on")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"
