"""HTTP: one agent in an event loop, and the routes that ask it. Called by the command line; builds on wiring."""
