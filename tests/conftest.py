"""Where tests keep kernels, and how Hypothesis works here.

The same examples in every run, no wall clock, and a blob to repeat a failure with.
`pytest --hypothesis-profile=explore` looks for new examples instead; ROOST_TEST_EFFORT=10 looks ten times as hard.
"""

import os
from pathlib import Path

from hypothesis import HealthCheck, settings

# Kernels that tests compile stay with the checkout, apart from the user's own.
os.environ.setdefault("ROOST_CACHE_DIR", str(Path(__file__).parents[1] / ".cache"))

_usual = settings(
    deadline=None,  # the first example may compile a kernel
    print_blob=True,
    suppress_health_check=(HealthCheck.too_slow, HealthCheck.data_too_large),
)
settings.register_profile("ci", _usual, derandomize=True)
settings.register_profile("explore", _usual, derandomize=False)
settings.load_profile("ci")
