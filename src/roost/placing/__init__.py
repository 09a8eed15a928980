"""Decides where VMs go, on a zone in memory and the books of what runs there. Knows no store, and no rule by name.

Called by `agent`, which follows a store, by `whatif` and by programs; calls `engine`.
"""
