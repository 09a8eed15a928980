"""Hard rule: a machine runs only so many VMs."""

from roost.engine.rule import validator


@validator(reason="VM-count limit", recheck=True)
def below_vm_limit(machine, vm, max_vms=64):
    """The machine runs fewer VMs than its host software can manage."""
    return machine.vms < max_vms
