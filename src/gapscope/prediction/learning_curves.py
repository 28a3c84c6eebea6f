"""Learning curves: accuracy with all samples, from training runs on subsets."""

from __future__ import annotations

import math
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import RunSpec
from gapscope.pools.from_spec import prepare_data
from gapscope.prediction.forecast import check_prediction_data, count_duplicates
from gapscope.prediction.subset_designs import (
    CONTINUED,
    CONTINUED_ERROR,
    DESIGNS,
    HELD_OUT,
    HOLD_OUT,
    LADDER,
    LARGE,
    NORMAL_QUANTILE,
    SHORT_CONTINUED,
    Design,
    Expectation,
    LearningCurve,
    continued_halves,
    extrapolate,
    folds,
    group_numbers,
    hold_out,
    predicted_width,
    quarter_and_halves,
)
from gapscope.prediction.subset_runs import (
    SubsetRuns,
    TrainFunction,
    claim_cache,
    kernel_scores,
    move_towards_kernel,
    takes_steps_fraction,
    target_variance,
    train_and_score,
)
from gapscope.results.progress import progress

AUTO = "auto"
MIN_SAMPLES, MIN_GROUPS = 40, 12
NORMAL_99_ONE_SIDED, MIN_DIFFERENCE = 2.326, 0.05


def _choose_design(
    design: str, train_fn: TrainFunction | RunSpec, groups: Any, width: float | None, samples: int
) -> str:
    """Return the design of "auto" ("auto" itself if the interval width decides)."""
    can_be_short = takes_steps_fraction(train_fn)
    if design == AUTO and samples > LARGE:
        return HOLD_OUT.name
    if design == AUTO and width is None:
        continued = SHORT_CONTINUED if can_be_short else CONTINUED
        return continued.name if groups is None else LADDER[0].name
    if design in (CONTINUED.name, SHORT_CONTINUED.name) and groups is not None:
        raise InvalidInput(
            f"{design!r} predicts a sample from others that may be of its group; got groups. Use 'half and quarter'."
        )
    if design == SHORT_CONTINUED.name and not can_be_short:
        raise InvalidInput(
            f"{design!r} trains for a quarter of the steps, so that train_fn must be a RunSpec or a function (x, y, "
            "steps_fraction); got a function without that parameter. Add it, or use 'continued halves'."
        )
    return design


def _generator(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, purpose))


def _run_cheapest_design(
    subset_runs: SubsetRuns, name: str, width: float | None, seed: int
) -> tuple[Design, Expectation, str]:
    """Run the named design, or designs in order of cost until one reaches the width."""
    n, growth = len(subset_runs.groups), 0.0
    quarter, half, other_half = quarter_and_halves(subset_runs.groups, _generator(seed, "halves"))
    small = subset_runs.run([quarter])
    rest = LADDER if name == AUTO else (DESIGNS[name],)
    max_width = math.inf if width is None or name != AUTO else width
    design, result, note = None, None, ""
    while True:
        widths = {item: predicted_width(item, small, growth, n) for item in LADDER}
        cheapest = next((item for item in rest if widths[item] <= max_width), None)
        if cheapest is None:
            best = min(widths, key=lambda item: widths[item])
            note = (
                f"An interval {max_width:.3f} wide needs more samples: the narrowest, from {best.name} at the cost "
                f"of {best.cost:.2f} training runs, is about {widths[best]:.3f} wide."
            )
            if design is not None and result is not None:
                return design, result, note
        design = cheapest or LADDER[0]
        if design.folds:
            large = subset_runs.run(folds(subset_runs.groups, design.folds, _generator(seed, f"{design.folds} folds")))
        else:
            large = subset_runs.run([half] if design.scored_fraction == 0.5 else [half, other_half])
        result = extrapolate(large, small, n)
        if result.width <= max_width or note:
            return design, result, note
        growth = (large.mean - small.mean) / math.log2(large.trained_on / small.trained_on)
        rest = LADDER[LADDER.index(design) + 1 :]


def _is_lower(p: float, n_p: int, q: float, n_q: int) -> bool:
    """Return whether p is significantly below q (one-sided z-test, 1 %) and by more than 0.05."""
    error = math.sqrt(sum(max(v * (1 - v), 0) / n for v, n in ((p, n_p), (q, n_q))))
    return q - p > max(NORMAL_99_ONE_SIDED * error, MIN_DIFFERENCE)


