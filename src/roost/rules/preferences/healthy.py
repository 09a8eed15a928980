"""Soft rule: use the healthiest machines."""

from roost.engine.rule import preference


@preference()
def healthy(machine, vm):
    """Prefer the machine with the better health: 0 for a perfect one, 1 for a broken one."""
    return 1.0 - machine.health / 100
