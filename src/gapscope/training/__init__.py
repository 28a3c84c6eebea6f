"""One plain training loop, checkpoints without pickle, the monitor and the overfitting alarm."""
