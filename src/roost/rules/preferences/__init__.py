"""Soft rules on machines and racks: each scores from 0, the best, to 1."""
