"""Measured and predicted excess loss of batch statistics over population statistics."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.budget import CpuBudget
from gapscope.base.options import check_known
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples
from gapscope.batch_norm.gamma_decay.curvature import (
    EvaluationData,
    arranged,
    check_batch_sizes,
    copy_with_population,
    mean_estimate,
    prepare,
    restored,
    tapped_forward,
)
from gapscope.batch_norm.gamma_decay.decay import DecaySums, check_options
from gapscope.batch_norm.gamma_decay.layer_decay import GammaDecay
from gapscope.batch_norm.layers.ghost import normalize_parts
from gapscope.inspection.hooks import forward_hooks
from gapscope.inspection.losses import Loss
from gapscope.inspection.outputs import inspection_mode, samples_per_pass
from gapscope.results.estimate import Estimate
from gapscope.results.progress import progress
from gapscope.results.result import RowResult

if TYPE_CHECKING:
    import pandas

ALL_LAYERS = "all layers"
"""Name of the row in which all layers use batch statistics at once."""
# Seconds of a pass with batch statistics in all layers, in those of a plain pass: EfficientNet-Lite0 takes 1.9.
ALL_LAYERS_FACTOR = 2.0


@dataclass(frozen=True)
class ExcessRow:
    """Measured and predicted excess of one layer (or "all layers") at one batch size.

    Attributes:
        layer: Name of the layer, or "all layers".
        batch_size: Batch size M.
        measured: Mean loss with batch statistics minus that with population statistics.
        decay: Decay of `gamma_decay` at this batch size.
        predicted: Predicted excess: the decay, or its Monte Carlo estimate, and the part that is linear in gamma.
    """

    layer: str
    batch_size: int
    measured: Estimate
    decay: Estimate
    predicted: Estimate

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        if self.predicted:
            return self.measured / self.predicted
        return float("nan")


class BatchNormExcess(RowResult[ExcessRow]):
    """Rows of `batch_norm_excess`, with a table.

    Args:
        rows: One row per layer and batch size.
        attributes: Further attributes by name; there are none.
    """

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per layer and batch size."""
        import pandas

        columns = [
            "layer",
            "batch_size",
            "measured",
            "standard_error",
            "decay",
            "predicted",
            "ratio",
        ]
        rows = []
        for row in self:
            numbers = (
                float(row.measured),
                row.measured.standard_error,
                float(row.decay),
                float(row.predicted),
            )
            rows.append((row.layer, row.batch_size, *numbers, row.ratio))
        return pandas.DataFrame(rows, columns=columns).set_index(["layer", "batch_size"])


def random_batches(
    n_samples: int, batch_size: int, passes: int, per_chunk: int, generator: torch.Generator
) -> Iterator[Tensor]:
    """Yield indices [k, batch_size] of random batches, up to `per_chunk` at a time."""
    batches = n_samples // batch_size
    for _ in range(passes):
        order = torch.randperm(n_samples, generator=generator)[: batches * batch_size].view(
            batches, batch_size
        )
        yield from order.split(per_chunk)


