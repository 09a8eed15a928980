"""What holds for every shipped rule, whatever it is about."""

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numba
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import roost.rules.clusters
import roost.rules.columns
import roost.rules.preferences
import roost.rules.tenants
import roost.rules.validators
from roost.engine.rule import TRAIT_FIELDS, Rule, rule_of
from roost.engine.ruleset import BoundRule
from roost.engine.tenant_row import TENANT_TYPE
from roost.model.request import ON_PLACES
from tests.unit.rules.rows import RANDOM, ZONE, ask, described, record

FOLDERS = (
    roost.rules.clusters,
    roost.rules.columns,
    roost.rules.preferences,
    roost.rules.tenants,
    roost.rules.validators,
)
MODULES = [
    importlib.import_module(f"{folder.__name__}.{found.name}")
    for folder in FOLDERS
    for found in pkgutil.iter_modules(folder.__path__)
]
OPENING = {"validator": "Hard rule: ", "tenant": "Hard rule: ", "preference": "Soft rule: ", "derived": "Column: "}
FOLDER_OF = {"validator": "validators", "preference": "preferences", "tenant": "tenants", "derived": "columns"}


def rule_in(module: ModuleType) -> Rule:
    """The rule that a file is named after."""
    return described(getattr(module, module.__name__.rpartition(".")[2]))


def each(*kinds: str) -> pytest.MarkDecorator:
    """Run a test for each file with a rule of these kinds."""
    modules = [module for module in MODULES if rule_in(module).kind in kinds]
    return pytest.mark.parametrize("module", modules, ids=lambda m: m.__name__.removeprefix("roost.rules."))


every_module = each("validator", "preference", "tenant", "derived")


def row_kinds(rule: Rule) -> tuple[str, ...]:
    """What rows the rule takes."""
    if rule.kind == "tenant":
        return ("tenant",)
    foresees = any(each.of_cluster for each in (rule, *rule.needs))
    return (rule.scope, "vm", "cluster", "foresight") if foresees else (rule.scope, "vm")


def draw_rows(data: st.DataObject, rule: Rule) -> list[SimpleNamespace]:
    """Random rows for a rule."""
    return [data.draw(RANDOM[kind], kind) for kind in row_kinds(rule)]


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as the engine compiles it."""
    dispatcher: Callable[..., Any] = numba.njit(error_model="numpy")(function)
    return dispatcher


# Compiling the rule is part of the first example.
unhurried = settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])


@every_module
def test_a_file_holds_one_rule_with_its_name_in_the_folder_of_its_kind(module: ModuleType) -> None:
    own = [f for _, f in inspect.getmembers(module, inspect.isfunction) if f.__module__ == module.__name__]
    rules = [rule for f in own if (rule := rule_of(f))]
    assert [rule.name for rule in rules] == [module.__name__.rpartition(".")[2]]
    assert set(own) == {f for f in (rules[0].function, rules[0].detail) if f}
    folder = "clusters" if rules[0].scope == "cluster" else FOLDER_OF[rules[0].kind]
    assert module.__name__.split(".")[-2] == folder


@every_module
def test_a_rule_says_what_it_is_for(module: ModuleType) -> None:
    rule = rule_in(module)
    assert module.__doc__ is not None
    assert module.__doc__.startswith(OPENING[rule.kind])
    assert "\n" not in module.__doc__
    assert rule.summary.endswith(".")


@every_module
def test_a_hard_rule_has_a_reason_and_whatever_completes_it(module: ModuleType) -> None:
    rule = rule_in(module)
    assert bool(rule.reason) == (rule.kind in ("validator", "tenant"))
    assert ("{" in rule.reason) == (rule.detail is not None)


def test_no_two_rules_share_a_name_or_a_reason() -> None:
    rules = [rule_in(module) for module in MODULES]
    reasons = [rule.reason for rule in rules if rule.reason]
    assert len({rule.name for rule in rules}) == len(rules)
    assert len(set(reasons)) == len(reasons)


def test_tenant_rules_cover_the_constraints_that_tenants_can_set_and_no_others() -> None:
    constraints = {rule.constraint.partition("=")[0] for rule in map(rule_in, MODULES) if rule.kind == "tenant"}
    assert constraints == set(ON_PLACES)
    assert constraints <= set(TENANT_TYPE.names or ())


@every_module
@given(data=st.data())
@unhurried
def test_a_score_is_a_number_from_0_to_1_and_a_verdict_yes_or_no(module: ModuleType, data: st.DataObject) -> None:
    rule = rule_in(module)
    answer = ask(rule.function, *draw_rows(data, rule))
    if rule.kind in ("validator", "tenant"):
        assert isinstance(answer, bool)
    else:
        assert isinstance(answer, float)
        assert answer >= 0.0
        assert answer <= 1.0 or rule.kind == "derived"


@every_module
@given(data=st.data())
@unhurried
def test_a_rule_says_the_same_compiled_and_uncompiled(module: ModuleType, data: st.DataObject) -> None:
    rule = rule_in(module)
    rows = draw_rows(data, rule)
    records = [record(kind, row) for kind, row in zip(row_kinds(rule), rows, strict=True)]
    derived = [ask(need.function, *rows) for need in rule.needs]
    own = records if rule.of_cluster else records[:2]
    native = compiled(rule.function)(*own, *derived, *BoundRule(rule).constants(ZONE))
    assert type(native) is (bool if rule.kind in ("validator", "tenant") else float)
    assert math.isclose(native, ask(rule.function, *rows), rel_tol=1e-12, abs_tol=1e-12)
    if rule.detail:
        assert compiled(rule.detail)(*records) == rule.detail(*rows)


class Watched:
    """A row that remembers what was read of it."""

    def __init__(self, row: SimpleNamespace) -> None:
        self.row, self.reads = row, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.reads.add(name)
        return getattr(self.row, name)


@each("validator", "preference", "derived")
@given(data=st.data())
@unhurried
def test_a_rule_reads_no_more_of_a_vm_than_its_traits_cover(module: ModuleType, data: st.DataObject) -> None:
    rule = rule_in(module)
    row, vm, *cluster = draw_rows(data, rule)
    watched = Watched(vm)
    ask(rule.function, row, watched, *cluster)
    if rule.detail:
        rule.detail(row, watched)
    assert watched.reads <= {field for trait in rule.depends_on for field in TRAIT_FIELDS[trait]}


@each("tenant")
@given(data=st.data())
@unhurried
def test_a_tenant_rule_allows_everything_when_its_constraint_is_not_set(
    module: ModuleType, data: st.DataObject
) -> None:
    rule = rule_in(module)
    (tenant,) = draw_rows(data, rule)
    setattr(tenant, rule.constraint.partition("=")[0], 0)
    assert ask(rule.function, tenant)
