"""Regularization by batch norm: its strength, and replacements at another batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.arguments import check_arguments
from gapscope.base.budget import DEFAULT_BUDGET, BudgetSpent, CpuBudget
from gapscope.base.errors import InvalidInput, NotMeasurable, check_range, did_you_mean
from gapscope.base.samples import Samples, slices
from gapscope.base.targets import require_targets
from gapscope.batch_norm.advice.result import (
    BatchNormAdvice,
    LayerRegularization,
    is_significantly_positive,
)
from gapscope.batch_norm.gamma_decay.curvature import (
    check_batch_sizes,
    copy_with_population,
    mean_estimate,
    prepare,
)
from gapscope.batch_norm.gamma_decay.measured_excess import (
    ALL_LAYERS,
    ALL_LAYERS_FACTOR,
    BatchNormExcess,
    excess_of_population,
)
from gapscope.batch_norm.norm_layers import batch_norm_layers
from gapscope.batch_norm.refresh import population_chunk
from gapscope.inspection.hooks import (
    copied_calls,
    forward_hooks,
    named_modules,
    weighted_calls,
)
from gapscope.inspection.losses import evaluate, sample_losses
from gapscope.inspection.outputs import inspection_mode, prepare_inputs, samples_per_pass
from gapscope.inspection.sample_layout import sample_layouts
from gapscope.inspection.timing import pass_seconds
from gapscope.results.estimate import Estimate

# largest dropout rate, by judgment
MAX_RATE = 0.9


def name_of_last_linear_layer(network: nn.Module, samples: Samples) -> str:
    """Return the name of the linear or convolutional layer that runs last."""
    with inspection_mode(network):
        calls = weighted_calls(network, prepare_inputs(network, samples.inputs[:1]))
    if not calls:
        raise NotMeasurable(
            "Dropout needs a linear or convolutional layer that runs in the forward pass; the network has none."
        )
    return calls[-1].name


class DropoutLoss:
    r"""Expected loss with dropout minus the loss without, in evaluation mode.

    $\frac1n \sum_j E_m[\ell_j(m)] - \ell_j$, with `draws` masks m per sample. Each input of `layers` is set to 0 with
    probability `rate`, else divided by 1 - rate, as in `torch.nn.Dropout`. All rates use the same random numbers, so
    that the excess is smooth in the rate. Unbiased; the standard error is over samples.
    """

    def __init__(
        self,
        network: nn.Module,
        samples: Samples,
        layers: Sequence[str],
        *,
        draws: int = 4,
        seed: int = 0,
        chunk_size: int | None = None,
    ) -> None:
        modules = named_modules(network)
        for name in layers:
            if name not in modules or not name:
                raise InvalidInput(
                    f"dropout_before must name layers of the network; got {name!r}.{did_you_mean(name, modules)}"
                )
        check_range("draws", draws, 1)
        self.network = network
        self.samples = samples
        self.targets = require_targets(samples)
        self.layers = {name: modules[name] for name in layers}
        self.draws = draws
        self.seed = seed
        with inspection_mode(network):
            self.chunk_size = samples_per_pass(network, samples.inputs, chunk_size)
        # inputs of a last layer whose outputs are the network's: then dropout needs no pass of the network
        self._head_inputs: list[Tensor] = []
        self.baseline_losses = self._without_dropout()

    def _without_dropout(self) -> Tensor:
        """Return the losses of all samples without dropout, and store the inputs of a last linear layer."""
        losses: list[Tensor] = []
        inputs: list[Tensor] = []
        is_head = len(self.layers) == 1 and isinstance(next(iter(self.layers.values())), nn.Linear)
        head = self.layers if is_head else {}
        with inspection_mode(self.network), torch.no_grad(), copied_calls(head) as calls:
            for part in slices(len(self.samples), self.chunk_size):
                calls.clear()
                outputs = self.network(prepare_inputs(self.network, self.samples.inputs[part]))
                losses.append(self._losses_of(outputs, part))
                is_head = is_head and len(calls) == 1 and torch.equal(calls[0].output, outputs)
                if is_head:
                    inputs.append(calls[0].input)
        if is_head:
            self._head_inputs = inputs
        return torch.cat(losses)

    def _losses_of(self, outputs: Tensor, part: slice) -> Tensor:
        return sample_losses(outputs, self.targets[part].to(outputs.device)).double().cpu()

    def _losses(self) -> Tensor:
        """Return the losses of all samples, with the hooks that are set."""
        parts = []
        with inspection_mode(self.network), torch.no_grad():
            for number, part in enumerate(slices(len(self.samples), self.chunk_size)):
                if self._head_inputs:
                    [head] = self.layers.values()
                    outputs = head(self._head_inputs[number])
                else:
                    outputs = self.network(prepare_inputs(self.network, self.samples.inputs[part]))
                parts.append(self._losses_of(outputs, part))
        return torch.cat(parts)

    def excess(self, rate: float) -> Estimate:
        """Return the excess loss at a dropout rate in [0, 1)."""
        check_range("rate", rate, 0, 1, high_open=True)
        generator = torch.Generator().manual_seed(self.seed)

        def drop(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> Any:
            mask = torch.rand(inputs[0].shape, generator=generator) >= rate
            return inputs[0] * mask.to(inputs[0]) / (1 - rate), *inputs[1:]

        with forward_hooks(self.layers, drop, before=True):
            losses = torch.stack([self._losses() for _ in range(self.draws)]).mean(0)
        return mean_estimate(losses - self.baseline_losses)

    def matching_rate(self, target: Estimate) -> Estimate | None:
        """Return the rate whose excess loss is `target` (None if no rate up to 0.9 adds as much).

        Its standard error is that of excess and target, divided by the slope of the excess.
        """
        from scipy.optimize import brentq

        if self.excess(MAX_RATE) <= target:
            return None

        def missing(rate: float) -> float:
            return float(self.excess(rate)) - float(target)

        rate = float(brentq(missing, 0.0, MAX_RATE, xtol=2e-4))  # type: ignore[arg-type]
        higher = min(1.2 * rate + 1e-3, 0.95)
        excess = self.excess(rate)
        slope = (self.excess(higher) - excess) / (higher - rate)
        errors = (excess.standard_error or 0.0) ** 2 + (target.standard_error or 0.0) ** 2
        return Estimate(rate, errors**0.5 / slope if slope > 0 else None)


def _regularizations(
    network: nn.Module, rows: BatchNormExcess, batch_size: int, new_batch_size: int | None
) -> list[LayerRegularization]:
    """Return one entry per layer, the last one for all layers at once."""
    gamma_squared = {
        name: layer.num_features
        if layer.weight is None
        else float(layer.weight.detach().double().square().sum())
        for name, layer in batch_norm_layers(network).items()
    }
    gamma_squared[ALL_LAYERS] = sum(gamma_squared.values())
    new_excess = {row.layer: row.measured for row in rows if row.batch_size == new_batch_size}
    return [
        LayerRegularization(
            layer=row.layer, gamma_squared=gamma_squared[row.layer], decay=row.decay, predicted=row.predicted,
            excess=row.measured, new_excess=new_excess.get(row.layer, Estimate(0.0)),
        )
        for row in rows if row.batch_size == batch_size
    ]  # fmt: skip


def _strength(
    missing: Estimate, decay: Estimate, samples: int, batch_size: int, new_batch_size: int | None
) -> Estimate | None:
    """Return the strength at which a GammaDecayPenalty adds the missing amount."""
    # The penalty samples with replacement: its decay lacks the factor (n - M) / (n - 1), and it adds 1 - M/M_new of it.
    with_replacement = decay * (samples - 1) / (samples - batch_size)
    added = with_replacement * (1 if new_batch_size is None else 1 - batch_size / new_batch_size)
    if added <= 0:
        return None
    return Estimate(missing / added, (missing.standard_error or 0.0) / added)


def _samples_first(network: nn.Module, samples: Samples, names: Sequence[str]) -> bool:
    """Return whether layers take one row per sample, so that parts of their inputs are parts of the samples."""
    with inspection_mode(network):
        layouts = sample_layouts(
            network, samples.inputs, batch_norm_layers(network, names), before=True
        )
    return all(layout is not None and layout.is_plain for layout in layouts.values())


def _plan(
    network: nn.Module,
    samples: Samples,
    budget: CpuBudget,
    n_outputs: int,
    refresh_chunk: int,
    n_estimates: int,
) -> int | None:
    """Return the random directions of the curvature, None for all of them.

    Raises:
        BudgetSpent: The budget does not suffice for all layers at once.
    """
    if math.isinf(budget.seconds):
        return None
    one_pass = pass_seconds(network, samples.inputs)
    passes = 1.0
    if refresh_chunk < len(samples):
        # one pass for each layer, up to that layer
        passes += len(batch_norm_layers(network)) / 2
    # losses with exact and with the network's statistics, without noise and without dropout
    passes += 4 + ALL_LAYERS_FACTOR * n_estimates
    # two random directions per sample, in place of one per output, where the budget needs it: the fewest with a
    # standard error
    for draws in (None, 2):
        # a backward pass with its sums over pairs of channels takes four forward passes: 7 for EfficientNet-Lite0 on
        # 64 samples, whose 2,304 sums per layer outweigh them, and about 2 on many samples
        seconds = one_pass * (passes + 4.0 * (1 + (draws or n_outputs)))
        if budget.affords(seconds):
            return draws
    raise BudgetSpent(
        f"Got time_budget={budget.passed:.3g}; batch statistics of all layers at once take about "
        f"{budget.spent + seconds:.2g} CPU s on {len(samples)} samples. Pass "
        f"time_budget={budget.enough(seconds)}, fewer samples or fewer passes."
    )


@check_arguments
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
    time_budget: float | None = DEFAULT_BUDGET,
) -> BatchNormAdvice:
    r"""Estimate the regularization by batch norm, its change with batch size and replacements.

    The estimates use the current weights and the training data. The regularization of a layer is the expected training
    loss with its batch statistics minus that with population statistics (`batch_norm_excess`), next to its first-order
    form $\sum_i\zeta_i\gamma_i^2$ (Luo et al. 2019, eq. 3). Three replacements restore what is missing at the new batch
    size: ghost batches of the old size (the same noise), a dropout rate or a gamma decay that adds the same loss to the
    frozen network. Whether they generalize equally is an empirical question.

    Cost: about (passes + 4) * layers + 2 * passes forward passes over the data for each batch size, 1 + outputs
    backward, and 12 * draws forward for the dropout rate unless dropout is before a last linear layer.

    Args:
        network: Network with batch norm, in any mode; it is not changed.
        data: Training data with targets, in any form that `gapscope.measure` takes.
        batch_size: M, the batch size whose regularization is to be preserved, usually that of training.
        new_batch_size: Future batch size; None for no batch statistics.
        dropout_before: Names of layers with dropout on their inputs; None for the last linear or convolutional one.
        passes: Partitions of the data into batches per estimate; more of them lower the standard errors.
        draws: Dropout masks per rate, for the equivalent dropout rate.
        chunk_size: Samples per pass where batches do not matter; None for what fits into memory.
        seed: Seed of partitions and masks.
        time_budget: CPU seconds of this process, None for no limit. All layers at once come first, if need be with a
            curvature from two random directions per sample in place of all outputs; then single layers in forward
            order. Caveats name what was omitted.

    Raises:
        InvalidInput: The two batch sizes are equal, or do not fit the data.
        BudgetSpent: The budget does not suffice for all layers at once; the message says which one does.

    >>> layer = nn.Sequential(nn.BatchNorm1d(1, dtype=torch.float64), nn.Linear(1, 1, dtype=torch.float64))
    >>> u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64).repeat(200, 1)
    >>> advise_batch_norm(layer, (u, u), batch_size=20, new_batch_size=100).ghost_size
    20
    """
    budget = CpuBudget(time_budget)
    network, samples = prepare(network, data)
    if new_batch_size is None:
        sizes = (batch_size,)
    else:
        sizes = (batch_size, new_batch_size)
    check_batch_sizes("batch_size", sizes[:1], len(samples))
    check_batch_sizes("new_batch_size", sizes[1:], len(samples))
    check_range("passes", passes, 1)
    if batch_size == new_batch_size:
        raise InvalidInput(
            f"new_batch_size must differ from batch_size; got {batch_size} twice. Omit one."
        )
    with inspection_mode(network):
        outputs = network(prepare_inputs(network, samples.inputs[:1]))
        refresh_chunk = population_chunk(network, samples.inputs, chunk_size)
    directions = _plan(
        network, samples, budget, outputs.shape[1], refresh_chunk, len(sizes) * passes
    )
    exact, names = copy_with_population(network, samples, None, refresh_chunk)
    rows = excess_of_population(
        exact, samples, budget, layers=names, batch_sizes=sizes, passes=passes, noise_draws=2, chunk_size=chunk_size,
        generator=torch.Generator().manual_seed(seed), draws=directions,
    )  # fmt: skip
    layers = _regularizations(network, rows, batch_size, new_batch_size)
    total = layers[-1]
    errors = [total.excess.standard_error or 0.0, total.new_excess.standard_error or 0.0]
    missing = Estimate(total.excess - total.new_excess, sum(error**2 for error in errors) ** 0.5)
    is_missing = is_significantly_positive(missing)
    before = tuple(dropout_before or (name_of_last_linear_layer(exact, samples),))
    dropout = DropoutLoss(exact, samples, before, draws=draws, seed=seed, chunk_size=chunk_size)
    return BatchNormAdvice(
        batch_size=batch_size,
        new_batch_size=new_batch_size,
        samples=len(samples),
        loss=dropout.baseline_losses.mean().item(),
        running_loss=evaluate(network, samples, chunk_size=chunk_size)["loss"],
        layers=tuple(layer for layer in layers if layer.layer != ALL_LAYERS),
        total=total,
        left_out=tuple(
            name
            for name in batch_norm_layers(exact)
            if name not in {layer.layer for layer in layers}
        ),
        missing=missing,
        ghost_size=(
            batch_size
            if batch_size < (new_batch_size or 0) and _samples_first(exact, samples, names)
            else None
        ),
        dropout=dropout.matching_rate(missing) if is_missing else None,
        dropout_before=before,
        directions=directions,
        decay_strength=(
            _strength(missing, total.decay, len(samples), batch_size, new_batch_size)
            if is_missing
            else None
        ),
    )
