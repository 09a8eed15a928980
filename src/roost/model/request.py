"""What a tenant asks for and what it gets.

None of these can be part of a cycle, so the garbage collector need not look at them (`gc=False`): there are millions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from roost.model.availability import MOST, AvailabilitySet, check_sets
from roost.model.errors import InvalidInput

ANY = "*"  # of a place that a VM might ask for: any of them, whatever its tenant wants
PLACES = ("datacenter", "cluster")
PINS = (*PLACES, "generation")  # places, and hardware, that VMs ask for
HOLD = "~hold"  # how the name of room ends that is held for a VM which is to move; no VM is called so
Colocation = Literal["rack", "cluster", "datacenter"]


class VM(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """One virtual machine that is wanted: its type, and what else it asks of the machine it runs on."""

    type: str
    name: str = ""  # unique in the zone; made from the tenant's name when empty
    priority: str = ""  # a priority band of the zone; the highest when empty
    isolated: bool = False  # no VM of another tenant on the same machine
    colocation: str = ""  # an anti-colocation class of the zone
    requires: tuple[str, ...] = ()  # hardware features, besides those of its type
    datacenter: str = ""  # this and the next two: empty, where its tenant wants its VMs, if it does; see ANY
    cluster: str = ""
    generation: str = ""
    traits: Mapping[str, int] = {}  # values for traits that only a user's own rules know
    requeue: bool = False  # placed again, as soon as there is room, after it had to give way to a higher priority
    set: str = ""  # the availability set of its tenant that it is in

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            raise InvalidInput("vm.type", f"must be the name of a VM type, not {self.type!r}", "for example VM('D4')")
        if self.requires == () and not self.traits and self.traits.__class__ is dict:  # as nearly always
            return
        required: object = self.requires
        if isinstance(required, str) or not isinstance(required, Iterable):
            raise InvalidInput("vm.requires", f"is {required!r}", "give a list of hardware features")
        msgspec.structs.force_setattr(self, "requires", tuple(self.requires))
        given: object = self.traits
        if not isinstance(given, Mapping):
            raise InvalidInput("vm.traits", f"is {given!r}", "give a mapping of names to whole numbers")
        for trait, value in self.traits.items():
            if not isinstance(value, int):
                raise InvalidInput(f"vm.traits.{trait}", f"must be a whole number, not {value!r}")


class Constraints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """What a tenant asks of its VMs together. A fault domain is a rack. 0 or empty means: no such constraint."""

    min_fault_domains: int = 0
    max_fault_domains: int = 0
    fault_domain_skew: int = 0
    min_update_domains: int = 0
    update_domain_skew: int = 0
    max_per_machine: int = 0
    max_per_rack: int = 0
    colocate: Colocation | Literal[""] = ""
    evict_together: bool = False  # when one of its VMs has to give way, the others of lower priority go with it
    best_effort: bool = False  # a VM in no set that no machine suits by all of these is placed all the same
    sets: Mapping[str, AvailabilitySet] = {}  # by name; VMs of a set are held to its terms, those in none to the rest
    datacenter: str = ""  # this and the next two: where VMs are to be that say nothing of it themselves
    cluster: str = ""
    generation: str = ""

    def __post_init__(self) -> None:
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field == "colocate":
                if value not in ("", "rack", "cluster", "datacenter"):
                    raise InvalidInput("constraints.colocate", f"is {value!r}", "use rack, cluster or datacenter")
            elif field in ("evict_together", "best_effort"):
                if not isinstance(value, bool):
                    raise InvalidInput(f"constraints.{field}", f"is {value!r}", "use true or false")
            elif field == "sets":
                check_sets(value)
            elif field in PINS:
                if not isinstance(value, str) or value == ANY:
                    raise InvalidInput(f"constraints.{field}", f"is {value!r}", "use a name, or leave it out")
            elif not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
                remedy = f"use a whole number up to {MOST:,}, 0 for no constraint"
                raise InvalidInput(f"constraints.{field}", f"is {value!r}", remedy)
        if self.max_fault_domains and self.min_fault_domains > self.max_fault_domains:
            raise InvalidInput(
                "constraints.min_fault_domains",
                f"is {self.min_fault_domains}, above max_fault_domains, which is {self.max_fault_domains}",
            )
        if self.colocate == "rack" and self.min_fault_domains > 1:
            raise InvalidInput(
                "constraints.colocate", "asks for one rack while min_fault_domains asks for several", "drop one of them"
            )

        if self.best_effort and not self.named:
            remedy = "constrain something, or say it of a set, in the set"
            raise InvalidInput("constraints.best_effort", "has nothing that could be waived", remedy)

    def __hash__(self) -> int:
        others = self.evict_together, self.best_effort, frozenset(self.sets.items())
        return hash((*self.named.items(), *self.pins.items(), *others))

    @property
    def named(self) -> dict[str, int | str]:
        """The tenant's own constraints on where VMs may be, those of its sets aside, by name."""
        return {field: getattr(self, field) for field in ON_PLACES if getattr(self, field)}

    @property
    def pins(self) -> dict[str, str]:
        """The places where its VMs are to be, unless they say otherwise."""
        return {pin: getattr(self, pin) for pin in PINS if getattr(self, pin)}

    def wished_by(self, vms: Sequence[VM]) -> "Constraints":
        """Those of a new tenant: the places that all of its first VMs ask for are where later ones are to be, too."""
        first = vms[0]
        if not (first.datacenter or first.cluster or first.generation):
            return self
        pins = {
            pin: wanted
            for pin in PINS
            if (wanted := getattr(first, pin)) and wanted != ANY and not getattr(self, pin)
            if all(vm is first or getattr(vm, pin) == wanted for vm in vms)
        }
        return msgspec.structs.replace(self, **pins) if pins else self

    @property
    def unit(self) -> Colocation | Literal[""]:
        """What all VMs must be in one of, those of sets aside: the smallest that is asked for."""
        return "rack" if self.max_fault_domains == 1 else self.colocate

    @property
    def on_places(self) -> bool:
        """Whether anything is asked of where VMs are."""
        return bool(self.sets or self.named)

    def terms(self, name: str = "") -> "Terms":
        """What the VMs of a set are held to; without a name, those in none."""
        if not name:
            more = self.sets or self.best_effort or self.pins
            plain = Constraints(**self.named) if more else self  # type: ignore[arg-type]
            return Terms(plain, "", self.best_effort)
        wanted = self.sets[name]
        spread = Constraints(
            min_fault_domains=wanted.fault_domains,
            fault_domain_skew=int(wanted.fault_domains > 0),
            min_update_domains=wanted.update_domains,
            update_domain_skew=int(wanted.update_domains > 0),
        )
        return Terms(spread, name, wanted.best_effort)


