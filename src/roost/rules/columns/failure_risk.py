"""Column: how likely the machine is to fail soon."""

import math

from roost.engine.rule import derived

HORIZON_DAYS = 7
WINDOW_DAYS = 30  # over which a machine's failures are counted
BROKEN = 3  # a machine of no health at all counts as if it had failed so many times more


@derived()
def failure_risk(machine, vm):
    """The probability that the machine fails within a week.

    Failures come at random, as often as in the last thirty days; lost health counts as failures not yet had:

        rate = 7/30 × (failures + 3 × (100 - health) / 100)      expected failures within the week
        risk = 1 - exp(-rate)                                    that there is at least one

    So 0 for a perfect machine, 0.21 after one failure, 0.50 for one that has lost all its health.
    """
    rate = HORIZON_DAYS / WINDOW_DAYS * (machine.failures + BROKEN * (100 - machine.health) / 100)
    return 1.0 - math.exp(-rate)
