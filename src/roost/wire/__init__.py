"""What goes over the wire: the JSON forms of the HTTP API, a module a noun. For the service and its clients."""
