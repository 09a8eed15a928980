"""What tells one run from all others: its checkpoints are of no use to those."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from importlib.metadata import version

import msgspec
import numpy as np

from roost.model.zone import Zone
from roost.rules.policy import Policy
from roost.sim.experiment import Experiment
from roost.traces.names import Numbered
from roost.traces.workload import Workload


def fingerprint(
    experiment: Experiment, policy: str, seed: int, workload: Workload, zone: Zone, find: Callable[[str], Policy]
) -> str:
    """Another one for whatever else would make another run."""
    digest = hashlib.blake2b(digest_size=16)
    policies = [policy, *(change.policy for change in experiment.policy_changes)]
    digests = [find(each).digest for each in policies]
    digest.update(msgspec.json.encode([version("roost"), experiment, policy, seed, digests]))
    types, tenants = list(workload.types), workload.tenants
    digest.update(msgspec.json.encode([types, list(workload.priorities), dict(workload.constraints)]))
    digest.update((repr(tenants) if isinstance(tenants, Numbered) else "\n".join(tenants)).encode())
    for column in (workload.arrival, workload.first, workload.type, workload.lifetime, workload.priority):
        digest.update(np.ascontiguousarray(column).tobytes())
    for table in (zone.machines, zone.demand, zone.supported):
        digest.update(np.ascontiguousarray(table).tobytes())
    return digest.hexdigest()
