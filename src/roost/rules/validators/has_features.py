"""Hard rule: the machine has the hardware the VM asks for."""

from roost.engine.rule import validator


@validator(traits=("features",), reason="missing hardware feature", recheck=True)
def has_features(machine, vm):
    """The machine has each hardware feature that the VM or its type requires."""
    return (machine.features & vm.features) == vm.features
