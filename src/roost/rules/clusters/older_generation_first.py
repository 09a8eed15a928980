"""Soft rule: keep newer hardware for the VMs that need it."""

from roost.engine.rule import preference


@preference(scope="cluster", traits=("vm_type",))
def older_generation_first(cluster, vm):
    """Prefer the oldest hardware that runs the VM. A zone lists its generations from the oldest to the newest."""
    return cluster.generation / max(1, len(vm.supported) - 1)
