"""Protean's Algorithm 1: order the VMs of a request, assign each through the engine, all or nothing.

Called by whoever has requests (the command line, later the service and the simulator); calls `engine` and `rules`.
"""
