"""Hard rule: who pays for whole machines shares them with nobody."""

from roost.engine.rule import validator


@validator(traits=("isolation",), reason="isolation", recheck=True)
def respects_isolation(machine, vm):
    """An isolated VM needs an empty machine or one its tenant holds; any other VM needs one that nobody holds."""
    if vm.isolation == 0:
        return machine.owner == 0
    return machine.owner == vm.isolation or (machine.owner == 0 and machine.vms == 0)
