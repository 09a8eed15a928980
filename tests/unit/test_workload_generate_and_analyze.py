"""`roost workload generate` and `analyze`."""

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from roost import InvalidInput
from roost.cli.main import app
from roost.cli.workload_analyze import ShapeOptions
from roost.traces.generate import WorkloadShape


def run(*words: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(app, ["workload", *words], catch_exceptions=True)
    if done.exception is not None:
        raise done.exception
    return done.stdout


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "day.csv"
    said = run("generate", "--to", str(path), "--days", "1", "--requests-per-day", "2000", "--mix", "zone2")
    assert "2,000 requests" in said
    return path


def test_the_options_have_the_defaults_of_a_shape() -> None:
    assert msgspec.convert(ShapeOptions(), WorkloadShape, from_attributes=True) == WorkloadShape()


def test_a_generated_workload_can_be_analysed_and_drawn(made: Path) -> None:
    figures = made.with_suffix(".svg")
    said = run("analyze", str(made), "--to", str(figures))
    for each in ("reuse distance", "busiest second", "D2", "Protean, zone 1"):
        assert each in said
    assert "<svg" in figures.read_text()


def test_programs_get_all_of_the_analysis(made: Path) -> None:
    seen = json.loads(run("analyze", str(made), "-o", "json"))
    assert seen["requests"] == 2_000
    assert sum(seen["type_shares"].values()) == pytest.approx(1)
    assert len(seen["requests_by_hour_of_week"]) == 168


def test_the_same_seed_writes_the_same_file(made: Path) -> None:
    again = made.with_name("again.csv")
    run("generate", "--to", str(again), "--days", "1", "--requests-per-day", "2000", "--mix", "zone2")
    assert again.read_bytes() == made.read_bytes()


def test_a_workload_is_sized_to_a_zone(tmp_path: Path) -> None:
    path = tmp_path / "sized.csv"
    run("generate", "--to", str(path), "--days", "0.5", "--utilisation", "0.5", "--zone", "synthetic:100")
    assert json.loads(run("analyze", str(path), "-o", "json"))["requests"] > 1_000


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("--utilisation", "0.5"), "--utilisation"),
        (("--days", "-1"), "days"),
        (("--spike-peak", "9000"), "spikes_per_day"),
        (("--utilisation", "0.5", "--cores", "-3"), "cores"),
    ],
)
def test_what_cannot_be_generated_is_refused_by_name(tmp_path: Path, words: tuple[str, ...], where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        run("generate", "--to", str(tmp_path / "none.csv"), *words)
    assert refused.value.where == where
    assert not (tmp_path / "none.csv").exists()
