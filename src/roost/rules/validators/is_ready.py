"""Hard rule: the machine is ready for new VMs."""

from roost.engine.rule import validator
from roost.model.rows import MachineState

READY = int(MachineState.READY)


def state(machine, vm):
    """The state that the machine is in instead."""
    return machine.state


@validator(reason="machine {state}", detail=state, recheck=True)
def is_ready(machine, vm):
    """A machine that is draining, down or quarantined takes no new VMs."""
    return machine.state == READY
