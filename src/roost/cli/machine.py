"""`roost machine`: machines, through the service."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import DryRun, IfMatch, Key, Paging, ServiceOptions, flat
from roost.cli.output import Form, Output, advise, decode, print_facts, print_json, print_table, read_input, say
from roost.cli.tenant import show_done
from roost.model.readable import as_counted, plain

if TYPE_CHECKING:
    from roost.wire.basics import StateName
    from roost.wire.machines import NewMachine
    from roost.wire.zone import ResourceView

app = typer.Typer(help="Look at machines, take them out of use and back, add and remove them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The machine.", metavar="NAME")]
Names = Annotated[list[str] | None, typer.Argument(help="Machines.", metavar="[NAME]...")]
Rack = Annotated[str, typer.Option("--rack", help="All machines of this rack, at once.")]


STAYING = ("draining", "quarantined")  # states of machines whose VMs stay


class StateChoice(StrEnum):
    """How a machine can be."""

    READY = "ready"
    DRAINING = "draining"
    DOWN = "down"
    QUARANTINED = "quarantined"


@app.command("list")
@flat
def list_machines(
    paging: Paging,
    service: ServiceOptions,
    cluster: Annotated[str, typer.Option("--cluster", help="Only of this cluster.")] = "",
    rack: Annotated[str, typer.Option("--rack", help="Only of this rack.")] = "",
    hardware: Annotated[str, typer.Option("--hardware", help="Only of this hardware generation.")] = "",
    state: Annotated[StateChoice | None, typer.Option("--state", help="Only in this state.")] = None,
    empty: Annotated[bool | None, typer.Option("--empty/--used", help="Only without VMs, or only with some.")] = None,
    output: Output = Form.TABLE,
) -> None:
    """Machines by name: how they are, what they hold, what they have free.

    \b
      roost machine list --cluster c000 --empty
      roost machine list --state draining --all -o json
    """
    with service.open() as client:
        found = paging.of(
            client.machines(
                cluster=cluster,
                rack=rack,
                hardware=hardware,
                state=state.value if state else None,
                empty=empty,
                limit=paging.page,
            )
        )
        if output is Form.JSON:
            print_json(found)
            return
        resources = client.get_zone().resources
    print_table(
        ("machine", "hardware", "state", "health", "VMs", *(f"free {r.name}" for r in resources)),
        (
            (m.machine, m.hardware, m.state, m.health, m.vms, *(_amount(r, m.free, m.capacity) for r in resources))
            for m in found
        ),
    )


@app.command()
@flat
def show(name: Name, service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """A machine: where it stands, how it is, what it has free, and its VMs."""
    with service.open() as client:
        found = client.get_machine(name)
        if output is Form.JSON:
            print_json(found)
            return
        resources = client.get_zone().resources
    facts: dict[str, object] = {
        "machine": found.machine,
        "stands in": f"{found.datacenter}, cluster {found.cluster}, rack {found.rack}",
        "hardware": f"{found.hardware}{''.join(f', {feature}' for feature in found.features)}",
        "state": found.state,
        "health": found.health,
        "failures": found.failures,
        "versions behind": found.versions_behind,
        "update domain": str(found.update_domain),
        "generation": str(found.generation),
    }
    facts |= {f"free {r.name}": f"{_amount(r, found.free, found.capacity)} {r.unit}" for r in resources}
    print_facts(facts)
    if found.running:
        running = sorted(found.running, key=lambda vm: as_counted(vm.vm))
        print_table(("vm", "tenant", "type"), ((vm.vm, vm.tenant, vm.type) for vm in running))


def _amount(resource: ResourceView, free: Mapping[str, int], capacity: Mapping[str, int]) -> str:
    name, unit = resource.name, resource.per_unit
    return f"{plain(free.get(name, 0) / unit)}/{plain(capacity.get(name, 0) / unit)}"


def _become(
    state: StateName, names: list[str] | None, rack: str, service: ServiceOptions, if_match: int | None, output: Form
) -> None:
    """Say of machines how they are. One by one, each is done or not done by itself; a rack at once."""
    from roost.wire.machines import MachineChange

    if bool(names) == bool(rack):
        raise typer.BadParameter("name machines, or a rack with --rack", param_hint="NAME...")
    if if_match is not None and (rack or len(names or ()) > 1):
        raise typer.BadParameter("goes with one machine", param_hint="--if-match")
    with service.open() as client:
        if rack:
            found = client.change_rack(rack, state)
            print_json(found) if output is Form.JSON else say(f"{rack}: {found.machines} machines are {state}")
            if state in STAYING and output is Form.TABLE:
                _tell_of_vms(sum(m.vms for m in client.machines(rack=rack)), f"--rack {rack}")
        for name in names or ():
            done = client.change_machine(name, MachineChange(state=state), if_match=if_match)
            show_done(done, f"{name} is {state}", output)
        if state in STAYING and output is Form.TABLE:
            _tell_of_vms(sum(client.get_machine(name).vms for name in names or ()), " ".join(names or ()))


def _tell_of_vms(vms: int, machines: str) -> None:
    """Say what becomes of VMs on machines that get no more of them."""
    if vms:
        stay = f"the {vms:,} VMs that run there stay" if vms > 1 else "the VM that runs there stays"
        advise(f"{stay}; to move {'them' if vms > 1 else 'it'} elsewhere: roost heal now {machines}")


@app.command()
@flat
def drain(
    service: ServiceOptions, names: Names = None, rack: Rack = "", if_match: IfMatch = None, output: Output = Form.TABLE
) -> None:
    """Put no new VMs on machines. Those that run there stay, until they are moved by `roost heal now`.

    \b
      roost machine drain c000-r00-m00 c000-r00-m01
      roost heal now c000-r00-m00 c000-r00-m01        move their VMs elsewhere
    """
    _become("draining", names, rack, service, if_match, output)


@app.command()
@flat
def down(
    service: ServiceOptions, names: Names = None, rack: Rack = "", if_match: IfMatch = None, output: Output = Form.TABLE
) -> None:
    """Machines do not work: their VMs are placed again elsewhere (roost heal).

    \b
      roost machine down c000-r00-m00
      roost machine down --rack c000-r01
    """
    _become("down", names, rack, service, if_match, output)


@app.command()
@flat
def ready(
    service: ServiceOptions, names: Names = None, rack: Rack = "", if_match: IfMatch = None, output: Output = Form.TABLE
) -> None:
    """Machines may get VMs again."""
    _become("ready", names, rack, service, if_match, output)


@app.command()
@flat
def quarantine(
    service: ServiceOptions, names: Names = None, rack: Rack = "", if_match: IfMatch = None, output: Output = Form.TABLE
) -> None:
    """Machines are suspected of something: no new VMs. Those that run there stay."""
    _become("quarantined", names, rack, service, if_match, output)


@app.command("set")
@flat
def set_(
    name: Name,
    service: ServiceOptions,
    state: Annotated[StateChoice | None, typer.Option("--state", help="Its state.")] = None,
    health: Annotated[int | None, typer.Option("--health", help="0 to 100.", min=0, max=100)] = None,
    failures: Annotated[int | None, typer.Option("--failures", help="Failures of late.", min=0, max=32_767)] = None,
    versions_behind: Annotated[
        int | None, typer.Option("--versions-behind", help="Of its host environment.", min=0, max=32_767)
    ] = None,
    key: Key = "",
    if_match: IfMatch = None,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Say how a machine is; what is left out stays as it is.

    \b
      roost machine set c000-r00-m00 --health 80 --failures 2
      roost machine set c000-r00-m00 --state ready --if-match 3
    """
    from roost.wire.machines import MachineChange

    given = {"health": health, "failures": failures, "versions_behind": versions_behind}
    said = {"state": state.value if state else None, **given}
    if not any(value is not None for value in said.values()):
        raise typer.BadParameter("say what: --state, --health, --failures or --versions-behind")
    change = MachineChange(
        state=state.value if state else None, health=health, failures=failures, versions_behind=versions_behind
    )
    with service.open() as client:
        done = client.change_machine(name, change, key=key, if_match=if_match, dry_run=dry_run)
    show_done(done, f"{name}: {', '.join(f'{k} {v}' for k, v in said.items() if v is not None)}", output)


