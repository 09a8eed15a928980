"""`roost maintenance`: update the machines of a zone, one update domain after another, through the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.exits import Exit
from roost.cli.options import Service, flat
from roost.cli.output import Form, Output, advise, print_json, print_table, progress, say

if TYPE_CHECKING:
    from roost.client.maintenance import DomainDone

app = typer.Typer(help="Update the machines of a zone, one update domain after another.", no_args_is_help=True)

MOST_AT_ONCE = 1_000
SHOWN = 20  # VMs that could not be moved
Cluster = Annotated[str, typer.Option("--cluster", help="Only machines of this cluster.")]


@app.command()
@flat
def plan(service: Service, cluster: Cluster = "", output: Output = Form.TABLE) -> None:
    """The update domains in the order in which they are walked: machines, those that are ready, and VMs to move.

    \b
      roost maintenance plan
      roost maintenance plan --cluster c000 -o json
    """
    from roost.client.maintenance import Walk, domains_of

    with service.open() as client:
        found = domains_of(Walk(client, cluster=cluster).machines())
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
def run(
    service: Service,
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
    stop: Annotated[
        bool, typer.Option("--stop/--go-on", help="Stop after an update domain of which something was left.")
    ] = True,
    output: Output = Form.TABLE,
) -> None:
    """Empty the machines of an update domain, update them, use them again; then the next domain.

    VMs are placed elsewhere as when a machine fails: under their names, within their tenants' constraints, each in one
    commit. Of a tenant or set that asked for so many update domains, no more VMs are gone at once than one of these may
    hold, those on machines that are down included. A machine whose VMs find no other place is not updated, and in use
    again; one whose update fails is quarantined; one that goes down meanwhile, or of which somebody says otherwise, is
    left alone. Exit code 3 if something was left.

    \b
      roost maintenance plan
      roost maintenance run --run 'ssh {machine} update-and-reboot' --at-once 20 --pause 60
      roost maintenance run --run "sh -c 'fetch {machine} && reboot {machine}'" --domain 3 --domain 4 --go-on
    """
    from roost.client.maintenance import Walk, domains_of
    from roost.model.errors import UnknownName
    from roost.whatif.commands import command as command_of

    start = command_of(command, ("machine",), "update-host {machine}") if command else None
    update = (lambda machine: start({"machine": machine})) if start else lambda _: ""
    done: list[DomainDone] = []
    with service.open() as client, progress("maintaining") as show:
        known = domains_of(Walk(client, cluster=cluster).machines())
        for wanted in domain or ():
            if wanted not in known:
                raise UnknownName("--domain", "update domain", str(wanted), [str(each) for each in known])
        chosen = sorted(set(domain)) if domain else list(known)
        for place, each in enumerate(chosen):

            def tell(what: str, each: int = each, place: int = place) -> None:
                show(f"update domain {each}: {what}", place / len(chosen))

            walk = Walk(client, update=update, cluster=cluster, at_once=at_once, pause=pause, tell=tell, warn=advise)
            done.append(walk.run(each))
            if stop and not done[-1].whole:
                break
    _show(done, len(chosen), output)
    if len(done) < len(chosen) or not all(each.whole for each in done):
        raise typer.Exit(Exit.NO_ROOM)


def _show(done: list[DomainDone], wanted: int, output: Form) -> None:
    if output is Form.JSON:
        print_json(done)
        return
    print_table(
        ("update domain", "machines", "updated", "VMs moved", "waves", "gave way", "not moved", "failed", "left alone"),
        (
            (
                each.domain, each.machines, each.updated, each.moved, each.waves, each.evictions, len(each.unmoved),
                len(each.failed), len(each.left_alone),
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
        print_table(("update failed on", "why"), ((machine.machine, machine.why) for machine in failed[:SHOWN]))
    if unsettled := [machine for each in done for machine in each.unsettled]:
        print_table(("stays as it is", "why"), ((machine.machine, machine.why) for machine in unsettled[:SHOWN]))
    if left_alone := [machine for each in done for machine in each.left_alone]:
        more = f" and {len(left_alone) - SHOWN:,} more" if len(left_alone) > SHOWN else ""
        advise(f"not updated, as they were not ready or somebody changed them: {', '.join(left_alone[:SHOWN])}{more}")
    whole = sum(each.whole for each in done)
    say(f"{whole:,} of {wanted:,} update domains are done")
    if len(done) < wanted:
        advise("stopped there; mend what is left, or go on all the same with --go-on")
