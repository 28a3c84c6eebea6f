"""Learning curves: accuracy with all samples, from training runs on subsets."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import RunSpec
from gapscope.pools.from_spec import prepared
from gapscope.prediction.forecast import count_duplicates
from gapscope.prediction.subset_designs import (
    CONTINUED,
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
    SizedScore,
    Split,
    SubsetRun,
    cheapest_design,
    continued_expectation,
    continued_halves,
    extrapolate,
    folds,
    group_numbers,
    hold_out,
    predicted_width,
    quarter_and_halves,
)
from gapscope.prediction.subset_runs import (
    Recipe,
    SubsetRuns,
    cache_facts,
    check_cache_folder,
    kernel_scores,
    move_towards_kernel,
    takes_steps_fraction,
    train_and_score,
    train_and_score_stacked,
)
from gapscope.results.progress import progress
from gapscope.training.multi_training import Choice

AUTO = "auto"
FEWEST_SAMPLES, FEWEST_GROUPS = 40, 12
NORMAL_99_ONE_SIDED, MIN_DIFFERENCE = 2.326, 0.05
CONTINUED_DESIGNS = (CONTINUED.name, SHORT_CONTINUED.name)


def _job(recipe: Recipe | RunSpec, samples: Samples, spread: float, seed: int, root: str | None, split: Split) -> Any:
    return asdict(train_and_score(recipe, samples, split, spread, seed, root))


def _together(recipe: Any, samples: Samples, spread: float, seed: int, root: str | None, stack: Choice) -> Any:
    """Return the function that trains several splits at once, or None."""
    if stack == "never":
        return None
    if not isinstance(recipe, RunSpec):
        raise InvalidInput("Only training runs of a RunSpec can be stacked; got a function. Use stack='never'.")
    return lambda splits: train_and_score_stacked(recipe, samples, splits, spread, seed, root, stack)


def _checked(data: Any, groups: Any) -> tuple[Samples, np.ndarray]:
    samples = as_samples(data)
    if samples.targets is None:
        raise InvalidInput("data must hold targets; got inputs alone. Pass (x, y).")
    if samples.is_dense:
        raise InvalidInput("A learning curve needs one label or row of targets per sample; got one label per position.")
    if samples.is_classification and len(samples.targets.unique()) < 2:
        raise InvalidInput("Got labels of one class; a learning curve needs two or more. Pass other samples too.")
    numbers = group_numbers(groups, len(samples))
    if len(samples) < FEWEST_SAMPLES or numbers.max() + 1 < FEWEST_GROUPS:
        raise InvalidInput(
            f"A learning curve needs {FEWEST_SAMPLES} samples in {FEWEST_GROUPS} groups; got {len(samples)} samples in "
            f"{numbers.max() + 1} groups. Use `gs.forecast_accuracy`, or gather more."
        )
    return samples, numbers


def _check_continued(design: str, recipe: Recipe | RunSpec, groups: Any) -> None:
    if design not in CONTINUED_DESIGNS:
        return
    if groups is not None:
        raise InvalidInput(
            f"{design!r} predicts a sample from others that may be of its group; got groups. Use 'half and quarter'."
        )
    if design == SHORT_CONTINUED.name and not takes_steps_fraction(recipe):
        raise InvalidInput(
            f"{design!r} trains for a quarter of the steps, so that train_fn must be a RunSpec or a function (x, y, "
            "steps_fraction); got a function without that parameter. Add it, or use 'continued halves'."
        )


def _spread(samples: Samples) -> float:
    if samples.is_classification:
        return 1.0
    assert samples.targets is not None
    spread = float(samples.targets.double().var(0, correction=0).mean())
    if spread == 0:
        raise InvalidInput("Regression targets must differ; all are the same.")
    return spread


def _random(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(derive_seed(seed, purpose))


def _of_design(design: Design, trainings: SubsetRuns, splits: tuple[Split, Split, Split], seed: int) -> SizedScore:
    """Score of the larger training runs of a design."""
    if design.folds:
        return trainings.run(folds(trainings.groups, design.folds, _random(seed, f"{design.folds} folds")))
    _, half, other_half = splits
    return trainings.run([half] if design.scored_share == 0.5 else [half, other_half])


def _growth_a_doubling(large: SizedScore, quarter: SizedScore) -> float:
    return (large.mean - quarter.mean) / math.log2(large.trained_on / quarter.trained_on)


def _unreached(width: float, quarter: SizedScore, growth: float, samples: int) -> str:
    widths = {item: predicted_width(item, quarter, growth, samples) for item in LADDER}
    best = min(widths, key=lambda item: widths[item])
    return (
        f"An interval {width:.3f} wide needs more samples: the narrowest of these, from {best.name} at the cost of "
        f"{best.cost:.2f} training runs, would be about {widths[best]:.3f} wide."
    )


def _run_cheapest_design(
    trainings: SubsetRuns, splits: tuple[Split, Split, Split], name: str, width: float | None, seed: int
) -> tuple[Design, Expectation, str]:
    """Train the named design, or designs by their cost until one reaches the width."""
    n = len(trainings.groups)
    quarter, growth, note = trainings.run([splits[0]]), 0.0, ""
    design: Design | None = LADDER[0] if name == AUTO else DESIGNS[name]
    if width is not None and name == AUTO:
        design = cheapest_design(width, quarter, growth, n)
    while True:
        if design is None:
            assert width is not None
            note, design = _unreached(width, quarter, growth, n), LADDER[0]
        large = _of_design(design, trainings, splits, seed)
        found = extrapolate(large, quarter, n)
        if width is None or found.width <= width or note or name != AUTO:
            return design, found, note
        growth = _growth_a_doubling(large, quarter)
        dearer = (item for item in LADDER[LADDER.index(design) + 1 :])
        better = next((item for item in dearer if predicted_width(item, quarter, growth, n) <= width), None)
        if better is None:
            return design, found, _unreached(width, quarter, growth, n)
        design = better


def _reason_under_trained(runs: Sequence[SubsetRun]) -> str:
    """Return a sentence on subset runs that are under-trained, or an empty one."""
    # A smaller training set is fitted better, if training takes the steps that it needs. One that is fitted
    # significantly worse than the largest (one-sided z-test, 1 %, and by .05) shows that it did not.
    small, large = min(runs, key=lambda run: run.trained_on), max(runs, key=lambda run: run.trained_on)
    p, q = small.training_score, large.training_score
    error = math.sqrt(sum(max(v * (1 - v), 0) / n for v, n in ((p, small.trained_on), (q, large.trained_on))))
    if q - p <= max(NORMAL_99_ONE_SIDED * error, MIN_DIFFERENCE):
        return ""
    return (
        f"{small.name} ({small.trained_on} samples) reached a training score of {p:.3f}, {large.name} "
        f"({large.trained_on}) {q:.3f}; subsets need as many optimizer steps as all samples. Let train_fn count steps, "
        "not epochs."
    )


def _note_falling(large: SubsetRun, quarter: SubsetRun) -> str:
    """Return a sentence on a curve that falls significantly (z-test, 1 %, and by .05)."""
    p, q = quarter.score, large.score
    error = math.sqrt(sum(max(v * (1 - v), 0) / run.scored_on for v, run in ((p, quarter), (q, large))))
    if p - q <= max(NORMAL_99_ONE_SIDED * error, MIN_DIFFERENCE):
        return ""
    return f"The curve falls: {p:.3f} with {quarter.trained_on} samples, {q:.3f} with {large.trained_on}."


def _continued(
    trainings: SubsetRuns, samples: Samples, design: Design, spread: float, seed: int
) -> tuple[Design, Expectation, str]:
    """Return the score of halves continued on each other, moved towards an RBF ridge's."""
    steps = design.cost / 2
    splits = continued_halves(trainings.groups, steps, _random(seed, "continued halves"))
    score = trainings.run(splits)
    scores = np.concatenate([trainings.scores[split.name] for split in splits])
    kernel = kernel_scores(samples, splits, spread)
    value = score.mean if kernel is None else move_towards_kernel(score.mean, *kernel)
    return design, continued_expectation(value, scores), ""


def _design_without_width(recipe: Recipe | RunSpec, has_groups: bool) -> str:
    """Return the name of the design that "auto" chooses."""
    if has_groups:
        return LADDER[0].name
    return (SHORT_CONTINUED if takes_steps_fraction(recipe) else CONTINUED).name


def _held_out(trainings: SubsetRuns, seed: int) -> tuple[Design, Expectation, str]:
    large = trainings.run([hold_out(trainings.groups, HELD_OUT, _random(seed, "hold-out"))])
    return HOLD_OUT, extrapolate(large, None, len(trainings.groups)), ""


def _interrupted(trainings: SubsetRuns, name: str) -> tuple[Design, Expectation, str]:
    """Return the mean score of the largest subset that is finished, which is no prediction."""
    largest = max(run.trained_on for run in trainings.done.values())
    scores = np.concatenate(
        [trainings.scores[run.name] for run in trainings.done.values() if run.trained_on == largest]
    )
    error = math.sqrt(float(scores.var()) / len(scores))
    return DESIGNS.get(name, LADDER[0]), Expectation(float(scores.mean()), error), ""


def learning_curve(
    train_fn: Recipe | RunSpec,
    data: Any = None,
    *,
    max_interval_width: float | None = None,
    design: str = AUTO,
    groups: Any = None,
    seed: int = 0,
    cache_dir: str | Path | None = None,
    workers: int = 1,
    stack: Choice = "never",
    data_root: str | None = None,
) -> LearningCurve:
    """Predict the accuracy with all samples, from training runs on subsets.

    Every run is scored on samples that it did not see, and the scores are extrapolated to all samples.

    It evaluates the training function (architecture, optimizer, everything it does), not one network, on new samples
    *like* the given ones: with label errors among them, the new labels have as many. All samples stay available
    for the final network. Formulas and constants are in `gapscope.prediction.subset_designs`.

    Training on a subset takes as many optimizer steps as on all samples if `train_fn` is a spec; a function should
    count steps, not epochs. Networks on subsets that fit their own samples worse than those on more samples are
    under-trained: the result then names this in `unreliable_because` and is no prediction. A falling curve is named.
    Ctrl-C returns the training runs that are finished, without a prediction. Common parameters: see
    `gapscope.prediction`.

    Args:
        train_fn: A function (x, y) -> trained network, called with subsets of the data in the form in which they were
            given (a mapping of tensors for a mapping); or a `gs.RunSpec`, whose data are then the default of `data`. A
            function with a parameter `steps_fraction` is asked for that fraction of its optimizer steps.
        max_interval_width: Largest width of the 90 % interval. The cheapest design that reaches it is used; a training
            on a quarter decides which. None uses the default design.
        design: By name "short continued halves" (cost .5 training runs), "continued halves" (2), "half and quarter"
            (2), "two halves and quarter" (3), "five folds and quarter" (6), "ten folds and quarter" (11), "hold-out"
            (1). "auto" is the first where a fraction of the steps can be trained (a spec, or `steps_fraction`), else
            the second; with groups "half and quarter"; above 20,000 samples a hold-out of a tenth, which is as good
            there, and whose network can be kept. Continued halves: `gapscope.prediction.subset_runs`.
        groups: A label per sample; samples of one group (patient, author, period) are never on both sides of a split,
            and the interval counts groups, not samples.
        cache_dir: Folder for finished training runs, so that an interrupted call continues; None keeps nothing.
        workers: Processes that train in parallel, one thread each; above 1 `train_fn` must be picklable.
        stack: Whether folds and halves of a spec are trained in one stack, in this process (see `train_together`):
            "never", "always" where it can be, or "auto" where a short timing says that it is faster. Parts must have
            the same size to be in one stack, so take a number of samples that the folds divide.

    Raises:
        InvalidInput: The data have no targets, fewer than 40 samples or 12 groups, `train_fn` does not return
            a network, or `cache_dir` holds other training runs.
        GapscopeError: A training failed; its own error is the cause, and finished ones are kept.
        KeyboardInterrupt: It was stopped before the first training run was finished.

    >>> import torch
    >>> from torch import nn
    >>> x = torch.linspace(-1, 1, 80)[:, None]
    >>> def train_fn(x, y):
    ...     network = nn.Linear(1, 2)
    ...     optimizer = torch.optim.Adam(network.parameters(), lr=0.1)
    ...     for _ in range(60):
    ...         optimizer.zero_grad()
    ...         nn.functional.cross_entropy(network(x), y).backward()
    ...         optimizer.step()
    ...     return network
    >>> curve = learning_curve(train_fn, (x, (x[:, 0] > 0).long()))
    >>> curve.cost, curve.score > 0.9
    (2.0, True)
    """
    check_choice("design", design, (AUTO, *DESIGNS))
    if max_interval_width is not None:
        check_range("max_interval_width", max_interval_width, 0, low_open=True)
    if data is None:
        if not isinstance(train_fn, RunSpec):
            raise InvalidInput("Got a training function without data; only a RunSpec brings its own. Pass data=(x, y).")
        data = prepared(train_fn, data_root)[0].train
    samples, numbers = _checked(data, groups)
    _check_continued(design, train_fn, groups)
    check_choice("stack", stack, get_args(Choice))
    spread = _spread(samples)
    job = partial(_job, train_fn, samples, spread, seed, data_root)
    together = _together(train_fn, samples, spread, seed, data_root, stack)
    with tempfile.TemporaryDirectory() as temporary:
        if cache_dir is not None:
            check_cache_folder(Path(cache_dir), cache_facts(train_fn, seed, samples, numbers))
        kept = Path(temporary if cache_dir is None else cache_dir) / "trainings"
        if design == AUTO and len(samples) > LARGE:
            design = HOLD_OUT.name
        if design == AUTO and max_interval_width is None:
            design = _design_without_width(train_fn, groups is not None)
        with progress("learning curve", DESIGNS.get(design, LADDER[0]).cost * len(samples)) as steps:
            trainings, interruption = SubsetRuns(job, numbers, kept, workers, steps, together), ""
            try:
                if design == HOLD_OUT.name:
                    result = _held_out(trainings, seed)
                elif design in CONTINUED_DESIGNS:
                    result = _continued(trainings, samples, DESIGNS[design], spread, seed)
                else:
                    splits = quarter_and_halves(numbers, _random(seed, "halves"))
                    result = _run_cheapest_design(trainings, splits, design, max_interval_width, seed)
            except KeyboardInterrupt:
                if not trainings.done:
                    raise
                result = _interrupted(trainings, design)
                interruption = f"interrupted after {len(trainings.done)} training runs; cache_dir= keeps them."
    return _curve(samples, trainings, *result, interruption)


