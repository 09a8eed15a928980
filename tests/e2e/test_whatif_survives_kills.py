"""A plan carried out over HTTP, beside others, by processes that are killed: every VM is there once, none is held."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec

from roost.client import Client, VMWish
from roost.model.request import HOLD
from roost.model.zone import Zone
from roost.store.audit import audit
from roost.whatif.plan import read_plan
from roost.wiring import open_store
from tests.e2e.serving import ROOST, serving

MACHINES, BUDGET, KILLS, PATIENCE = 100, 50, 4, 60.0
MOST_OTHERS = 12  # tenants at a time
TYPES = ("A1", "A2", "D2", "D3", "D4", "A3")


def _fragment(client: Client, rng: random.Random) -> None:
    """Fill a good part of the zone, and let VMs leave at random."""
    for number in range(260):
        client.create_tenant(f"t{number}", [VMWish(type=rng.choice(TYPES), count=rng.choice((1, 2, 3)))])
    names = [vm.vm for vm in client.vms(limit=1_000)]
    for name in rng.sample(names, len(names) // 2):
        client.delete_vm(name)


class Others(threading.Thread):
    """Tenants that come and go all the while, and take what room they find."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self.enough, self.came = url, threading.Event(), 0

    def run(self) -> None:
        """Until it is enough."""
        lots, there = random.Random(9), list[str]()
        with Client(self._url) as client:
            while not self.enough.is_set():
                tenant = f"other-{self.came}"
                client.create_tenant(tenant, [VMWish(type=lots.choice(TYPES[:3]), count=lots.choice((1, 2)))])
                there.append(tenant)
                self.came += 1
                if len(there) > MOST_OTHERS:
                    client.delete_tenant(there.pop(lots.randrange(len(there))))


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_whoever_carries_a_plan_out_may_be_killed_and_the_next_one_goes_on(tmp_path: Path) -> None:
    rng = random.Random(4)
    store, plan, copied = str(tmp_path / "zone.db"), tmp_path / "plan.json", tmp_path / "copied"
    open_store(store, create=Zone.synthetic(MACHINES)).close()
    copying = f'{sys.executable} -S -c \'open("{copied}", "a").write("{{vm}} {{target}}\\n")\''
    with serving(store) as service:
        with Client(service.url) as client:
            _fragment(client, rng)
            before = {vm.vm: vm.machine for vm in client.vms(limit=1_000)}
        made = [ROOST, "whatif", "migrate", "--url", service.url, "--budget", str(BUDGET), "--to", str(plan)]
        subprocess.run(made, check=True, capture_output=True)
        moves = read_plan(plan).moves
        assert len(moves) > BUDGET // 2
        progress = tmp_path / "plan.json.progress"
        going_on = [ROOST, "whatif", "apply", str(plan), "--url", service.url, "--at-once", "3", "--run", copying]
        others = Others(service.url)
        others.start()
        for kill in range(KILLS):
            process = subprocess.Popen(going_on, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            wanted = _lines(progress) + rng.randint(1, 3 * len(moves) // (KILLS + 2))
            until = time.monotonic() + PATIENCE
            while _lines(progress) < wanted and process.poll() is None:
                assert time.monotonic() < until, f"stuck before kill {kill}"
                time.sleep(0.002)
            process.kill()
            assert process.wait() == -signal.SIGKILL, "it was still at work"
        last = subprocess.run([*going_on, "-o", "json"], capture_output=True)
        others.enough.set()
        others.join(PATIENCE)
        assert others.came > MOST_OTHERS
        told = msgspec.json.decode(last.stdout)
        assert told["finished"] > len(moves) // 2, "only few targets were taken by others"
        skipped = {each["number"] for each in told["not_done"]}
        assert service.stop() == 0
        assert "Traceback" not in service.stderr
    with closing(open_store(store, read_only=True)) as opened:
        assert audit(opened).clean
        after = {name: vm.machine for name, vm in opened.load().vms.items()}
    there = {name: machine for name, machine in after.items() if not name.startswith("other-")}
    assert there == before | {move.vm: move.target for move in moves if move.number not in skipped}
    assert told["finished"] + len(skipped) == len(moves)
    assert not any(name.endswith(HOLD) for name in after)
    copies = Counter(copied.read_text().splitlines())
    assert set(copies) >= {f"{move.vm} {move.target}" for move in moves if move.number not in skipped}
    assert copies.total() <= len(moves) + 3 * KILLS, "only what was being copied is copied again"
