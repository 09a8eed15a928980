"""What a rule is: a plain function of rows with a name, a reason, and the request traits it depends on.

    validator    (machine, vm) -> bool             hard: the reason is given to people when it says no
    preference   (machine, vm) -> score in [0, 1]  soft: lower is better
    tenant_rule  (tenant) -> bool                  hard: depends on where the tenant's own VMs are
    derived      (machine, vm) -> float            a fact worth remembering, given to the rules that need it

The decorators only attach a description; the function stays callable as it is, in tests and in explanations. What
follows the rows is a parameter: it needs a default, and a policy may set it. Numbers reach the compiled rule as data.
"""

import ast
import inspect
import string
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

from roost.engine.side_tables import SideTable
from roost.model.errors import InvalidInput

Function = TypeVar("Function", bound=Callable[..., Any])
RuleKind = Literal["validator", "preference", "tenant", "derived"]
RuleScope = Literal["cluster", "machine", "rack", "tenant"]
Domain = Literal["machine", "rack", "update_domain", "cluster", "datacenter"]

# What a rule may read of a VM once it has declared the trait. Any other name is a trait of the user's own.
TRAIT_FIELDS: Mapping[str, tuple[str, ...]] = {
    "vm_type": ("type", "demand", "supported"),
    "priority": ("priority",),
    "features": ("features",),
    "isolation": ("isolation",),
    "colocation": ("colocation", "avoids"),
    "datacenter": ("datacenter",),
    "cluster": ("cluster",),
    "generation": ("generation",),
    "purpose": ("purpose",),  # of the request; decided by who asks, not by what is asked for
}


# What a reason may leave open for `detail` to fill: an index into the zone's resources, states or generations, or into
# the purposes of requests.
REASON_WORDS = ("resource", "state", "generation", "purpose")


class PerResource(Mapping[str, float]):
    """A parameter with a number for each resource of the zone, 0 for those not named."""

    def __init__(self, **values: float) -> None:
        self._values = values

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class ResourceName(str):
    """A parameter that names a resource of the zone; the rule receives its index."""


class OptionalResource(ResourceName):
    """The same, for a resource that a zone may lack; then the rule receives -1."""


@dataclass(frozen=True)
class Rule:
    """A rule's description; `function` does the thinking."""

    name: str
    kind: RuleKind
    scope: RuleScope
    function: Callable[..., Any]
    traits: tuple[str, ...] = ()
    reason: str = ""
    recheck: bool = False
    spares: bool = False  # it says no, or 1, wherever a VM of lower priority would have to give way, and else yes, or 0
    needs: tuple["Rule", ...] = ()
    detail: Callable[..., int] | None = None
    domain: Domain = "machine"
    constraint: str = ""
    of_cluster: bool = False  # a derived column that reads the machine's cluster, too
    reads: tuple[SideTable, ...] = ()

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @cached_property
    def depends_on(self) -> tuple[str, ...]:
        """Its traits and, through the columns it needs, theirs."""
        return tuple(sorted({*self.traits, *(trait for need in self.needs for trait in need.depends_on)}))

    @cached_property
    def rests_on(self) -> frozenset[SideTable]:
        """The side tables it reads and, through the columns it needs, theirs."""
        return frozenset((*self.reads, *(table for need in self.needs for table in need.rests_on)))

    @property
    def rows(self) -> int:
        """How many leading arguments are rows or derived values; the rest are parameters."""
        return (1 if self.kind == "tenant" else 2) + self.of_cluster + len(self.reads) + len(self.needs)

    @cached_property
    def defaults(self) -> dict[str, Any]:
        """Its parameters and what they are when a policy does not say."""
        parameters = list(inspect.signature(self.function).parameters.values())[self.rows :]
        return {p.name: p.default for p in parameters}


def rule_of(function: Callable[..., Any]) -> Rule | None:
    """The description that a decorator attached, if any."""
    return getattr(function, "rule", None)


def _attach(function: Function, **description: Any) -> Function:
    rule = Rule(name=function.__name__, function=function, **description)
    _check(rule)
    function.rule = rule  # type: ignore[attr-defined]
    return function


