"""Soft rule: spread VMs by number."""

from roost.engine.rule import preference


@preference()
def fewer_vms(machine, vm, most=64):
    """Prefer the machine that runs fewer VMs, so that its failure hurts fewer; `most` or more are equally bad."""
    return min(1.0, machine.vms / max(1, most))
