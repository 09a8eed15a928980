"""Workers that start at once: forked from a process that has imported everything and has the kernels in memory.

Each is a process of its own that runs the command line from its beginning, and opens its store itself.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
LARGEST = 65_536  # bytes of a message


class Nursery:
    """Where workers are born, and buried."""

    def __init__(self, zone: str) -> None:
        """`zone`: a made-up one, as the command line writes it, to warm up with."""
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.e2e.nursery", str(theirs.fileno()), zone],
                pass_fds=[theirs.fileno()], cwd=ROOT, env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )  # fmt: skip
        self._hear()

    def _hear(self) -> int:
        said = self._line.recv(LARGEST)
        assert said, "the nursery is gone"
        return int(said)

    def launch(self, arguments: Sequence[str], stdin: int, stdout: int, stderr: int) -> Fosterling:
        """Run a command with these open files."""
        socket.send_fds(self._line, [msgspec.json.encode(arguments)], [stdin, stdout, stderr])
        return Fosterling(self, self._hear())

    def bury(self, number: int) -> int:
        """Wait for the end of a process; returns its exit code, or the signal that ended it, below zero."""
        self._line.send(str(number).encode())
        return self._hear()

    def close(self) -> None:
        """No more."""
        self._line.close()
        self._server.wait()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Fosterling:
    """A process of the nursery. Its number is its own until it is waited for."""

    def __init__(self, nursery: Nursery, number: int) -> None:
        self._nursery, self._number = nursery, number

    def kill(self) -> None:
        """End it without notice."""
        os.kill(self._number, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code, or the signal that ended it, below zero."""
        return self._nursery.bury(self._number)


def _serve(line: socket.socket, zone: str) -> None:
    """Fork a process for each message that comes with open files; wait for the one that a message without names."""
    import psycopg  # noqa: F401

    import roost.api.workers  # noqa: F401 -- with all of the service
    from roost.agent.verbs.place import PlaceVMs
    from roost.cli.main import main
    from roost.model.request import VM, Request
    from roost.wiring import find_zone, open_agent, open_store

    agent = open_agent(open_store("memory:", create=find_zone(zone)))
    agent.run(agent.submit(PlaceVMs(Request("warm", (VM("A1"),)))))
    agent.close()
    line.send(b"0")
    while said := (message := socket.recv_fds(line, LARGEST, 3))[0]:
        files = message[1]
        if not files:
            _, status = os.waitpid(int(said), 0)
            line.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        number = os.fork()
        if not number:
            line.close()
            for to, file in enumerate(files):
                os.dup2(file, to)
                os.close(file)
            sys.argv = ["roost", *msgspec.json.decode(said, type=list[str])]
            main()
            return
        for file in files:
            os.close(file)
        line.send(str(number).encode())


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as given:
        _serve(given, sys.argv[2])
