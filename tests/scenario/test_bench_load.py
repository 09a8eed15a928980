"""The load generator offers what it is told to, and ends when it says."""

from __future__ import annotations

import pytest

from roost.bench.load import Load
from roost.bench.service import generate, serve_with_echo


def test_an_open_load_ends_with_the_last_answer_though_connections_are_idle() -> None:
    with serve_with_echo("bare") as port:
        report = generate(Load(port=port, path="/", seconds=1.0, rate=50.0, connections=4))
    assert 1.0 <= report.seconds < 5.0
    assert report.requests == report.offered == pytest.approx(50, abs=35)
