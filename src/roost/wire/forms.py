"""All forms by name, for those who describe them: the OpenAPI document and the reference made from it."""

from __future__ import annotations

from roost.wire import (
    changes,
    clusters,
    decisions,
    evictions,
    foresight,
    healing,
    machines,
    maintenance,
    operations,
    policies,
    problems,
    tenants,
    thresholds,
    tokens,
    zone,
)
from roost.wire.basics import Asked, Wire

NOUNS = (
    tenants, machines, clusters, thresholds, zone, decisions, policies, foresight, evictions, healing, maintenance,
    changes, tokens, operations, problems,
)  # fmt: skip

FORMS: dict[str, type[Wire | Asked]] = {
    name: form
    for noun in NOUNS
    for name, form in vars(noun).items()
    if isinstance(form, type) and issubclass(form, Wire | Asked) and form.__struct_fields__
}
