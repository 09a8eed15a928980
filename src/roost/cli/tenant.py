"""`roost tenant`: tenants and their VMs, through the service."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.exits import Exit, exit_of
from roost.cli.options import ConstraintOptions, DryRun, IfMatch, Key, Paging, ServiceOptions, VMs, flat
from roost.cli.output import Form, Output, advise, decode, print_facts, print_json, print_table, read_input, say
from roost.model.errors import InvalidInput
from roost.model.readable import as_counted
from roost.model.request import UNCONSTRAINED

if TYPE_CHECKING:
    from roost.model.availability import AvailabilitySet
    from roost.wire.tenants import BatchItem, BatchResult, Done, Placed, VMWish

app = typer.Typer(help="Create tenants, scale them, look at them, delete them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The tenant's name.", metavar="NAME")]


@app.command()
@flat
def create(
    vms: VMs,
    constraints: ConstraintOptions,
    service: ServiceOptions,
    name: Annotated[str, typer.Argument(help="What it is to be called.", metavar="NAME")] = "",
    file: Annotated[str, typer.Option("--file", help="A request as JSON, or - for the input, instead.")] = "",
    key: Key = "",
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Create a tenant with its first VMs: all of them are placed, or none. Exit code 3: there is no room now.

    \b
      roost tenant create web --vm D2
      roost tenant create shop --vm D2=2 --vm D4=3 --min-fault-domains 3
      roost tenant create batch --vm A2=40 --priority spot --dry-run
      roost tenant create render --vm D2=8 --priority spot --requeue
      roost tenant create shop --set db:fds=3 --vm D4=3@db --vm D2=10
      echo '{"tenant": "db", "vms": [{"type": "D4", "count": 2}]}' > db.json
      roost tenant create --file db.json
    """
    wishes, wanted = vms.wishes(), constraints.chosen()
    if file:
        from roost.wire.tenants import TenantWish

        if wishes or wanted != UNCONSTRAINED:
            raise typer.BadParameter("says it all; leave out --vm and constraints", param_hint="--file")
        wish = decode(read_input(file), TenantWish, file)
        name, wishes, wanted = name or wish.tenant, list(wish.vms), wish.constraints
    if not name:
        raise typer.BadParameter("is missing", param_hint="NAME")
    _ask_for_vms(wishes)
    with service.open() as client:
        _show_placed(client.create_tenant(name, wishes, wanted, key=key, dry_run=dry_run), output)


