"""The product in virtual time: same policies, engine, agents and commits; clock, arrivals and faults are simulated."""
