"""`roost audit`: does a store contradict itself?"""

from __future__ import annotations

from typing import Annotated

import typer

from roost.cli.exits import Exit
from roost.cli.output import STORE, Form, Output, console, errors, print_json

SHOWN = 50  # findings


def audit(
    store: Annotated[str, typer.Argument(help=STORE)],
    repair: Annotated[bool, typer.Option("--repair", help="Overwrite sums that do not add up.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --repair: only say what would be written.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """Check that a store agrees with itself; exit code 1 if it does not. Changes nothing unless told to repair.

    \b
    What is checked:
      what machines hold is the sum of their VMs, and no more than they have
      every VM has its tenant and machine, every tenant the VMs it counts
      the feed, replayed from where it begins, makes the tables
      a view that an agent would load has the same rows

    What --repair does: sums are added up again from the VMs. It never places or removes a VM. Agents then load anew.
    """
    from roost.agent.agreement import check_against
    from roost.agent.replica import Replica
    from roost.store.audit import audit as check
    from roost.store.audit import mending
    from roost.store.audit import repair as mend
    from roost.wiring import open_store

    if dry_run and not repair:
        raise typer.BadParameter("goes with --repair", param_hint="--dry-run")
    opened = open_store(store, read_only=not repair or dry_run)
    try:
        with errors().status("checking"):
            report = check(opened)
            if report.clean and report.machines:
                from roost.rules.policy import Policy

                columns = opened.columns()
                check_against(Replica(columns, Policy.named("fast")), columns.ledger())
        if output is Form.JSON:
            print_json(report)
        else:
            counted = f"revision {report.revision:,}: {report.machines:,} machines, {report.tenants:,} tenants, "
            console().print(f"{counted}{report.vms:,} VMs", highlight=False)
            for finding in report.findings[:SHOWN]:
                mark = "can be repaired" if finding.repairable else "look at it"
                console().print(f"  {finding.check:<9} {finding.what} ({mark})", highlight=False, markup=False)
            if len(report.findings) > SHOWN:
                console().print(f"  … and {len(report.findings) - SHOWN:,} more", highlight=False)
            console().print("clean" if report.clean else f"{len(report.findings):,} findings", highlight=False)
        if repair and not report.clean:
            done = mending(opened.load(), opened.amounts()) if dry_run else mend(opened)
            verb = "would be rewritten" if dry_run else "were rewritten"
            errors().print(f"{len(done.machines)} machines and {len(done.tenants)} tenants {verb}", highlight=False)
    finally:
        opened.close()
    if not report.clean:
        raise typer.Exit(Exit.FOUND)
