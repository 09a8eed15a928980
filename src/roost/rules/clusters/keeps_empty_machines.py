"""Hard rule: the cluster keeps some machines empty, for growth and healing."""

from roost.engine.rule import validator


def _purpose(cluster, vm):
    return vm.purpose


@validator(
    scope="cluster", traits=("priority", "purpose"), reason="cluster keeps its empty machines from {purpose}",
    detail=_purpose,
)  # fmt: skip
def keeps_empty_machines(cluster, vm):
    """New deployments stop at more empty machines than scale-outs, and these at more than healing does.

    VMs of lower bands are welcome: to the highest band, whose machines are kept, theirs are empty.
    """
    least = cluster.thresholds[vm.purpose]
    return vm.priority > 0 or least == 0 or cluster.empty[vm.priority] > least
