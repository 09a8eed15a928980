"""Policy: one rule a file, and policies that put them in order. No I/O but reading policy files, no state.

Called by wiring, agents and the command line; calls `engine` for what a rule is, and `model`.
"""
