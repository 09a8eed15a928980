"""What speaks of sums, and holds at the commit: checks of scopes, one module each, and one table of them."""
