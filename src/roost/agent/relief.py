"""What may give room to VMs that found none: where, and since when.

Room that is freed may help, and mostly does not. What opens (a machine is ready again, a cluster is no longer
quarantined or keeps fewer machines empty) changes what there is to decide by: then all is looked at anew. The same goes
for a tenant's own VMs, if it has constraints.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

REMEMBERED = 4_096  # changes of tenants


class Relief:
    """Counts what may help, by cluster. Whoever tries again goes by the count at which it last did."""

    def __init__(self, clusters: int) -> None:
        self.count = 0
        self.freed = np.zeros(clusters, np.int64)  # by cluster: the count when that was last so
        self.opened = np.zeros(clusters, np.int64)
        self._tenants: deque[tuple[int, str]] = deque(maxlen=REMEMBERED)

    def free(self, cluster: int) -> None:
        """Room was freed in a cluster."""
        self.count += 1
        self.freed[cluster] = self.count

    def open(self, cluster: int) -> None:
        """A cluster takes VMs that it did not take before: it has more machines, another state, or other limits."""
        self.free(cluster)
        self.opened[cluster] = self.count

    def change(self, tenant: str) -> None:
        """A tenant that has constraints has other VMs."""
        self.count += 1
        self._tenants.append((self.count, tenant))

    def tenants(self, since: int) -> Collection[str] | None:
        """Those that changed after a count; None if that is too long ago to say."""
        found: set[str] = set()
        for count, tenant in reversed(self._tenants):
            if count <= since:
                return found
            found.add(tenant)
        return None if len(self._tenants) == REMEMBERED else found


def latest(counts: NDArray[np.int64], clusters: NDArray[np.intp]) -> int:
    """The last count of some clusters."""
    return int(counts[clusters].max()) if len(clusters) else 0
