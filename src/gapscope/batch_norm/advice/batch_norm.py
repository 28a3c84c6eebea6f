"""How much a network's batch norm regularises, what another batch size would change, and what would restore it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.records import Estimate
from gapscope.base.results import Result, plain
from gapscope.base.samples import Samples, as_samples
from gapscope.batch_norm.advice import words
from gapscope.batch_norm.advice.dropout import DropoutLoss, last_linear_layer
from gapscope.batch_norm.gamma_decay.measured_excess import ALL_LAYERS, ExcessRow, batch_norm_excess
from gapscope.batch_norm.norm_layers import batch_norm_layers
from gapscope.batch_norm.refresh import refresh_population
from gapscope.inspection.losses import scores

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class LayerRegularization:
    r"""What batch statistics of one layer, or of all at once, add to the training loss.

    Attributes:
        layer: Name of the layer, or "all layers".
        gamma_squared: Sum of gamma^2 over the channels.
        decay: $\sum_i \zeta_i\gamma_i^2$ at the batch size, first order in 1/M.
        predicted: The same with the part linear in gamma and all even orders of the noise.
        excess: Measured: mean loss over random batches with their own statistics, minus that with population ones.
        new_excess: Measured at the new batch size; 0 and exact where there are no batch statistics any more.
    """

    layer: str
    gamma_squared: float
    decay: Estimate
    predicted: Estimate
    excess: Estimate
    new_excess: Estimate

    @property
    def zeta(self) -> float:
        """Mean decay rate, weighted by gamma^2; NaN where all gammas are 0."""
        return self.decay / self.gamma_squared if self.gamma_squared else float("nan")


@dataclass(frozen=True, kw_only=True)
class BatchNormAdvice(Result):
    """What `advise_batch_norm` found; printing it gives the table, the advice and when not to trust it.

    Attributes:
        batch_size: M, whose regularisation is wanted.
        new_batch_size: The batch size in question; None for no batch statistics at all.
        samples: Number of samples it was estimated from.
        loss: Mean loss with population statistics.
        running_loss: Mean loss with the network's own running statistics.
        layers: The layers, in forward order.
        total: All layers at once.
        missing: Regularisation at M minus that at the new batch size, in units of the loss; negative for smaller
            batches.
        ghost_size: Size of ghost batches that restores it; None where the new batches are smaller, or none.
        dropout: Dropout rate that adds the missing amount; None where nothing is missing or no rate up to 0.9 does.
        dropout_before: The layers whose inputs are dropped.
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
    def something_is_missing(self) -> bool:
        """Whether the new batch size regularises less, by more than two standard errors."""
        return _clearly_positive(self.missing)

    @property
    def something_is_added(self) -> bool:
        """Whether the new batch size regularises more, by more than two standard errors."""
        return _clearly_positive(Estimate(-self.missing, self.missing.standard_error))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The advice, a sentence a thing to know or to do."""
        return words.sentences(self)

    @property
    def caveats(self) -> tuple[str, ...]:
        """When not to trust it: what speaks against these numbers here, and what they never say."""
        return words.caveats(self)

    def to_pandas(self) -> pandas.DataFrame:
        """One row a layer, the last one for all of them at once."""
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
        """Everything as plain values, for JSON."""
        names = ("batch_size", "new_batch_size", "samples", "loss", "running_loss", "ghost_size", "dropout_before")
        return {
            **{name: getattr(self, name) for name in names},
            **{name: plain(getattr(self, name)) for name in ("missing", "dropout", "decay_strength")},
            "layers": self.to_pandas().to_dict("records"),
            "advice": list(self.sentences),
            "caveats": list(self.caveats),
        }

    def __repr__(self) -> str:
        lines = [self.to_pandas().to_string(index=False, float_format="%.4g"), "", *self.sentences, ""]
        return "\n".join([*lines, *(f"Caution: {caveat}" for caveat in self.caveats)])


def _check(samples: Samples, batch_size: int, new_batch_size: int | None) -> None:
    if samples.targets is None:
        raise InvalidInput("data must hold targets; got inputs alone. Pass (x, y).")
    sizes = {"batch_size": batch_size} | ({} if new_batch_size is None else {"new_batch_size": new_batch_size})
    for name, size in sizes.items():
        check_range(f"{name} (at least 2, below the number of samples)", size, 2, len(samples) - 1)
    if batch_size == new_batch_size:
        raise InvalidInput(f"new_batch_size must differ from batch_size; got {batch_size} twice. Leave one out.")


def _regularization(row: ExcessRow, new: ExcessRow | None, gamma_squared: float) -> LayerRegularization:
    return LayerRegularization(
        layer=row.layer, gamma_squared=gamma_squared, decay=row.decay, predicted=row.predicted, excess=row.measured,
        new_excess=Estimate(0.0) if new is None else new.measured,
    )  # fmt: skip


def _difference(first: Estimate, second: Estimate) -> Estimate:
    errors = [error for error in (first.standard_error, second.standard_error) if error is not None]
    return Estimate(first - second, sum(error**2 for error in errors) ** 0.5)


def _clearly_positive(value: Estimate) -> bool:
    return value > 2 * (value.standard_error or 0.0)


def _strength(
    missing: Estimate, decay: Estimate, samples: int, batch_size: int, new_batch_size: int | None
) -> Estimate | None:
    """Missing amount over what GammaDecayPenalty of strength 1 adds, whose zeta is that of an infinite population."""
    infinite = (samples - 1) / (samples - batch_size)
    added = decay * infinite * (1 if new_batch_size is None else 1 - batch_size / new_batch_size)
    if added <= 0:
        return None
    return Estimate(missing / added, (missing.standard_error or 0.0) / added)


def advise_batch_norm(
    network: nn.Module,
    data: Any,
    *,
    batch_size: int,
    new_batch_size: int | None = None,
    dropout_before: Sequence[str] | None = None,
    passes: int = 10,
    draws: int = 4,
    chunk_size: int | None = None,
    seed: int = 0,
) -> BatchNormAdvice:
    r"""Say how much a network's batch norm regularises, what a new batch size changes, and what would restore it.

    All of it is estimated from the network as it stands and its training data. The regularisation of a layer is the
    expected training loss with batch statistics there minus that with population statistics (`batch_norm_excess`),
    beside its first-order form $\sum_i\zeta_i\gamma_i^2$ (Luo et al. 2019, eq. 3). What is missing at the new batch
    size is restored by ghost batches of the old size (the same noise), by a dropout rate that adds the same loss to
    the frozen network (root finding on `DropoutLoss`), or by gamma decay of a strength that adds the same loss.

    Equal loss on frozen weights is what is matched; whether equal generalization follows is an empirical matter
    (`gapscope study run luo2019 --only advice` tries it). Cost: about 2 * passes * (layers + 1) forward passes over
    the data for each batch size, 12 * draws for the dropout rate, 2 (1 + outputs) backward.

    Args:
        network: A network with batch normalisation; left as it is.
        data: Its whole training data with targets: (x, y), Samples, a Dataset or a DataLoader. Batches are drawn
            from them without replacement, as in training.
        batch_size: M, the batch size whose regularisation is wanted, usually that of training.
        new_batch_size: The batch size to change to; None for doing without batch statistics.
        dropout_before: Names of layers whose inputs are dropped; None for the last linear or convolutional one.
        passes: How often all samples are dealt into batches.
        draws: Dropout masks a sample.
        chunk_size: Samples a pass, without effect beyond rounding; None for as many as memory allows.
        seed: Seed of batches and masks.

    Returns:
        The advice; print it, or take its numbers.

    Raises:
        InvalidInput: A batch size does not fit the data, or the data have no targets.
        NotMeasurable: The network has no batch normalisation.

    >>> layer = nn.Sequential(nn.BatchNorm1d(1, dtype=torch.float64), nn.Linear(1, 1, dtype=torch.float64))
    >>> u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64).repeat(200, 1)
    >>> advise_batch_norm(layer, (u, u), batch_size=20, new_batch_size=100).ghost_size
    20
    """
    samples = as_samples(data)
    _check(samples, batch_size, new_batch_size)
    gammas = {
        name: layer.num_features if layer.weight is None else float(layer.weight.detach().double().square().sum())
        for name, layer in batch_norm_layers(network).items()
    }
    exact = copy.deepcopy(network)
    refresh_population(exact, samples, samples=len(samples), layers=list(gammas), chunk_size=chunk_size)
    sizes = (batch_size,) if new_batch_size is None else (batch_size, new_batch_size)
    rows = batch_norm_excess(
        exact, samples, batch_sizes=sizes, passes=passes, noise_draws=2, chunk_size=chunk_size,
        generator=torch.Generator().manual_seed(seed),
    )  # fmt: skip
    found = {(row.layer, row.batch_size): row for row in rows}
    names = list(dict.fromkeys(row.layer for row in rows))
    layers = {
        name: _regularization(
            found[name, batch_size],
            None if new_batch_size is None else found[name, new_batch_size],
            sum(gammas.values()) if name == ALL_LAYERS else gammas[name],
        )
        for name in names
    }
    total = layers[names[-1]]
    missing = _difference(total.excess, total.new_excess)
    wanted = _clearly_positive(missing)
    before = tuple(dropout_before or (last_linear_layer(exact, samples),))
    dropout = DropoutLoss(exact, samples, before, draws=draws, seed=seed, chunk_size=chunk_size)
    larger = new_batch_size is not None and new_batch_size > batch_size
    return BatchNormAdvice(
        batch_size=batch_size,
        new_batch_size=new_batch_size,
        samples=len(samples),
        loss=dropout.plain.mean().item(),
        running_loss=scores(network, samples, chunk_size=chunk_size)["loss"],
        layers=tuple(layer for name, layer in layers.items() if name != ALL_LAYERS),
        total=total,
        missing=missing,
        ghost_size=batch_size if larger else None,
        dropout=dropout.matching_rate(missing) if wanted else None,
        dropout_before=before,
        decay_strength=_strength(missing, total.decay, len(samples), batch_size, new_batch_size) if wanted else None,
    )