def _check(rule: Rule) -> None:
    """Refuse a rule whose signature or reads contradict what it declares: it would be cached wrongly."""
    where = f"rule {rule.name} ({rule.function.__module__})"
    parameters = list(inspect.signature(rule.function).parameters.values())
    if len(parameters) < rule.rows:
        raise InvalidInput(where, f"takes {len(parameters)} arguments", f"it must take {rule.rows} before parameters")
    for p in parameters[rule.rows :]:
        if p.default is inspect.Parameter.empty:
            raise InvalidInput(where, f"parameter {p.name} has no default", "give it one: policies need not set it")
    if rule.kind == "tenant":
        return
    if rule.needs and rule.scope != "machine":
        raise InvalidInput(where, f"is a {rule.scope} rule with needs", "derived columns are facts about machines")
    if rule.reads and rule.scope != "machine":
        raise InvalidInput(where, f"is a {rule.scope} rule that reads side tables", "only rules of machines can")
    if rule.recheck and (rule.needs or rule.reads or rule.scope != "machine"):
        raise InvalidInput(
            where, "is marked for re-check", "a commit sees machine rows alone: no needs, scope machine, no side tables"
        )
    if rule.recheck and "purpose" in rule.traits:
        raise InvalidInput(where, "is marked for re-check", "a commit does not know the purpose of a request")
    if hidden := {field for fields in TRAIT_FIELDS.values() for field in fields} - set(TRAIT_FIELDS):
        for trait in hidden & set(rule.traits):
            owner = next(t for t, fields in TRAIT_FIELDS.items() if trait in fields)
            raise InvalidInput(where, f"declares {trait}, which is no trait", f"declare {owner}")
    placeholders = {name for _, name, _, _ in string.Formatter().parse(rule.reason) if name}
    if placeholders - set(REASON_WORDS) or bool(placeholders) != bool(rule.detail):
        words = ", ".join(f"{{{word}}}" for word in REASON_WORDS)
        raise InvalidInput(where, f"has the reason {rule.reason!r}", f"use {words} together with `detail`, or neither")
    allowed = {field for trait in rule.traits for field in TRAIT_FIELDS.get(trait, (trait,))}
    for function in (rule.function, *([rule.detail] if rule.detail else [])):
        name = list(inspect.signature(function).parameters)[1]
        reads, escapes = _reads(function, name)
        if escapes:
            raise InvalidInput(where, f"hands {name} on as a whole", f"pass on the fields it needs, as {name}.priority")
        if undeclared := reads - allowed:
            owners = [t for t, fields in TRAIT_FIELDS.items() if undeclared & set(fields)] or sorted(undeclared)
            listed = ", ".join(f"{name}.{field}" for field in sorted(undeclared))
            raise InvalidInput(where, f"reads {listed} without declaring it", f"add {', '.join(owners)} to its traits")


def _reads(function: Callable[..., Any], name: str) -> tuple[set[str], bool]:
    """The fields a function reads of one of its arguments, and whether it uses that argument in any other way."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # made without a file; what it reads cannot be known
        return set(), False
    read = {id(n.value): n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name]
    return {read[id(n)] for n in uses if id(n) in read}, any(id(n) not in read for n in uses)


def validator(
    *,
    reason: str,
    traits: tuple[str, ...] = (),
    scope: Literal["machine", "cluster"] = "machine",
    recheck: bool = False,
    spares: bool = False,
    needs: tuple[Callable[..., Any], ...] = (),
    reads: tuple[SideTable, ...] = (),
    detail: Callable[..., int] | None = None,
) -> Callable[[Function], Function]:
    """A hard rule. `detail(row, vm)` picks the word for the placeholder in `reason`; `recheck`: at commit, too.

    `spares`: it says no wherever a VM of lower priority would have to give way.
    """
    return lambda function: _attach(
        function,
        kind="validator",
        scope=scope,
        traits=traits,
        reason=reason,
        recheck=recheck,
        spares=spares,
        needs=_rules(needs),
        reads=reads,
        detail=detail,
    )


def preference(
    *,
    traits: tuple[str, ...] = (),
    scope: Literal["machine", "cluster", "rack"] = "machine",
    spares: bool = False,
    needs: tuple[Callable[..., Any], ...] = (),
    reads: tuple[SideTable, ...] = (),
) -> Callable[[Function], Function]:
    """A soft rule: 0 is best, 1 is worst. Order and buckets are the policy's.

    `spares`: the score is 0 where no VM of lower priority would have to give way. As the first preference of a policy
    it holds over all clusters: one where somebody has to go is looked at only if there is no other.
    """
    return lambda function: _attach(
        function, kind="preference", scope=scope, traits=traits, spares=spares, needs=_rules(needs), reads=reads
    )


def tenant_rule(*, domain: Domain, reason: str, constraint: str) -> Callable[[Function], Function]:
    """A hard rule on where a tenant's VMs are. `tenant.here` counts them in this machine's unit of the domain."""
    return lambda function: _attach(
        function, kind="tenant", scope="tenant", domain=domain, reason=reason, constraint=constraint
    )


def derived(
    *,
    traits: tuple[str, ...] = (),
    needs: tuple[Callable[..., Any], ...] = (),
    reads: tuple[SideTable, ...] = (),
    of_cluster: bool = False,
) -> Callable[[Function], Function]:
    """A fact about a machine, kept per distinct value of its traits, updated only where machines changed.

    `of_cluster`: it reads the machine's cluster, too: what that is, not what runs there, which changes with every
    machine. `reads`: side tables, of which it gets the row that is about the machine, its cluster or the zone.
    """
    return lambda function: _attach(
        function,
        kind="derived",
        scope="machine",
        traits=traits,
        needs=_rules(needs),
        reads=reads,
        of_cluster=of_cluster,
    )


def _rules(functions: tuple[Callable[..., Any], ...]) -> tuple[Rule, ...]:
    rules = tuple(rule_of(f) for f in functions)
    if any(r is None or r.kind != "derived" for r in rules):
        raise InvalidInput("needs", "lists a function without @derived", "decorate it, or drop it from needs")
    return tuple(r for r in rules if r)
