"""`roost whatif migrate` and `apply`: plan migrations that make a zone denser, and carry them out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roost.cli.exits import Exit, exit_of
from roost.cli.options import ServiceOptions, flat
from roost.cli.output import STORE, Form, Output, advise, errors, print_json, print_table, progress, say
from roost.cli.whatif_source import PolicyOption, Source
from roost.model.errors import InvalidInput

if TYPE_CHECKING:
    from roost.client import Client
    from roost.whatif.carry_out import CarryOutResult
    from roost.whatif.mover import Mover, MoverStep, StepOutcome
    from roost.whatif.plan import Plan, PlannedMove
    from roost.whatif.progress import Reached

SHOWN = 20  # moves of a plan
PROGRESS = ".progress"  # the file beside a plan
MOST_AT_ONCE = 256


@flat
def migrate(
    source: Source,
    policy: PolicyOption = "",
    budget: Annotated[str, typer.Option("--budget", help="VMs that may be moved: 200, or 2%.")] = "2%",
    tenant: Annotated[
        list[str] | None, typer.Option("--tenant", help="Only VMs of tenants called so: tests-*; repeatable.")
    ] = None,
    vm_type: Annotated[list[str] | None, typer.Option("--type", help="Only VMs of this type; repeatable.")] = None,
    priority: Annotated[
        list[str] | None, typer.Option("--priority", help="Only VMs of this priority band; repeatable.")
    ] = None,
    isolated: Annotated[bool, typer.Option("--isolated", help="Also VMs that have machines to themselves.")] = False,
    cost: Annotated[
        float, typer.Option("--cost", help="Cores of emptied machines that each moved VM must be worth.", min=0)
    ] = 0.0,
    to: Annotated[Path | None, typer.Option("--to", help="Write the plan here, for `roost whatif apply`.")] = None,
    output: Output = Form.TABLE,
) -> None:
    """Which VMs to move where, so that machines that run little run nothing. Nothing is moved.

    Targets are machines in use, chosen by the policy; every tenant's constraints hold after every single move.

    \b
      roost whatif migrate --to plan.json
      roost whatif migrate --budget 5% --tenant 'batch-*' --priority spot
      roost whatif migrate --snapshot zone-now.json --cost 4 -o json
    """
    from roost.whatif.plan import PlanTerms, write_plan
    from roost.whatif.planner import plan_moves

    ledger = source.ledger()
    terms = PlanTerms(
        budget=_budget(budget, len(ledger.vms)),
        tenants=tuple(tenant or ()),
        types=tuple(vm_type or ()),
        priorities=tuple(priority or ()),
        isolated=isolated,
        cost=cost,
    )
    chosen = source.policy(ledger, policy)
    with errors().status("Planning"):
        plan = plan_moves(ledger, chosen, terms)
    if to is not None:
        write_plan(plan, to)
    if output is Form.JSON:
        print_json(plan)
        return
    _show(plan)
    if to is not None:
        say(f"plan: {to}; carry it out with `roost whatif apply {to}`")


def _budget(text: str, vms: int) -> int:
    number = text.removesuffix("%")
    try:
        share = float(number)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1e9 or not (text.endswith("%") or share.is_integer()) or (text.endswith("%") and share > 100):
        raise InvalidInput("--budget", f"is {text!r}", "write a number of VMs as 200, or a share of them as 2%")
    return int(share * vms / 100) if text.endswith("%") else int(share)


def _show(plan: Plan) -> None:
    before, after = plan.before, plan.after
    rows = [
        ("packing density", f"{before.density:.2%}", f"{after.density:.2%}", f"{plan.gain:+.2f} points"),
        ("machines in use", before.machines_in_use, after.machines_in_use, f"{-plan.emptied:+,}"),
    ]
    for name, share in before.stranded.items():
        there = after.stranded[name]
        rows.append((f"stranded {name}", f"{share:.2%}", f"{there:.2%}", f"{100 * (there - share):+.2f} points"))
    print_table(("", "now", "afterwards", ""), rows)
    moves = f"{len(plan.moves):,} of {before.vms:,} VMs moved"
    say(f"{moves}: {plan.emptied:,} machines with {plan.frees:,.0f} cores are empty then")
    if plan.moves:
        print_table(
            ("move", "vm", "type", "from", "to", "gain", "frees cores", "after"),
            (
                (m.number, m.vm, m.type, m.source, m.target, f"{m.gain:+.3f}", m.frees or "", _numbers(m.after))
                for m in plan.moves[:SHOWN]
            ),
        )
    if len(plan.moves) > SHOWN:
        advise(f"… and {len(plan.moves) - SHOWN:,} more: see them with -o json")
    for why, machines in sorted(plan.left.items(), key=lambda each: -each[1]):
        say(f"{machines:,} machines are left: each {why}")


def _numbers(after: tuple[int, ...]) -> str:
    return ", ".join(map(str, after))


# ------------------------------------------------------------------------------------------------------ carrying out


class HttpMover:
    """Moves VMs through a service."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def machine_of(self, vm: str) -> str | None:
        """Where the service says that a VM runs."""
        from roost.client import ServiceProblem

        try:
            return self._client.get_vm(vm).machine
        except ServiceProblem as problem:
            if problem.code == "roost.not_found":
                return None
            raise

    def move(self, tenant: str, vm: str, machine: str, step: MoverStep, key: str) -> StepOutcome:
        """Ask the service; what it cannot do just now is raised, what it refuses is not."""
        from roost.client import ServiceProblem
        from roost.whatif.mover import StepOutcome

        del tenant  # the service knows
        try:
            self._client.move_vm(vm, machine, step, key=key)
        except ServiceProblem as problem:
            if exit_of(problem.code) in (Exit.UNAVAILABLE, Exit.NOT_ALLOWED):
                raise
            again = problem.code == "roost.retries_exhausted"
            return StepOutcome(False, problem.problem.detail or problem.problem.title, again=again)
        return StepOutcome(True)


