"""A column that depends on more than it declares: on y, through the column it needs. Cached by x, it would be wrong."""

from typing import Any

from roost.engine.rule import derived, preference


@derived(traits=("x", "y"))
def exact(machine: Any, vm: Any) -> float:
    """Says all that it depends on."""
    return float((machine.update_domain + vm.x + vm.y) % 2)


@derived(traits=("x",), needs=(exact,))
def careless(machine: Any, vm: Any, exact: float) -> float:
    """Says only half of it."""
    return 1.0 - exact


@preference(needs=(careless,))
def trusts_careless(machine: Any, vm: Any, careless: float) -> float:
    """Whatever the column says."""
    return careless
