"""Hard rule: the cluster is not quarantined."""

from roost.engine.rule import validator


@validator(scope="cluster", reason="cluster quarantined")
def not_quarantined(cluster, vm):
    """A quarantined cluster takes no new VMs."""
    return cluster.quarantined == 0
