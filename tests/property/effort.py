"""How hard property tests look: a fixed budget for every change, a larger one for `make test-deep`."""

import os

EVERY_CHANGE = 0.5  # of the examples that a test names; the planted faults that tests look for are found with these


def examples(usual: int) -> int:
    """So many examples as ROOST_TEST_EFFORT times `usual` says; half of `usual` if it says nothing."""
    return max(1, int(usual * float(os.environ.get("ROOST_TEST_EFFORT", EVERY_CHANGE))))