@contextmanager
def _mover(service: ServiceOptions, store: str | None, plan: Plan) -> Iterator[Mover]:
    """Who moves VMs in the zone that a plan is for."""
    if store is None:
        with service.open() as client:
            _check_zone(client.get_zone().zone, plan)
            yield HttpMover(client)
        return
    from roost.whatif.agent_mover import AgentMover
    from roost.wiring import open_agent, open_store

    opened = open_store(store)
    try:
        _check_zone(opened.catalogue.name, plan)
        agent = open_agent(opened, Source(config=service.config, store=store).policy(opened.load()))
        try:
            yield AgentMover(agent)
        finally:
            agent.close()
    finally:
        opened.close()


def _check_zone(name: str, plan: Plan) -> None:
    if name != plan.zone:
        raise InvalidInput(
            "plan", f"is for zone {plan.zone}, and this is {name}", "name the store or service of the zone"
        )


@flat
def apply(
    plan: Annotated[Path, typer.Argument(help="What `roost whatif migrate --to` wrote.")],
    service: ServiceOptions,
    store: Annotated[str | None, typer.Option("--store", help=f"Work without a service. {STORE}")] = None,
    run: Annotated[
        str, typer.Option("--run", help="What copies a VM: 'migrate {vm} {source} {target}'. Nothing, if left out.")
    ] = "",
    at_once: Annotated[
        int, typer.Option("--at-once", help="Moves that may be under way.", min=1, max=MOST_AT_ONCE)
    ] = 4,
    output: Output = Form.TABLE,
) -> None:
    """Carry a plan out: hold room on the target, copy the VM, finish; each move after those it needs.

    A VM that is gone, and a target that refuses by now, are passed over; the rest goes on. What the command fails at
    is cancelled. Interrupted or killed, the same command goes on where it stopped: what was reached is in a file
    beside the plan. Exit code 3 if something was not moved.

    \b
      roost whatif apply plan.json
      roost whatif apply plan.json --at-once 8 --run 'migrate-vm {vm} {target}'
    """
    from roost.whatif.carry_out import carry_out, command_of
    from roost.whatif.plan import read_plan
    from roost.whatif.progress import ENDS, Progress

    chosen = read_plan(plan)
    copy = command_of(run, chosen.id) if run else None
    with (
        Progress(f"{plan}{PROGRESS}", chosen.id) as reached,
        _mover(service, store, chosen) as mover,
        progress("moving") as show,
    ):
        ended = [move.number for move in chosen.moves if reached.ended(move.number)]

        def tell(move: PlannedMove, step: Reached, detail: str) -> None:
            if step in ENDS:
                ended.append(move.number)
                show(f"{move.vm} {step}", len(ended) / len(chosen.moves))
            if detail and output is Form.TABLE:
                advise(f"move {move.number} ({move.vm}) {step}: {detail}")

        result = carry_out(chosen, mover, reached, copy=copy, at_once=at_once, tell=tell)
    _show_result(result, output)
    if result.skipped or result.cancelled:
        raise typer.Exit(Exit.NO_ROOM)


def _show_result(result: CarryOutResult, output: Form) -> None:
    if output is Form.JSON:
        print_json(result)
        return
    others = {"gone before": result.gone, "skipped": result.skipped, "cancelled": result.cancelled}
    rest = "".join(f", {number:,} {what}" for what, number in others.items() if number)
    say(f"{result.finished:,} of {result.moves:,} moves made{rest}; {result.emptied:,} machines emptied")
