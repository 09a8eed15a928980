"""`roost workload import | convert | describe`, as a person runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EAST = "vmid,cpu,memory,time,type\n0,4,16,0.0,0\n1,8,16,2.0,0\n0,4,16,50.0,1\n2,4,16,55.0,0\n"


def roost(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("roost")), "workload", *arguments]
    environment = os.environ | {"COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_a_trace_is_imported_converted_and_described(tmp_path: Path) -> None:
    (tmp_path / "east.csv").write_text(EAST)
    done = roost("import", "--from", "huawei-east", "east.csv", "--to", "own.csv", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "own.csv: 3 requests, 3 VMs, 55 s" in done.stdout
    assert "source: Huawei-East-1" in done.stderr
    done = roost("convert", "own.csv", "--to", "part.parquet", "--start", "1s", "--first", "1", folder=tmp_path)
    assert "part.parquet: 1 request, 1 VM, 1 s" in done.stdout, done.stderr
    seen = json.loads(roost("describe", "part.parquet", "-o", "json", folder=tmp_path).stdout)
    assert (seen["vms"], seen["cores"], seen["stay"]) == (1, {"8": 1.0}, 1.0)
    shown = roost("describe", "own.csv", folder=tmp_path).stdout
    for words in ("4U16G    66.7 %", "p50 50 s", "2 VMs, 12 cores"):
        assert words in shown


def test_wrong_rows_end_with_exit_code_2_or_are_counted(tmp_path: Path) -> None:
    (tmp_path / "east.csv").write_text(f"{EAST}7,1,1,70,1\n")
    done = roost("describe", "huawei-east:east.csv", folder=tmp_path)
    assert done.returncode == 2
    assert "east.csv:6: vmid: is deleted but never created: 7; a VM leaves after it came" in done.stderr
    done = roost("describe", "huawei-east:east.csv", "--skip-bad-rows", folder=tmp_path)
    assert "1 row: vmid is deleted but never created" in done.stdout, done.stderr
    done = roost("import", "--from", "huawei-east", "east.csv", "--to", "a.csv", "--skip-bad-rows", folder=tmp_path)
    assert "left out 1 row: vmid is deleted but never created" in done.stderr


def test_the_sample_is_described() -> None:
    seen = json.loads(roost("describe", "azure-2017", "-o", "json", folder=Path()).stdout)
    assert (seen["requests"], seen["vms"]) == (53_109, 259_159)
    assert "CC-BY-4.0" in seen["source"]


def test_a_list_of_nodes_becomes_a_zone_file_and_its_machines(tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text("sn,cpu_milli,memory_mib\nn0,32000,262144\n")
    done = roost("import", "--from", "node-list", "nodes.csv", "--to", "machines.csv", folder=tmp_path)
    assert "c32-m256: {cores: 32.0, memory: 256.0}" in done.stdout, done.stderr
    assert (tmp_path / "machines.csv").read_text() == "name,cluster,rack,generation\nn0,c32-m256,r00,c32-m256\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("describe", "azure-2016"), "no workload is called 'azure-2016'; did you mean azure-2017"),
        (("describe", "nowhere.csv"), "nowhere.csv: no such file"),
        (("convert", "azure-2017", "--to", "a.xlsx"), "a.xlsx: says not what to write; let it end in .csv"),
        (
            ("convert", "huawei-east:east.csv", "--start", "1000000000", "--to", "a.csv"),
            "has no request from 1,000,000,000 s",
        ),
        (
            ("convert", "azure-2017", "--start", "tomorrow", "--to", "a.csv"),
            "--start: is 'tomorrow'; write seconds, or such",
        ),
    ],
)
def test_a_mistake_ends_with_a_sentence_and_exit_code_2(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    (tmp_path / "east.csv").write_text(EAST)
    done = roost(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_figures_that_cannot_be_drawn_are_refused_before_anything_is_told(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text("time_s,tenant,vm_type,lifetime_s,cores\n0,a,b,5,2\n9,a,b,5,2\n")
    done = roost("analyze", "own.csv", "--to", "figures.pdf", folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "figures.pdf: ends in '.pdf'; a figure is written as .svg or .png" in done.stderr
    done = roost("analyze", "own.csv", "--to", "figures.svg", folder=tmp_path)
    assert "busiest second    1 request, on day 1" in done.stdout, done.stderr
    assert (tmp_path / "figures.svg").exists()


def test_help_loads_no_library_of_tables() -> None:
    program = "import sys, roost.cli.main; sys.exit('polars' in sys.modules or 'numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
