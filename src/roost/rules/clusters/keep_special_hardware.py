"""Soft rule: keep special hardware for the VMs that ask for it."""

from roost.engine.rule import preference

MOST_FEATURES = 31  # that a zone can name


@preference(scope="cluster", traits=("features",))
def keep_special_hardware(cluster, vm):
    """Prefer the cluster with the fewest hardware features that the VM has no use for."""
    wasted = cluster.features & ~vm.features
    count = 0
    while wasted:  # each step clears the lowest bit
        wasted &= wasted - 1
        count += 1
    return count / MOST_FEATURES
