"""HTTP: one agent in an event loop, its parts, and the routes that ask it; and the worker fed with lines of JSON.

Called by the command line and benchmarks; builds on wiring, runs the duties, and speaks in the forms of `wire`.
"""
