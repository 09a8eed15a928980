"""`roost thresholds`: the empty machines that clusters keep, through the service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.options import DryRun, Key, ServiceOptions, flat
from roost.cli.output import Form, Output, advise, print_json, print_table, when
from roost.cli.tenant import show_done
from roost.model.errors import InvalidInput, UnknownName
from roost.model.readable import as_counted
from roost.model.spans import DAY

if TYPE_CHECKING:
    from roost.client import Client
    from roost.wire.thresholds import ThresholdPlan, ThresholdView, ThresholdWish

HELP = """How many empty machines each cluster keeps, and from whom.

New deployments stop first, when a cluster has no more empty machines than `new`; scale-outs stop at `scale-out`,
healing and moves at `healing`. What lies between two of these is a buffer. 0: they never stop for its sake.
"""
app = typer.Typer(help=HELP, no_args_is_help=True)

FORMS = ("thresholds.", "targets.")  # how the fields of what is sent begin, in problems
OPTIONS = {"targets.healing": "--target-healing", "targets.scale_out": "--target-scale-out"}  # others are called alike
Cluster = Annotated[str, typer.Argument(help="The cluster.", metavar="CLUSTER")]


@app.command("list")
@flat
def list_thresholds(service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """What each cluster keeps and has, who says so (the zone file, or the registry: an operator), and what has stopped.

    Empty is a machine without a VM of the highest priority band: VMs of lower bands may run in what is kept.
    """
    with service.open() as client:
        found = client.list_thresholds().items
    if output is Form.JSON:
        print_json(found)
        return
    print_table(
        ("cluster", "machines", "empty", "new", "scale-out", "healing", "from", "stopped"),
        (
            (c.cluster, c.machines, c.empty, c.new, c.scale_out, c.healing, c.source,
             ", ".join(name.replace("_", "-") for name in c.reached))
            for c in sorted(found, key=lambda c: as_counted(c.cluster))
        ),
    )  # fmt: skip


@app.command("set")
@flat
def set_thresholds(
    cluster: Cluster,
    service: ServiceOptions,
    new: Annotated[
        int | None, typer.Option("--new", help="Where new deployments stop.", min=0, metavar="MACHINES")
    ] = None,
    scale_out: Annotated[
        int | None,
        typer.Option("--scale-out", help="Where scale-outs stop; not above --new.", min=0, metavar="MACHINES"),
    ] = None,
    healing: Annotated[
        int | None,
        typer.Option("--healing", help="Where healing stops; not above --scale-out.", min=0, metavar="MACHINES"),
    ] = None,
    key: Key = "",
    dry_run: DryRun = False,
    output: Output = Form.TABLE,
) -> None:
    """Keep so many empty machines in a cluster, whatever the zone file says. What is left out stays as it is.

    \b
      roost thresholds set c000 --new 6 --scale-out 2    4 for growth, 2 to heal
      roost thresholds set c000 --new 8                    # 2 more for growth
      roost thresholds set c000 --new 0 --scale-out 0      # none at all
    """
    given = {"new": new, "scale_out": scale_out, "healing": healing}
    if all(value is None for value in given.values()):
        raise typer.BadParameter("say what: --new, --scale-out or --healing")
    with service.open() as client, _naming_options():
        wish = _wish(given, _present(client, cluster))
        done = client.set_thresholds(cluster, wish, key=key, dry_run=dry_run)
    kept = f"new {wish.new}, scale-out {wish.scale_out}, healing {wish.healing}"
    show_done(done, f"set thresholds of {cluster}: {kept}", output)


def _present(client: Client, cluster: str) -> ThresholdView:
    found = {each.cluster: each for each in client.list_thresholds().items}
    if cluster not in found:
        raise UnknownName("cluster", "cluster", cluster, found)
    return found[cluster]


def _wish(given: Mapping[str, int | None], present: ThresholdView) -> ThresholdWish:
    """What is given, and for the rest what is there; raises if the two contradict."""
    from roost.wire.thresholds import ThresholdWish

    numbers = {name: getattr(present, name) if value is None else value for name, value in given.items()}
    for earlier, later in pairwise(given):
        first, then = numbers[earlier], numbers[later]
        if first >= then:
            continue
        if given[later] is None:
            problem = f"is {first}, below {_words(later)}, which is {then}"
            raise InvalidInput(_option(earlier), problem, f"give {_option(later)}, too: {first} at most")
        if given[earlier] is None:
            problem = f"is {then}, above {_words(earlier)}, which is {first}"
            raise InvalidInput(_option(later), problem, f"give {_option(earlier)}, too: {then} at least")
    return ThresholdWish(**numbers)


def _words(field: str) -> str:
    return field.replace("_", "-")


def _option(field: str) -> str:
    return f"--{_words(field)}"


@contextmanager
def _naming_options() -> Iterator[None]:
    """What the service says of a field is said of the option that stands for it."""
    import msgspec

    from roost.client import ServiceProblem

    try:
        yield
    except ServiceProblem as error:
        field = error.problem.field
        if not field.startswith(FORMS):
            raise
        option = OPTIONS.get(field) or _option(field.partition(".")[2])
        told = msgspec.structs.replace(error.problem, detail=error.problem.detail.replace(field, option, 1))
        raise ServiceProblem(told) from None


@app.command()
@flat
def clear(
    cluster: Cluster, service: ServiceOptions, key: Key = "", dry_run: DryRun = False, output: Output = Form.TABLE
) -> None:
    """Keep as many empty machines in a cluster as the zone file says."""
    with service.open() as client:
        done = client.clear_thresholds(cluster, key=key, dry_run=dry_run)
    show_done(done, f"cleared thresholds of {cluster}: the zone file decides", output)


@app.command()
@flat
def compute(
    service: ServiceOptions,
    target_healing: Annotated[
        float, typer.Option(help="Share of the time in which more machines may be down than are kept.")
    ] = 0.001,
    target_scale_out: Annotated[
        float, typer.Option(help="Share of the windows in which tenants may grow by more than is kept.")
    ] = 0.01,
    failures_per_day: Annotated[
        float | None,
        typer.Option(help="Of a machine, a day that it is up; as often as was seen, if left out.", show_default=False),
    ] = None,
    repair_hours: Annotated[
        float | None, typer.Option(help="That a machine is down; as long as was seen, if left out.", show_default=False)
    ] = None,
    window_hours: Annotated[
        float, typer.Option(help="For which tenants can grow, after new deployments have stopped.")
    ] = 24.0,
    turn_space: Annotated[int, typer.Option(help="Machines that are kept for moves.", min=0)] = 0,
    apply: Annotated[bool, typer.Option("--apply", help="Set them, in every cluster.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """Thresholds from the zone's own history, for failure rates that you can live with.

    Healing gets as many machines as were, or by their rate would be, down at once; scale-outs as many as tenants
    grew by in a window. Nothing is changed without --apply.

    \b
      roost thresholds compute
      roost thresholds compute --failures-per-day 0.001 --repair-hours 24
      roost thresholds compute --target-scale-out 0.05 --window-hours 72 --apply
    """
    from roost.wire.thresholds import ThresholdTargets, ThresholdWish

    targets = ThresholdTargets(
        healing=target_healing,
        scale_out=target_scale_out,
        failures_per_day=failures_per_day,
        repair_hours=repair_hours,
        window_hours=window_hours,
        turn_space=turn_space,
    )
    with service.open() as client, _naming_options():
        found = client.compute_thresholds(targets)
        for each in found.items if apply else ():
            wish = ThresholdWish(new=each.new, scale_out=each.scale_out, healing=each.healing)
            client.set_thresholds(each.cluster, wish)
    if output is Form.JSON:
        print_json(found)
    else:
        _print_plan(found)
        advise("they are set now" if apply else "nothing was changed; set them with --apply")
    if closed := [each.cluster for each in found.items if not each.takes_new]:
        goes = f"{'goes' if apply else 'would go'} to {', '.join(closed)} at all"
        advise(f"careful: no new deployment of the highest priority {goes}: every machine there is kept from them")


def _print_plan(found: ThresholdPlan) -> None:
    print_table(
        (
            "cluster", "machines", "new", "scale-out", "healing", "takes new", "for growth", "for healing", "failures",
            "repair h", "windows",
        ),
        (
            (c.cluster, c.machines, c.new, c.scale_out, c.healing, c.takes_new, c.for_growth,
             c.for_healing, c.failures, round(c.repair_hours, 1), c.windows)
            for c in found.items
        ),
    )  # fmt: skip
    days = (found.until - found.since) / DAY
    advise(
        f"from {days:,.1f} days, since {when(found.since)}, with {found.scale_outs:,} scale-outs, "
        f"{found.refused:,} of them refused"
    )
