"""Spans of time, in seconds."""

MINUTE, HOUR, DAY, WEEK = 60.0, 3_600.0, 86_400.0, 7 * 86_400.0
