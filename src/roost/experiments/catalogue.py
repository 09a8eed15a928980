"""All studies, by name. A study's module is loaded when it is asked for."""

from __future__ import annotations

from importlib import import_module

from roost.experiments.study import Study
from roost.model.errors import UnknownName

# Name: the module that holds it, under the study's own name with underscores and in capitals.
MODULES = {
    "protean-fig9": "caches",
    "protean-fig10": "caches",
    "protean-fig11": "inventory",
    "protean-fig12": "inventory",
    "protean-fig13": "spike",
    "protean-fig14": "conflicts",
    "protean-fig15": "speed_up",
    "protean-fig16": "crunch",
    "protean-merge": "merging",
    "protean-table5": "buckets",
    "slides-online": "online",
    "slides-waste": "waste",
    "slides-thresholds": "room",
    "slides-multipriority": "priorities",
}


def find_study(name: str) -> Study:
    """A study by its name."""
    if name not in MODULES:
        raise UnknownName("experiment", "experiment", name, MODULES)
    module = import_module(f"roost.experiments.{MODULES[name]}")
    study: Study = getattr(module, name.upper().replace("-", "_"))
    return study


def studies() -> list[Study]:
    """All of them, document by document."""
    return [find_study(name) for name in MODULES]