def _run_continued(subset_runs: SubsetRuns, samples: Samples, design: Design, spread: float, seed: int) -> Expectation:
    r"""Return the score of halves continued on each other, moved towards that of an RBF ridge.

    Its standard error is $\sqrt{v\,(1/n + 4 e^2)}$ with v the variance of the scores and e = `CONTINUED_ERROR`.
    """
    splits = continued_halves(subset_runs.groups, design.cost / 2, _generator(seed, "continued halves"))
    value = subset_runs.run(splits).mean
    scores = np.concatenate([subset_runs.scores[split.name] for split in splits])
    kernel = kernel_scores(samples, splits, spread)
    if kernel is not None:
        value = move_towards_kernel(value, *kernel)
    n = len(scores)
    variance = max(float(scores.var()), (1 - 1 / n) / n)
    return Expectation(value, math.sqrt(variance * (1 / n + 4 * CONTINUED_ERROR**2)))


def _score_of_largest(subset_runs: SubsetRuns) -> Expectation:
    """Return the mean score of the largest finished subset (not a prediction)."""
    largest = max(run.trained_on for run in subset_runs.done.values())
    scores = np.concatenate(
        [subset_runs.scores[run.name] for run in subset_runs.done.values() if run.trained_on == largest]
    )
    return Expectation(float(scores.mean()), math.sqrt(float(scores.var()) / len(scores)))


def learning_curve(
    train_fn: TrainFunction | RunSpec,
    data: Any = None,
    *,
    max_interval_width: float | None = None,
    design: str = AUTO,
    groups: Any = None,
    seed: int = 0,
    cache_dir: str | Path | None = None,
    workers: int = 1,
    data_root: str | None = None,
) -> LearningCurve:
    """Predict the accuracy with all samples, from training runs on subsets.

    Every run is scored on samples that it was not trained on, and the scores are extrapolated to all samples. This
    evaluates the training function (architecture, optimizer and all else), not one network, on new samples with the
    same label noise. All samples stay available for the final network. Formulas and constants are in
    `gapscope.prediction.subset_designs`.

    Training on a subset takes as many optimizer steps as on all samples if `train_fn` is a spec; a function should
    count steps, not epochs. Networks that fit their subset worse than those on larger subsets are
    under-trained: there is no prediction then, and `unreliable_because` has the reason. A note names a falling curve.
    Ctrl-C returns the finished training runs, without a prediction. Common parameters: see
    `gapscope.prediction`.

    Args:
        train_fn: A function (x, y) -> trained network, called with subsets of the data in the form of `data` (a mapping
            of tensors for a mapping); or a `gs.RunSpec`, which brings its data. A function with a parameter
            `steps_fraction` must take that fraction of its optimizer steps.
        max_interval_width: Largest width of the 90 % interval. The cheapest design that reaches it is used, predicted
            from a run on a quarter of the samples. None uses the default design.
        design: By name "short continued halves" (cost 0.5 training runs), "continued halves" (2), "half and quarter"
            (2), "two halves and quarter" (3), "five folds and quarter" (6), "ten folds and quarter" (11), "hold-out"
            (1). "auto" is the first if a fraction of the steps can be trained (a spec, or `steps_fraction`), else
            the second; "half and quarter" with groups; a hold-out of a tenth above 20,000 samples.
        groups: One label per sample; samples of one group (patient, author, period) are never on both sides of a split,
            and the interval counts groups, not samples.
        cache_dir: Folder for finished training runs, so that an interrupted call continues; None keeps nothing.
        workers: Processes that train in parallel, one thread each; above 1 `train_fn` must be picklable.

    Raises:
        InvalidInput: The data have no targets, fewer than 40 samples or 12 groups, `train_fn` does not return
            a network, or `cache_dir` holds other training runs.
        GapscopeError: A training run failed (its error is the cause); finished runs are saved.
        KeyboardInterrupt: It was stopped before the first training run was finished.
    """
    check_choice("design", design, (AUTO, *DESIGNS))
    if max_interval_width is not None:
        check_range("max_interval_width", max_interval_width, 0, low_open=True)
    if data is None:
        if not isinstance(train_fn, RunSpec):
            raise InvalidInput("Got a training function without data; only a RunSpec brings its own. Pass data=(x, y).")
        data = prepare_data(train_fn, data_root)[0].train
    samples = as_samples(data)
    check_prediction_data(samples, "A learning curve", MIN_SAMPLES)
    numbers = group_numbers(groups, len(samples))
    if numbers.max() + 1 < MIN_GROUPS:
        raise InvalidInput(
            f"A learning curve needs {MIN_GROUPS} groups; got {numbers.max() + 1}. Use `gs.forecast_accuracy`."
        )
    design = _choose_design(design, train_fn, groups, max_interval_width, len(samples))
    spread = target_variance(samples)
    job = partial(train_and_score, train_fn, samples, spread, seed, data_root)
    used_design, note, interruption = DESIGNS.get(design, LADDER[0]), "", ""
    with tempfile.TemporaryDirectory() as temporary:
        if cache_dir is not None:
            claim_cache(Path(cache_dir), train_fn, seed, samples, numbers)
        folder = Path(temporary if cache_dir is None else cache_dir) / "trainings"
        with progress("learning curve", used_design.cost * len(samples)) as steps:
            subset_runs = SubsetRuns(job, numbers, folder, workers, steps)
            try:
                if used_design is HOLD_OUT:
                    large = subset_runs.run([hold_out(numbers, HELD_OUT, _generator(seed, "hold-out"))])
                    result = extrapolate(large, None, len(samples))
                elif used_design.is_continued:
                    result = _run_continued(subset_runs, samples, used_design, spread, seed)
                else:
                    used_design, result, note = _run_cheapest_design(subset_runs, design, max_interval_width, seed)
            except KeyboardInterrupt:
                if not subset_runs.done:
                    raise
                result = _score_of_largest(subset_runs)
                interruption = f"interrupted after {len(subset_runs.done)} training runs; cache_dir= keeps them."
    return _curve(samples, subset_runs, used_design, result, note, interruption)


