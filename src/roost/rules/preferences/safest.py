"""Soft rule: put a VM that may have to give way where it can stay longest."""

import math

from roost.engine.rule import preference
from roost.rules.columns.danger import danger as rate_of_evictions


@preference(traits=("priority",), needs=(rate_of_evictions,))
def safest(machine, vm, danger, horizon=24.0):
    """Prefer the machine on which it is least likely that something has to give way within `horizon` hours.

    The safety score of a machine is 1/danger, the expected time in hours; the rule's score is the probability
    1 - exp(-danger × horizon). Nothing is above the highest priority: to its VMs all machines are equally safe.
    """
    if vm.priority == 0:
        return 0.0
    return 1.0 - math.exp(-danger * horizon)
