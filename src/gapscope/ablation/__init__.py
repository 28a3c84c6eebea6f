"""Mechanics of measures at single layers: find and cut them, ablate their units, measure margins there."""
