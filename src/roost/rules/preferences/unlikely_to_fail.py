"""Soft rule: avoid machines that may fail soon."""

from roost.engine.rule import preference
from roost.rules.columns.failure_risk import failure_risk as risk


@preference(needs=(risk,))
def unlikely_to_fail(machine, vm, failure_risk):
    """Prefer the machine that is less likely to fail within days."""
    return failure_risk
