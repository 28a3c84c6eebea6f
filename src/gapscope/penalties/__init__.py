"""Penalties of the training loss, noise-robust losses, and adaptive dropout."""

from gapscope.penalties.dropout import AutomaticDropout as AutomaticDropout
from gapscope.penalties.gamma_decay import GammaDecayPenalty as GammaDecayPenalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty as GradientSimilarityPenalty
from gapscope.penalties.input_jacobian import InputJacobianPenalty as InputJacobianPenalty
from gapscope.penalties.loss_gradient import LossGradientPenalty as LossGradientPenalty
from gapscope.penalties.robust_losses import EarlyLearningRegularization as EarlyLearningRegularization
from gapscope.penalties.robust_losses import GeneralizedCrossEntropy as GeneralizedCrossEntropy
from gapscope.penalties.weight import L2Penalty as L2Penalty