class _Comparison:
    """Comparison of a network in its population form with batch statistics in some layers."""

    def __init__(self, evaluation: EvaluationData, decay: GammaDecay) -> None:
        self.evaluation = evaluation
        self.decay = decay
        parts = [self._population_chunk(x, y) for _, x, y in evaluation.chunks()]
        self.population_losses = torch.cat([losses for losses, _ in parts])
        linear = {name: torch.cat([chunk[name] for _, chunk in parts]) for name in decay}
        self.linear_gains = {name: values - values.mean() for name, values in linear.items()}

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.evaluation.loss(outputs, y).detach().double().cpu()

    def _population_chunk(self, x: Tensor, y: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return losses [n], and by layer the part linear in each sample's statistics."""
        outputs, taps = tapped_forward(self.evaluation, x)
        linear = {}
        for name, tap in taps.items():
            layer = self.decay[name]
            u = tap.normalized.double()
            # a sample's q and a shift gamma and beta of its whole batch, whose mean loss changes to first order by
            # dl/dgamma (-gamma q / 2) + dl/dbeta (-gamma a) with mean derivatives
            by_channel = (
                -u.square().mean(2) / 2 * layer.gradient_gamma - u.mean(2) * layer.gradient_beta
            )
            linear[name] = (by_channel * layer.gamma).sum(1).cpu()
        return self._losses(outputs, y), linear

    def excess(
        self, names: Sequence[str], batch_size: int, passes: int, generator: torch.Generator
    ) -> Estimate:
        """Return the mean excess over random batches with batch statistics in these layers."""
        parts = 1

        def normalize_by_batch(
            name: str, layer: Any, inputs: tuple[Tensor, ...], output: Tensor
        ) -> Tensor:
            layout = self.evaluation.layouts[name]
            h = arranged(inputs[0], layout, parts * batch_size)
            return restored(
                normalize_parts(h, parts, layer.weight, layer.bias, layer.eps)[0], layout
            )

        # Control variate: first-order gains have mean zero over batches, exactly. Subtracting them adds no bias and
        # reduces the standard error.
        expected = self.population_losses + sum(self.linear_gains[name] for name in names)
        gains = []
        per_chunk = max(1, self.evaluation.chunk_size // batch_size)
        with (
            forward_hooks(
                {name: self.evaluation.layers[name] for name in names}, normalize_by_batch
            ),
            torch.no_grad(),
        ):
            for batches in random_batches(
                len(self.evaluation.samples), batch_size, passes, per_chunk, generator
            ):
                parts = len(batches)
                indices = batches.T.reshape(-1)  # sample i belongs to batch i mod parts
                x, y = self.evaluation.batch(indices)
                losses = self._losses(self.evaluation.network(x), y)
                gains.append((losses - expected[indices]).view(batch_size, parts).mean(0))
        return mean_estimate(torch.cat(gains))


@check_arguments
def batch_norm_excess(
    network: nn.Module,
    data: Any,
    *,
    batch_sizes: Sequence[int] = (16, 32, 64, 128),
    layers: Sequence[str] | None = None,
    passes: int = 10,
    noise_draws: int = 4,
    loss: Loss | None = None,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
    time_budget: float | None = None,
    **decay_options: Any,
) -> BatchNormExcess:
    r"""Measure the expected loss with batch minus population statistics, and predict it.

    A copy of the network with exact population statistics evaluates random batches of M samples (without replacement)
    with population statistics everywhere, and with the batch's own statistics in one layer at a time, then in all
    layers at once. `measured` is the mean difference of the two losses of the same samples, with its standard error
    over batches; `predicted` is `gamma_decay` of that copy. To order 1/M the prediction is exact (with `noise_draws=0`
    only up to the network's own curvature and kinks); "all layers" adds the layers' predictions, although their noise
    is correlated.

    Cost: `passes` forward passes over the data for each layer and batch size. Use a float64 network if the differences
    are below 1e-6 of the loss.

    Reference: Luo et al. 2019, theorem 1 (eq. 3).

    Args:
        network: Network with BatchNorm, PopulationNorm or GhostBatchNorm layers, unchanged unless stated.
        data: Inputs with targets in any form (pair of tensors, Samples, Dataset, DataLoader), used as the population.
        batch_sizes: Batch sizes M, each at least 2 and below the number of samples.
        layers: Names as in `network.named_modules()`; None for all.
        passes: Number of random partitions of the samples into batches.
        noise_draws: Of the prediction, see `gamma_decay`.
        loss: Loss of each sample [n] from outputs [n, K] and targets; None for cross-entropy or squared error.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
        generator: Source of random batches and noise; None for the same ones in every call.
        time_budget: CPU seconds, None for no limit. Layers for which they do not suffice have no rows; all layers at
            once are always measured, with the same batches.
        **decay_options: Options of `gamma_decay` (covariance, curvature, draws, ...).

    >>> u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64).repeat(500, 1)
    >>> layer = nn.Sequential(nn.BatchNorm1d(1, dtype=torch.float64))
    >>> row = batch_norm_excess(layer, (u, u), batch_sizes=(100,), passes=100)[0]
    >>> abs(row.ratio - 1) < 0.15
    True
    """
    known = [*inspect.signature(batch_norm_excess).parameters][2:-1]
    known += inspect.signature(check_options).parameters
    check_known("batch_norm_excess", decay_options, dict.fromkeys(known))
    budget = CpuBudget(time_budget)
    network, samples = prepare(network, data, loss, layers)
    check_batch_sizes("batch_sizes", batch_sizes, len(samples))
    network, names = copy_with_population(network, samples, layers, chunk_size)
    return excess_of_population(
        network, samples, budget, layers=names, batch_sizes=batch_sizes, passes=passes, noise_draws=noise_draws,
        loss=loss, chunk_size=chunk_size, generator=resolve_generator(generator), **decay_options,
    )  # fmt: skip


def excess_of_population(
    network: nn.Module,
    samples: Samples,
    budget: CpuBudget,
    *,
    layers: Sequence[str],
    batch_sizes: Sequence[int],
    passes: int,
    noise_draws: int,
    chunk_size: int | None,
    generator: torch.Generator,
    loss: Loss | None = None,
    **decay_options: Any,
) -> BatchNormExcess:
    """Return the rows of `batch_norm_excess` for a network that has the exact population statistics of these samples.

    Layers are taken in forward order while the budget affords them. The other arguments are those of
    `batch_norm_excess`.
    """
    check_options(noise_draws=noise_draws, **decay_options)
    with inspection_mode(network):
        directions = resolve_generator(None)
        sums = DecaySums(
            network, samples, layers=layers, loss=loss, generator=directions, **decay_options
        )
        # the same noise for all batch sizes, up to its scale
        noise = {size: directions.clone_state() for size in batch_sizes}
        decays = {size: sums.decay(size) for size in batch_sizes}
        sampled: dict[int, dict[str, Estimate]] = {size: {} for size in batch_sizes}
        chunk_size = samples_per_pass(network, samples.inputs, chunk_size, one_pass=network)
        evaluation = replace(sums.evaluation, chunk_size=chunk_size)
        before = budget.spent
        comparison = _Comparison(evaluation, decays[batch_sizes[0]])
        one_pass = budget.spent - before
        # batch statistics of all layers take longer than those of one
        last = ALL_LAYERS_FACTOR * len(batch_sizes) * passes * one_pass
        slowest = len(batch_sizes) * (passes + 2 * noise_draws) * one_pass
        in_order = [*decays[batch_sizes[0]]]
        # every layer alone, then all of several
        groups = {name: [name] for name in in_order}
        if len(in_order) > 1:
            groups[ALL_LAYERS] = in_order
        rows: list[ExcessRow] = []
        with progress("batch statistics", len(groups) * len(batch_sizes)) as bar:
            for name, group in groups.items():
                is_affordable = group == in_order or budget.affords(slowest + last)
                before = budget.spent
                for size in batch_sizes:
                    bar.step(f"{name} at {size}")
                    if is_affordable:
                        if noise_draws and name != ALL_LAYERS:
                            sampled[size][name] = sums.sampled(name, size, noise_draws, noise[size])
                        measured = comparison.excess(group, size, passes, generator)
                        all_decays = decays[size].with_sampled(sampled[size])
                        decay = all_decays.get(name, all_decays)
                        rows.append(ExcessRow(name, size, measured, decay.decay, decay.predicted))
                    else:
                        # drawn without a use, so that later batches do not depend on earlier layers
                        for _ in random_batches(
                            len(samples), size, passes, len(samples), generator
                        ):
                            pass
                    bar.advance()
                slowest = max(slowest, budget.spent - before)
    return BatchNormExcess(rows)
