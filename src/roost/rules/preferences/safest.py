"""Soft rule: put a VM that may have to give way where it can stay longest."""

import math

from roost.engine.rule import preference
from roost.rules.columns.danger import danger as rate_of_evictions


@preference(traits=("priority",), needs=(rate_of_evictions,))
def safest(machine, vm, danger, soon=0.02, late=200.0):
    """Prefer the machine on which it takes longest until something has to give way.

    The safety score of a machine is that time in hours, 1/danger. The rule's score is 1 if it is at most `soon`, 0 if
    it is at least `late`, and falls with its logarithm between the two: each bucket is longer than the one before by
    the same factor, in a busy zone as in a quiet one. To VMs of the highest priority all machines are equally safe.
    """
    if vm.priority == 0 or danger * late <= 1.0:
        return 0.0
    return min(1.0, math.log(danger * late) / math.log(late / soon))
