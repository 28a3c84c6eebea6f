"""Forecast of accuracy before training from leave-one-out rows, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.accuracy.forecast_result import AccuracyForecast
from gapscope.accuracy.forecast_run import ForecastRun
from gapscope.accuracy.held_out_positions import hold_out_positions
from gapscope.accuracy.loo_rows import reason_to_abstain
from gapscope.accuracy.scores import constant_targets_note
from gapscope.base.arguments import check_arguments
from gapscope.base.budget import DEFAULT_BUDGET, CpuBudget
from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.groups import group_tensor
from gapscope.base.label_numbers import check_class_numbers
from gapscope.base.lone_classes import lone_classes_note
from gapscope.base.randomness import derive_seed
from gapscope.base.row_order import check_sample_order
from gapscope.base.samples import Samples, as_samples
from gapscope.base.targets import require_targets
from gapscope.data.frames import encode_inputs
from gapscope.inspection.interrupts import may_be_partial
from gapscope.inspection.memoization import memo_scope
from gapscope.inspection.memory import FEWER_LANDMARKS, explained_memory
from gapscope.inspection.network_checks import check_module
from gapscope.inspection.validation import settled_by
from gapscope.inspection.wrapped_networks import refuse_estimator, unwrap_estimator
from gapscope.labels.copied_inputs import leaking_column_note
from gapscope.labels.duplicates import beyond_chance
from gapscope.measures.cpu_budget import COMBINATIONS
from gapscope.results.progress import progress
from gapscope.statistics.baselines import LooRow, scored_row
from gapscope.statistics.integer_inputs import settle_integers
from gapscope.statistics.row_groups import LEFT_ONE_OUT, grouped_rows_note

# three samples in the smallest subset, a quarter
MIN_SAMPLES = 12


def count_duplicates(samples: Samples, groups: Tensor | None = None) -> tuple[int, int]:
    """Return the number of samples that repeat one (of another group), beyond chance, and how many targets differ."""
    targets = samples.y.tolist()
    pairs = beyond_chance(samples)
    if groups is not None:
        pairs = [(i, j) for i, j in pairs if groups[i] != groups[j]]
    return len(pairs), sum(targets[i] != targets[j] for i, j in pairs)


def check_prediction_data(
    samples: Samples,
    what: str = "A forecast",
    least: int = MIN_SAMPLES,
    kinds: Sequence[str] = ("classification", "regression"),
    advice: str = "",
) -> None:
    """Raise InvalidInput unless the targets can be predicted.

    Args:
        samples: The samples.
        what: What predicts them, as the subject of a sentence.
        least: Number of samples that it needs.
        kinds: Kinds of tasks that it has an answer for.
        advice: What to do for another task; empty for the advice of its kind.

    Raises:
        InvalidInput: There are too few samples, one class alone, or another task.
    """
    targets = require_targets(samples, what)
    samples.require_kind(what, *kinds, advice=advice)
    if len(samples) < least:
        raise InvalidInput(
            f"{what} needs {least} samples or more; got {len(samples)} samples. Pass more."
        )
    values = targets.unique(dim=0)
    if len(values) < 2:
        if samples.is_classification:
            got = "labels of one class"
        else:
            got = "the same target for all samples"
        raise InvalidInput(
            f"{what} needs two classes or targets or more; got {got}. Pass other samples too."
        )
    if samples.is_classification:
        check_class_numbers(targets)


def _forecast_positions(
    source: Any, samples: Samples, head: Any, seed: int, groups: Tensor | None
) -> AccuracyForecast:
    """Return the forecast of tokens or pixels: the row of the smallest held-out cross-entropy."""
    if head is not None:
        raise InvalidInput(
            "A forecast of positions does not use the last layer; got head. Omit it."
        )
    found = hold_out_positions(source, samples, seed=seed, groups=groups)
    labels = found.positions.labels
    rows = [
        LooRow(
            "most frequent class", "labels", float(found.frequencies[0].max()), found.frequencies
        )
    ]
    of_groups = None if groups is None else found.positions.held_out
    for name, scores in found.scores.items():
        uses = "network" if "features" in name else "inputs"
        rows.append(scored_row(name, uses, scores, labels, of_groups))
    method, _ = found.best()
    chosen = next((row for row in rows if row.method == method), rows[0])
    duplicates, contradicting = count_duplicates(samples, groups)
    n_independent = len(found.positions.held_out.unique())
    return AccuracyForecast(
        task="positions",
        samples=len(samples),
        score=chosen.score,
        score_name=samples.task.score_name,
        combined=(chosen.method,),
        rows=tuple(rows),
        abstained_because=reason_to_abstain(rows, labels, n=n_independent),
        duplicates=duplicates,
        contradicting_duplicates=contradicting,
        groups=None if groups is None else n_independent,
        notes=(*samples.notes, *(note for note in found.notes if note not in samples.notes)),
    )


@check_arguments
def forecast_accuracy(
    network: nn.Module | None,
    data: Any,
    *,
    head: str | nn.Module | None = None,
    features: Any = None,
    groups: Any = None,
    time_budget: float | None = DEFAULT_BUDGET,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> AccuracyForecast:
    r"""Forecast the accuracy of a network on new data, before it is trained.

    Rows of the result predict each training sample from all others (leave-one-out, in closed form), except "most
    frequent class", the share of that class in all samples. Four rows never see the network: the most frequent class,
    nearest neighbours, linear ridge and RBF ridge. Two rows use the network at its current weights, untrained or
    pretrained: ridge regression on its last hidden features and on its neural tangent kernel
    (`gapscope.functional.kernel_leave_one_out`). The forecast is the mean of the RBF and NTK
    rows; if the hidden features are significantly better than the RBF kernel, as those of pretrained networks are, it
    is the mean of the two rows of the network, above a million parameters that of the features alone, and the NTK is
    not computed. Otherwise the NTK of more than a million parameters is an estimate, "NTK (estimate)": unbiased, from
    256 random projections per weight of the gradients of up to 16 random combinations of the outputs. Without a network
    it is the RBF row, or its mean with the linear ridge if that one is significantly better and there are at least as
    many columns as samples, as for features and texts.

    The 90 % interval joins the error of the samples with the differences between trained networks. For vectors (tables,
    features) it narrows with n samples: it reaches $\sqrt{s (1 - s) (2.5^2 / n + 0.065^2) + g^2}$ below the score s and
    $\sqrt{s (1 - s) (1.3^2 / n + 0.085^2) + (0.3 g)^2}$ above it, g the gain of accuracy per doubling of the samples in
    the curve. For images, and without a curve, both are $1.645 \sqrt{s (1 - s) (1 / n + 4 \cdot 0.060^2)}$. It applies
    to new data with the same label noise. For regression the score is $R^2$, the mean over targets, without an
    interval. A network that is trained until it fits label errors falls below the forecast: with 20 % of them and a
    training accuracy of 98 %, by 8 points (25 draws of 150 samples, of which 11 intervals hold). With several labels
    per sample the score is the accuracy over all labels; with one label per position (tokens, pixels) that over
    positions, each predicted without its whole sample (or group) by the row of the smallest held-out cross-entropy
    (`out_of_sample`). No interval was judged for these two. The forecast abstains if no row is significantly better
    than the most frequent class. Batch norm layers that have seen no data get the statistics of these data, on a copy.
    A network that has already fitted these labels is replaced by a copy with resampled weights, and a note says so.
    Ctrl-C returns the rows that are finished. Common parameters: see `gapscope.accuracy`.

    Args:
        network: The network with the weights as they are before training; None for the rows that need no network.
        data: Training data with targets, in any form that `gapscope.measure` takes. Without a network also a pair
            (frame, targets) with columns of text and dates and missing numbers, which are encoded as notes say.
        head: Replaces the last linear layer on a copy: "new" by an untrained one with one output per class, a module by
            itself. None changes nothing.
        features: Features [n, d] of the samples, such as those of `embed` (tensor, array or frame), for the row of last
            hidden features in place of the network's, whose rows are then omitted.
        groups: One label per sample; samples are predicted without their whole group (patient, author, recording), in
            closed form as well. The interval counts groups as far as their samples agree, and is that of new groups.
        time_budget: CPU seconds of this process, None for no limit. Rows are added cheapest first: those without a
            network, features, then the NTK, if need be of 4 random combinations of the outputs and of fewer landmarks.
            Notes name approximations and what was omitted.
        max_exact: Number of samples up to which the NTK is exact.
        landmarks: Number of random samples that approximate the NTK beyond, with 4 combinations of the outputs.
        chunk_size: Samples per pass; None: as many as memory allows, up to a maximum.
        seed: Seed of the landmarks, the projections, the subsets of the curve and a new head. Rows in another order are
            in other subsets, as with another seed.

    Raises:
        InvalidInput: The data have no targets, fewer than 12 samples, one class or one group, or do not fit the
            network's outputs; or `features` or `groups` have the index of the data in another order.
        KeyboardInterrupt: It was stopped before the first rows were finished.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> print(gs.forecast_accuracy(None, train))  # doctest: +ELLIPSIS
    Forecast accuracy: 97.7 % (90 % interval 94.4 to 100.0 %) on new data with the same label noise
      method                  accuracy  uses
      most frequent class       13.0 %  labels
      nearest neighbours (1)    96.7 %  inputs
      linear ridge              90.7 %  inputs
      RBF ridge                 97.7 %  inputs
    Classes are unequal (the largest has 13.0 % of the samples): balanced accuracy 97.7 %, area under ...
    Twice the data: about 98.8 %.
    """
    options: dict[str, Any] = {
        "head": head, "features": features, "groups": groups, "time_budget": time_budget,
        "max_exact": max_exact, "landmarks": landmarks, "chunk_size": chunk_size, "seed": seed,
    }  # fmt: skip
    return make_forecast(network, data, with_curve=True, **options)


def make_forecast(
    network: nn.Module | None,
    data: Any,
    *,
    with_curve: bool,
    head: str | nn.Module | None = None,
    features: Any = None,
    groups: Any = None,
    time_budget: float | None = DEFAULT_BUDGET,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> AccuracyForecast:
    """Return the forecast of `forecast_accuracy`, with or without the learning curve, which takes half of the time.

    Args:
        network: As for `forecast_accuracy`, like all that follow but one.
        data: Training data.
        with_curve: Whether to compute the curve; without it, intervals of vectors are those of images.
        head: New last layer.
        features: Features of the samples.
        groups: Group of each sample.
        time_budget: CPU seconds.
        max_exact: Number of samples up to which the NTK is exact.
        landmarks: Landmarks beyond.
        chunk_size: Samples per pass.
        seed: Seed of all random numbers.

    Raises:
        InvalidInput: See `forecast_accuracy`.
        KeyboardInterrupt: It was stopped before the first rows were finished.
    """
    check_range("max_exact", max_exact, 1)
    check_range("landmarks", landmarks, 2)
    budget = CpuBudget(time_budget)
    refuse_estimator(network)
    check_sample_order(data, features, "features")
    check_sample_order(data, groups, "groups")
    network, data = unwrap_estimator(network, data)
    if network is not None:
        check_module(network)
    samples, encoded = _forecast_samples(network, features, data)
    numbers = group_tensor(samples.per_sample(groups), len(samples), "A forecast")
    if samples.kind == "positions":
        source = network if features is None else features
        return _forecast_positions(source, samples, head, seed, numbers)
    run = ForecastRun(
        samples,
        features,
        numbers,
        budget=budget,
        seed=seed,
        with_curve=with_curve,
        repeats=count_duplicates(samples, numbers),
    )
    run.notes += [
        *samples.notes,
        *encoded,
        *constant_targets_note(samples),
        *_order_notes(samples, numbers, with_curve),
    ]
    if network is not None and features is None:
        run.prepare(network, head)
    options: dict[str, Any] = {
        "max_exact": max_exact, "landmarks": landmarks, "chunk_size": chunk_size,
        "generator": torch.Generator().manual_seed(derive_seed(seed, "landmarks")),
    }  # fmt: skip
    if run.prepared is not None and run.prepared.n_outputs > COMBINATIONS:
        options["combinations"] = COMBINATIONS if len(samples) > max_exact else None
    with (
        progress("forecasting", 3) as bar,
        memo_scope(),
        explained_memory(FEWER_LANDMARKS),
    ):
        try:
            run.compute(options, bar)
        except KeyboardInterrupt:
            if not run.rows or not may_be_partial():
                raise
            run.interrupted = True
            run.notes.append("Interrupted: only the finished rows are shown.")
    return run.result()


def _forecast_samples(
    network: nn.Module | None, features: Any, data: Any
) -> tuple[Samples, tuple[str, ...]]:
    """Return the samples of a forecast, and notes on how their columns were encoded."""
    encoded: tuple[str, ...] = ()
    if network is None:
        data, _, encoded = encode_inputs(data)
    source = network if features is None else features
    samples = settled_by(source, as_samples(data, is_exact=network is None))
    if network is None:
        samples = settle_integers(samples)
    check_prediction_data(
        samples, kinds=("classification", "regression", "multi-label", "positions")
    )
    return samples, encoded


def _order_notes(samples: Samples, groups: Tensor | None, with_curve: bool) -> tuple[str, ...]:
    """Return notes on what makes samples easier to predict from each other than new ones are."""
    if groups is not None:
        return lone_classes_note(samples.y, groups, samples.class_names)
    if with_curve:
        return grouped_rows_note(samples, LEFT_ONE_OUT) + leaking_column_note(samples)
    return ()
