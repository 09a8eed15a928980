"""`roost sim run | resume | report | compare`, as a person runs them, and what they say to mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from roost.cli.main import commands, main
from roost.cli.sim import Options, experiment_of
from roost.sim.measures import BY_NAME
from roost.sim.runs import side_by_side
from tests.e2e.serving import PATIENCE, ROOST
from tests.e2e.talking import eventually

TINY = """name: tiny
workload: {days: 0.02, requests_per_day: 10000}
zone: synthetic:100
policies: [default, dense]
seeds: [1, 2]
"""
RUNS = ("default-seed1", "default-seed2", "dense-seed1", "dense-seed2")
DATA = ("run.json", "timeline.parquet", "timeline.csv", "rates.parquet", "rates.csv", "requests.parquet")
COMMANDS = ("run", "resume", "report", "compare")


class Said(NamedTuple):
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str


def roost(folder: Path, *arguments: str) -> Said:
    """`roost sim`, in a process of its own."""
    done = subprocess.run(
        [ROOST, "sim", *arguments],
        capture_output=True, text=True, cwd=folder, env=os.environ | {"COLUMNS": "120"}, timeout=PATIENCE, check=False,
    )  # fmt: skip
    return Said(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an experiment, `tiny.yaml`, and its results, of two runs at a time."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "tiny.yaml").write_text(TINY)
    said = roost(folder, "run", "tiny.yaml", "--to", "results", "--processes", "2")
    assert said.code == 0, said.err
    (folder / "said.json").write_text(json.dumps(said))
    return folder


@pytest.fixture
def here(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to work in."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


Command = Callable[..., Said]


@pytest.fixture(scope="module")
def made() -> Callable[[], object]:
    """All commands; to make them takes longer than most tests."""
    return commands()


@pytest.fixture
def sim(
    here: Path, made: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """`roost sim` there, in this process, from the entry point of the executable: what is not caught fails the test."""
    monkeypatch.setattr("roost.cli.main.commands", lambda: made)

    def run(*arguments: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["roost", "sim", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Said(int(code or 0), *capsys.readouterr())

    return run


def data_of(folder: Path) -> dict[str, bytes]:
    """All that has to be the same whenever an experiment is repeated."""
    return {f"{run}/{name}": (folder / run / name).read_bytes() for run in RUNS for name in DATA}


# ---------------------------------------------------------------------------------------------------------- happy paths


def test_a_run_shows_key_figures_on_stdout_and_a_line_for_each_run_on_stderr(finished: Path) -> None:
    _, out, err = json.loads((finished / "said.json").read_text())
    lines = out.splitlines()
    assert lines[0].split() == ["measure", "default", "dense", "against", "default"]
    assert any(line.startswith("Density ") and "±" in line for line in lines)
    assert any(line.startswith("Requests ") and "the same" in line for line in lines)
    assert re.match(r"simulated: .* on [0-9,]+ machines", lines[-2])
    assert lines[-1] == "report: results/report.html"
    assert sorted(line.partition(":")[0] for line in err.splitlines()) == sorted(RUNS)
    assert all(f"({number} of 4)" in err for number in (1, 2, 3, 4))
    assert "\x1b" not in out + err
    assert "<html" in (finished / "results" / "report.html").read_text()
    assert yaml.safe_load((finished / "results" / "experiment.yaml").read_text())["policies"] == ["default", "dense"]
    assert set(data_of(finished / "results")) == {f"{run}/{name}" for run in RUNS for name in DATA}


def test_measures_that_stay_zero_are_only_named_and_programs_get_them_all(sim: Command, here: Path) -> None:
    _, shown, _ = json.loads((here / "said.json").read_text())
    (zero,) = [line for line in shown.splitlines() if line.startswith("zero throughout:")]
    assert "latency p99" in zero
    assert "VMs healed" in zero
    assert "Latency p99" not in shown
    code, out, err = sim("report", "results", "-o", "json")
    assert (code, err) == (0, "")
    measures = {row["measure"]: row for row in json.loads(out)}
    assert measures.keys() >= BY_NAME.keys()
    assert measures["latency_p99"]["variants"]["dense"] == {"mean": 0.0, "margin": 0.0, "n": 2}
    assert measures["density"]["against_default"]["dense"]["verdict"]


def test_runs_one_after_another_have_the_same_bytes_as_side_by_side(sim: Command, here: Path) -> None:
    assert sim("run", "tiny.yaml", "--to", "again", "--processes", "1").code == 0
    assert data_of(here / "again") == data_of(here / "results")


def test_options_overrule_the_file(sim: Command, here: Path) -> None:
    options = ("--seeds", "1", "--policy", "default", "--until", "10m", "--warm-up", "60", "--agents", "2")
    said = sim("run", "tiny.yaml", *options, "--latency", "paper", "--name", "other", "--to", "other")
    assert said.code == 0, said.err
    assert "Latency p99" in said.out
    assert "±" not in said.out, "one seed tells nothing of chance"
    given = yaml.safe_load((here / "other" / "experiment.yaml").read_text())
    expected = {
        "name": "other", "policies": ["default"], "seeds": [1], "until": "10m", "warm_up": "60", "latency": "paper",
        "agents": {"count": 2},
    }  # fmt: skip
    assert {key: given.get(key, expected[key]) for key in expected} == expected
    assert given["workload"] == {"days": 0.02, "requests_per_day": 10_000.0}


def test_without_a_file_an_experiment_is_called_after_its_workload() -> None:
    built_in, own = experiment_of(None, Options()), experiment_of(None, Options(workload="data/week 1.parquet"))
    assert (built_in.name, built_in.workload, built_in.warm_up) == ("azure-2017", "azure-2017", "12h")
    assert (own.name, own.workload, own.warm_up) == ("week-1", "data/week 1.parquet", 0.0)
    assert experiment_of(None, Options(workload="week.csv.gz")).name == "week"


def test_every_size_of_a_machine_can_be_said_without_a_file() -> None:
    sizes: dict[str, Any] = {"cores": 96.0, "memory": 800.0, "disk": 10_000.0, "ssd": 8_000.0, "nic": 100.0}
    fleet = experiment_of(None, Options(**sizes)).fleet
    assert fleet is not None
    assert {name: getattr(fleet, name) for name in sizes} == sizes
    assert fleet.machines == 3_000


def test_what_is_interrupted_says_how_to_go_on_and_goes_on_to_the_same_result(here: Path, sim: Command) -> None:
    process = subprocess.Popen(
        [ROOST, "sim", "run", "tiny.yaml", "--to", "broken", "--processes", "2"],
        cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    eventually((here / "broken" / "default-seed1").exists, PATIENCE)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted; go on with: roost sim resume broken"
    said = sim("resume", "broken", "--processes", "1")
    assert said.code == 0, said.err
    assert data_of(here / "broken") == data_of(here / "results")


def test_only_runs_that_are_missing_are_done_again(sim: Command, here: Path) -> None:
    before = data_of(here / "results")
    shutil.rmtree(here / "results" / "dense-seed2")
    code, out, err = sim("report", "results")
    assert code == 0
    assert "report: results/report.html" in out
    assert err == "results: 1 more to be finished; go on with: roost sim resume results\n"
    assert sim("resume", "results").err.startswith("dense-seed2: finished, ")
    assert data_of(here / "results") == before


def test_single_runs_are_compared(sim: Command, here: Path) -> None:
    code, out, err = sim("compare", "results/default-seed1", "results/dense-seed1", "--title", "Two & two")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert (lines[0].split()[:3], lines[-1]) == (["measure", "default", "dense"], "report: comparison.html")
    assert "of one seed each: differences may be chance" in out
    assert "Two &amp; two" in (here / "comparison.html").read_text()


def test_runs_of_equal_names_are_told_apart(here: Path) -> None:
    shutil.copytree("results", "other/results")
    shutil.copytree("results", "more")
    names = [result.name for result in side_by_side([Path("results/dense-seed1"), Path("more/default-seed1")])]
    assert names == ["dense", "default"]
    names = [result.name for result in side_by_side([Path("results/dense-seed1"), Path("more")])]
    assert names[:2] == ["dense-seed1: dense", "more: default"]
    names = [result.name for result in side_by_side([Path("results"), Path("other/results")])]
    assert names[::2] == ["results: default", "results: dense", "other/results: default", "other/results: dense"]


def test_a_terminal_that_is_too_narrow_for_differences_shows_the_figures(sim: Command, here: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree("results/default-seed1", f"{name}/default-seed1")
    code, out, err = sim("compare", "results/default-seed1", "one/default-seed1", "two/default-seed1")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "against" not in lines[0]
    assert "is told in the report" in out
    assert (here / "comparison.html").exists()


def test_on_a_terminal_there_are_live_bars(sim: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, err = sim("run", "tiny.yaml", "--to", "live", "--policy", "default", "--processes", "1")
    assert code == 0
    for words in ("Reading and checking", "preparing", "━━━━", "default-seed1: finished, ", "(2 of 2)"):
        assert words in err


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, sim: Command) -> None:
    code, out, _ = sim(command, "--help")
    assert code == 0
    assert f"roost sim {command} " in out.replace(f"Usage: roost sim {command} ", "")


# ------------------------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--workload", "azure-2016"), "workload: no workload is called 'azure-2016'; did you mean azure-2017"),
        (("--workload", "nowhere.parquet"), "nowhere.parquet: no such file"),
        (("--policy", "defalt"), "no shipped policy is called 'defalt'; did you mean default"),
        (("--policy", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("--policy", "dense", "--policy", "dense"), "policies: is ['dense', 'dense']; give one or more, each once"),
        (("--zone", "synthetic:many"), "write synthetic:20000"),
        (("--zone", "nowhere.yaml"), "nowhere.yaml: no such file"),
        (("--zone", "synthetic:100", "--machines", "10"), "--zone: and a fleet cannot both be given"),
        (("--machines", "10", "--utilisation", "0.5"), "fleet: has either machines or a utilisation"),
        (("--warm-up", "12x"), "warm_up: is '12x'; write seconds, or such as 90s, 15m, 12h, 3d, 2w"),
        (("--warm-up", "3d"), "warm_up: is 3 days, the run is over after 28.8 minutes; make it shorter"),
        (("--warm-up", "1h", "--until", "30m"), "warm_up: is 60 minutes, the run is over after 30 minutes"),
        (("--until", "0"), "until: is 0; give a time"),
        (("--until=-5",), "until: is '-5'"),
        (("--speed", "0"), "speed: Expected `float` > 0.0"),
        (("--name", "a/b"), "name: 'a/b' has '/' in it; use letters"),
        (("--until", "9999w"), "until: the run would last 192 years, and 3 are the most; stop earlier"),
        (("--speed", "1e-9"), "until: the run would last "),
        (("--to", "tiny.yaml"), "tiny.yaml: cannot be written: File exists; choose another folder"),
        (("--to", "results"), "results: is not empty; choose another folder, or go on with `roost sim resume`"),
    ],
)
def test_a_run_that_makes_no_sense_is_refused_before_it_begins(
    options: tuple[str, ...], words: str, sim: Command, here: Path
) -> None:
    to = () if "--to" in options else ("--to", "new")
    code, out, err = sim("run", "tiny.yaml", *to, *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert len(err.splitlines()) == 1
    assert not (here / "new").exists()


def trace(*times: int) -> str:
    """A VM at each of these times."""
    rows = "".join(f"{time},t{i},D2,60,2,8\n" for i, time in enumerate(times))
    return f"time_s,tenant,vm_type,lifetime_s,cores,memory\n{rows}"


def test_a_trace_in_unix_time_runs_from_its_first_request_and_says_so(sim: Command, here: Path) -> None:
    (here / "unix.csv").write_text(trace(*range(1_700_000_000, 1_700_003_600, 60)))
    code, out, err = sim(
        "run", "--workload", "unix.csv", "--zone", "synthetic:100", "--policy", "default", "--to", "new"
    )
    assert code == 0, err
    assert err.startswith("unix.csv: times start at 1700000000: taken as Unix seconds (2023-11-14 22:13:20 UTC)")
    assert "59 minutes" in out


def test_a_trace_in_milliseconds_is_refused_with_what_would_be_right(sim: Command, here: Path) -> None:
    (here / "ms.csv").write_text(trace(1_700_000_000_000, 1_700_000_060_000))
    code, out, err = sim("run", "--workload", "ms.csv", "--zone", "synthetic:100", "--to", "new")
    assert (code, out) == (2, "")
    assert err.startswith("error: ms.csv:2: time_s: is 1700000000000: as milliseconds since 1970 that is 2023-11-14")
    assert err.endswith("or since 1970: divide it by 1,000\n")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--fill", "2", "give a number, 0 to 1"),
        ("--utilisation", "3", "give a number, 0 to 1"),
        ("--agents", "5000", "give a whole number, 1 to 1000"),
        ("--seeds", "0", "give a whole number, 1 to 1000"),
        ("--latency", "fast", "'none', 'paper', 'measured'"),
    ],
)
def test_options_say_what_they_take(option: str, value: str, words: str, sim: Command) -> None:
    code, out, err = sim("run", "tiny.yaml", option, value)
    assert (code, out) == (2, "")
    assert f"{option}: " in err
    assert words in err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("zone: synthetic:100", "zone: [synthetic"), ":4: not valid YAML"),
        (("policies", "policys"), ":4: policys: Object contains unknown field `policys`; the fields here are name, "),
        (("days: 0.02", "dayz: 0.02"), ":2: workload.dayz: Object contains unknown field `dayz`"),
        (("days: 0.02", "days: -1"), ":2: workload.days: is -1.0; use a number from 0.0001 to 10,000"),
        (("zone: synthetic:100", "fleet: {cores: 8}"), ":3: fleet: has either machines or a utilisation"),
        (("zone: synthetic:100\n", ""), ":1: zone: there must be either a zone or a fleet"),
        (("seeds: [1, 2]", "seeds: 3"), ":5: seeds: Expected `array`, got `int`"),
        (("seeds: [1, 2]", "seeds: [1, 1]"), ":5: seeds: is [1, 1]; give one or more, each once"),
        (("seeds: [1, 2]", "agents: {retries: -1}"), ":5: agents.retries: is -1; use 0 to 1,000"),
        (("seeds: [1, 2]", "faults:\n  mtbf: often"), ":6: faults.mtbf: is 'often'; write seconds"),
        (("seeds: [1, 2]", "faults: {maintenance: [{at: 1h, lasts: x, share: 0.1}]}"), ":5: faults.maintenance.lasts"),
        (("seeds: [1, 2]", "policy_changes: [{at: soon, policy: dense}]"), ":5: policy_changes.at: is 'soon'"),
        (("seeds: [1, 2]", "latency: {hit: 3}"), ":5: latency.hit: Object contains unknown field `hit`"),
        (("requests_per_day: 10000", "utilisation: 3"), ":2: workload.utilisation: Expected `float` <= 1.0"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(
    change: tuple[str, str], words: str, sim: Command, here: Path
) -> None:
    assert change[0] in TINY
    (here / "wrong.yaml").write_text(TINY.replace(*change))
    code, out, err = sim("run", "wrong.yaml", "--to", "new")
    assert (code, out) == (2, "")
    assert f"error: wrong.yaml{words}" in err
    assert not (here / "new").exists()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("faults: {maintenance: [{at: 1m, lasts: 1m, cluster: c9}]}", "faults.maintenance.cluster: no cluster is call"),
        ("policy_changes: [{at: 1m, policy: dens}]", "no shipped policy is called 'dens'; did you mean dense"),
    ],
)
def test_names_that_a_run_would_need_only_later_are_looked_for_at_once(
    what: str, words: str, sim: Command, here: Path
) -> None:
    (here / "wrong.yaml").write_text(TINY + what)
    code, _, err = sim("run", "wrong.yaml", "--to", "new")
    assert code == 2
    assert words in err
    assert not (here / "new").exists()


@pytest.mark.parametrize("command", ["resume", "report", "compare"])
def test_folders_without_an_experiment_are_refused(command: str, sim: Command, here: Path) -> None:
    assert sim(command, "nowhere") == (
        2, "", "error: nowhere: no such folder; give the folder of `roost sim run`\n",
    )  # fmt: skip
    (here / "empty").mkdir()
    code, out, err = sim(command, "empty")
    assert (code, out) == (2, "")
    assert err == "error: empty: holds no experiment; give the folder of `roost sim run`\n"


def _cut(folder: Path) -> None:
    path = folder / "default-seed1" / "timeline.parquet"
    path.write_bytes(path.read_bytes()[:300])


def _lose(folder: Path) -> None:
    (folder / "default-seed1" / "rates.parquet").unlink()


def _scribble(folder: Path) -> None:
    (folder / "default-seed1" / "run.json").write_text('{"name": "x"}')


def _break(folder: Path) -> None:
    (folder / "experiment.yaml").write_text("name: tiny\nworkload: [")


def _unfinish(folder: Path) -> None:
    for run in RUNS:
        (folder / run / "run.json").unlink()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_cut, "results/default-seed1: cannot be read: parquet"),
        (_lose, "results/default-seed1: has no rates.parquet; give the folder of a finished run"),
        (_scribble, "results/default-seed1/run.json: must tell name, seed, experiment, facts, summary; remove this"),
        (_break, "results/experiment.yaml:2: not valid YAML"),
        (_unfinish, "results: has no finished run; go on with `roost sim resume results`"),
    ],
)
def test_results_that_cannot_be_read_are_named(
    harm: Callable[[Path], None], words: str, sim: Command, here: Path
) -> None:
    harm(here / "results")
    for command in ("report", "compare"):
        code, out, err = sim(command, "results")
        assert (code, out) == (2, "")
        assert f"error: {words}" in err


@pytest.mark.parametrize("rubbish", [b"", b"rubbish", b"\x82"])
def test_a_checkpoint_that_cannot_be_read_is_named_and_the_run_can_begin_anew(
    rubbish: bytes, sim: Command, here: Path
) -> None:
    own = here / "results" / "default-seed1"
    (own / "run.json").unlink()
    (own / "checkpoint.bin").write_bytes(rubbish)
    code, out, err = sim("resume", "results")
    assert (code, out) == (2, "")
    assert "error: results/default-seed1/checkpoint.bin: cannot be read: " in err
    assert err.endswith("; remove it, and the run begins anew\n")


def test_what_is_wrong_in_one_of_several_processes_is_told(sim: Command, here: Path) -> None:
    for run in RUNS[:2]:
        (here / "results" / run / "run.json").unlink()
        (here / "results" / run / "checkpoint.bin").write_bytes(b"rubbish")
    code, out, err = sim("resume", "results", "--processes", "2")
    assert (code, out) == (2, "")
    assert err.startswith("error: run default-seed1: results/default-seed1/checkpoint.bin: cannot be read: ")


def test_pages_that_cannot_be_written_are_named(sim: Command) -> None:
    for command in ("report", "compare"):
        code, out, err = sim(command, "results", "--to", "nowhere/page.html")
        assert (code, out) == (2, "")
        assert "error: nowhere/page.html: cannot be written: No such file or directory; choose another file" in err
    assert "two runs are called 'results: default' and have seed 1" in sim("compare", "results", "results").err
