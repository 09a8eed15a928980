"""What a cluster must keep free for what it has promised.

Called by the service, what-if questions and experiments; calls `placing`, and a store by its contract and its ledger.
"""
