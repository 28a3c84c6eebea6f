"""The advice on batch norm in sentences, and when not to trust it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gapscope.base.records import Estimate

if TYPE_CHECKING:
    from gapscope.batch_norm.advice.batch_norm import BatchNormAdvice

FROZEN = (
    "these numbers are of the weights as they are; trained anew, gammas and curvature change. The batch size also "
    "changes the noise of the gradient and the number of steps, which nothing here restores."
)


def _value(estimate: Estimate) -> str:
    return f"{float(estimate):.3g} ± {estimate.standard_error or 0.0:.1g}"


def _present(advice: BatchNormAdvice) -> str:
    total = advice.total.excess
    text = (
        f"Batch norm with batches of {advice.batch_size} adds {_value(total)} to the training loss of {advice.loss:.3g}"
    )
    text += f" ({total / advice.loss:.1%})" if advice.loss else ""
    if len(advice.layers) > 1 and total > 0:
        first = max(advice.layers, key=lambda layer: float(layer.excess))
        alone = sum(float(layer.excess) for layer in advice.layers)
        text += f"; the largest part is that of {first.layer} ({first.excess / alone:.0%} of the layers' sum)"
    return text + "."


def _change(advice: BatchNormAdvice) -> str:
    new, total = advice.total.new_excess, advice.total.excess
    where = (
        "Without batch statistics all of it is lost"
        if advice.new_batch_size is None
        else f"Batches of {advice.new_batch_size} would add {_value(new)}"
    )
    if not advice.something_is_missing and not advice.something_is_added:
        return (
            f"{where}; the difference, {_value(advice.missing)}, is no more than its error: nothing is to be restored."
        )
    if advice.something_is_added:
        growth = Estimate(-advice.missing, advice.missing.standard_error)
        return f"{where}: the regularisation would grow by {_value(growth)}."
    share = f": {advice.missing / total:.0%} of the regularisation would be lost" if advice.new_batch_size else ""
    return f"{where}{share}."


def _remedies(advice: BatchNormAdvice) -> list[str]:
    lines = []
    if advice.ghost_size is not None:
        lines.append(
            f"Ghost batches of {advice.ghost_size} restore it, with the same noise: "
            f"gapscope.batch_norm.replace(network, 'ghost', ghost_size={advice.ghost_size})."
        )
    where = " and ".join(advice.dropout_before)
    if advice.dropout is not None:
        lines.append(f"A dropout rate of {_value(advice.dropout)} before {where} adds as much to the loss.")
    else:
        lines.append(f"No dropout rate up to 0.9 before {where} adds as much to the loss.")
    if advice.decay_strength is not None:
        arguments = f"{float(advice.decay_strength):.2g}, batch_size={advice.batch_size}"
        arguments += "" if advice.new_batch_size is None else f", batch_norm_size={advice.new_batch_size}"
        form = " with population norm" if advice.new_batch_size is None else ""
        lines.append(
            f"Gamma decay{form} adds as much with GammaDecayPenalty({arguments}); the error of the strength is "
            f"{advice.decay_strength.standard_error or 0.0:.1g}."
        )
    return lines


def sentences(advice: BatchNormAdvice) -> tuple[str, ...]:
    """The advice in sentences.

    Args:
        advice: What was found.

    Returns:
        What batch norm adds, what the new batch size changes, and what would restore it.
    """
    lines = [_present(advice), _change(advice)]
    if advice.something_is_missing:
        lines += _remedies(advice)
    elif advice.something_is_added:
        lines.append(
            "Neither ghost batches nor dropout take noise away; population norm with GammaDecayPenalty("
            f"batch_size={advice.batch_size}) keeps the regularisation of batches of {advice.batch_size}."
        )
    return tuple(lines)


def _odd_prediction(advice: BatchNormAdvice) -> str | None:
    total = advice.total
    error = (total.excess.standard_error or 0.0) + (total.predicted.standard_error or 0.0)
    apart = abs(total.excess - total.predicted)
    if apart <= 3 * error or apart <= 0.25 * abs(total.excess):
        return None
    return (
        f"the theory, which is of first order in 1/M and adds the layers up, gives {float(total.predicted):.3g} where "
        f"{float(total.excess):.3g} is measured: the strength of gamma decay is rough here."
    )


def caveats(advice: BatchNormAdvice) -> tuple[str, ...]:
    """When not to trust the advice.

    Args:
        advice: What was found.

    Returns:
        What speaks against the numbers, worst first; the last holds always.
    """
    found: list[str | None] = [_odd_prediction(advice)]
    error, largest = advice.missing.standard_error or 0.0, max(advice.batch_size, advice.new_batch_size or 0)
    if advice.something_is_missing and error > 0.2 * advice.missing:
        found.append(f"the missing amount, {_value(advice.missing)}, is rough: take more passes or more samples.")
    if abs(advice.running_loss - advice.loss) > max(advice.total.excess, 0.05 * advice.loss):
        found.append(
            f"with its running statistics the network's loss is {advice.running_loss:.3g}, with exact ones "
            f"{advice.loss:.3g}: the running statistics are stale, and the advice is for the exact ones."
        )
    if largest > advice.samples / 4:
        found.append(
            f"batches of {largest} are a large part of the {advice.samples} samples, drawn without replacement: "
            "right if these are all training data, else their noise is underestimated."
        )
    if advice.dropout is not None and advice.dropout > 0.5:
        found.append(f"a dropout rate of {float(advice.dropout):.2f} is no small noise; the match is in name only.")
    if advice.decay_strength is not None and not 0.5 <= advice.decay_strength <= 2:
        found.append(
            f"gamma decay needs a strength of {float(advice.decay_strength):.2g} to match, where theory says 1: it "
            "leaves out what is linear in gamma and beyond the second order."
        )
    return (*(text for text in found if text is not None), FROZEN)
