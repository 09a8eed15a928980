"""The heart of every commit, without I/O: fresh rows in, outcomes and what to write out.

A store reads the rows that a group of proposals needs (`needs_of`), under its own locks, calls `settle` (both in
`group`), and writes the result in the same transaction. So there is one opinion on what may be committed, whatever the
rows are kept in. Each kind of proposal is a verb with a module of its own; `table` lists them.
"""
