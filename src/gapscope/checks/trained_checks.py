"""Checks of the trained network: GS401 to GS404."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gapscope.base.task import class_logits
from gapscope.checks.account import AFTER_OTHERS, TRY_IT
from gapscope.checks.context import Context
from gapscope.checks.output_unit import OutputUnit
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.hooks import forward_hooks, named_modules
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.results.estimate import NORMAL_90
from gapscope.statistics.intervals import wilson_interval


@register_check(
    "GS401", title="accuracy below the forecast", seconds=3.0, information=True, generalization=True
)
def configuration(context: Context) -> Outcome:
    """Report an expected accuracy, or R^2, significantly below the best baseline."""
    if context.untrained_because:
        return NotChecked(context.untrained_because)
    if context.output_unit is not None:
        return _other_unit(context, context.output_unit)
    if context.best_method is None:
        return NotChecked(
            f"no baseline beats the {'most frequent class' if context.has_accuracy else 'mean target'}"
        )
    method, best = context.best_method
    # Wilson's interval is not of normal errors
    reach = NORMAL_90 * (best.value * (1 - best.value) / len(context.distinct)) ** 0.5
    if not context.has_accuracy:
        reach = best.value - best.low
    expected = context.comparable
    if expected is not None:
        score = expected.value
        high = expected.high
        source = expected.source
    else:
        # the score on new data is hardly above that on the training samples
        score = high = context.train_score
        source = "on training samples"
        if context.has_accuracy:
            high = wilson_interval(score, len(context.samples))[1]
    text = (
        f"{context.score_name} {context.show(score)} {source}, {method} {context.show(best.value)}"
    )
    # a difference that does not show in two digits is none, however certain it is
    if high < best.value - reach and context.show(score) != context.show(best.value):
        if context.estimator is None:
            tune = "learning rate, epochs and regularization"
        else:
            tune = "its settings, or try others"
        return Finding(
            text,
            f"tune {tune}: the data allow more",
            cost=context.shortfall,
            fixes=(
                "learning rate / 3",
                "learning rate x 3",
                "twice the epochs",
                "less weight decay",
                "weight decay",
            ),
        )
    if expected is None:
        return NotChecked(
            f"the {context.score_name} on new data is not known: {context.failures['expected']}"
        )
    return NotChecked(expected.unclear) if expected.unclear else Fine(text)


def _other_unit(context: Context, unit: OutputUnit) -> Finding:
    """Return the finding of outputs in another unit than the targets."""
    score = context.train_score
    if context.expected is not None:
        score = context.expected.value
    cost = None
    if context.best_method is not None:
        cost = min(max(context.best_method[1].value - score, 0.0), 1.0)
    return Finding(
        f"training R^2 {context.show(context.train_score)}, but {unit.evidence}",
        unit.action,
        cost=cost,
        headline="The outputs of this regressor may have another unit than the targets.",
        cause="unit of the outputs",
    )


REGULARIZE = f"regularize (weight decay, dropout, gapscope.GradientSimilarityPenalty){TRY_IT}"
REGULARIZE_ESTIMATOR = (
    "regularize it (a stronger penalty, smaller trees, larger leaves), or use fewer columns"
)


@register_check("GS402", title="overfitting", seconds=3.0, information=True, generalization=True)
def overfitting(context: Context) -> Outcome:
    """Report a gap of seven points (0.07 of R^2) or more between training and new data."""
    expected = context.comparable
    if expected is None:
        return NotChecked(context.failures["expected"])
    train = context.train_score
    text = f"training {context.score_name} {context.show(train)}, {context.show(expected.value)} {expected.source}"
    # seven points, by judgment
    if train - expected.high < 0.07:
        if expected.unclear:
            return NotChecked(expected.unclear)
        return Fine(text)
    return Finding(
        text,
        AFTER_OTHERS + (REGULARIZE if context.estimator is None else REGULARIZE_ESTIMATOR),
        fixes=("weight decay", "half the epochs") if context.estimator is None else (),
    )


RECTIFIERS = (nn.ReLU, nn.ReLU6)


@register_check("GS403", title="dead units", seconds=0.05)
def dead_units(context: Context) -> Outcome:
    """Report a fifth or more of the units after rectifiers that no training sample activates."""
    if context.prepared is None:
        return NotChecked("needs a torch network")
    if context.untrained_because:
        network = context.initial_network
    else:
        network = context.network
    assert network is not None
    modules = {
        name: module
        for name, module in named_modules(network).items()
        if isinstance(module, RECTIFIERS)
    }
    if not modules:
        return NotChecked("no ReLU layers")
    active: dict[tuple[str, int], Tensor] = {}
    channels = _last_axes(network, context.samples.inputs[:2])
    calls: dict[str, int] = {}

    def record(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # a module may be called several times in one pass; each call has units of its own
        key = (name, calls.get(name, 0))
        calls[name] = key[1] + 1
        unit_axis = _unit_axis(output, channels.get(name))
        if unit_axis is None:
            return
        axes = tuple(axis for axis in range(output.ndim) if axis != unit_axis)
        is_active = (
            (output > 0).any(dim=axes[0]) if len(axes) == 1 else (output > 0).amax(dim=axes)
        ).cpu()
        previous = active.get(key)
        active[key] = (
            is_active
            if previous is None or previous.shape != is_active.shape
            else previous | is_active
        )

    with inspection_mode(network), forward_hooks(modules, record), torch.no_grad():
        for start in range(0, len(context.samples), 256):
            calls.clear()
            network_outputs(network, context.samples.inputs[start : start + 256], chunk_size=256)
    units = sum(map(len, active.values()))
    dead = sum(int((~layer).sum()) for layer in active.values())
    if not units:
        return NotChecked("no ReLU layer with a known axis of units ran")
    # a fifth of the units, by judgment
    if dead < 0.2 * units:
        return Fine(f"{dead} of {units} units are never active")
    worst = max(active, key=lambda key: float((~active[key]).double().mean()))
    return Finding(
        f"{dead} of {units} units are never active on the training samples, most in {_place(worst[0])}",
        "lower the learning rate or the bias, use LeakyReLU, or make the layer narrower",
        cost=context.shortfall,
        fixes=("learning rate / 3", "learning rate / 10"),
    )


def _place(name: str) -> str:
    """Return what a message calls a layer."""
    return f"layer {name!r}" if name else "the network"


def _last_axes(network: nn.Module, x: Tensor) -> dict[str, bool]:
    """Return, per rectifier that follows a layer, whether units are on the last axis of its input."""
    last: dict[str, bool] = {}
    kinds: dict[int, bool] = {}
    alive: list[Tensor] = []  # the memory of a tensor that is gone could be that of another

    def record(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, RECTIFIERS):
            if inputs[0].data_ptr() in kinds:
                last[name] = kinds[inputs[0].data_ptr()]
        elif isinstance(output, Tensor):
            kinds[output.data_ptr()] = isinstance(module, nn.Linear | nn.LayerNorm | nn.RMSNorm)
            alive.append(output)

    layers = {
        name: module
        for name, module in named_modules(network).items()
        if isinstance(module, RECTIFIERS) or next(module.children(), None) is None
    }
    with inspection_mode(network), forward_hooks(layers, record), torch.no_grad():
        network_outputs(network, x, chunk_size=len(x))
    return last


def _unit_axis(output: Tensor, is_last: bool | None) -> int | None:
    """Return the axis of units of a rectifier's output [n, ...] (None if it is not known).

    The last one after linear layers and norms of the last axis, else that of channels. Outputs [n, a, b] of other
    origins are ambiguous: sequences of units and one-dimensional convolutions look the same.
    """
    if output.ndim < 2:
        return 0
    if is_last:
        return output.ndim - 1
    if is_last is None and output.ndim == 3:
        return None
    return 1


# in standard deviations of each input; fraction of changed predictions: by judgment
NOISE, MIN_CHANGED = 0.05, 0.1


def robust_spread(columns: Tensor) -> Tensor:
    """Return a robust spread per column [d] (the standard deviation if it is 0)."""
    ordered = columns.sort(0).values
    quartiles = ordered[len(ordered) * 3 // 4] - ordered[len(ordered) // 4]
    return torch.where(quartiles > 0, quartiles / 1.349, columns.std(0))


@register_check("GS404", title="predictions change under small noise", seconds=0.1)
def sensitivity(context: Context) -> Outcome:
    """Report a tenth or more of predictions changed by 5 % Gaussian input noise."""
    if context.prepared is None:
        return NotChecked("needs a torch network")
    x = context.samples.inputs
    if not context.is_classifier or not x.is_floating_point() or not context.samples.has_one_input:
        return NotChecked("needs one class label per sample, and one floating point input")
    if context.untrained_because:
        return NotChecked(context.untrained_because)
    if len(context.logits.argmax(1).unique()) < 2:
        return NotChecked("the network predicts one class for every sample")
    generator = torch.Generator().manual_seed(context.seed)
    if x.ndim == 2:
        columns = x
    else:
        columns = x.movedim(1, -1).flatten(0, -2)
    # outliers in a column of a table would raise its standard deviation, and with it the noise of all samples
    spread = (robust_spread(x) if x.ndim == 2 else columns.std(0)).reshape(
        1, -1, *[1] * (x.ndim - 2)
    )
    noise = torch.randn(x.shape, generator=generator).to(x) * spread * NOISE
    with inspection_mode(context.network):
        outputs = class_logits(network_outputs(context.network, x + noise)).cpu()
    changed = float((outputs.argmax(1) != context.logits.argmax(1)).double().mean())
    text = f"{changed:.1%} of predictions change under noise of 5 % of the inputs' spread"
    if changed < MIN_CHANGED:
        return Fine(text)
    return Finding(
        text,
        "train with input noise or augmentation, or gapscope.penalties.InputJacobianPenalty",
        fixes=("weight decay",),
    )
