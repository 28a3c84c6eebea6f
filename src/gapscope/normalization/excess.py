"""Measured against predicted: the loss with batch statistics minus the loss with population statistics."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gapscope.errors import InvalidInput, check_range
from gapscope.inspection import checked_outputs, inspecting, ready_inputs
from gapscope.normalization.curvature import Loss, loss_for
from gapscope.normalization.decay import gamma_decay
from gapscope.normalization.ghost import normalize_parts
from gapscope.normalization.refresh import refresh_population, seeded
from gapscope.normalization.sites import batch_norm_layers, hooked
from gapscope.records import Estimate
from gapscope.samples import Samples, as_samples, slices

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

ALL_LAYERS = "all layers"
"""Name of the row in which all layers use batch statistics at once."""


@dataclass(frozen=True)
class ExcessRow:
    """One layer (or all) at one batch size.

    Attributes:
        layer: Name of the layer with batch statistics, or "all layers".
        batch_size: Batch size M.
        measured: Mean over random batches of batch-norm loss minus population-norm loss of the same samples.
        decay: Sum of zeta gamma^2.
        predicted: Decay plus the part linear in gamma.
    """

    layer: str
    batch_size: int
    measured: Estimate
    decay: Estimate
    predicted: Estimate

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted if self.predicted else float("nan")


class BatchNormExcess(tuple[ExcessRow, ...]):
    """The rows of `batch_norm_excess`, with a table and a figure."""

    def to_pandas(self) -> pandas.DataFrame:
        """One row a layer and batch size."""
        import pandas

        rows = [
            {
                "layer": row.layer,
                "batch_size": row.batch_size,
                "measured": float(row.measured),
                "standard_error": row.measured.standard_error,
                "decay": float(row.decay),
                "predicted": float(row.predicted),
                "ratio": row.ratio,
            }
            for row in self
        ]
        return pandas.DataFrame(rows).set_index(["layer", "batch_size"])

    def plot(self) -> Figure:
        """Draw measured excess (with two standard errors), decay and prediction over the batch size, layer by layer."""
        from matplotlib.figure import Figure

        names = list(dict.fromkeys(row.layer for row in self))
        figure = Figure(figsize=(3.2 * len(names), 3.2), layout="constrained")
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        for panel, name in zip(panels, names, strict=True):
            rows = sorted((row for row in self if row.layer == name), key=lambda row: row.batch_size)
            sizes = [row.batch_size for row in rows]
            errors = [2 * (row.measured.standard_error or 0) for row in rows]
            panel.errorbar(sizes, [row.measured for row in rows], errors, fmt="o", label="measured")
            panel.plot(sizes, [row.predicted for row in rows], "-", label="predicted")
            panel.plot(sizes, [row.decay for row in rows], "--", label=r"$\zeta\gamma^2$ alone")
            panel.set_xscale("log", base=2)
            panel.set_yscale("symlog", linthresh=max(abs(float(rows[-1].predicted)) / 3, 1e-12))
            panel.set(title=name, xlabel="batch size")
        panels[0].set_ylabel("batch-norm minus population-norm loss")
        panels[0].legend()
        return figure

    def __repr__(self) -> str:
        return self.to_pandas().to_string()


def random_batches(
    n_samples: int, batch_size: int, passes: int, per_chunk: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield indices [k, batch_size] of at most `per_chunk` batches; each pass deals all samples anew."""
    batches = n_samples // batch_size
    for _ in range(passes):
        order = torch.randperm(n_samples, generator=generator)[: batches * batch_size].view(batches, batch_size)
        yield from order.split(per_chunk)


def _mean(values: Tensor) -> Estimate:
    return Estimate(values.mean().item(), (values.std() / len(values) ** 0.5).item())


