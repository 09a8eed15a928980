"""A rule that breaks the promise that scores are from 0 to 1."""

from typing import Any

from roost.engine.rule import preference


@preference()
def faulty_when_used(machine: Any, vm: Any) -> float:
    """Out of range as soon as a machine has a VM."""
    return 2.0 if machine.vms > 0 else 0.0
