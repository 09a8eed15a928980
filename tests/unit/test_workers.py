"""What becomes of workers that die, or cannot start, told by processes that are made up."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from roost.api import workers as module
from roost.api.server import SettingsSource
from roost.api.workers import CANNOT, LONGEST_PAUSE, Workers
from roost.model.errors import InvalidInput
from roost.rules.policy import PolicySource
from roost.settings import ServerSection, Settings


@dataclass
class Process:
    """A worker that does what it is told, here."""

    args: tuple[Any, ...]
    target: Any = None
    name: str = ""
    pid: int = 999_999_999
    exitcode: int | None = None
    told: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sentinel, self._end = os.pipe()
        self.line: Connection | None = None

    def start(self) -> None:
        """Have a line of its own, as another process would."""
        self.line = Connection(os.dup(self.args[-1].fileno()))

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self.exitcode is None

    def join(self, _: float = 0.0) -> None:
        """It ends when it is told to."""

    def kill(self) -> None:
        """It is gone."""
        self.exitcode = -9

    def serve(self) -> None:
        """Say so."""
        self.say(True)

    def say(self, what: object) -> None:
        """Tell whoever started it."""
        assert self.line is not None
        self.line.send(what)

    def end(self, code: int) -> None:
        """Be no more."""
        self.exitcode = code
        os.close(self._end)

    def heard(self) -> list[Any]:
        """All that it was told."""
        while self.line is not None and self.line.poll():
            self.told.append(self.line.recv())
        return self.told


class Stage:
    """Two workers, and a clock that is set by hand."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.started, self.file = 100.0, list[Process](), file
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(module, "mark_process_dead", lambda _: None)
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", "")
        settings, policy = Settings(server=ServerSection(workers=2)), PolicySource.find("fast")
        self.doing, self.announced = list[str](), list[float]()
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            self.workers = Workers(
                settings,
                SettingsSource(file, {}),
                policy,
                bound,
                self.doing.append,
                lambda: self.announced.append(self.now),
            )
        self.workers._spawn = SimpleNamespace(Pipe=multiprocessing.Pipe, Process=self._make)  # type: ignore[assignment]
        for place in range(2):
            self.workers._begin(place)

    def _make(self, **given: Any) -> Process:
        self.started.append(Process(**given))
        return self.started[-1]

    def look(self, until: float = 0.0) -> None:
        """What happens by a time."""
        self.now = max(self.now, until)
        self.workers._look()

    def starts(self, process: Process, most: float = 100.0) -> float:
        """Seconds from the end of a process to the start of the next."""
        died, count = self.now, len(self.started)
        self.look()
        while len(self.started) == count:
            self.look(self.now + 0.25)
            assert self.now < died + most, process
        return self.now - died


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """Two workers that are being started."""
    made = Stage(tmp_path / "roost.toml", monkeypatch)
    yield made
    Path(made.workers._folder).rmdir()


def test_one_that_cannot_start_again_is_tried_with_growing_pauses_while_others_serve(stage: Stage) -> None:
    one, two = stage.started
    one.serve()
    two.serve()
    stage.look(120.0)
    two.end(-9)
    assert stage.starts(two) == 0.0  # it had served
    pauses = []
    for _ in range(8):
        stage.started[-1].end(CANNOT)
        pauses.append(stage.starts(stage.started[-1]))
        assert one.heard()[-1] == 1  # which it tells to who asks for metrics
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE, LONGEST_PAUSE]
    assert one.is_alive()
    assert not stage.workers._stopping
    stage.started[-1].serve()
    stage.look()
    assert one.heard()[-1] == 0
    stage.look(stage.now + 10)
    stage.started[-1].end(-9)
    assert stage.starts(stage.started[-1]) == 0.0


def test_it_is_said_once_that_all_serve_and_until_then_what_they_are_doing(stage: Stage) -> None:
    one, two = stage.started
    one.say("opening the store")
    two.say("compiling the rules of default")
    stage.look(101.0)
    assert stage.doing == ["worker 1: opening the store", "worker 2: compiling the rules of default"]
    one.serve()
    stage.look(102.0)
    assert stage.announced == [], "half of all connections would be refused"
    two.serve()
    stage.look(103.0)
    assert stage.announced == [103.0]
    two.end(-9)
    assert stage.starts(two) == 0.0
    stage.started[-1].say("opening the store")
    stage.started[-1].serve()
    stage.look(105.0)
    assert (stage.announced, len(stage.doing)) == ([103.0], 2)


def test_those_that_cannot_start_keep_nobody_waiting_for_the_word_that_others_serve(stage: Stage) -> None:
    one, two = stage.started
    two.end(CANNOT)
    stage.look(101.0)
    assert stage.announced == []
    one.serve()
    stage.look(102.0)
    assert stage.announced == [102.0]


def test_if_none_ever_served_and_none_can_all_is_over(stage: Stage) -> None:
    for process in list(stage.started):
        assert len(stage.workers._hopeless) < 2
        process.end(CANNOT)
        stage.look()
    assert len(stage.workers._hopeless) == 2


@pytest.mark.parametrize("first", [0, 1])
def test_if_one_serves_it_is_not_over_whoever_could_not(stage: Stage, first: int) -> None:
    stage.started[first].end(CANNOT)
    stage.look()
    stage.started[1 - first].serve()
    stage.look()
    again = stage.starts(stage.started[first])
    assert again == 1.0
    stage.started[-1].end(CANNOT)
    stage.look()
    assert stage.workers._hopeless == set()


def test_whoever_is_started_later_has_the_settings_that_were_last_read_without_a_mistake(stage: Stage) -> None:
    one, two = stage.started
    for process in (one, two):
        process.serve()
    stage.look()
    reading: Callable[[], None] = lambda: stage.workers._reload_soon(1, None)  # noqa: E731
    stage.file.write_text("[limits]\npage = 17\n[server]\nport = 1\n")
    reading()
    stage.look()
    (told,) = [each for each in one.heard() if isinstance(each, Settings)]
    assert (told.limits.page, told.server.port) == (17, Settings().server.port)
    stage.file.write_text("[limits]\npage = 'many'\n")
    reading()
    stage.look(200.0)
    two.end(-9)
    stage.starts(two)
    given = stage.started[-1].args[0]
    assert given == told
    assert [each for each in one.heard() if isinstance(each, Settings)] == [told]


def test_a_policy_is_what_it_was_when_it_was_read_or_refused(tmp_path: Path) -> None:
    rule = tmp_path / "mine.py"
    rule.write_text(
        "from roost.engine.rule import preference\n\n\n@preference(traits=())\ndef mine(machine, vm):\n    return 0.0\n"
    )
    file = tmp_path / "own.yaml"
    file.write_text(
        "name: own\nmachines:\n  validators: [has_room]\n  preferences: [{rule: 'mine.py:mine', buckets: 2}]\n"
    )
    source = PolicySource.find(str(file))
    before = source.policy()
    file.write_text("no policy at all")
    assert source.policy().digest == before.digest
    was = rule.read_text()
    rule.write_text(was.replace("0.0", "1.0"))
    with pytest.raises(InvalidInput, match="restart the service"):
        source.policy()
    rule.write_text(was)
    assert source.policy().digest == before.digest