class _Comparison:
    """A network in its population form, and its losses with batch statistics in some layers."""

    def __init__(self, network: nn.Module, samples: Samples, targets: Tensor, loss: Loss, chunk_size: int) -> None:
        self.network, self.samples, self.targets, self.loss = network, samples, targets, loss
        self.chunk_size = chunk_size
        everything = torch.arange(len(samples))
        self.population_losses = torch.cat([self._losses(everything[p]) for p in slices(len(samples), chunk_size)])

    def _losses(self, indices: Tensor) -> Tensor:
        x = ready_inputs(self.network, self.samples.inputs[indices])
        with torch.no_grad():
            outputs = checked_outputs(self.network(x), len(x))
            return self.loss(outputs, self.targets[indices].to(x.device)).double().cpu()

    def excess(self, layers: dict[str, Any], batch_size: int, passes: int, generator: torch.Generator) -> Estimate:
        """Mean over random batches of the batch's loss with batch statistics minus its loss without."""
        parts = 1

        def by_batch(name: str, layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return normalize_parts(inputs[0], parts, layer.weight, layer.bias, layer.eps)[0]

        differences = []
        per_chunk = max(1, self.chunk_size // batch_size)
        with hooked(layers, by_batch):
            for batches in random_batches(len(self.samples), batch_size, passes, per_chunk, generator):
                parts = len(batches)
                dealt = batches.T.reshape(-1)  # sample i belongs to batch i mod parts
                change = self._losses(dealt) - self.population_losses[dealt]
                differences.append(change.view(batch_size, parts).mean(0))
        return _mean(torch.cat(differences))


def batch_norm_excess(
    network: nn.Module,
    data: Any,
    *,
    batch_sizes: Sequence[int] = (16, 32, 64, 128),
    layers: Sequence[str] | None = None,
    passes: int = 10,
    loss: Loss | None = None,
    chunk_size: int = 512,
    generator: torch.Generator | None = None,
    **decay_options: Any,
) -> BatchNormExcess:
    r"""Expected batch-norm loss minus population-norm loss, measured, beside zeta gamma^2 and the full prediction.

    On a copy of the network whose population statistics are made exact for the data, random batches of M samples
    (without replacement) go through the network twice: with population statistics everywhere, and with the batch's
    own statistics in one layer at a time, then in all layers at once. Measured is the mean over batches of the
    difference of the two losses of the same samples, with its standard error over batches; predicted is
    `gamma_decay` of that copy. Units of the loss, mean over samples. The prediction is exact to order 1/M, so it
    fails where M is small and many channels are noisy together; the layers' predictions are added for "all layers".

    Cost: `passes` forward passes over the data for each layer and batch size. Use a float64 network where the
    differences are below 1e-6 of the loss.

    Reference: Luo et al. 2019, theorem 1 (eq. 3).

    Args:
        network: Network with BatchNorm, PopulationNorm or GhostBatchNorm layers.
        data: Inputs with targets, taken for the population.
        batch_sizes: Batch sizes M, each at least 2 and below the number of samples.
        layers: Names of layers; None for all.
        passes: How often all samples are dealt into batches.
        loss: Loss of each sample, as for `gamma_decay`.
        chunk_size: Samples a forward pass (at least one batch).
        generator: Source of the batches; None for one with seed 0.
        **decay_options: Options of `gamma_decay` (form, covariance, curvature, draws, ...).

    Returns:
        Rows with numbers and standard errors; `.to_pandas()`, `.plot()`.

    Raises:
        InvalidInput: A batch size does not fit the data, or the data have no targets.

    >>> u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64).repeat(500, 1)
    >>> layer = nn.Sequential(nn.BatchNorm1d(1, dtype=torch.float64))
    >>> row = batch_norm_excess(layer, (u, u), batch_sizes=(100,), passes=100)[0]
    >>> abs(row.ratio - 1) < 0.15
    True
    """
    samples = as_samples(data)
    if samples.targets is None:
        raise InvalidInput("data must hold targets; got inputs alone. Pass (x, y).")
    for size in batch_sizes:
        check_range("batch_sizes (at least 2, below the number of samples)", size, 2, len(samples) - 1)
    generator, loss = seeded(generator), loss or loss_for(samples.targets)
    network = copy.deepcopy(network)
    names = list(batch_norm_layers(network, layers))
    refresh_population(network, samples, samples=len(samples), layers=names, chunk_size=chunk_size)
    decay = gamma_decay(network, samples, batch_size=batch_sizes[0], layers=names, loss=loss, **decay_options)
    found = {name: network.get_submodule(name) for name in decay}
    rows = []
    with inspecting(network):
        comparison = _Comparison(network, samples, samples.targets, loss, chunk_size)
        for name in [*found, ALL_LAYERS] if len(found) > 1 else found:
            chosen = found if name == ALL_LAYERS else {name: found[name]}
            for size in batch_sizes:
                at_size = decay.at(size)
                prediction = at_size if name == ALL_LAYERS else at_size[name]
                measured = comparison.excess(chosen, size, passes, generator)
                rows.append(ExcessRow(name, size, measured, prediction.decay, prediction.predicted))
    return BatchNormExcess(rows)
