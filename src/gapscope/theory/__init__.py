"""Closed forms and differential equations in float64; no networks."""