@app.command()
@flat
def add(
    service: ServiceOptions,
    file: Annotated[str, typer.Option("--file", help="Machines as JSON, or - for the input.")],
    key: Key = "",
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Add machines, and with them racks and clusters: all of them, or none.

    The file has a list of machines, or {"machines": [...]}. A machine of a hardware generation that the zone has
    already gets the capacity of the others unless it says otherwise (in the smallest units: `roost machine show -o
    json`).

    \b
      echo '[{"name": "c000-r00-m99", "datacenter": "dc1", "cluster": "c000",
              "rack": "c000-r00", "generation": "gen3"}]' > new.json
      roost machine add --file new.json
    """
    machines = _new_machines(read_input(file), file)
    with service.open() as client:
        done = client.add_machines(machines, key=key, dry_run=dry_run)
    show_done(done, f"added {len(machines):,} machines", output)


def _new_machines(text: bytes, where: str) -> list[NewMachine]:
    from roost.wire.machines import NewMachine, NewMachines

    if text.lstrip().startswith(b"["):
        return decode(text, list[NewMachine], where)
    return list(decode(text, NewMachines, where).machines)


@app.command()
@flat
def remove(
    names: Annotated[list[str], typer.Argument(help="Machines.", metavar="NAME...")],
    service: ServiceOptions,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Remove machines that run nothing. One by one: it stops at the first that cannot go.

    \b
      roost machine remove c000-r00-m99
    """
    with service.open() as client:
        for name in names:
            show_done(client.remove_machine(name, dry_run=dry_run), f"removed {name}", output)
