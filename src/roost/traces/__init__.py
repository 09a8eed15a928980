"""Readers and generators of workloads: what tenants ask for, and when. Calls `model` only."""
