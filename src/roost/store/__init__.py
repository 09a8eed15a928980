"""The authority: what really runs where. One contract, three stores (memory, SQLite, PostgreSQL), one change feed.

Called by agents, through the contract; calls nothing but the model. A store decides on the freshest rows, whole
requests or nothing; what "still fits" means is told to it by the engine, as a function.
"""