def _curve(
    samples: Samples, subset_runs: SubsetRuns, design: Design, prediction: Expectation, note: str, interruption: str
) -> LearningCurve:
    reach = NORMAL_QUANTILE * prediction.standard_error
    lowest = 0.0 if samples.is_classification else -math.inf
    if len(samples) > LARGE and design is not HOLD_OUT:
        note = f"Above {LARGE} samples a hold-out of a tenth is as good, and its network is usable. {note}"
    runs = tuple(subset_runs.done.values())
    if (n_duplicates := count_duplicates(samples)[0]) and len(np.unique(subset_runs.groups)) == len(samples):
        note = (
            f"{n_duplicates} of {len(samples)} samples repeat an earlier one, so that subsets are scored on copies of "
            f"their own samples. Remove them, or pass groups=. {note}"
        )
    small, large = min(runs, key=lambda run: run.trained_on), max(runs, key=lambda run: run.trained_on)
    unreliable = interruption
    if not design.is_continued:
        if _is_lower(large.score, large.scored_on, small.score, small.scored_on):
            fall = f"{small.score:.3f} with {small.trained_on} samples, {large.score:.3f} with {large.trained_on}"
            note = f"The curve falls: {fall}. {note}"
        # A smaller training set is fitted better, if training takes the steps that it needs. One that is fitted
        # significantly worse than the largest shows that it did not.
        if not interruption and _is_lower(
            small.training_score, small.trained_on, large.training_score, large.trained_on
        ):
            unreliable = (
                f"{small.name} ({small.trained_on} samples) reached a training score of {small.training_score:.3f}, "
                f"{large.name} ({large.trained_on}) {large.training_score:.3f}; subsets need as many optimizer steps "
                "as all samples. Let train_fn count steps, not epochs."
            )
    return LearningCurve(
        task="classification" if samples.is_classification else "regression",
        score=min(max(prediction.value, lowest), 1.0),
        low=max(prediction.value - reach, lowest),
        high=min(prediction.value + reach, 1.0),
        standard_error=prediction.standard_error,
        samples=len(samples),
        design=design.name,
        cost=subset_runs.cost,
        trainings=runs,
        unreliable_because=unreliable,
        note=note.strip(),
        is_interrupted=bool(interruption),
    )
