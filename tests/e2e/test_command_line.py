"""The command line, as a person runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def roost(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"COLUMNS": "120"}
    command = [str(Path(sys.executable).with_name("roost")), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_help_names_every_command() -> None:
    done = roost("--help")
    assert done.returncode == 0
    for command in ("demo", "bench", "policy", "zone"):
        assert command in done.stdout


@pytest.mark.parametrize("line", ["evictions -o json summary", "evictions --tenant web waiting", "heal --limit 1 now"])
def test_options_that_would_be_lost_are_refused(line: str) -> None:
    done = roost(*line.split())
    assert done.returncode == 2
    command = line.split()[-1]
    assert done.stderr.startswith("error: --")
    assert done.stderr.endswith(f"stands before {command}; write it after {command}\n")


def test_the_demo_serves_a_zone_plays_a_workload_and_explains() -> None:
    done = roost("demo", "--machines", "1000", "--fill", "0.3", "--seconds", "1")
    assert done.returncode == 0, done.stderr
    for word in ("packing density", "over HTTP, durable", "One decision explained", "0/1,000 machines"):
        assert word in done.stdout
    commands = [
        line.split(maxsplit=1)[1] for line in done.stdout.splitlines() if line.startswith("  ") and "roost " in line
    ]
    assert len(commands) == 3, "to try in another terminal"
    assert all(roost(command.split()[0], "--help").returncode == 0 for command in commands)


def test_a_zone_is_shown_with_its_hardware_and_types_in_units_people_read() -> None:
    done = roost("zone", "show", str(ROOT / "examples" / "gpu-zone.yaml"))
    assert done.returncode == 0, done.stderr
    rows = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "generation machines cores memory, GiB disk, GiB ssd, GiB nic, Gbit/s gpu, cards features" in rows
    assert "a100 8 96 1,024 8,000 7,000 100 8 nvlink" in rows
    assert "small 2 8 50 0 0.5 0 cpu" in rows
    standard = [" ".join(line.split()) for line in roost("zone", "show", "synthetic:1000").stdout.splitlines()]
    assert "A1 0.8–1 1.75 40 0 0.25 gen3, gen4, gen5, gen6" in standard, "it takes less of faster cores"
    assert not any("e+0" in row for row in standard)


def test_all_mistakes_of_a_zone_file_are_shown_a_line_each(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "gpu-zone.yaml").read_text()
    (tmp_path / "zone.yaml").write_text(
        text.replace("cores: 64", "cores: lots").replace("generation: a100", "generation: b")
    )
    done = roost("zone", "show", "zone.yaml", folder=tmp_path)
    assert done.returncode == 2
    first, second, count = done.stderr.splitlines()
    assert first.startswith("error: zone.yaml:9: generations.cpu.cores: is 'lots'; give cores in cores, from 0")
    assert second.startswith("zone.yaml:28: clusters[1].generation: no generation is called 'b'")
    assert count == "2 mistakes"


def test_the_engine_bench_prints_json_for_programs() -> None:
    done = roost("bench", "engine", "--machines", "1000", "--requests", "200", "--classes", "10", "-o", "json")
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)
    assert result["machines"] == 1000
    assert result["warm_us"]["mean"] > 0
    assert result["constrained_over_unconstrained"]["ratio"] > 0


def test_policies_and_rules_can_be_looked_at() -> None:
    assert "dense" in roost("policy", "list").stdout
    assert "best_fit" in roost("policy", "show", "default").stdout
    assert "least_used_rack" in roost("policy", "rules").stdout


def test_a_zone_can_be_looked_at() -> None:
    shown = roost("zone", "show", "synthetic:300").stdout
    assert "300 machines" in shown
    assert "Full-gen4" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("zone", "show", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("zone", "show", "synthetic:many"), "write synthetic:20000"),
        (("policy", "show", "densest.yaml"), "densest.yaml: no such file"),
        (("policy", "check", "bad.yaml"), "bad.yaml:3: machines.validators[0]: no rule here is called 'has_rom'"),
        (("demo", "--machines", "7"), "100"),
    ],
)
def test_a_mistake_ends_with_a_sentence_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "bad.yaml").write_text("name: bad\nmachines:\n  validators: [has_rom, evicts_nobody]\n")
    done = roost(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout
