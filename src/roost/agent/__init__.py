"""Follows a store and decides for it: a copy of the zone that runs ahead, rounds of requests, commits, lost races.

Called by the service, by workers, duties and the simulator; calls `placing`, and a store by its contract.
"""
