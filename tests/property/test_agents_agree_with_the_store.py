"""However commits and news are delayed, agents and store end up agreeing, and every decision can be told again."""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from roost.agent.settings import AgentSettings
from roost.model.rows import MachineState
from roost.model.zone import Zone
from tests.property import cramped
from tests.property.effort import examples
from tests.property.interleaved import Company, replayed

ZONE = Zone.synthetic(100, seed=1)
TYPES = tuple(cramped.SIZES)
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["ask"] * 6 + ["work", "explain", "commit", "look"]), st.integers(0, 2)),
    min_size=40,
    max_size=160,
)


@settings(max_examples=examples(25))
@given(actions=ACTIONS, seed=st.integers(0, 2**16), pipeline=st.integers(1, 3), group=st.sampled_from([1, 4, 32]))
def test_agents_agree_with_the_store(actions: list[tuple[str, int]], seed: int, pipeline: int, group: int) -> None:
    """Copies equal the store, answers are true, and explanations given at the time are given again."""
    company = Company(ZONE, seed, settings=AgentSettings(pipeline=pipeline, group=group))
    replayed(actions, company)
    company.finish()
    company.check()
    company.check_explanations()


def crowded() -> Zone:
    """A zone of which so little is in use that everybody wants the same few machines."""
    zone = Zone.synthetic(100, seed=1)
    state = np.full(len(zone.machines), MachineState.DOWN)
    for cluster in zone.clusters:
        first = int(cluster["first"])
        state[first : first + 2] = MachineState.READY
    zone.set_condition(state=state)
    return zone


CROWDED = crowded()


@settings(max_examples=examples(40))
@given(actions=ACTIONS, seed=st.integers(0, 2**16), pipeline=st.integers(1, 3), group=st.sampled_from([1, 4, 32]))
def test_agents_agree_with_the_store_where_vms_have_to_give_way(
    actions: list[tuple[str, int]], seed: int, pipeline: int, group: int
) -> None:
    """The same in a crowd: who gives way is told alike everywhere, and nobody does in vain."""
    company = Company(CROWDED, seed, settings=AgentSettings(pipeline=pipeline, group=group))
    replayed(actions, company)
    company.finish()
    company.check()
    company.check_explanations()


def test_in_a_crowd_vms_do_give_way() -> None:
    """Else the test above would say nothing."""
    evicted = 0
    for seed in range(5):
        company = Company(CROWDED, seed, settings=AgentSettings(pipeline=2, group=4))
        draw = random.Random(seed)
        for _ in range(300):
            kind = draw.choice(["ask", "ask", "work", "explain", "commit", "look"])
            replayed([(kind, draw.randrange(3))], company)
        company.finish()
        company.check()
        assert company.check_explanations()
        evicted += company.check_evictions()
    assert evicted > 20


@settings(max_examples=examples(50))
@given(
    seed=st.integers(0, 2**32),
    asking=st.sampled_from([1, 2, 4]),
    pipeline=st.integers(1, 3),
    group=st.sampled_from([1, 2, 8]),
    strict=st.booleans(),
)
def test_agents_agree_with_the_store_where_four_bands_fight_for_three_machines(
    seed: int, asking: int, pipeline: int, group: int, strict: bool
) -> None:
    """Nearly everything that is placed makes something else give way, which soon comes back under the same name."""
    how = AgentSettings(pipeline=1 if strict else pipeline, group=group, strict=strict)
    company = Company(cramped.ZONE, seed, settings=how, policy=cramped.POLICY, types=TYPES, bands=cramped.BANDS)
    draw = random.Random(seed)
    kinds = ["ask"] * asking + ["work", "explain", "commit", "look"]
    replayed([(draw.choice(kinds), draw.randrange(3)) for _ in range(draw.randint(50, 250))], company)
    company.finish()
    company.check()
    company.check_explanations()


@settings(max_examples=examples(10))
@given(actions=ACTIONS, seed=st.integers(0, 2**16), group=st.sampled_from([1, 8]))
def test_strict_agents_agree_with_the_store(actions: list[tuple[str, int]], seed: int, group: int) -> None:
    """The same where outdated decisions are refused."""
    company = Company(ZONE, seed, settings=AgentSettings(pipeline=1, strict=True, group=group))
    replayed(actions, company)
    company.finish()
    company.check()
