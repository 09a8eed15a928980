"""Benchmarks: each runs alone, measures against a baseline in the same run, and returns plain data."""
