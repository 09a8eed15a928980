"""The row that tenant rules read: where a tenant's VMs are, and what it asks of them together."""

import numpy as np

COLOCATE = {"": 0, "rack": 1, "cluster": 2, "datacenter": 3}

TENANT_TYPE = np.dtype(
    [
        ("here", np.int32),  # the tenant's VMs in this machine's unit of the rule's domain
        ("placed", np.int32),  # its VMs so far, anywhere
        ("remaining", np.int32),  # VMs of the request still to place, this one included
        ("racks", np.int32),  # distinct racks it is in
        ("least_in_rack", np.int32),  # fewest and most of its VMs in any rack it is in
        ("most_in_rack", np.int32),
        ("update_domains", np.int32),
        ("least_in_update_domain", np.int32),
        ("most_in_update_domain", np.int32),
        ("min_fault_domains", np.int32),  # its constraints, 0 for none
        ("max_fault_domains", np.int32),
        ("fault_domain_skew", np.int32),
        ("min_update_domains", np.int32),
        ("update_domain_skew", np.int32),
        ("max_per_machine", np.int32),
        ("max_per_rack", np.int32),
        ("colocate", np.int32),  # see COLOCATE
    ],
    align=True,
)
