r"""Forecast of accuracy before training: leave-one-out rows of baselines and of the network, and their combination."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import GapscopeError, InvalidInput, check_range
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples, as_samples
from gapscope.inspection.validation import Ready, ready
from gapscope.measures._forward import forward_pass
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out
from gapscope.prediction.forecast_result import AccuracyForecast, LearningCurvePoint, NetworkGain
from gapscope.prediction.untrained import with_data_statistics, with_new_head
from gapscope.results.progress import is_interactive, notify, progress
from gapscope.statistics.baselines import LooRow, linear_ridge, loo_baselines, rbf_ridge, sample_features

MIN_SAMPLES, MAX_UNUSED_CLASSES = 12, 1000
SUBSET_FRACTIONS, N_SUBSETS = (0.25, 0.5), 3
# How far trained networks lie from their forecast, at an accuracy of 50 %: chosen for a coverage of 90 % on 141
# networks; coverage 91 % on 113 others (results/expected_accuracy/small/baselines.json).
NETWORK_ERROR = 0.060
NORMAL_90, NORMAL_95 = 1.645, 1.96
TRIAL, MIN_LANDMARKS = 64, 100
NOTIFY_ABOVE_SECONDS = 10.0


def extrapolate_power_law(points: Sequence[tuple[int, float]], samples: int) -> float:
    r"""Score at more samples, from the power law $1 - s(n) \propto n^{-b}$ through the given points by least squares.

    Args:
        points: Numbers of samples and scores, two or more.
        samples: Number of samples to extrapolate to.

    Returns:
        The extrapolated score; never below that of the largest size, because more data do not hurt on average.

    >>> round(extrapolate_power_law([(100, 0.6), (200, 0.8)], 400), 6)
    0.9
    """
    import numpy

    last = points[-1][1]
    sizes, errors = numpy.log([n for n, _ in points]), numpy.log([max(1 - score, 1e-6) for _, score in points])
    slope = min(0.0, float(numpy.polyfit(sizes, errors, 1)[0]))
    return 1 - (1 - last) * (samples / points[-1][0]) ** slope


def _learning_curve(features: Tensor, targets: Tensor, n_classes: int | None, headline: float, seed: int
                    ) -> tuple[LearningCurvePoint, ...]:  # fmt: skip
    """RBF rows on random subsets, shifted to end at the headline, and extrapolated to twice the samples."""
    n = len(features)
    points = []
    for fraction in SUBSET_FRACTIONS:
        size, scores = max(3, round(fraction * n)), []
        for draw in range(max(1, min(N_SUBSETS, round(1 / fraction)))):
            generator = torch.Generator().manual_seed(derive_seed(seed, f"subset {fraction} {draw}"))
            chosen = torch.randperm(n, generator=generator)[:size].to(features.device)
            scores.append(rbf_ridge(features[chosen], targets[chosen], n_classes=n_classes).score)
        points.append((size, sum(scores) / len(scores)))
    points.append((n, rbf_ridge(features, targets, n_classes=n_classes).score))
    shift = headline - points[-1][1]
    points = [(size, score + shift) for size, score in points]
    doubled = extrapolate_power_law(points, 2 * n)
    return (*(LearningCurvePoint(*point) for point in points), LearningCurvePoint(2 * n, doubled, extrapolated=True))


def _duplicates(samples: Samples) -> tuple[int, int]:
    """Number of samples that repeat an earlier one exactly, and of those with another target than the first."""
    assert samples.targets is not None
    first: dict[bytes, list[float]] = {}
    repeated = contradicting = 0
    rows = samples.inputs.detach().reshape(len(samples), -1).cpu().add(0).contiguous().numpy()  # -0.0 becomes 0.0
    for row, target in zip(rows, samples.targets.reshape(len(samples), -1).tolist(), strict=True):
        earlier = first.setdefault(row.tobytes(), target)
        if earlier is not target:
            repeated += 1
            contradicting += earlier != target
    return repeated, contradicting


def _check(samples: Samples) -> None:
    if samples.targets is None:
        raise InvalidInput("data must hold targets; got inputs alone. Pass (x, y).")
    if samples.is_dense:
        raise InvalidInput(
            f"A forecast needs one label per sample, int64 [n]; got {list(samples.targets.shape)}, which are labels of "
            "positions. Pass one label per sample (one-hot labels: y.argmax(1))."
        )
    if len(samples) < MIN_SAMPLES:
        raise InvalidInput(f"Got {len(samples)} samples; a forecast needs at least {MIN_SAMPLES}. Pass more samples.")
    values = samples.targets.unique(dim=0)
    if len(values) < 2:
        what = "labels of one class" if samples.is_classification else "the same target for all samples"
        raise InvalidInput(f"Got {what}; a forecast needs two or more. Pass samples of other classes or targets too.")
    if samples.is_classification and int(values.max()) > MAX_UNUSED_CLASSES + 10 * len(values):
        raise InvalidInput(
            f"Got the label {int(values.max())} and only {len(values)} classes. Number the classes 0, 1, 2, ..."
        )


def _gain(row: LooRow, baseline: LooRow, targets: Tensor) -> NetworkGain | None:
    """Mean difference of the paired leave-one-out results (correct or not, or squared errors), with a 95 % CI."""
    if targets.is_floating_point():
        truth = targets.double().reshape(len(targets), -1)
        scale = (truth - truth.mean(0)).square().sum(1).mean()
        difference = (
            (baseline.predictions - truth).square().sum(1) - (row.predictions - truth).square().sum(1)
        ) / scale
    else:
        difference = row.correct(targets).double() - baseline.correct(targets).double()
    mean = float(difference.mean())
    error = float(difference.std()) / len(difference) ** 0.5
    return NetworkGain(mean, mean - NORMAL_95 * error, mean + NORMAL_95 * error)


def _add_network_rows(
    rows: list[LooRow],
    notes: list[str],
    prepared: Ready,
    n_classes: int | None,
    options: dict[str, Any],
    budget: float | None,
) -> None:
    """Add the rows of the last hidden features and of the NTK; note what is missing or approximated."""
    samples = prepared.samples
    assert samples.targets is not None
    network = with_data_statistics(prepared.network, samples.inputs)
    features = forward_pass(network, samples.inputs, chunk_size=options["chunk_size"]).features
    if features is None:
        notes.append("The network has no last linear layer, so there is no row of hidden features.")
    else:
        features = (features - features.mean(0)) / features.std(0, correction=0).mean().clamp_min(1e-12)
        rows.append(linear_ridge(features, samples.targets.cpu(), n_classes=n_classes, method="last hidden features",
                                 uses="network"))  # fmt: skip
    try:
        options = _within_budget(network, samples, options, budget, notes)
        if options is None:
            return
        result = kernel_leave_one_out(network, samples.inputs, samples.targets.to(samples.inputs.device), **options)
    except GapscopeError as error:
        notes.append(f"There is no NTK row: {error}")
        return
    score = result.explained if result.labels is None else result.accuracy
    rows.append(LooRow("NTK", "network", score, result.predictions.cpu()))


def _within_budget(
    network: nn.Module, samples: Samples, options: dict[str, Any], budget: float | None, notes: list[str]
) -> dict[str, Any] | None:
    """Options of the NTK row that fit into the budget: as given, or with fewer landmarks; None if none fit."""
    n = len(samples)
    if n <= 2 * TRIAL or (budget is None and not is_interactive()):
        return options
    columns = n if n <= options["max_exact"] else min(n, options["landmarks"])
    per_column = _seconds_per_column(network, samples, options)
    seconds = per_column * columns
    if budget is None or seconds <= budget:
        if seconds > NOTIFY_ABOVE_SECONDS:
            notify(f"The NTK row takes about {seconds:.0f} s; time_budget= limits it.")
        return options
    affordable = int(budget / per_column)
    if affordable < MIN_LANDMARKS:
        notes.append(f"There is no NTK row: it would take about {seconds:.0f} s, more than time_budget={budget:g}.")
        return None
    notes.append(
        f"The NTK is approximated with {affordable} landmarks: all {columns} columns would take about {seconds:.0f} s."
    )
    return options | {"max_exact": 1, "landmarks": affordable}


def _seconds_per_column(network: nn.Module, samples: Samples, options: dict[str, Any]) -> float:
    """Time of one column of the NTK (one sample with all others), from a trial on a few samples."""
    part = samples.subset(torch.arange(0, len(samples), len(samples) // TRIAL)[:TRIAL])
    assert part.targets is not None
    kernel_leave_one_out(network, part.inputs, part.targets, **options)  # the first call verifies gradients
    start = time.perf_counter()
    kernel_leave_one_out(network, part.inputs, part.targets, **options)
    return (time.perf_counter() - start) * len(samples) / TRIAL**2


def _headline(rows: Sequence[LooRow]) -> tuple[float, tuple[str, ...]]:
    """Mean of the RBF and NTK rows; of one of them if the other is missing; else the best row."""
    by_name = {row.method: row for row in rows}
    chosen = [by_name[name] for name in ("RBF ridge", "NTK") if name in by_name]
    if not chosen:
        chosen = [max(rows, key=lambda row: row.score)]
    return sum(row.score for row in chosen) / len(chosen), tuple(row.method for row in chosen)


def forecast_accuracy(
    network: nn.Module | None,
    data: Any,
    *,
    head: str | None = None,
    time_budget: float | None = None,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> AccuracyForecast:
    r"""Forecast the accuracy that a network will reach on new data like its training data, before it is trained.

    Every row of the result predicts each training sample from all others (leave-one-out, in closed form). Four rows
    never see the network: the most frequent class, nearest neighbours, linear ridge and RBF ridge. Two rows use the
    network at its current weights, untrained or pretrained: ridge regression on its last hidden features and on its
    neural tangent kernel (`gapscope.functional.kernel_leave_one_out`). The forecast is the mean of the RBF and NTK
    rows; weights fitted to networks are no better.

    The 90 % interval joins the binomial error of the samples with the differences between trained networks,
    $1.645 \sqrt{s (1 - s) (1 / n + 4 \cdot 0.060^2)}$. The 0.060 was fitted to 141 networks; coverage on 113 others:
    91 %. It applies to new data with the same label noise. For regression the score is $R^2$, without an interval. The
    forecast abstains if no row is significantly better than the most frequent class.

    Batch norm layers that have seen no data get the statistics of these data, on a copy; the network stays as it is.
    Ctrl-C returns the rows that are finished.

    Args:
        network: The network with the weights as they are before training; None for the rows that need no network.
        data: Training data with targets, in any form that `gapscope.measure` takes.
        head: "new" replaces the last linear layer, on a copy, by an untrained one with one output per class.
        time_budget: Seconds for the NTK row, None for no limit. Fewer landmarks are used if it would take longer; the
            row is omitted if 100 landmarks would take longer. A note states either.
        max_exact: Number of samples up to which the NTK is exact.
        landmarks: Number of random samples that approximate it beyond.
        chunk_size: Samples per pass; None for as many as memory allows.
        seed: Seed of the subsets of the learning curve, the landmarks and a new head.

    Returns:
        Forecast with its interval, all rows, what the network adds to the RBF row, and the learning curve.

    Raises:
        InvalidInput: The data have no targets, fewer than 12 samples or one class, or do not fit the network's outputs.
        KeyboardInterrupt: It was stopped before the first rows were finished.

    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> print(round(forecast_accuracy(nn.Linear(1, 2), (x, (x[:, 0] > 0).long())).score, 1))
    1.0
    """
    check_range("max_exact", max_exact, 1)
    samples = as_samples(data)
    _check(samples)
    assert samples.targets is not None
    notes = list(samples.notes)
    n_classes = int(samples.targets.max()) + 1 if samples.is_classification else None
    prepared = None
    if network is not None:
        if head is not None:
            network = with_new_head(network, samples, head, n_classes, seed)
        prepared = ready(network, samples, needs=("outputs",))
        notes += [note for note in prepared.notes if note not in notes]
        if n_classes is not None:
            n_classes = max(n_classes, prepared.n_outputs)
    repeated, contradicting = _duplicates(samples)
    options: dict[str, Any] = {
        "max_exact": max_exact, "landmarks": landmarks, "chunk_size": chunk_size,
        "generator": torch.Generator().manual_seed(derive_seed(seed, "landmarks")),
    }  # fmt: skip
    rows: list[LooRow] = []
    with progress("forecasting", 3) as bar:
        try:
            features, targets = sample_features(samples), samples.targets.cpu()
            bar.step("baselines")
            rows += loo_baselines(features, targets, n_classes=n_classes)
            bar.advance()
            if prepared is not None:
                bar.step("network")
                _add_network_rows(rows, notes, prepared, n_classes, options, time_budget)
            bar.advance()
            score, combined = _headline(rows)
            bar.step("learning curve")
            curve = _learning_curve(features, targets, n_classes, score, seed) if features.shape[1] else ()
            bar.advance()
        except KeyboardInterrupt:
            if not rows:
                raise  # nothing is finished
            notes.append("Interrupted: only the rows that were finished are shown.")
            score, combined = _headline(rows)
            curve = ()
    by_name = {row.method: row for row in rows}
    gain = _gain(by_name["NTK"], by_name["RBF ridge"], targets) if {"NTK", "RBF ridge"} <= by_name.keys() else None
    return AccuracyForecast(
        task="regression" if n_classes is None else "classification",
        samples=len(samples),
        score=score,
        interval=_interval(score, len(samples)) if n_classes is not None else None,
        combined=combined,
        rows=tuple(rows),
        network_gain=gain,
        curve=curve,
        abstained_because=_abstention(rows, targets),
        duplicates=repeated,
        contradicting_duplicates=contradicting,
        notes=tuple(notes),
    )


def _interval(score: float, n: int) -> tuple[float, float]:
    # the variance of one sample, not below that of one error among n samples
    variance = max(score * (1 - score), (1 - 1 / n) / n)
    spread = NORMAL_90 * (variance * (1 / n + 4 * NETWORK_ERROR**2)) ** 0.5
    return max(0.0, score - spread), min(1.0, score + spread)


def _abstention(rows: Sequence[LooRow], targets: Tensor) -> str:
    """Why no forecast is given: no row is significantly better than the most frequent class."""
    if targets.is_floating_point():
        best = max(row.score for row in rows)
        return "" if best > 0 else "no method explains any of the variance"
    base, others = rows[0].score, rows[1:]
    n = len(targets)
    # one-sided 95 % level, Bonferroni over the rows
    level = 1.645 if len(others) < 2 else 2.4
    error = (base * (1 - base) / n) ** 0.5
    if any(row.score > base + level * error for row in others):
        return ""
    return f"no method is significantly better than the most frequent class ({base:.1%})"