NOT_ON_PLACES = ("evict_together", "best_effort", "sets", *PINS)
ON_PLACES = tuple(field for field in Constraints.__struct_fields__ if field not in NOT_ON_PLACES)
UNCONSTRAINED = Constraints()


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What VMs that count for one another are held to: those of an availability set, or a tenant's that are in none."""

    constraints: Constraints  # without sets
    set: str = ""
    best_effort: bool = False

    @property
    def rungs(self) -> tuple[Constraints, ...]:
        """What a VM is held to, strictest first; to each next one only if no machine would do.

        Update domains are given up before fault domains; even spread over the domains there are, last.
        """
        all_of_it = self.constraints
        if not self.best_effort:
            return (all_of_it,)
        found = [all_of_it]
        for given_up in (("min_update_domains",), ("min_fault_domains",), ("min_update_domains", "min_fault_domains")):
            rest = msgspec.structs.replace(all_of_it, **dict.fromkeys(given_up, 0))
            if rest not in found:
                found.append(rest)
        return (*found, UNCONSTRAINED) if UNCONSTRAINED not in found else tuple(found)


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """VMs that are placed together or not at all. For a tenant that already has VMs this is a scale-out."""

    tenant: str
    vms: Sequence[VM]
    constraints: Constraints | None = None  # None: the tenant's own, if it exists already, else none

    def __post_init__(self) -> None:
        if not isinstance(self.tenant, str) or not self.tenant:
            raise InvalidInput("request.tenant", f"must be a name, not {self.tenant!r}")
        given: object = self.vms  # whatever the caller really passed
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InvalidInput("request.vms", f"must be a list of VMs, not {self.vms!r}")
        vms = tuple(self.vms)
        if not vms:
            raise InvalidInput("request.vms", "is empty", "ask for at least one VM")
        for i, vm in enumerate(vms):
            if not isinstance(vm, VM):
                raise InvalidInput(f"request.vms[{i}]", f"must be a VM, not {vm!r}", "for example VM('D4')")
            if vm.name and str(vm.name).endswith(HOLD):
                problem = f"{vm.name!r} ends in {HOLD}, as only room that is held for a VM may"
                raise InvalidInput(f"request.vms[{i}].name", problem, "choose another name")
        msgspec.structs.force_setattr(self, "vms", vms)
        wished: object = self.constraints
        if not isinstance(wished, Constraints | None):
            raise InvalidInput("request.constraints", f"is {wished!r}", "give Constraints(…)")


def heeding(request: Request, constraints: Constraints) -> Request:
    """The request of a tenant with these constraints: VMs that do not say where they are to be, where it wants them.

    One that names a datacenter or a cluster is not held to the other: it goes where it says, wherever that is.
    """
    if not (constraints.datacenter or constraints.cluster or constraints.generation):
        return request
    pins = constraints.pins
    found: list[VM] = []
    last: VM | None = None
    for vm in request.vms:
        if vm is not last:
            elsewhere = {vm.datacenter, vm.cluster} - {"", ANY}
            missing = {
                pin: wanted
                for pin, wanted in pins.items()
                if not getattr(vm, pin) and not (elsewhere and pin in PLACES)
            }
            last, heeded = vm, msgspec.structs.replace(vm, **missing) if missing else vm
        found.append(heeded)
    return msgspec.structs.replace(request, vms=tuple(found))


def check_promises(request: Request) -> None:
    """Refuse what a new tenant asks for in vain: it would be placed, and nothing would have been promised."""
    wanted, named = request.constraints or UNCONSTRAINED, {vm.set for vm in request.vms}
    if not named <= {"", *wanted.sets}:
        return  # the name is wrong, and that is told where sets are looked up
    for name in wanted.sets:
        if name not in named:
            remedy = f"put VMs in it (set: {name}, on the command line --vm TYPE@{name}), or leave it out"
            raise InvalidInput(f"constraints.sets.{name}", "no VM of the request is in it", remedy)
    held = sum(not vm.set for vm in request.vms)
    for field in ("min_fault_domains", "min_update_domains"):
        if (least := getattr(wanted, field)) > held:
            whom = f"{held:,} VM{'s'[: held != 1]}{' in no set' if wanted.sets else ''}"
            remedy = f"ask for at most {held:,}, or for more VMs" if held else "leave it out: sets have their own"
            raise InvalidInput(f"constraints.{field}", f"is {least:,}, for {whom}", remedy)


def hold_of(vm: str) -> str:
    """What room is called that is held for a VM elsewhere: a VM of the same tenant, as long as the move lasts."""
    return vm + HOLD


class Placement(msgspec.Struct, frozen=True, gc=False):
    """A VM on a machine."""

    vm: str
    type: str
    machine: str
