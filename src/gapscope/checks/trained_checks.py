"""Checks of the trained network: GS401 to GS404."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gapscope.base.task import class_logits
from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.hooks import forward_hooks, named_modules
from gapscope.inspection.losses import evaluate
from gapscope.inspection.outputs import inspection_mode, network_outputs


@register_check("GS401", title="accuracy below the forecast", seconds=3.0, information=True)
def configuration(context: Context) -> Outcome:
    """Report an estimated accuracy significantly below the best baseline."""
    if not context.is_classifier:
        return NotChecked("needs class labels")
    if context.is_untrained:
        return NotChecked("the network is untrained")
    estimate = context.estimate if context.test is None else None
    if context.test is not None:
        (accuracy, high), source = test_accuracy(context), "test"
    elif estimate is None or estimate.same_noise is None:
        accuracy, high, source = context.train_accuracy, context.train_accuracy, "training"
    else:
        accuracy, high, source = estimate.same_noise.value, estimate.same_noise.high, "estimated"
    forecast = context.forecast
    if forecast is None or forecast.abstained_because:
        return NotChecked("no baseline beats the most frequent class")
    best = max(forecast.rows, key=lambda row: row.score)
    error = (best.score * (1 - best.score) / len(context.samples)) ** 0.5
    text = f"{source} accuracy {accuracy:.0%}, {best.method} {best.score:.0%}"
    if high < best.score - 1.645 * error:
        return Finding(
            text, "tune learning rate, epochs and regularization; the data allow more", cost=best.score - accuracy
        )
    return Fine(text)


def test_accuracy(context: Context) -> tuple[float, float]:
    """Return the accuracy on the held-out samples, and its one-sided 95 % limit."""
    assert context.test is not None
    accuracy = evaluate(context.network, context.test)["accuracy"]
    return accuracy, accuracy + 1.645 * (accuracy * (1 - accuracy) / len(context.test)) ** 0.5


MIN_GAP = 0.07


@register_check("GS402", title="overfitting", seconds=3.0, information=True)
def overfitting(context: Context) -> Outcome:
    """Report a gap of seven points or more between training and new data."""
    if not context.is_classifier:
        return NotChecked("needs class labels")
    if context.is_untrained:
        return NotChecked("the network is untrained")
    train = context.train_accuracy
    if context.test is not None:
        (accuracy, high), source = test_accuracy(context), "on test samples"
    else:
        estimate = context.estimate
        if estimate is None or estimate.same_noise is None:
            return NotChecked(
                f"{context.failures.get('estimate', 'the accuracy cannot be estimated')}. Pass test=, held-out samples"
            )
        accuracy, high, source = estimate.same_noise.value, estimate.same_noise.high, "estimated on new data"
    text = f"training accuracy {train:.0%}, {accuracy:.0%} {source}"
    if train - high < MIN_GAP:
        return Fine(text)
    return Finding(
        text,
        "regularize (dropout, weight decay, gapscope.GradientSimilarityPenalty), stop earlier, or add data",
        cost=(train - accuracy) / 4,
    )


RECTIFIERS = (nn.ReLU, nn.ReLU6)
MIN_DEAD = 0.2


@register_check("GS403", title="dead units", seconds=0.05)
def dead_units(context: Context) -> Outcome:
    """Report a fifth or more of the units after rectifiers that no training sample activates."""
    network = context.initial_network if context.is_untrained else context.network
    assert network is not None
    modules = {name: module for name, module in named_modules(network).items() if isinstance(module, RECTIFIERS)}
    if not modules:
        return NotChecked("no ReLU layers")
    active: dict[tuple[str, int], Tensor] = {}
    calls: dict[str, int] = {}

    def record(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # a module may be called several times in one pass; each call has units of its own
        key = (name, calls.get(name, 0))
        calls[name] = key[1] + 1
        # over all axes but that of units: samples and positions
        unit_axis = 1 if output.ndim > 1 else 0
        axes = tuple(axis for axis in range(output.ndim) if axis != unit_axis)
        is_active = ((output > 0).any(dim=axes[0]) if len(axes) == 1 else (output > 0).amax(dim=axes)).cpu()
        previous = active.get(key)
        active[key] = is_active if previous is None or previous.shape != is_active.shape else previous | is_active

    with inspection_mode(network), forward_hooks(modules, record), torch.no_grad():
        for start in range(0, len(context.samples), 256):
            calls.clear()
            network_outputs(network, context.samples.inputs[start : start + 256], chunk_size=256)
    units, dead = sum(map(len, active.values())), sum(int((~layer).sum()) for layer in active.values())
    if not units:
        return NotChecked("no ReLU layer ran")
    if dead < MIN_DEAD * units:
        return Fine(f"{dead} of {units} units are never active")
    worst = max(active, key=lambda key: float((~active[key]).double().mean()))
    return Finding(
        f"{dead} of {units} units are never active on the training samples, most in {worst[0] or 'the network'}",
        "lower the learning rate or the bias, use LeakyReLU, or make the layer narrower",
        cost=0.05 * dead / units,
    )


NOISE, MIN_CHANGED = 0.05, 0.1


def robust_spread(columns: Tensor) -> Tensor:
    """Return a robust spread per column [d] (the standard deviation if it is 0)."""
    ordered = columns.sort(0).values
    quartiles = ordered[len(ordered) * 3 // 4] - ordered[len(ordered) // 4]
    return torch.where(quartiles > 0, quartiles / 1.349, columns.std(0))


@register_check("GS404", title="predictions change under small noise", seconds=0.1)
def sensitivity(context: Context) -> Outcome:
    """Report a tenth or more of predictions changed by 5 % Gaussian input noise."""
    x = context.samples.inputs
    if not context.is_classifier or not x.is_floating_point() or context.samples.form is not None:
        return NotChecked("needs class labels and one floating point input")
    if context.is_untrained:
        return NotChecked("the network is untrained")
    generator = torch.Generator().manual_seed(context.seed)
    columns = x if x.ndim == 2 else x.movedim(1, -1).flatten(0, -2)
    # outliers in a column of a table would raise its standard deviation, and with it the noise of all samples
    spread = (robust_spread(x) if x.ndim == 2 else columns.std(0)).reshape(1, -1, *[1] * (x.ndim - 2))
    noise = torch.randn(x.shape, generator=generator).to(x) * spread * NOISE
    with inspection_mode(context.network):
        outputs = class_logits(network_outputs(context.network, x + noise)).cpu()
    changed = float((outputs.argmax(1) != context.logits.argmax(1)).double().mean())
    text = f"{changed:.1%} of predictions change under noise of 5 % of the inputs' spread"
    if changed < MIN_CHANGED:
        return Fine(text)
    return Finding(
        text, "train with input noise or augmentation, or gapscope.penalties.InputJacobianPenalty", cost=changed / 4
    )
