"""`roost capacity`: how much more fits."""

from __future__ import annotations

from typing import Annotated

import typer

from roost.cli.options import ServiceOptions, flat
from roost.cli.output import Form, Output, print_json, print_table


@flat
def capacity(
    service: ServiceOptions,
    vm_type: Annotated[str, typer.Argument(help="Only this VM type.", metavar="[TYPE]", show_default=False)] = "",
    priority: Annotated[str, typer.Option("--priority", help="The priority band; the highest if left out.")] = "",
    by_cluster: Annotated[bool, typer.Option("--by-cluster", help="In each cluster.")] = False,
    output: Output = Form.TABLE,
) -> None:
    """How many more VMs of each type fit now, if nothing else came.

    \b
      roost capacity
      roost capacity D4 --by-cluster
      roost capacity D4 --priority spot -o json
    """
    with service.open() as client:
        found = client.capacity(vm_type, priority=priority)
    if output is Form.JSON:
        print_json(found)
    elif by_cluster:
        rows = [(each.type, cluster, count) for each in found.types for cluster, count in each.clusters.items()]
        print_table(("type", "cluster", "fit"), rows)
    else:
        print_table(("type", "fit", "machines that take one"), ((t.type, t.count, t.machines) for t in found.types))
