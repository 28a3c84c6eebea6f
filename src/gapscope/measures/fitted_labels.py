"""Networks that have already fitted the labels, where an untrained network is expected."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, InvalidInput
from gapscope.base.task import class_logits
from gapscope.inspection.copies import copy_network
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.validation import Ready, ready
from gapscope.measures._forward import FeatureRows
from gapscope.measures.embed import Features, extract_features
from gapscope.networks.initialization import resampled_state
from gapscope.results.estimate import NORMAL_95, IntervalEstimate, percent
from gapscope.statistics.baselines import LooRow, kernel_row, target_matrix
from gapscope.statistics.grouped_scores import variance_of_mean
from gapscope.statistics.kernel_ridge import Spectrum, linear_spectrum

FEATURES = "last hidden features"
# Above so many, the exact NTK costs more than fine-tuning (EfficientNet-Lite0), and an estimate replaces it. Features
# that are significantly better than the RBF kernel need none: it brings their forecast no nearer to that of a fine-tune
# (results/pretrained/ntk_projected.json).
MANY_PARAMETERS = 1_000_000


def is_large(network: nn.Module) -> bool:
    """Return whether a network has so many parameters that its features carry the forecast."""
    return sum(p.numel() for p in network.parameters()) > MANY_PARAMETERS


def paired_gain(row: LooRow, baseline: LooRow, targets: Tensor) -> IntervalEstimate:
    """Return the mean difference of paired leave-one-out results, with a 95 % CI (of groups, if `row` has them)."""
    if targets.is_floating_point():
        truth = target_matrix(targets)
        scale = (truth - truth.mean(0)).square().sum(1).mean()
        errors, baseline_errors = (
            (each.predictions - truth).square().sum(1) for each in (row, baseline)
        )
        difference = (baseline_errors - errors) / scale
    else:
        difference = row.correct(targets).double() - baseline.correct(targets).double()
    mean = float(difference.mean())
    if row.groups is None:
        error = float(difference.std()) / len(difference) ** 0.5
    else:
        error = variance_of_mean(difference.cpu().numpy(), row.groups.cpu().numpy()) ** 0.5
    return IntervalEstimate(mean, mean - NORMAL_95 * error, mean + NORMAL_95 * error)


def features_carry(features: LooRow, baseline: LooRow, targets: Tensor) -> bool:
    """Return whether the features of a network predict significantly better than a kernel of the inputs."""
    return paired_gain(features, baseline, targets).low > 0


def centred_features(features: FeatureRows) -> FeatureRows:
    """Return the features of a network in float64, centred and of mean standard deviation 1."""
    values = features.double()
    return (values - values.mean(0)) / values.std(0, correction=0).mean().clamp_min(1e-12)


def features_spectrum(features: FeatureRows) -> Spectrum:
    """Decompose the linear kernel of `centred_features`."""
    return linear_spectrum(centred_features(features))


def features_row(
    features: FeatureRows,
    targets: Tensor,
    n_classes: int | None = None,
    groups: Int[Tensor, " n"] | None = None,
) -> LooRow:
    """Fit ridge regression on features of a network (see `features_spectrum`).

    Args:
        features: [n, d], such as those of `extract_features`.
        targets: Class labels [n] or regression targets [n, k], on the CPU.
        n_classes: Number of classes; None for the largest label plus one.
        groups: Group of each sample, which is then predicted without it.
    """
    return kernel_row(FEATURES, "network", features_spectrum(features), targets, n_classes, groups)


@dataclass(frozen=True)
class NetworkBeforeTraining:
    """What stands in for a network whose features must not have seen the labels.

    Attributes:
        prepared: The network as passed, if it has not fitted the labels; a copy with resampled weights, if it has;
            None, if it has and its weights cannot be resampled.
        note: What was found and done, in one or two sentences; empty for a network that is used as passed.
        fit: How well it has fitted the labels; empty likewise.
    """

    prepared: Ready | None
    note: str = ""
    fit: str = ""


def _pass(prepared: Ready) -> Features | None:
    """Return features and outputs of the samples, None for networks without features."""
    try:
        return extract_features(prepared.network, prepared.samples)
    except GapscopeError:
        return None


def network_before_training(
    prepared: Ready,
    baseline: Float[Tensor, "n k"],
    groups: Int[Tensor, " n"] | None = None,
) -> NetworkBeforeTraining:
    """Return a network that has not fitted these labels: the same, or a copy with resampled weights.

    For functions that read a network before training. A network has fitted the labels if it predicts the training
    samples significantly better than leave-one-out without a network does, and leave-one-out on its last hidden
    features is significantly better than on those of the same architecture with resampled weights (95 % CIs of paired
    differences, on at most 500 samples). A pretrained network with a new head has fitted other labels: its head
    predicts at chance, and it is used as it is.

    Args:
        prepared: The network and its training samples, `ready(network, data, needs=("outputs",))`, with one label per
            sample or regression targets.
        baseline: Leave-one-out predictions of all samples without the network, such as those of the RBF ridge or the
            class frequencies: scores of classes [n, C], or predicted targets [n, k].
        groups: Group of each sample, whose samples are predicted from other groups alone.
    """
    current = _pass(prepared)
    n = len(prepared.samples)
    # a fit of labels is evident on few samples
    rows = torch.randperm(n, generator=torch.Generator().manual_seed(0))[:500].sort().values
    part = prepared.samples.subset(rows.to(prepared.samples.inputs.device))
    targets = part.y.cpu()
    if groups is not None:
        groups = groups.cpu()[rows]
    if current is not None and current.outputs is not None:
        outputs = current.outputs[rows]
    else:
        with inspection_mode(prepared.network):
            outputs = network_outputs(prepared.network, part.inputs).cpu()
    n_classes = None
    predictions = outputs.double()
    if targets.dtype == torch.bool:
        predictions = predictions.sigmoid()
    elif not targets.is_floating_point():
        predictions = class_logits(predictions)
        n_classes = max(predictions.shape[1], int(targets.max()) + 1)
    fit = LooRow("training fit", "network", float("nan"), predictions, groups)
    without = LooRow("baseline", "inputs", float("nan"), baseline.cpu()[rows])
    if paired_gain(fit, without, targets).low <= 0:
        return NetworkBeforeTraining(prepared)
    fitted = "The network has fitted these targets"
    if not targets.is_floating_point():
        accuracy, expected = (
            percent(float(row.correct(targets).double().mean())) for row in (fit, without)
        )
        fitted = f"The network predicts {accuracy} of the training labels, leave-one-out without it {expected}"
    try:
        bare = copy_network(prepared.bare)
        bare.load_state_dict(resampled_state(prepared.bare))
        resampled = ready(bare, prepared.samples)
    except InvalidInput:
        note = f"{fitted}: it was trained on them. Its weights cannot be resampled, so it was not used."
        return NetworkBeforeTraining(None, note, fitted)
    untrained = _pass(resampled.with_samples(part))
    if current is not None and untrained is not None:
        trained_row, untrained_row = (
            features_row(values, targets, n_classes, groups)
            for values in (current.values[rows], untrained.values)
        )
        if paired_gain(trained_row, untrained_row, targets).low <= 0:
            return NetworkBeforeTraining(prepared)
    note = (
        f"{fitted}: it was trained on them. Its weights were resampled. Pass a pretrained network as it was before "
        "these labels, or with a new head."
    )
    return NetworkBeforeTraining(resampled, note, fitted)
