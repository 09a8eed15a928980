"""Hard rule: VMs of conflicting classes do not share a machine."""

from roost.engine.rule import validator


@validator(traits=("colocation",), reason="anti-colocation class", recheck=True)
def respects_anti_colocation(machine, vm):
    """No VM on the machine is of a class that this VM may not share a machine with."""
    for c in range(len(vm.avoids)):
        if vm.avoids[c] != 0 and machine.classes[c] > 0:
            return False
    return True
