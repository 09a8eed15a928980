"""Numbers that the kernel and the code around it must agree on.

Typed, because Numba would compile a function anew for every plain literal it is called with.
"""

import numpy as np

ZERO, ONE = np.int64(0), np.int64(1)
INVALID = np.int64(2**62)  # the key of what no request may have; beyond it: the fault of a rule
CLUSTER_FAULT = np.int64(1_000)  # a fault beyond it is a cluster preference's, up to it a machine preference's

LOW, TIES, BITS, SEEN = 0, 1, 2, 2  # columns of an evaluation's `racks` (BITS) and `clusters` (SEEN)
KEY, ORDER, SALT = 0, 1, 3  # rows of a ranking; SEEN is 2
CHOSEN, HEAP, SINGLE, LATE, LISTED = 0, 1, 2, 3, 4  # rows of the scratch space

MACHINE, RACK, CLUSTER, DATACENTER, UPDATE_DOMAIN = 0, 1, 2, 3, 4  # domains of tenant rules
