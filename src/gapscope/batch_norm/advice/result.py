"""Result of `advise_batch_norm`: estimates, recommendations, caveats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapscope.results.estimate import Estimate, percent
from gapscope.results.result import Result, to_builtin

if TYPE_CHECKING:
    import pandas

_FROZEN = (
    "these numbers hold for the present weights; retraining changes gammas and curvature. The batch size also "
    "changes the gradient noise and the number of steps, which this advice does not correct."
)


def is_significantly_positive(value: Estimate) -> bool:
    """Return whether a value exceeds 0 by more than two standard errors."""
    return value > 2 * (value.standard_error or 0.0)


@dataclass(frozen=True, kw_only=True)
class LayerRegularization:
    r"""Training loss added by batch statistics of one layer, or of all at once.

    `decay` is $\sum_i \zeta_i\gamma_i^2$, `predicted` also holds the part linear in gamma and all even orders of the
    noise, `excess` and `new_excess` are measured at both batch sizes.
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
        return self.decay / self.gamma_squared if self.gamma_squared else float("nan")


@dataclass(frozen=True, kw_only=True)
class BatchNormAdvice(Result):
    """Result of `advise_batch_norm`. Printing shows the table, the advice and its caveats.

    Attributes:
        batch_size, new_batch_size: Batch sizes, now and later; None for no batch statistics at all.
        loss, running_loss: Mean loss with population statistics, and with the network's own running statistics.
        layers, total: The layers in forward order, and all of them at once.
        missing: Regularization at M minus that at the new batch size, in units of the loss.
        ghost_size: Size of ghost batches that restores it; None where the new batches are smaller, or none.
        dropout: Dropout rate that adds the missing amount; None where nothing is missing or no rate up to 0.9 does.
        decay_strength: `strength` of GammaDecayPenalty (M, batch_norm_size=new) with which it adds the missing amount;
            None where nothing is missing or there is no decay to strengthen.
    """

    batch_size: int
    new_batch_size: int | None
    samples: int
    loss: float
    running_loss: float
    layers: tuple[LayerRegularization, ...]
    total: LayerRegularization
    missing: Estimate
    ghost_size: int | None
    dropout: Estimate | None
    dropout_before: tuple[str, ...]
    decay_strength: Estimate | None

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
        caveats, excess, predicted = [], self.total.excess, self.total.predicted
        error, largest = self.missing.standard_error or 0.0, max(self.batch_size, self.new_batch_size or 0)
        apart = abs(excess - predicted)
        if apart > 3 * ((excess.standard_error or 0) + (predicted.standard_error or 0)) and apart > 0.25 * abs(excess):
            caveats.append(
                f"the theory, which is of first order in 1/M and adds the layers up, gives {float(predicted):.3g} "
                f"where {float(excess):.3g} is measured: the strength of gamma decay is rough here."
            )
        if self.loses_regularization and error > 0.2 * self.missing:
            caveats.append(f"the missing amount, {_value(self.missing)}, is rough: take more passes or more samples.")
        if abs(self.running_loss - self.loss) > max(self.total.excess, 0.05 * self.loss):
            caveats.append(
                f"with its running statistics the network's loss is {self.running_loss:.3g}, with exact ones "
                f"{self.loss:.3g}: the running statistics are stale, and the advice is for the exact ones."
            )
        if largest > self.samples / 4:
            caveats.append(
                f"batches of {largest} are a large part of the {self.samples} samples, sampled without replacement: "
                "right if these are all training data, else their noise is underestimated."
            )
        if self.dropout is not None and self.dropout > 0.5:
            caveats.append(f"a dropout rate of {float(self.dropout):.2f} is no small noise; the match is in name only.")
        if self.decay_strength is not None and not 0.5 <= self.decay_strength <= 2:
            caveats.append(
                f"gamma decay needs a strength of {float(self.decay_strength):.2g} to match, theory predicts 1: it "
                "omits what is linear in gamma and beyond the second order."
            )
        return (*caveats, _FROZEN)

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per layer, the last one for all of them at once."""
        import pandas

        rows = [*self.layers, self.total] if len(self.layers) > 1 else [self.total]
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

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON-serializable values."""
        names = ("batch_size", "new_batch_size", "samples", "loss", "running_loss", "ghost_size", "dropout_before")
        return {
            **{name: to_builtin(getattr(self, name)) for name in (*names, "missing", "dropout", "decay_strength")},
            "layers": self.to_pandas().to_dict("records"),
            "advice": list(self.sentences),
            "caveats": list(self.caveats),
        }

    def __repr__(self) -> str:
        lines = [self.to_pandas().to_string(index=False, float_format="%.4g"), "", *self.sentences, ""]
        return "\n".join([*lines, *(f"Caution: {caveat}" for caveat in self.caveats)])


def _value(estimate: Estimate) -> str:
    return f"{float(estimate):.3g} ± {estimate.standard_error or 0.0:.1g}"


def _present(advice: BatchNormAdvice) -> str:
    total = advice.total.excess
    text = (
        f"Batch norm with batches of {advice.batch_size} adds {_value(total)} to the training loss of {advice.loss:.3g}"
    )
    text += f" ({percent(total / advice.loss, 1)})" if advice.loss else ""
    if len(advice.layers) > 1 and total > 0:
        first = max(advice.layers, key=lambda layer: float(layer.excess))
        alone = sum(float(layer.excess) for layer in advice.layers)
        text += f"; the largest part is that of {first.layer} ({percent(first.excess / alone)} of the layers' sum)"
    return text + "."


def _change(advice: BatchNormAdvice) -> str:
    new, total = advice.total.new_excess, advice.total.excess
    where = "Without batch statistics all of it is lost"
    if advice.new_batch_size is not None:
        where = f"Batches of {advice.new_batch_size} would add {_value(new)}"
    if not advice.loses_regularization and not advice.gains_regularization:
        return f"{where}; the difference, {_value(advice.missing)}, is within its error: no change is needed."
    if advice.gains_regularization:
        growth = Estimate(-advice.missing, advice.missing.standard_error)
        return f"{where}: the regularization would grow by {_value(growth)}."
    share = f": {percent(advice.missing / total)} of the regularization would be lost" if advice.new_batch_size else ""
    return f"{where}{share}."


def _remedies(advice: BatchNormAdvice) -> list[str]:
    if advice.gains_regularization:
        return [
            "Neither ghost batches nor dropout take noise away; population norm with GammaDecayPenalty("
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
