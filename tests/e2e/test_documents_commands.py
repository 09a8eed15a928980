"""Every command of the pages is run as it stands, in order, and prints what the page shows below it.

    ```sh                                commands; each ends well
    ```console                           `$ command` (`> ` goes on), and below it what it prints
    ```python                            a program; it ends well
    <!-- file: NAME -->                  the block below is written to a file first
    <!-- not run: REASON -->             the block below is only read; NOT_RUN lists them

A command that ends badly is followed by `$ echo $?`. What is shown may leave out: `…` on a line of its own stands for
any lines, elsewhere for any text. What VARIES lists may differ, such as durations and the names
of machines; other numbers may not. `roost serve` goes on running until the page starts another one or kills it.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import httpx
import pytest

from roost.bench.postgres import ThrowawayPostgres

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    "docs/tutorial.md",
    "docs/policies.md",
    "docs/operate.md",
    "docs/workloads.md",
    "docs/simulate.md",
    "docs/what-if.md",
    "docs/experiments/README.md",
    "docs/how-to/availability-sets.md",
    "docs/how-to/describe-a-zone.md",
    "docs/how-to/heal.md",
    "docs/how-to/keep-room.md",
    "docs/how-to/maintain.md",
    "docs/how-to/run-spot-vms.md",
    "docs/how-to/run-workers.md",
)
NOT_RUN = {
    "README.md": ["it takes a minute, and tests of its own run it", "it is a file of Roost", "it installs"],
    "docs/operate.md": ["needs root", "needs root", "needs systemd"],
    "docs/how-to/heal.md": ["another service"],
    "docs/how-to/maintain.md": ["nobody was killed"],
    "docs/policies.md": ["it takes half a minute"],
    "docs/simulate.md": ["it takes a minute"],
}
ELSEWHERE = {"docs/how-to/add-a-rule.md"}  # test_how_to_add_a_rule.py
PROGRAMS = ("curl", "openssl", "sqlite3")  # that pages use and that may be missing
BLOCK = re.compile(r"((?:^<!-- .*? -->\n)*)^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = ("sh", "console", "python")
PORT, DATABASE, BACKUP = "7117", "postgresql://roost@db.example/roost", "postgresql://roost@db.example/restored"
MARK = "--- that was it, with code"
PATIENCE = 60.0  # seconds
SETTLED = 2.0  # seconds that somebody looks at what goes on for ever
UNITS = r"ns|µs|ms|s|min|h|d|seconds?|minutes?|hours?|days?"
VARIES = {  # what may differ from what is shown, and what may stand there instead
    r"…": r".*?",
    r"\s+": r"[ \t]+",
    r"\b\d{4}-\d\d-\d\d(?!\d)": r"\d{4}-\d\d-\d\d",
    r"(?<!\d)\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?!\d)": r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?",
    r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b": r"[0-9a-f]{8,}",  # keys and hashes
    r"\b[a-z]+\d+-r\d+-m\d+\b": r"[a-z]+\d+-r\d+-m\d+",  # machines are drawn by lot
    rf"\b\d[\d,]*(?:\.\d+)?(?= ?(?:{UNITS})\b| ?/s\b)": r"\d[\d,]*(?:\.\d+)?",
    r"\b\d+\.\d+(?= ?%| points\b)": r"\d+\.\d+",  # shares of what was placed by lot
    r'(?<=["_][mu]s":)[\d.]+': r"[\d.]+",
}
WILD = re.compile("|".join(f"({what})" for what in VARIES))


@dataclass
class Command:
    """A command and what is shown of its output."""

    text: str
    shown: list[str] | None = None  # None: nothing is said about it
    ends_badly: bool = False


@dataclass
class Block:
    """A block of a page."""

    kind: str
    text: str
    file: str = ""
    not_run: str = ""
    commands: list[Command] = field(default_factory=list)


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page that are run or written to files, in order."""
    found = []
    for notes, kind, text in BLOCK.findall((ROOT / page).read_text()):
        said = dict(re.findall(r"<!-- ([a-z ]+): (.*?) -->", notes))
        block = Block(kind, text, said.get("file", ""), said.get("not run", ""))
        if kind in RUN or block.file:
            block.commands = _commands(block)
            found.append(block)
    commands = [command for block in found for command in block.commands]
    for command, following in pairwise(commands):
        command.ends_badly = following.text == "echo $?"
    return found


def _commands(block: Block) -> list[Command]:
    if block.kind == "sh":
        lines = block.text.replace("\\\n", " ").splitlines()
        return [Command(line) for line in lines if line and not line.startswith("#")]
    found: list[Command] = []
    if block.kind == "console":
        for line in block.text.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:], []))
            elif line.startswith("> ") and not found[-1].shown:
                found[-1].text += f"\n{line[2:]}"
            elif found[-1].shown is not None:
                found[-1].shown.append(line)
    return found


