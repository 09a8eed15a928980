"""A duty that is one more line of the table is in /readyz, in the metrics and in `roost duties`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.serving import PATIENCE, ROOST, Serving, serving

WITH_A_TOY = """
from roost.cli.main import main
from roost.duties import table

class Toy:
    name, period = "toy", 0.5

    def step(self, now):
        yield lambda: None
        raise RuntimeError("the toy is broken, and only the log says how")

table.DUTIES.append(lambda runner: Toy())
main()
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("duties")
    script = folder / "with_a_toy.py"
    script.write_text(WITH_A_TOY)
    with serving(str(folder / "zone.db"), program=(sys.executable, str(script))) as found:
        yield found


def duties(service: Serving) -> dict[str, Any]:
    """By name, as /readyz has them, once the toy had a turn."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = {each["name"]: each for each in httpx.get(f"{service.url}/readyz").json()["duties"]}
        if found["toy"]["runs"]:
            return found
        time.sleep(0.05)
    raise AssertionError("the toy had no turn")


def command(service: Serving, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`roost duties` against it."""
    environment = {**os.environ, "ROOST_URL": service.url, "COLUMNS": "200"}
    return subprocess.run(
        [ROOST, "duties", *arguments], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=True
    )


def test_it_is_told_of_by_readyz_without_what_only_the_log_may_say(service: Serving) -> None:
    toy = duties(service)["toy"]
    assert toy["failures"] == toy["runs"] >= 1
    assert toy["last_error"] == "RuntimeError"
    assert toy["period_seconds"] == 0.5
    assert "only the log says how" in service.stderr


def test_a_duty_that_had_no_turn_yet_is_told_of_too(service: Serving) -> None:
    trimming = duties(service)["trimming"]
    assert (trimming["runs"], trimming["seconds_ago"], trimming["period_seconds"]) == (0, 0.0, 600.0)


def test_people_see_a_table_and_programs_get_json(service: Serving) -> None:
    duties(service)
    shown = command(service)
    lines = {line.split()[0]: line for line in shown.stdout.splitlines() if line.strip()}
    assert "RuntimeError" in lines["toy"]
    assert " ago " in lines["toy"]
    assert "none yet" in lines["trimming"]
    assert "always" in lines["healing"]
    assert shown.stderr.startswith("of ")
    told = json.loads(command(service, "-o", "json").stdout)
    assert {each["name"] for each in told} == duties(service).keys()


def test_it_is_in_the_metrics(service: Serving) -> None:
    duties(service)
    time.sleep(1.5)  # they are measured every second
    text = httpx.get(f"{service.url}/metrics").text
    (failures,) = (line for line in text.splitlines() if line.startswith('roost_duty_failures_total{duty="toy"}'))
    assert float(failures.split()[1]) >= 1
