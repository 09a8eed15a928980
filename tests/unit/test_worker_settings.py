"""A worker goes by the settings that a service goes by, unless its options say otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from roost.agent.settings import AgentSettings, seed_of
from roost.cli.main import app
from roost.model.errors import InvalidInput
from roost.settings import AgentSection, Settings
from roost.wiring import open_store
from tests.property.zones import TINY, ClusterPlan, build

SETTINGS = """
[store]
patience_seconds = 7.5

[agent]
policy = "fast"
seed = 41
retries = 3
"""


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What an agent would be opened with, by a worker in a folder with a roost.toml."""
    found: dict[str, Any] = {}

    def open_agent(_: object, policy: Any, name: str, **rest: Any) -> None:
        found.update(rest, policy=policy.name, name=name)
        raise InvalidInput("worker", "that is all")

    monkeypatch.setattr("roost.wiring.open_agent", open_agent)
    monkeypatch.setattr("roost.api.logs.set_up", lambda _: None)  # it would log to what the runner closes, ever after
    monkeypatch.chdir(tmp_path)
    Path("roost.toml").write_text(SETTINGS)
    open_store("zone.db", create=build(TINY, (ClusterPlan(0, 0, (2,)),))).close()
    return found


def test_a_worker_opens_its_agent_by_the_settings(opened: dict[str, Any]) -> None:
    CliRunner().invoke(app, ["worker", "zone.db"])
    assert (opened["policy"], opened["seed"], opened["patience"]) == ("fast", 41, 7.5)
    assert opened["settings"] == AgentSettings.of(AgentSection(retries=3))


def test_options_of_a_worker_win(opened: dict[str, Any]) -> None:
    CliRunner().invoke(app, ["worker", "zone.db", "--policy", "spread", "--seed", "5", "--retries", "9", "--top", "1"])
    assert (opened["policy"], opened["seed"], opened["patience"]) == ("spread", 5, 7.5)
    assert opened["settings"] == AgentSettings.of(AgentSection(retries=9, top=1))


def test_without_a_seed_each_agent_begins_elsewhere() -> None:
    assert seed_of(AgentSection()) != seed_of(AgentSection())
    assert [seed_of(AgentSection(seed=7), place) for place in range(3)] == [7, 8, 9]
    assert Settings().agent.seed == 0
