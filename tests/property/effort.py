"""How hard property tests look."""

import os


def examples(usual: int) -> int:
    """So many examples, or as many times more as ROOST_TEST_EFFORT says."""
    return max(1, int(usual * float(os.environ.get("ROOST_TEST_EFFORT", "1"))))
