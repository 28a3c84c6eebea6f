"""Batch normalization: layers, population statistics, gamma decay, advice on batch sizes.

Common parameters:

Args:
    network: Network with BatchNorm, PopulationNorm or GhostBatchNorm layers, unchanged unless stated.
    data: Inputs with targets in any form (pair of tensors, Samples, Dataset, DataLoader), used as the population.
    batch_size: Batch size M, at least 2 and below the number of samples; `batch_sizes` several of them.
    layers: Names as in `network.named_modules()`; None for all.
    passes: Number of random partitions of the samples into batches.
    loss: Loss of each sample [n] from outputs [n, K] and targets; None for cross-entropy or squared error.
    chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    generator: Source of random batches and noise; None for the same ones in every call.
    num_features: Number of channels C of a layer.
    eps: Added to variances inside the square root.
    momentum: Weight of the newest batch in running statistics; None for the plain average of all batches.
    affine: Whether the layer has gamma and beta.
    track_running_stats: Whether running statistics are tracked for evaluation.
    device, dtype: Device and floating-point type of the layer's parameters and buffers.
"""

from gapscope.batch_norm.gamma_decay.decay import gamma_decay
from gapscope.batch_norm.gamma_decay.layer_decay import GammaDecay, LayerDecay
from gapscope.batch_norm.gamma_decay.measured_excess import BatchNormExcess, batch_norm_excess
from gapscope.batch_norm.layers.ghost import GhostBatchNorm1d, GhostBatchNorm2d, GhostBatchNorm3d
from gapscope.batch_norm.layers.partial import (
    MeanOnlyBatchNorm1d,
    MeanOnlyBatchNorm2d,
    MeanOnlyBatchNorm3d,
    VarianceOnlyBatchNorm1d,
    VarianceOnlyBatchNorm2d,
    VarianceOnlyBatchNorm3d,
)
from gapscope.batch_norm.layers.population import (
    PopulationNorm1d,
    PopulationNorm2d,
    PopulationNorm3d,
)
from gapscope.batch_norm.layers.weight import initialize_from_data, weight_normalize
from gapscope.batch_norm.refresh import refresh_population
from gapscope.batch_norm.replace import replace_batch_norm
from gapscope.inspection.moments import ChannelMoments

__all__ = [
    "BatchNormExcess",
    "ChannelMoments",
    "GammaDecay",
    "GhostBatchNorm1d",
    "GhostBatchNorm2d",
    "GhostBatchNorm3d",
    "LayerDecay",
    "MeanOnlyBatchNorm1d",
    "MeanOnlyBatchNorm2d",
    "MeanOnlyBatchNorm3d",
    "PopulationNorm1d",
    "PopulationNorm2d",
    "PopulationNorm3d",
    "VarianceOnlyBatchNorm1d",
    "VarianceOnlyBatchNorm2d",
    "VarianceOnlyBatchNorm3d",
    "batch_norm_excess",
    "gamma_decay",
    "initialize_from_data",
    "refresh_population",
    "replace_batch_norm",
    "weight_normalize",
]
