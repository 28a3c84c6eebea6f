"""One plain training loop, checkpoints without pickle, the monitor and the overfitting alarm."""

from gapscope.training.automatic_strength import AutomaticStrength as AutomaticStrength
