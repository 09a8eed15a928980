"""What a store can be asked to do: the verb of each kind of proposal."""

from __future__ import annotations

from roost.store.contract import (
    Ask,
    Commission,
    Decline,
    Decommission,
    Move,
    Place,
    Register,
    Release,
    SetCondition,
    SetQuarantine,
)
from roost.store.settle import (
    add_machines,
    answer,
    condition,
    move,
    place,
    quarantine,
    register,
    release,
    remove_machines,
)
from roost.store.settle.verb import StoreVerb

VERBS: dict[type, StoreVerb] = {
    Place: StoreVerb("Put VMs of a tenant on machines; others may give way.", place.needs, place.settle),
    Release: StoreVerb("Take VMs of a tenant off their machines.", release.needs, release.settle),
    Move: StoreVerb("Bring a VM to another machine, or hold room for it there.", move.needs, move.settle),
    SetCondition: StoreVerb("Say how a machine is.", condition.needs, condition.settle),
    SetQuarantine: StoreVerb("Take a cluster out of use for new VMs, or back.", quarantine.needs, quarantine.settle),
    Commission: StoreVerb("Add machines; a cluster begins with its first.", add_machines.needs, add_machines.settle),
    Decommission: StoreVerb("Remove machines that run nothing.", remove_machines.needs, remove_machines.settle),
    Register: StoreVerb("Set an entry of the zone's registry.", register.needs, register.settle),
    Decline: StoreVerb("Note that a request was refused.", answer.needs, answer.settle_declined),
    Ask: StoreVerb("Only ask whether a key was answered before.", answer.needs, answer.settle_asked),
}