def _curve(
    samples: Samples, trainings: SubsetRuns, design: Design, found: Expectation, note: str, interruption: str
) -> LearningCurve:
    reach = NORMAL_QUANTILE * found.standard_error
    lowest = 0.0 if samples.is_classification else -math.inf
    if len(samples) > LARGE and design is not HOLD_OUT:
        note = f"Above {LARGE} samples a hold-out of a tenth is as good, and its network is usable. {note}"
    runs = tuple(trainings.done.values())
    if (repeated := count_duplicates(samples)[0]) and len(np.unique(trainings.groups)) == len(samples):
        note = (
            f"{repeated} of {len(samples)} samples repeat an earlier one, so that subsets are scored on copies of "
            f"their own samples. Remove them, or pass groups=. {note}"
        )
    if len(runs) > 1 and not design.is_continued:
        note = f"{_note_falling(max(runs, key=lambda run: run.trained_on), runs[0])} {note}"
    return LearningCurve(
        task="classification" if samples.is_classification else "regression",
        score=min(max(found.value, lowest), 1.0),
        low=max(found.value - reach, lowest),
        high=min(found.value + reach, 1.0),
        standard_error=found.standard_error,
        samples=len(samples),
        design=design.name,
        cost=trainings.cost,
        trainings=runs,
        unreliable_because=interruption or ("" if design.is_continued else _reason_under_trained(runs)),
        note=note.strip(),
        is_interrupted=bool(interruption),
    )
