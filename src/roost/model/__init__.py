"""The nouns: zone, machine, cluster, VM type, tenant, request, placement, errors. Imports nothing else of Roost."""
