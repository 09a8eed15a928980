"""What processes have used: seconds of the processor, as the kernel counts them, and memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

WHOLE_PROCESS = 2  # of a clock id: what all threads together have computed, to the nanosecond
REAPED = slice(13, 15)  # of /proc/PID/stat, behind the name: user and system time of children that have ended
TICK = 1 / os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_of(process: int) -> float:
    """Seconds that a process has computed, all its threads together, those that have ended too."""
    return time.clock_gettime(~process << 3 | WHOLE_PROCESS)  # what clock_getcpuclockid(3) makes of a process


def cpu_of_postgres(folder: Path) -> float:
    """Seconds that a server of PostgreSQL has computed: its first process, the others, and those that have ended.

    `folder`: where its data are. The first process is the parent of all others, and buries them.
    """
    first = int((folder / "postmaster.pid").read_text().split("\n", 1)[0])
    reaped = Path(f"/proc/{first}/stat").read_text().rpartition(") ")[2].split()[REAPED]
    seconds = cpu_of(first) + TICK * sum(map(int, reaped))
    for child in Path(f"/proc/{first}/task/{first}/children").read_text().split():
        try:
            seconds += cpu_of(int(child))
        except OSError:  # it has ended since: the next look finds it among those that have
            continue
    return seconds


def resident(process: int) -> int:
    """Bytes of a process that are in memory, what it shares with others included."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
