"""Comparison of measures on two pools of convolutional networks."""
