"""Policy: one rule a file, and policies that put them in order. No I/O but reading policy files, no state.

Called by `wiring` and whatever stands above it; agents are handed a policy. Calls `engine` for what a rule is, and
`model`.
"""
