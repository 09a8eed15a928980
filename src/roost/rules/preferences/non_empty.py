"""Soft rule: open an empty machine last."""

from roost.engine.rule import preference


@preference()
def non_empty(machine, vm):
    """Prefer a machine that already runs a VM."""
    return 0.0 if machine.vms > 0 else 1.0
