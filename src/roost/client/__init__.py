"""Clients of the HTTP API, for people who write Python; the command line uses them, too."""
