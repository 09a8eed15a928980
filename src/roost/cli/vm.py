"""`roost vm`: VMs one by one, through the service."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import Annotated

import typer

from roost.cli.options import DryRun, Key, Paging, ServiceOptions, flat
from roost.cli.output import Form, Output, advise, lasted, print_facts, print_json, print_table, say, when
from roost.cli.tenant import show_done
from roost.model.readable import as_counted
from roost.model.request import hold_of

app = typer.Typer(help="Look at VMs, move them, and delete single ones.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Its whole name: web/0.", metavar="TENANT/NAME")]


class MoveStep(StrEnum):
    """What can be done of a move."""

    HOLD = "hold"
    FINISH = "finish"
    CANCEL = "cancel"
    WHOLE = "whole"


LOST = "its machine is down: it waits to be healed"
DONE = {
    MoveStep.HOLD: "held room for {vm} on {machine}",
    MoveStep.FINISH: "moved {vm} to {machine}",
    MoveStep.CANCEL: "gave back the room for {vm} on {machine}",
    MoveStep.WHOLE: "moved {vm} to {machine}",
}


@app.command("list")
@flat
def list_vms(
    paging: Paging,
    service: ServiceOptions,
    tenant: Annotated[str, typer.Option("--tenant", help="Only this one's.")] = "",
    machine: Annotated[str, typer.Option("--machine", help="Only those on this one.")] = "",
    output: Output = Form.TABLE,
) -> None:
    """VMs by name.

    \b
      roost vm list --tenant web
      roost vm list --machine c000-r00-m00 -o json
    """
    with service.open() as client:
        found = paging.of(client.vms(tenant=tenant, machine=machine, limit=paging.page))
    if output is Form.JSON:
        print_json(found)
    else:
        print_table(
            ("vm", "tenant", "type", "machine", "priority"),
            (
                (vm.vm, vm.tenant, vm.type, vm.machine, vm.priority)
                for vm in sorted(found, key=lambda vm: as_counted(vm.vm))
            ),
        )


@app.command()
@flat
def show(name: Name, service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """Where a VM runs, what it is, since when, and which decision put it there.

    \b
      roost vm show web/0
      roost explain web/0        why it is there
    """
    with service.open() as client:
        found = client.get_vm(name)
    if output is Form.JSON:
        print_json(found)
    else:
        print_facts(
            {
                "vm": found.vm,
                "tenant": found.tenant,
                "type": found.type,
                "machine": found.machine,
                "priority": found.priority or "the highest",
                "set": found.set or "none",
                "state": LOST if found.lost else "runs",
                "age": f"{lasted(time.time() - found.since)}, since {when(found.since)}" if found.since else "unknown",
                "decision": found.decision or "forgotten",
            }
        )
        if found.decision:
            advise(f"why there: roost explain {found.vm}")


@app.command()
@flat
def delete(
    name: Name, service: ServiceOptions, key: Key = "", dry_run: DryRun = False, output: Output = Form.TABLE
) -> None:
    """Release one VM.

    \b
      roost vm delete web/0
    """
    with service.open() as client:
        done = client.delete_vm(name, key=key, dry_run=dry_run)
    show_done(done, f"released {name}", output)


@app.command()
@flat
def move(
    name: Name,
    service: ServiceOptions,
    to: Annotated[str, typer.Option("--to", help="Where it is to run.", metavar="MACHINE")],
    step: Annotated[
        MoveStep, typer.Option("--step", help="Hold room there, then finish or cancel; or the whole move at once.")
    ] = MoveStep.WHOLE,
    key: Key = "",
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Move a VM to another machine.

    At once, or in steps: hold room on the target while its memory is copied, then finish the move, or cancel it.

    \b
      roost vm move web/0 --to c000-r01-m02
      roost vm move web/0 --to c000-r01-m02 --step hold
      roost vm move web/0 --to c000-r01-m02 --step finish
    """
    with service.open() as client:
        before = {vm.vm for vm in client.vms(machine=to)}
        done = client.move_vm(name, to, step.value, key=key, dry_run=dry_run)
    nothing = _nothing_to_do(name, to, step, before)
    if nothing and output is Form.TABLE and not done.replayed:
        say(nothing)
    else:
        show_done(done, DONE[step].format(vm=name, machine=to), output)


def _nothing_to_do(name: str, machine: str, step: MoveStep, there: set[str]) -> str:
    """What is so already, if a step changes nothing; `there`: what the machine had before."""
    held = hold_of(name) in there
    if step is MoveStep.CANCEL:
        return "" if held else f"nothing was held for {name} on {machine}"
    if step is MoveStep.HOLD and held:
        return f"room for {name} is held on {machine} already"
    return f"{name} runs on {machine} already" if name in there else ""
