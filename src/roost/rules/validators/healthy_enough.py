"""Hard rule: the machine is not about to break."""

from roost.engine.rule import validator


@validator(reason="machine unhealthy", recheck=True)
def healthy_enough(machine, vm, min_health=30):
    """The machine's health, of 100, is no worse than an operator accepts."""
    return machine.health >= min_health
