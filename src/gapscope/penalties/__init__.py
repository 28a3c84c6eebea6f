"""Penalties of the training loss, noise-robust losses, and adaptive dropout.

Common parameters:
    strength: Factor of the penalty, 0 or larger. If the signature has it, also "auto" or an `AutomaticStrength`, which
        adapts it to memorization during training and needs class labels.
    every: Apply the penalty at every k-th call only, beginning with the first, with k times the strength.
    method: "probe" (one random probe per step, unbiased) or "exact" (one backward pass per output).
    reduction: "mean" divides by nC, so that the strength does not depend on the batch; "sum" does not.
    seed: Seed of the random probes.
"""

from gapscope.penalties.dropout import AutomaticDropout as AutomaticDropout
from gapscope.penalties.gamma_decay import GammaDecayPenalty as GammaDecayPenalty
from gapscope.penalties.gradient_norms import InputJacobianPenalty as InputJacobianPenalty
from gapscope.penalties.gradient_norms import LossGradientPenalty as LossGradientPenalty
from gapscope.penalties.gradient_similarity import (
    GradientSimilarityPenalty as GradientSimilarityPenalty,
)
from gapscope.penalties.robust_losses import (
    EarlyLearningRegularization as EarlyLearningRegularization,
)
from gapscope.penalties.robust_losses import GeneralizedCrossEntropy as GeneralizedCrossEntropy
from gapscope.penalties.weight import L2Penalty as L2Penalty
