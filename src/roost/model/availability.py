"""Availability sets: VMs of a tenant that must not all be gone at once.

A fault domain is a rack. An update domain is a group of machines that are updated at the same time.
"""

from collections.abc import Mapping

import msgspec

from roost.model.errors import InvalidInput
from roost.model.names import check_new_name

MOST = 1_000_000  # of anything a constraint can ask for
MOST_SETS = 100  # of one tenant
LONGEST_SET_NAME = 63


class AvailabilitySet(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """VMs that are spread evenly over so many fault and update domains, or one for each VM if those are fewer."""

    fault_domains: int = 0  # racks, at least; 0: it does not matter
    update_domains: int = 0  # the same
    best_effort: bool = False  # a VM that no machine suits by all of these terms is placed all the same

    def __post_init__(self) -> None:
        for field in ("fault_domains", "update_domains"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
                raise InvalidInput(f"set.{field}", f"is {value!r}", f"use a whole number up to {MOST:,}")
        if not isinstance(self.best_effort, bool):
            raise InvalidInput("set.best_effort", f"is {self.best_effort!r}", "use true or false")
        if not self.fault_domains and not self.update_domains:
            raise InvalidInput("set", "asks for nothing", "give it fault_domains, update_domains, or both")


def check_sets(sets: object) -> None:
    """Refuse what is no mapping of names to sets."""
    if not isinstance(sets, Mapping) or len(sets) > MOST_SETS:
        raise InvalidInput("constraints.sets", "is no mapping of names to sets", f"name up to {MOST_SETS} sets")
    for name, wanted in sets.items():
        check_new_name("constraints.sets", name, LONGEST_SET_NAME)
        if not isinstance(wanted, AvailabilitySet):
            raise InvalidInput(f"constraints.sets.{name}", f"is {wanted!r}", "give AvailabilitySet(…)")


class MostDomains(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many domains one availability set of a zone may ask for."""

    fault_domains: int = 3
    update_domains: int = 20

    def check(self, name: str, wanted: AvailabilitySet) -> None:
        """Refuse a set that asks for more."""
        for field in ("fault_domains", "update_domains"):
            value, most = getattr(wanted, field), getattr(self, field)
            if value > most:
                raise InvalidInput(
                    f"constraints.sets.{name}.{field}",
                    f"is {value}, and a set of this zone may have {most}",
                    f"ask for at most {most}, or raise availability.{field} in the zone file",
                )


USUAL_DOMAINS = MostDomains()


class Spread(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How the VMs of a tenant lie that count for one another, once a request is placed: what it really has."""

    set: str = ""  # the availability set; empty: the tenant's VMs that are in none
    vms: int
    fault_domains: int  # that they are in
    most_in_fault_domain: int  # VMs in one of these
    update_domains: int
    most_in_update_domain: int
    most_on_machine: int

    def __str__(self) -> str:
        who = f"set {self.set}: " if self.set else ""
        faults = f"{self.fault_domains:,} fault domain{'s'[: self.fault_domains > 1]}"
        updates = f"{self.update_domains:,} update domain{'s'[: self.update_domains > 1]}"
        return (
            f"{who}{self.vms:,} VM{'s'[: self.vms > 1]} in {faults} (at most {self.most_in_fault_domain:,} in one) "
            f"and {updates} (at most {self.most_in_update_domain:,}), at most {self.most_on_machine:,} on a machine"
        )


class Short(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """VMs that do their best, and could not be spread as far as was asked."""

    set: str = ""  # the availability set; empty: the tenant's VMs that are in none
    vms: int  # of the request, that were placed against the terms
    fault_domains: int = 0  # that all VMs of the set are in now; 0 where none were asked for
    wanted_fault_domains: int = 0
    update_domains: int = 0
    wanted_update_domains: int = 0

    def __str__(self) -> str:
        reached = [
            f"{getattr(self, field)} of {wanted} {field.replace('_', ' ')}"
            for field in ("fault_domains", "update_domains")
            if (wanted := getattr(self, f"wanted_{field}"))
        ]
        who = f"set {self.set}" if self.set else "the tenant's constraints"
        against = f"{self.vms:,} VM{'s'[: self.vms > 1]} placed against the terms"
        return f"{who}: {', '.join([*reached, against])}"
