"""What an agent can be asked to do, one module a verb; `table` has them all."""
