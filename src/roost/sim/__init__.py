"""The product in virtual time: the same policies, engine, agents and commits; clock, arrivals and faults are simulated."""
