"""However commits and news are delayed, agents and store end up agreeing, and every decision can be told again."""

from hypothesis import given, settings
from hypothesis import strategies as st

from roost.agent.agent import AgentSettings
from roost.model.zone import Zone
from tests.property.effort import examples
from tests.property.interleaved import Company, replayed

ZONE = Zone.synthetic(100, seed=1)
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


@settings(max_examples=examples(10))
@given(actions=ACTIONS, seed=st.integers(0, 2**16), group=st.sampled_from([1, 8]))
def test_strict_agents_agree_with_the_store(actions: list[tuple[str, int]], seed: int, group: int) -> None:
    """The same where outdated decisions are refused."""
    company = Company(ZONE, seed, settings=AgentSettings(pipeline=1, strict=True, group=group))
    replayed(actions, company)
    company.finish()
    company.check()
