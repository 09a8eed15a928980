"""What if: questions about a zone as it is at one moment, answered by doing it to a copy with the real agents.

Called by the command line; may use everything up to `roost.wiring`, and knows neither service nor client.
"""
