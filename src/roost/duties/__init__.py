"""What runs beside the requests: a duty looks at the agent's copy now and then, and asks for what it finds to do.

Run by the service, by workers and by the simulator, from one list; calls `agent` and `admission`.
"""
