"""Batch normalisation taken apart: layers, population statistics, and the gamma decay that batches amount to."""

from gapscope.normalization.decay import gamma_decay as gamma_decay
from gapscope.normalization.excess import BatchNormExcess as BatchNormExcess
from gapscope.normalization.excess import batch_norm_excess as batch_norm_excess
from gapscope.normalization.ghost import GhostBatchNorm1d as GhostBatchNorm1d
from gapscope.normalization.ghost import GhostBatchNorm2d as GhostBatchNorm2d
from gapscope.normalization.ghost import GhostBatchNorm3d as GhostBatchNorm3d
from gapscope.normalization.layer_decay import GammaDecay as GammaDecay
from gapscope.normalization.layer_decay import LayerDecay as LayerDecay
from gapscope.normalization.mean_only import MeanOnlyBatchNorm1d as MeanOnlyBatchNorm1d
from gapscope.normalization.mean_only import MeanOnlyBatchNorm2d as MeanOnlyBatchNorm2d
from gapscope.normalization.mean_only import MeanOnlyBatchNorm3d as MeanOnlyBatchNorm3d
from gapscope.normalization.moments import ChannelMoments as ChannelMoments
from gapscope.normalization.population import PopulationNorm1d as PopulationNorm1d
from gapscope.normalization.population import PopulationNorm2d as PopulationNorm2d
from gapscope.normalization.population import PopulationNorm3d as PopulationNorm3d
from gapscope.normalization.priors import BatchStatistics as BatchStatistics
from gapscope.normalization.priors import batch_statistics as batch_statistics
from gapscope.normalization.priors import gaussian_std_moments as gaussian_std_moments
from gapscope.normalization.refresh import PopulationRefresh as PopulationRefresh
from gapscope.normalization.refresh import refresh_population as refresh_population
from gapscope.normalization.swap import replace as replace
from gapscope.normalization.variance_only import VarianceOnlyBatchNorm1d as VarianceOnlyBatchNorm1d
from gapscope.normalization.variance_only import VarianceOnlyBatchNorm2d as VarianceOnlyBatchNorm2d
from gapscope.normalization.variance_only import VarianceOnlyBatchNorm3d as VarianceOnlyBatchNorm3d
from gapscope.normalization.weight import initialize_from_data as initialize_from_data
from gapscope.normalization.weight import weight_normalize as weight_normalize
