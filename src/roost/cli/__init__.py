"""The command line: one module a command. Calls everything else, and is the only place that prints."""