def pattern_of(shown: list[str]) -> str:
    """What matches an output that is shown like this."""
    lines = []
    for line in shown:
        if line.strip() == "…":
            lines.append(r"(?:.*\n)*?")
            continue
        lines.append(rf"[ \t]*{_pattern_of_line(line.strip())}[ \t]*\n")
    return "".join(lines)


def _pattern_of_line(line: str) -> str:
    instead, found, end = list(VARIES.values()), "", 0
    for match in WILD.finditer(line):
        assert match.lastindex
        found += re.escape(line[end : match.start()]) + instead[match.lastindex - 1]
        end = match.end()
    return found + re.escape(line[end:])


class Shell:
    """A shell that lives as long as a page, and the service that the page has started."""

    def __init__(self, folder: Path, names: dict[str, str], path: str) -> None:
        self.folder, self._names = folder, names
        hidden = ("ROOST_TOKEN", "ROOST_CONFIG", "ROOST_URL")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environment |= {
            "PATH": f"{Path(sys.executable).parent}:{path}:{os.environ['PATH']}",
            "COLUMNS": "120",
            "ROOST_SERVER_PORT": names[PORT],
            "ROOST_URL": f"http://127.0.0.1:{names[PORT]}",
            "TZ": "UTC",
        }
        self._service: subprocess.Popen[bytes] | None = None
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, env=self.environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._code = 0

    def own(self, text: str) -> str:
        """With the addresses of this test instead of the page's."""
        for name, real in self._names.items():
            text = text.replace(name, real)
        return text

    def pages(self, text: str) -> str:
        """With the page's addresses instead of those of this test."""
        for name, real in self._names.items():
            text = text.replace(real, name)
        return text

    def run(self, command: str) -> tuple[int, str]:
        """Run a command to its end; its exit code and what it said."""
        text = self.own(command)
        if text.startswith("roost serve"):
            return 0, self._serve(text)
        if re.search(r" (--follow|-f)\b", text):
            text = f"timeout --signal INT {SETTLED} {text} || true"
        assert self._bash.stdin
        script = f"(exit {self._code})\n{{ {text}\n}} < /dev/null\ncode=$?; echo; echo '{MARK}' $code\n"
        self._bash.stdin.write(script.encode())
        self._bash.stdin.flush()
        said = self._read()
        output, _, code = said.rpartition(f"\n{MARK} ")
        self._code = int(code)
        return self._code, output

    def _read(self) -> str:
        said, until = b"", time.monotonic() + PATIENCE
        assert self._bash.stdout
        while not re.search(rf"\n{MARK} \d+\n$".encode(), said):
            ready, _, _ = select.select([self._bash.stdout], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"no end after {PATIENCE} s:\n{said.decode()}"
            more = os.read(self._bash.stdout.fileno(), 65_536)
            assert more, f"the shell ended:\n{said.decode()}"
            said += more
        return said.decode()

    def _serve(self, command: str) -> str:
        self.stop()
        said = self.folder / ".said"
        with said.open("wb") as file:
            self._service = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip
        (self.folder / "roost.pid").write_text(f"{self._service.pid}\n")
        scheme, until = "https" if "--tls-cert" in command else "http", time.monotonic() + PATIENCE
        while time.monotonic() < until and self._service.poll() is None:
            try:
                url = f"{scheme}://127.0.0.1:{self._names[PORT]}/readyz"
                ready = httpx.get(url, verify=False, timeout=5).status_code == httpx.codes.OK
            except httpx.TransportError:
                ready = False
            lines = re.findall(r"^(?:There are no tokens|Roost serves) .*\n", said.read_text(), re.MULTILINE)
            if ready and (lines or "2>" in command):
                return "".join(lines)  # what its log says besides is not shown
            time.sleep(0.1)
        raise AssertionError(f"{command} does not serve:\n{said.read_text()}")

    def stop(self) -> None:
        """End the service."""
        if self._service is not None:
            self._service.send_signal(signal.SIGTERM)
            self._service.wait(PATIENCE)
            self._service = None

    def close(self) -> None:
        """End everything."""
        try:
            self.stop()
        finally:
            self._bash.kill()
            self._bash.wait()
            for stream in (self._bash.stdin, self._bash.stdout):
                assert stream
                stream.close()


@pytest.fixture
def shell(tmp_path: Path, page: str) -> Iterator[Shell]:
    for name in ("examples", "deploy"):
        (tmp_path / name).symlink_to(ROOT / name)
    with ExitStack() as stack, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        names, path = {PORT: str(free.getsockname()[1])}, ""
        if DATABASE in (ROOT / page).read_text():
            postgres = stack.enter_context(ThrowawayPostgres())
            names |= {DATABASE: postgres.create_database("roost"), BACKUP: postgres.create_database("restored")}
            path = str(postgres.programs)
        free.close()
        made = Shell(tmp_path, names, path)
        stack.callback(made.close)
        yield made


@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_the_page_shows(page: str, shell: Shell) -> None:
    named = [program for program in PROGRAMS if f"$ {program} " in (ROOT / page).read_text()]
    if missing := [program for program in named if not shutil.which(program)]:
        pytest.skip(f"there is no {', '.join(missing)} here")
    for block in blocks_of(page):
        if block.not_run:
            continue
        if block.file:
            (shell.folder / block.file).write_text(shell.own(block.text))
        elif block.kind == "python":
            done = subprocess.run(
                [sys.executable, "-c", shell.own(block.text)], cwd=shell.folder, env=shell.environment,
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        for command in block.commands:
            code, said = shell.run(command.text)
            until = time.monotonic() + PATIENCE
            while code == 1 and command.text.startswith("grep ") and time.monotonic() < until:
                code, said = shell.run(command.text)  # a line of the log is written just after its answer
            assert (code != 0) == command.ends_badly, f"{page}: {command.text}\nended with {code}:\n{said}"
            if command.shown is not None:
                said = shell.pages(said if said.endswith("\n") or not said else f"{said}\n")
                same = re.fullmatch(pattern_of(command.shown), said)
                assert same, f"{page}: {command.text}\nprinted\n{said}\nand not\n" + "\n".join(command.shown)


def test_every_page_with_commands_is_run() -> None:
    found = {str(page.relative_to(ROOT)) for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"))}
    assert {page for page in found if any(block.commands for block in blocks_of(page))} == {*PAGES, *ELSEWHERE}


def test_what_is_not_run_is_listed_here_with_its_reason() -> None:
    found = {page: [block.not_run for block in blocks_of(page) if block.not_run] for page in PAGES}
    assert {page: reasons for page, reasons in found.items() if reasons} == NOT_RUN


@pytest.mark.parametrize(
    ("shown", "printed", "matches"),
    [
        (["a 1 b"], "a   1 b\n", True),
        (["a 1 b"], "a 23 b\n", False),
        (["a 1 b"], "a b\n", False),
        (["a … b"], "a 23 b\n", True),
        (["(5 more kept all)"], "(6 more kept all)\n", False),
        (["is kept: 1,020 rules"], "is kept: 1,019 rules\n", False),
        (["18.5 %, 7.35 points"], "19.25 %, 7.1 points\n", True),
        (["18 %"], "19 %\n", False),
        (["0.250 / 1"], "0.251 / 1\n", False),
        (["took 0.31 s, 1,200/s"], "took 12 s, 987.5/s\n", True),
        (["3 min 20 s, 5 machines"], "4 min 1 s, 6 machines\n", False),
        (["5 msgs"], "6 msgs\n", False),
        (["at 2026-11-16T04:35:11.91Z"], "at 2026-11-18T05:32:53.820583Z\n", True),
        (["since 2026-11-16 17:35:15"], "since 2026-11-18 05:32:53\n", True),
        (["since 2026-11-16 17:35"], "since yesterday\n", False),
        (['"status":201,"ms":20.08,'], '"status":201,"ms":3.5,\n', True),
        (['"status":201,"ms":20.08,'], '"status":200,"ms":20.08,\n', False),
        (['"waited_us":58,"vms":2'], '"waited_us":160,"vms":2\n', True),
        (['"waited_us":58,"vms":2'], '"waited_us":58,"vms":3\n', False),
        (["web/0 on c004-r00-m10"], "web/0 on c007-r01-m20\n", True),
        (["web/0 on c004-r00-m10"], "web/1 on c004-r00-m10\n", False),
        (["rack c004-r00"], "rack c004-r01\n", False),
        (["key 6605cdc32750d6489c5b5a0f7"], "key 6605cddb451ed33eb370fe5a9\n", True),
        (["one", "…", "four"], "one\ntwo\nthree\nfour\n", True),
        (["one", "…", "four"], "one\ntwo\n", False),
        (["one … four"], "one two three four\n", True),
        (["one"], "one\ntwo\n", False),
        ([], "", True),
        ([], "something\n", False),
    ],
)
def test_an_output_is_compared_but_for_what_varies(shown: list[str], printed: str, matches: bool) -> None:
    assert bool(re.fullmatch(pattern_of(shown), printed)) is matches
