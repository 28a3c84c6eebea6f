"""Which measure to trust for which question, from two pools of convolutional networks."""
