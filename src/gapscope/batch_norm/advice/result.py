"""Result of `advise_batch_norm`: estimates, recommendations, caveats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapscope.results.estimate import Estimate, percent
from gapscope.results.result import Result, to_builtin

if TYPE_CHECKING:
    import pandas

_CURRENT_WEIGHTS_ONLY = (
    "these numbers are for the current weights; retraining changes gammas and curvature. The batch size also "
    "changes the gradient noise and the number of steps, for which this advice does not correct."
)


def is_significantly_positive(value: Estimate) -> bool:
    """Return whether a value exceeds 0 by more than two standard errors."""
    return value > 2 * (value.standard_error or 0.0)


@dataclass(frozen=True, kw_only=True)
class LayerRegularization:
    r"""Training loss added by batch statistics of one layer, or of all at once.

    Attributes:
        layer: Name of the layer, as in `network.named_modules()`.
        gamma_squared: $\sum_i \gamma_i^2$ over its channels.
        decay: $\sum_i \zeta_i\gamma_i^2$, in units of the loss.
        predicted: The decay with the part linear in gamma and all even orders of the noise, in units of the loss.
        excess: Added loss as measured at the current batch size.
        new_excess: Added loss as measured at the new batch size.
    """

    layer: str
    gamma_squared: float
    decay: Estimate
    predicted: Estimate
    excess: Estimate
    new_excess: Estimate

    @property
    def zeta(self) -> float:
        """Mean decay rate, weighted by gamma^2 (NaN if all gammas are 0)."""
        if self.gamma_squared:
            return self.decay / self.gamma_squared
        return float("nan")


@dataclass(frozen=True, kw_only=True)
class BatchNormAdvice(Result):
    """Result of `advise_batch_norm`. Printing shows the table, the advice and its caveats.

    Attributes:
        batch_size: Current batch size M.
        new_batch_size: Future batch size; None for no batch statistics.
        samples: Number of samples that represent the population.
        loss: Mean loss with population statistics.
        running_loss: Mean loss with the network's own running statistics.
        layers: The layers in forward order.
        total: All layers at once.
        left_out: Layers that were not measured one by one within the time budget.
        missing: Regularization at M minus that at the new batch size, in units of the loss.
        ghost_size: Size of ghost batches that restores it; None if the new batches are smaller, there are no batch
            statistics, or a layer takes several rows per sample or the samples in another dimension than the first.
        dropout: Dropout rate that adds the missing amount; None if nothing is missing or no rate up to 0.9 suffices.
        dropout_before: Names of the layers on whose inputs that dropout acts.
        decay_strength: `strength` at which GammaDecayPenalty (M, batch_norm_size=new) adds the missing amount; None if
            nothing is missing or the decay is 0.
        directions: Random directions per sample of the curvature; None for all of them.
    """

    batch_size: int
    new_batch_size: int | None
    samples: int
    loss: float
    running_loss: float
    layers: tuple[LayerRegularization, ...]
    total: LayerRegularization
    left_out: tuple[str, ...] = ()
    missing: Estimate
    ghost_size: int | None
    dropout: Estimate | None
    dropout_before: tuple[str, ...]
    decay_strength: Estimate | None
    directions: int | None = None

    @property
    def loses_regularization(self) -> bool:
        """True if the new batch size regularizes less, by more than two standard errors."""
        return is_significantly_positive(self.missing)

    @property
    def gains_regularization(self) -> bool:
        """True if the new batch size regularizes more, by more than two standard errors."""
        return is_significantly_positive(Estimate(-self.missing, self.missing.standard_error))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The advice as sentences: the added loss, its change, and replacements."""
        return (_present(self), _change(self), *_remedies(self))

    @property
    def caveats(self) -> tuple[str, ...]:
        """Caveats for these numbers, most severe first (the last always applies)."""
        caveats = []
        excess = self.total.excess
        predicted = self.total.predicted
        error = self.missing.standard_error or 0.0
        largest = max(self.batch_size, self.new_batch_size or 0)
        difference = abs(excess - predicted)
        noise = 3 * ((excess.standard_error or 0) + (predicted.standard_error or 0))
        if self.left_out:
            layers = len(self.left_out) + len(self.layers)
            caveats.append(
                f"{len(self.left_out)} of {layers} layers have no row, because the time budget was spent: pass a "
                "larger time_budget. All layers together were measured; their predicted part is of second order in "
                "the noise."
            )
        if self.directions is not None:
            caveats.append(
                f"the curvature is that of {self.directions} random directions of the outputs per sample, to keep the "
                "time budget."
            )
        if difference > max(noise, 0.25 * abs(excess)):
            caveats.append(
                f"theory (first order in 1/M, sum over layers) predicts {float(predicted):.3g}, measured is "
                f"{float(excess):.3g}: the strength of gamma decay is approximate."
            )
        if self.loses_regularization and error > 0.2 * self.missing:
            caveats.append(
                f"the missing amount, {_value(self.missing)}, is uncertain: use more passes or samples."
            )
        if abs(self.running_loss - self.loss) > max(self.total.excess, 0.05 * self.loss):
            caveats.append(
                f"the loss is {self.running_loss:.3g} with running statistics, {self.loss:.3g} with exact ones: the "
                "running statistics are stale, and the advice is for the exact ones."
            )
        if largest > self.samples / 4:
            caveats.append(
                f"batches of {largest} are a large fraction of the {self.samples} samples, sampled without "
                "replacement: their noise is underestimated unless these are all training data."
            )
        if self.dropout is not None and self.dropout > 0.5:
            caveats.append(
                f"a dropout rate of {float(self.dropout):.2f} is large noise: equal losses need not regularize equally."
            )
        if self.decay_strength is not None and not 0.5 <= self.decay_strength <= 2:
            caveats.append(
                f"gamma decay needs a strength of {float(self.decay_strength):.2g}, theory predicts 1: it omits the "
                "part linear in gamma and orders above the second."
            )
        return (*caveats, _CURRENT_WEIGHTS_ONLY)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per layer, the last one for all layers at once."""
        import pandas

        rows = [self.total]
        if len(self.layers) > 1:
            rows = [*self.layers, *rows]
        return pandas.DataFrame(
            {
                "layer": row.layer,
                "gamma_squared": row.gamma_squared,
                "zeta": row.zeta,
                "decay": float(row.decay),
                "predicted": float(row.predicted),
                "excess": float(row.excess),
                "standard_error": row.excess.standard_error,
                "share_of_loss": row.excess / self.loss if self.loss else float("nan"),
                "new_excess": float(row.new_excess),
                "new_standard_error": row.new_excess.standard_error,
            }
            for row in rows
        )

    def _content(self) -> dict[str, Any]:
        """Return everything."""
        names = (
            "batch_size",
            "new_batch_size",
            "samples",
            "loss",
            "running_loss",
            "ghost_size",
            "dropout_before",
            "missing",
            "dropout",
            "decay_strength",
        )
        return {
            **{name: to_builtin(getattr(self, name)) for name in names},
            "layers": self.to_pandas().to_dict("records"),
            "advice": list(self.sentences),
            "caveats": list(self.caveats),
        }

    def __repr__(self) -> str:
        lines = [
            self.to_pandas().to_string(index=False, float_format="%.4g"),
            "",
            *self.sentences,
            "",
        ]
        return "\n".join([*lines, *(f"Caution: {caveat}" for caveat in self.caveats)])


def _value(estimate: Estimate) -> str:
    return f"{float(estimate):.3g} ± {estimate.standard_error or 0.0:.1g}"


def _present(advice: BatchNormAdvice) -> str:
    total = advice.total.excess
    text = f"Batch norm with batches of {advice.batch_size} adds {_value(total)} "
    text += f"to the training loss of {advice.loss:.3g}"
    text += f" ({percent(total / advice.loss, 1)})" if advice.loss else ""
    if len(advice.layers) > 1 and total > 0 and not advice.left_out:
        largest = max(advice.layers, key=lambda layer: float(layer.excess))
        total_of_layers = sum(float(layer.excess) for layer in advice.layers)
        fraction = percent(largest.excess / total_of_layers)
        text += f"; the largest part is that of {largest.layer} ({fraction} of the layers' sum)"
    return text + "."


def _change(advice: BatchNormAdvice) -> str:
    new = advice.total.new_excess
    total = advice.total.excess
    text = "Without batch statistics all of it is lost"
    if advice.new_batch_size is not None:
        text = f"Batches of {advice.new_batch_size} would add {_value(new)}"
    if not advice.loses_regularization and not advice.gains_regularization:
        return f"{text}; the difference, {_value(advice.missing)}, is within its error: no change is needed."
    if advice.gains_regularization:
        growth = Estimate(-advice.missing, advice.missing.standard_error)
        return f"{text}: the regularization would grow by {_value(growth)}."
    if advice.new_batch_size:
        text += f": {percent(advice.missing / total)} of the regularization would be lost"
    return f"{text}."


def _remedies(advice: BatchNormAdvice) -> list[str]:
    if advice.gains_regularization:
        return [
            "Ghost batches and dropout cannot remove noise; population norm with GammaDecayPenalty("
            f"batch_size={advice.batch_size}) keeps the regularization of batches of {advice.batch_size}."
        ]
    if not advice.loses_regularization:
        return []
    lines = []
    if advice.ghost_size is not None:
        lines.append(
            f"Ghost batches of {advice.ghost_size} restore it, with the same noise: "
            f"gapscope.batch_norm.replace_batch_norm(network, 'ghost', ghost_size={advice.ghost_size})."
        )
    layers = " and ".join(advice.dropout_before)
    rate = "No dropout rate up to 0.9"
    if advice.dropout is not None:
        rate = f"A dropout rate of {_value(advice.dropout)}"
    lines.append(f"{rate} before {layers} adds as much to the loss.")
    if advice.decay_strength is not None:
        arguments = f"{float(advice.decay_strength):.2g}, batch_size={advice.batch_size}"
        network = " with population norm"
        if advice.new_batch_size is not None:
            arguments += f", batch_norm_size={advice.new_batch_size}"
            network = ""
        lines.append(
            f"Gamma decay{network} adds as much with GammaDecayPenalty({arguments}); the error of the strength is "
            f"{advice.decay_strength.standard_error or 0.0:.1g}."
        )
    return lines
