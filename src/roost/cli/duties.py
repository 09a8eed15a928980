"""`roost duties`: what the service sees to beside the requests, and how that goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from roost.cli.options import ServiceOptions, flat
from roost.cli.output import Form, Output, advise, lasted, print_json, print_table

if TYPE_CHECKING:
    from roost.wire.operations import DutyHealth

COLUMNS = ("duty", "every", "steps", "failed", "last step", "took", "error")


@flat
def duties(service: ServiceOptions, output: Output = Form.TABLE) -> None:
    """What the service sees to beside the requests, and how that goes.

    Healing, placing again what had to give way, foresight, trimming and other duties run in steps. The table says how
    often each has its turn, how many steps it made, how many of them failed, when the last one began, how long it took
    and what it failed with; the log says more about that. A duty that failed is tried again; others go on meanwhile. If
    the last step is much older than "every" says, it is still waiting, probably for the store.

    Every worker of a service has its own duties; you see those of the worker that answers. The metrics (roost_duty_…)
    are about all workers.

    \b
      roost duties
      roost duties -o json
    """
    with service.open() as client:
        found = client.ready()
    if output is Form.JSON:
        print_json(found.duties)
        return
    print_table(COLUMNS, map(_row, found.duties))
    advise(f"of {found.detail}")


def _row(duty: DutyHealth) -> tuple[object, ...]:
    every = lasted(duty.period_seconds) if duty.period_seconds else "always"
    last = f"{lasted(duty.seconds_ago)} ago" if duty.runs else "none yet"
    return duty.name, every, duty.runs, duty.failures, last, lasted(duty.took_seconds), duty.last_error
