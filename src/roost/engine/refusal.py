"""Whether one machine may have a VM: every hard rule is asked about that machine alone, uncompiled."""

from roost.engine.funnel import beside, plain
from roost.engine.ruleset import BoundRule
from roost.engine.selection import Engine
from roost.engine.shape import Shape
from roost.engine.tenant import TenantDesk


def refusal(engine: Engine, shape: Shape, machine: int, of_set: str = "") -> str | None:
    """Why a machine may not have a VM of the tenant at the desk: the first rule that says so; None if none does.

    `of_set`: the availability set at the desk, if it is one.
    """
    view, rules, zone, desk = engine.view, engine.rules, engine.view.zone, engine.desk
    row, vm = plain(view.machines[machine]), plain(shape.record)
    cluster = plain(view.clusters[row.cluster])
    for bound in rules.cluster_validators:
        if not bound.rule.function(cluster, vm, *bound.constants(zone)):
            return _said(bound, bound.reason(zone, bound.rule.detail(cluster, vm) if bound.rule.detail else 0))
    for bound in rules.validators:
        if not bound.rule.function(row, vm, *beside(bound.rule, view, machine, row, vm), *bound.constants(zone)):
            return _said(bound, bound.reason(zone, bound.rule.detail(row, vm) if bound.rule.detail else 0))
    if desk.constrained:
        tenant = plain(desk.row[0])
        for bound in rules.tenant_rules:
            tenant.here = _here(desk, bound.rule.domain, machine)
            if not bound.rule.function(tenant, *bound.constants(zone)):
                return _said(bound, bound.reason(zone, 0, of_set))
    return None


def _here(desk: TenantDesk, domain: str, machine: int) -> int:
    """The tenant's VMs in the machine's unit of a domain."""
    homes = desk.homes[: int(desk.row["placed"][0])]
    if domain == "machine":
        return int((homes == machine).sum())
    units = desk.view.machines[domain]
    return int((units[homes] == units[machine]).sum())


def _said(bound: BoundRule, reason: str) -> str:
    return f"{reason} ({bound.rule.name})"
