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
from gapscope.statistics.intervals import wilson_interval
from gapscope.statistics.kernel_ridge import Spectrum, linear_spectrum

FEATURES = "last hidden features"
IF_NOT = "If it was not, pass its features, gs.embed(network, data), or give it a new head."
# Above so many, the exact NTK costs more than fine-tuning (EfficientNet-Lite0), and an estimate replaces it. Features
# that are significantly better than the RBF kernel need none: it brings their forecast no nearer to that of a fine-tune
# (results/pretrained/ntk_projected.json).
MANY_PARAMETERS = 1_000_000
# Least number of contradictions, and their ratio to the expected number: training is as sure as its labels allow, with
# ratios up to 3 while it oscillates (lower end of a one-sided interval of 99 %).
MIN_CONTRADICTED, EXCESS, LEVEL = 5, 3.0, 0.98


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


def contradiction(
    probabilities: Float[Tensor, "n c"],
    labels: Int[Tensor, " n"],
    opinion: Int[Tensor, " n"] | None = None,
) -> str:
    """Return how the labels contradict the surest half of the predictions, if a fit to them would not, else "".

    A model that is trained on labels becomes as sure as they allow. One that has seen others is surer.

    Args:
        probabilities: Predicted probabilities of the classes.
        labels: Given labels.
        opinion: Held-out predictions, which must agree with the contradicted ones; None for no such condition.
    """
    sure, predicted = probabilities.max(1)
    half = sure.argsort(descending=True)[: (len(labels) + 1) // 2]
    expected = float(1 - sure[half].double().mean())
    wrong = predicted != labels
    if opinion is not None:
        wrong &= predicted == opinion
    fraction = float(wrong[half].double().mean())
    low = wilson_interval(fraction, len(half), LEVEL)[0]
    if int(wrong[half].sum()) < MIN_CONTRADICTED or low <= EXCESS * expected:
        return ""
    return f"the labels contradict {percent(fraction)} of the surest half of its predictions, not {percent(expected)}"


@dataclass(frozen=True)
class NetworkBeforeTraining:
    """What stands in for a network whose features must not have seen the labels.

    Attributes:
        prepared: The network as passed, unless it may have fitted the labels; then a copy with resampled weights, or
            None if its weights cannot be resampled.
        note: What was found and done, in a few sentences; empty for a network that does not predict the labels.
        fit: How well it predicts the labels; empty for a network that is used as passed.
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

    For functions that read a network before training. A network may have fitted the labels if it predicts the training
    samples significantly better than leave-one-out without a network does, and leave-one-out on its last hidden
    features is significantly better than on those of the same architecture with resampled weights (95 % CIs of paired
    differences, on at most 500 samples). A pretrained network with a new head has fitted other labels: its head
    predicts at chance, and it is used as it is. So is one whose surest predictions the labels contradict, and
    leave-one-out on its features with them (`contradiction`).

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
    fitted = "The network predicts these targets better than leave-one-out without it"
    if not targets.is_floating_point():
        accuracy, expected = (
            percent(float(row.correct(targets).double().mean())) for row in (fit, without)
        )
        fitted = f"The network predicts {accuracy} of the training labels, leave-one-out without it {expected}"
    trained_row = None
    if current is not None:
        trained_row = features_row(current.values[rows], targets, n_classes, groups)
    if trained_row is not None and n_classes is not None:
        opinion = trained_row.predictions.argmax(1).cpu()
        if contradicted := contradiction(predictions.softmax(1), targets, opinion):
            note = (
                f"{fitted}. It was used as one that was not trained on them: {contradicted}. If it was trained on a "
                "part of them, pass the others alone."
            )
            return NetworkBeforeTraining(prepared, note)
    fitted = f"{fitted}: it may have been trained on them"
    try:
        bare = copy_network(prepared.bare)
        bare.load_state_dict(resampled_state(prepared.bare))
        resampled = ready(bare, prepared.samples)
    except InvalidInput:
        note = f"{fitted}. Its weights cannot be resampled, so it was not used. {IF_NOT}"
        return NetworkBeforeTraining(None, note, fitted)
    untrained = _pass(resampled.with_samples(part))
    if trained_row is not None and untrained is not None:
        untrained_row = features_row(untrained.values, targets, n_classes, groups)
        if paired_gain(trained_row, untrained_row, targets).low <= 0:
            return NetworkBeforeTraining(prepared)
    note = f"{fitted}. Its weights were resampled. {IF_NOT}"
    return NetworkBeforeTraining(resampled, note, fitted)
