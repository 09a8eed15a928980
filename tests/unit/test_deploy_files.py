"""Files for deploying are right: units verify, settings are known, dashboards and alerts name metrics that exist."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from roost.api.metrics import Metrics
from roost.api.workers import SETTLE_SECONDS
from roost.settings import SETTINGS, Settings, read_file

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT, CONTAINER = DEPLOY / "roost.service", DEPLOY / "Containerfile"
METRIC = re.compile(r"\broost_\w+")
SELECTOR = re.compile(r"(roost_\w+)\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
OUTSIDE = {"instance", "job", "le"}  # labels that Prometheus adds
CALLS = {"sum", "max", "min", "rate", "deriv", "histogram_quantile", "by", "label_values", "up"}


def labels() -> dict[str, set[str]]:
    """Every series that /metrics can have, with its labels."""
    found: dict[str, set[str]] = {}
    for metric in vars(Metrics()).values():
        if isinstance(metric, MetricWrapperBase):
            ends = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}.get(metric._type or "", ("",))
            found |= {metric._name + end: set(metric._labelnames) for end in ends}
    return found


LABELS = labels()


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    return found


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((DEPLOY / "prometheus-alerts.yaml").read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (
        variable["query"]["query"] for variable in dashboard()["templating"]["list"] if variable["type"] == "query"
    )
    yield from (alert["expr"] for alert in alerts())


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_what_is_asked_of_prometheus_exists(expression: str) -> None:
    named = METRIC.findall(expression)
    assert named or expression.startswith("up{")
    assert set(named) <= LABELS.keys()
    for metric, selectors in SELECTOR.findall(expression):
        assert set(re.findall(r"(\w+) *[=!]", selectors)) <= LABELS[metric] | OUTSIDE
    known = set().union(*(LABELS[metric] for metric in named)) | OUTSIDE
    for grouped in GROUPING.findall(expression):
        assert {label.strip() for label in grouped.split(",")} <= known
    assert set(re.findall(r"\b([a-z_]+) *\(", expression)) <= CALLS
    assert expression.count("(") == expression.count(")")


def test_the_dashboard_shows_every_metric() -> None:
    shown = {name for expression in expressions() for name in METRIC.findall(expression)}
    unseen = {name for name in LABELS if not name.endswith(("_bucket", "_count", "_sum"))} - shown
    histograms = {name.removesuffix("_bucket") for name in LABELS if name.endswith("_bucket")}
    assert not unseen
    assert not {name for name in histograms if f"{name}_bucket" not in shown}


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("page", "warn")
        assert alert["annotations"]["summary"]
        assert alert["for"]


def test_the_settings_file_has_known_settings_only() -> None:
    assert read_file(DEPLOY / "roost.toml").keys() <= SETTINGS.keys()


def test_the_unit_lets_the_service_drain() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    service = unit["Service"]
    assert float(service["TimeoutStopSec"]) > Settings().server.drain_seconds + SETTLE_SECONDS
    assert service["ExecReload"].endswith("kill -HUP $MAINPID")
    assert "MemoryDenyWriteExecute" not in service  # rules are compiled
    assert "RestartPreventExitStatus" not in service  # a mistake may be made, and mended, while it runs
    assert (service["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("on-failure", "0")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd here")
def test_the_unit_verifies(tmp_path: Path) -> None:
    here = tmp_path / "roost.service"
    here.write_text(UNIT.read_text().replace("/opt/roost/bin/roost", str(Path(sys.executable).with_name("roost"))))
    done = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_container_is_locked_and_runs_as_nobody_special() -> None:
    lines = CONTAINER.read_text().replace("\\\n", " ").splitlines()
    steps = [line for line in lines if line and not line.startswith("#")]
    assert [step for step in steps if step.startswith("FROM")] == [
        "FROM python:3.11-slim AS build", "FROM python:3.11-slim",
    ]  # fmt: skip
    installs = [part.strip() for step in steps for part in step.split("&&") if "pip install" in part]
    assert all("--require-hashes" in each or "--no-deps" in each for each in installs)
    assert len(installs) == 2
    assert "USER roost" in steps
    assert "EXPOSE 7117" in steps
    assert any(step.startswith("HEALTHCHECK") and "/readyz" in step for step in steps)
    assert steps[-2:] == ['ENTRYPOINT ["roost"]', 'CMD ["serve"]']
    variables = re.findall(r"\b(ROOST_\w+)=", CONTAINER.read_text())
    known = {variable for setting in SETTINGS.values() for variable in setting.environment} | {"ROOST_CACHE_DIR"}
    assert set(variables) <= known
