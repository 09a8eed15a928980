"""The routes, one module a noun. Each says the scope it needs and whether tokens bound to a namespace may use it."""
