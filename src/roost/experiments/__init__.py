"""The published evaluations, one module a study: what was measured there, measured again here, side by side."""
