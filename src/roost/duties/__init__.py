"""What runs beside the requests: a duty looks at the agent's copy now and then, and asks for what it finds to do.

Run by the service, by workers, by the simulator and by what-if, from one list; calls `agent` and `placing`.
"""