@app.command("scale-out")
@flat
def scale_out(
    name: Name,
    vms: VMs,
    service: ServiceOptions,
    key: Key = "",
    if_match: IfMatch = None,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Place more VMs of a tenant: all of them, or none. Its constraints and sets hold for all of its VMs together.

    \b
      roost tenant scale-out web --vm D2=2
      roost tenant scale-out shop --vm D4=2@db
      roost tenant scale-out web --vm D4 --key deploy-42
    """
    wishes = vms.wishes()
    _ask_for_vms(wishes)
    with service.open() as client:
        _show_placed(client.scale_out(name, wishes, key=key, if_match=if_match, dry_run=dry_run), output)


@app.command("scale-in")
@flat
def scale_in(
    name: Name,
    vm: Annotated[list[str], typer.Argument(help="Whole names: web/0 web/3.", metavar="VM...")],
    service: ServiceOptions,
    key: Key = "",
    if_match: IfMatch = None,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Release some VMs of a tenant: all that are named, or none.

    \b
      roost tenant scale-in web web/0 web/3
    """
    with service.open() as client:
        done = client.scale_in(name, vm, key=key, if_match=if_match, dry_run=dry_run)
    show_done(done, f"released {', '.join(vm)}", output)


@app.command()
@flat
def delete(
    name: Name,
    service: ServiceOptions,
    key: Key = "",
    if_match: IfMatch = None,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Release all VMs of a tenant.

    \b
      roost tenant delete web
      roost tenant delete web --if-match 2048    only if nobody changed it since
    """
    with service.open() as client:
        done = client.delete_tenant(name, key=key, if_match=if_match, dry_run=dry_run)
    show_done(done, f"deleted {name}", output)


@app.command()
@flat
def show(name: Name, service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """A tenant: its constraints, its generation, its VMs and where they run."""
    with service.open() as client:
        found = client.get_tenant(name)
    if output is Form.JSON:
        print_json(found)
        return
    wanted = {**found.constraints.named, **found.constraints.pins}
    constraints = [f"{name} {value}" for name, value in wanted.items()]
    if found.constraints.evict_together:
        constraints.append("evict_together")
    if found.constraints.best_effort:
        constraints.append("best_effort")
    facts = {"tenant": found.tenant, "generation": str(found.generation)}
    facts["constraints"] = ", ".join(constraints) or "none"
    print_facts(facts | {f"set {name}": _terms(wanted) for name, wanted in found.constraints.sets.items()})
    columns = ["vm", "type", "machine", "priority", *(["set"] if found.constraints.sets else [])]
    lost, vms = [vm for vm in found.vms if vm.lost], sorted(found.vms, key=lambda vm: as_counted(vm.vm))
    rows = [[getattr(vm, column) for column in columns] for vm in vms]
    if lost:
        columns.append("state")
        rows = [[*row, "lost" if vm.lost else "runs"] for row, vm in zip(rows, vms, strict=True)]
    print_table(columns, rows)
    if lost:
        machines = ", ".join(sorted({vm.machine for vm in lost}, key=as_counted))
        advise(f"{len(lost):,} of its VMs wait to be healed, as {machines} is down: roost heal --tenant {name}")
    if found.waiting:
        advise(f"{', '.join(found.waiting)} had to give way and wait for room: roost evictions waiting --tenant {name}")


def _terms(wanted: AvailabilitySet) -> str:
    """What an availability set asks for."""
    asked = {"fault_domains": wanted.fault_domains, "update_domains": wanted.update_domains}
    domains = [f"{field} {number}" for field, number in asked.items() if number]
    return ", ".join([*domains, *(["best_effort"] if wanted.best_effort else [])])


@app.command("list")
@flat
def list_tenants(
    paging: Paging,
    service: ServiceOptions,
    prefix: Annotated[str, typer.Option("--prefix", help="Only names that begin so.")] = "",
    output: Output = Form.TABLE,
) -> None:
    """Tenants by name.

    \b
      roost tenant list --prefix shop
      roost tenant list --all -o json
    """
    with service.open() as client:
        found = paging.of(client.tenants(prefix=prefix, limit=paging.page))
    if output is Form.JSON:
        print_json(found)
    else:
        waiting = any(t.waiting for t in found)
        print_table(
            ("tenant", "VMs", *(("waiting",) if waiting else ()), "generation"),
            (
                (t.tenant, t.vms, *((t.waiting,) if waiting else ()), str(t.generation or ""))
                for t in sorted(found, key=lambda t: as_counted(t.tenant))
            ),
        )


@app.command()
@flat
def batch(
    file: Annotated[str, typer.Argument(help="A file, or - for the input.", metavar="FILE")],
    service: ServiceOptions,
    at_once: Annotated[int, typer.Option("--at-once", help="Requests in one call.", min=1, max=10_000)] = 500,
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Many requests at once; each is done or not done by itself. Exit code 3 if any of them found no room.

    The file has a request on each line, or a list of them, or {"requests": [...]}. A request creates a tenant, or
    scales it out. One with a key of its own can be asked for again.

    \b
      echo '{"tenant": "web", "vms": [{"type": "D2"}], "key": "k1"}' > some.jsonl
      roost tenant batch some.jsonl
    """
    items = iter(_requests(read_input(file), file))
    ended: set[Exit] = set()
    results: list[BatchResult] = []
    with service.open() as client:
        while group := list(islice(items, at_once)):
            answers = client.batch(group, dry_run=dry_run).results
            ended |= {exit_of(result.problem.code) for result in answers if result.problem}
            results += answers
            if output is Form.TABLE:
                for item, result in zip(group, answers, strict=True):
                    say(f"{item.tenant:<24} {_outcome(result)}")
    failed = sum(result.problem is not None for result in results)
    if output is Form.JSON:
        print_json({"results": results, "done": len(results) - failed, "failed": failed})
    else:
        advise(f"{len(results) - failed:,} done, {failed:,} failed")
    if ended:
        raise typer.Exit(Exit.NO_ROOM if Exit.NO_ROOM in ended else max(ended))


def _outcome(result: BatchResult) -> str:
    if result.problem is not None:
        return f"{result.problem.code.removeprefix('roost.')}: {result.problem.detail}"
    assert result.placed is not None
    return ", ".join(f"{each.vm} on {each.machine}" for each in result.placed.vms)


def _requests(text: bytes, where: str) -> Iterator[BatchItem]:
    """The requests of a batch, however they are written down."""
    import msgspec

    from roost.wire.tenants import Batch, BatchItem

    if text.lstrip().startswith(b"["):
        yield from decode(text, list[BatchItem], where)
        return
    try:
        whole = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        whole = None  # lines
    if isinstance(whole, dict) and "requests" in whole:
        yield from decode(text, Batch, where).requests
        return
    for number, line in enumerate(text.split(b"\n"), start=1):
        if line.strip():
            yield decode(line, BatchItem, f"{where}:{number}")


def _ask_for_vms(wishes: list[VMWish]) -> None:
    if not wishes:
        raise InvalidInput("--vm", "is missing", "ask for at least one VM: --vm D2")


def _show_placed(placed: Placed, output: Form) -> None:
    if output is Form.JSON:
        print_json(placed)
        return
    print_table(("vm", "type", "machine"), ((each.vm, each.type, each.machine) for each in placed.vms))
    if placed.evictions:
        advise(_given_way(placed))
    for spread in placed.spread:
        advise(f"spread: {spread}")
    for short in placed.short:
        advise(f"short of what was asked: {short}")
    if placed.dry_run:
        advise("nothing was placed: this is what would come of it now")
    else:
        done = "was placed before, under the same key" if placed.replayed else f"has generation {placed.generation}"
        advise(f"{placed.tenant} {done}; why there: roost explain {placed.decision}")


def _given_way(placed: Placed) -> str:
    """Who had to go, as far as one may hear of them."""
    named = [f"{each.vm} ({each.priority}) on {each.machine}" for each in placed.evicted]
    if others := placed.evictions - len(named):
        named.append(f"{others:,} of others")
    verb = "would have to give way" if placed.dry_run else "gave way"
    return f"{verb}: {', '.join(named)}"


def show_done(done: Done, what: str, output: Form) -> None:
    """Say that something was done, or would be."""
    if output is Form.JSON:
        print_json(done)
    elif done.dry_run:
        say(f"would have {what}")
    else:
        say(what + (" before, under the same key" if done.replayed else ""))
