"""Mechanism: rows, journal, compiled rules, cached evaluations, selection, explanation.

Called by `agent` (and later the store's re-check); calls `model` only. Knows what a rule is, never which rules exist.
"""
