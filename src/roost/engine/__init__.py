"""Mechanism: rows, journal, compiled rules, cached evaluations, selection, explanation.

Called by `placing`, which decides by it, and by agents, which hand its re-check to a store; calls `model` only. Knows
what a rule is, never which rules exist.
"""
