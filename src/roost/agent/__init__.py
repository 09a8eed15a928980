"""Follows a store and decides for it: a copy of the zone that runs ahead, rounds of requests, commits, lost races.

Called by the service, by workers, duties, the simulator and what-if; calls `placing` and `engine`, and of a store its
contract, its feed, its ledger, its re-check and its history.
"""
