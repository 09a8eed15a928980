"""A rule that reads a trait behind the back of the check for undeclared ones: under another name."""

from typing import Any

from roost.engine.rule import preference


@preference()
def sly(machine: Any, vm: Any) -> float:
    """Depends on the features that the VM asks for, and does not say so."""
    wanted = vm
    return float((machine.update_domain + (wanted.features & 1)) % 2)
