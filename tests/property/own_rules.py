"""Rules of a user's own: traits that Roost does not know, and derived columns that need each other."""

from typing import Any

from roost.engine.rule import derived, preference, validator


@derived()
def crowd(machine: Any, vm: Any) -> float:
    """How many VMs there are, up to four, as a share of four."""
    return float(min(4, machine.vms)) / 4


@derived(traits=("x",), needs=(crowd,))
def warmth(machine: Any, vm: Any, crowd: float) -> float:
    """Crowded machines are warm to those with an odd x, and colder than empty ones to others."""
    return crowd if vm.x % 2 == 1 else 0.5 * (1.0 - crowd)


@derived(traits=("x", "y", "priority"), needs=(warmth, crowd))
def pull(machine: Any, vm: Any, warmth: float, crowd: float) -> float:
    """A mixture of its needs and of what is free, by x, y and priority."""
    free = machine.free[vm.priority][0] / max(1, machine.capacity[0])
    share = (abs(vm.x) + 2 * abs(vm.y)) % 5 / 5
    return float((1 - share) * warmth + share * (free + crowd) / 2)


@validator(reason="too warm", needs=(warmth,))
def bearable(machine: Any, vm: Any, warmth: float, limit: float = 0.6) -> bool:
    """A machine may be warm, but not hot."""
    return warmth <= limit


@validator(reason="machine too frail for y", traits=("y",))
def accepts(machine: Any, vm: Any) -> bool:
    """Machines in bad health take only VMs without y."""
    return bool(machine.health >= 60 or vm.y == 0)


@preference(needs=(pull,))
def pulled(machine: Any, vm: Any, pull: float) -> float:
    """Where the pull is weakest."""
    return pull


@preference(traits=("y",), needs=(crowd, warmth))
def cosy(machine: Any, vm: Any, crowd: float, warmth: float) -> float:
    """Either of two facts, by y."""
    return crowd if vm.y > 0 else warmth


@preference(scope="cluster", traits=("x",))
def liked(cluster: Any, vm: Any) -> float:
    """Some clusters are liked, by x."""
    return float((cluster.index + vm.x) % 3) / 3


# ------------------------------------------------------------------------- the two rules of Protean's Table 4


@derived(traits=("x", "y"))
def r1(machine: Any, vm: Any) -> float:
    """The state of the rule R1."""
    return float((machine.vms + vm.x + vm.y) % 2)


@derived(traits=("x",))
def r2(machine: Any, vm: Any) -> float:
    """The state of the rule R2."""
    return float((machine.vms + vm.x) % 3) / 2


@preference(needs=(r1,))
def rule_1(machine: Any, vm: Any, r1: float) -> float:
    """R1 depends on the traits x and y."""
    return r1


@preference(needs=(r2,))
def rule_2(machine: Any, vm: Any, r2: float) -> float:
    """R2 depends on the trait x."""
    return r2
