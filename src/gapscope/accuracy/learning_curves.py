"""Learning curves: the score with all samples, from training runs on subsets."""

from __future__ import annotations

import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from gapscope.accuracy.continued_runs import (
    describe_undertrained,
    kernel_scores,
    move_towards_kernel,
)
from gapscope.accuracy.estimator_clones import refuse_trained_modules
from gapscope.accuracy.extrapolation import Expectation, extrapolate
from gapscope.accuracy.forecast import check_prediction_data
from gapscope.accuracy.learning_curve_result import LearningCurve, slope_note
from gapscope.accuracy.row_selection import has_rows_of_any_kind
from gapscope.accuracy.scores import base_rate_note, scales_of
from gapscope.accuracy.subset_designs import (
    CONTINUED,
    CONTINUED_ERROR,
    DESIGNS,
    FORWARD,
    HELD_OUT,
    HOLD_OUT,
    LADDER,
    LARGE,
    SHORT_CONTINUED,
    Design,
    continued_halves,
    folds,
    forward_in_time,
    hold_out,
    predicted_width,
    quarter_and_halves,
)
from gapscope.accuracy.subset_problems import (
    MetricProblem,
    NetworkProblem,
    ScoreFunction,
    TrainFunction,
    check_no_run,
    estimator_problem,
    metric_problem,
    takes_steps_fraction,
)
from gapscope.accuracy.subset_runs import SubsetRuns, claim_cache, train_and_score
from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.groups import group_numbers
from gapscope.base.randomness import derive_seed
from gapscope.base.row_order import check_sample_order
from gapscope.base.samples import as_samples
from gapscope.base.specs import RunSpec
from gapscope.inspection.memory import explained_memory
from gapscope.inspection.network_checks import is_estimator
from gapscope.pools.from_spec import prepare_data
from gapscope.results.formatting import describe_repeats
from gapscope.results.progress import progress

AUTO = "auto"
# ten samples in the smallest training set, three groups: by judgment
MIN_SAMPLES, MIN_GROUPS = 40, 12


def _choose_design(
    design: str, problem: NetworkProblem | MetricProblem, groups: Any, width: float | None
) -> str:
    """Return the design of "auto" ("auto" itself if the interval width decides)."""
    can_continue = isinstance(problem, NetworkProblem) and groups is None
    can_be_short = takes_steps_fraction(problem.train_fn)
    if design == AUTO and len(problem) > LARGE:
        return HOLD_OUT.name
    if design == AUTO and width is None:
        if can_continue:
            if can_be_short:
                return SHORT_CONTINUED.name
            return CONTINUED.name
        if is_estimator(problem.train_fn):
            return LADDER[1].name
        return LADDER[0].name
    if not DESIGNS.get(design, LADDER[0]).is_continued:
        return design
    if groups is not None:
        raise InvalidInput(
            f"{design!r} predicts a sample from others that may be of its group; got groups. Use 'half and quarter'."
        )
    if not can_continue:
        raise InvalidInput(
            f"{design!r} continues networks and scores their accuracy; got "
            f"{'an estimator' if is_estimator(problem.train_fn) else 'score='}. Use 'half and quarter'."
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
    subset_runs: SubsetRuns, name: str, width: float | None, seed: int, is_r2: bool
) -> tuple[Design, Expectation, str]:
    """Run the named design, or designs in order of cost until one reaches the width."""
    n = len(subset_runs.groups)
    growth = 0.0
    quarter, half, other_half = quarter_and_halves(subset_runs.groups, _generator(seed, "halves"))
    small = subset_runs.run([quarter])
    rest = LADDER if name == AUTO else (DESIGNS[name],)
    if width is None or name != AUTO:
        max_width = math.inf
    else:
        max_width = width
    design = None
    result = None
    note = ""
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
            large = subset_runs.run(
                folds(subset_runs.groups, design.folds, _generator(seed, f"{design.folds} folds"))
            )
        else:
            large = subset_runs.run([half] if design.scored_fraction == 0.5 else [half, other_half])
        result = extrapolate(large, small, n, is_fraction=subset_runs.are_fractions or is_r2)
        if result.width <= max_width or note:
            return design, result, note
        growth = (large.mean - small.mean) / math.log2(large.trained_on / small.trained_on)
        rest = LADDER[LADDER.index(design) + 1 :]


def _run_continued(
    subset_runs: SubsetRuns, problem: NetworkProblem, design: Design, seed: int
) -> tuple[Expectation, str]:
    r"""Return the score of halves continued on each other, moved towards that of an RBF ridge, and why it is invalid.

    The reason is empty unless the networks are under-trained (`describe_undertrained`). The standard error is
    $\sqrt{v\,(1/n + 4 e^2)}$ with v the variance of the scores and e = `CONTINUED_ERROR`.
    """
    splits = continued_halves(
        subset_runs.groups, design.cost / 2, _generator(seed, "continued halves")
    )
    value = subset_runs.run(splits).mean
    own = subset_runs.training_score_of([split.name for split in splits])
    scores = np.concatenate([subset_runs.scores[split.name].values for split in splits])
    outputs = np.concatenate([subset_runs.scores_of_outputs[split.name] for split in splits])
    kernel = kernel_scores(problem.samples, splits, problem.scales)
    if kernel is not None:
        value = move_towards_kernel(value, *kernel)
    n = len(scores)
    variance = max(float(scores.var()), (1 - 1 / n) / n)
    error = math.sqrt(variance * (1 / n + 4 * CONTINUED_ERROR**2))
    reason = describe_undertrained(own, scores, outputs, design.cost / 2)
    return Expectation(value, error), reason


def _score_of_largest(subset_runs: SubsetRuns, design: Design) -> Expectation:
    """Return the mean score of the largest finished subset (not a prediction)."""
    runs = subset_runs.runs_of(design)
    largest = max(run.trained_on for run in runs)
    score = subset_runs.score_of([run.name for run in runs if run.trained_on == largest])
    return Expectation(score.mean, math.sqrt(score.variance))


def _problem_of(
    train_fn: Any, data: Any, score: ScoreFunction | str | None, root: str | Path | None
) -> NetworkProblem | MetricProblem:
    """Return the training function with its data, checked."""
    check_no_run(train_fn)
    if is_estimator(train_fn):
        refuse_trained_modules(train_fn)
    if isinstance(train_fn, nn.Module | type) or not (
        callable(train_fn) or is_estimator(train_fn) or isinstance(train_fn, RunSpec)
    ):
        advice = "To evaluate one network use gs.forecast_accuracy or gs.estimate_accuracy."
        if isinstance(train_fn, type):
            advice = f"Pass an object of the class, such as {train_fn.__name__}()."
        if callable(data) or is_estimator(data):
            advice = "Pass it before the data: gs.learning_curve(train_fn, data)."
        if isinstance(train_fn, type):
            got = train_fn.__name__
        else:
            got = type(train_fn).__name__
        raise InvalidInput(
            f"train_fn must be a function (x, y) -> trained object, an estimator or a RunSpec; got {got}. {advice}"
        )
    if data is None:
        if not isinstance(train_fn, RunSpec):
            raise InvalidInput(
                "Got a training function without data; only a RunSpec brings its own. Pass data=(x, y)."
            )
        data = prepare_data(train_fn, root)[0].train
    if score is None and not is_estimator(train_fn):
        try:
            samples = as_samples(data)
        except InvalidInput as error:
            if not has_rows_of_any_kind(data):
                raise
            raise InvalidInput(
                f"{error} With score=, a function gets the rows as they were passed."
            ) from error
        check_prediction_data(
            samples,
            "A learning curve",
            MIN_SAMPLES,
            advice="Pass score=, a function (network, inputs, targets) that returns your metric.",
        )
        return NetworkProblem(train_fn, samples, scales_of(samples), root)
    if score is None:
        problem = estimator_problem(train_fn, data)
    else:
        problem = metric_problem(train_fn, data, score, root)
    if len(problem) < MIN_SAMPLES:
        raise InvalidInput(
            f"A learning curve needs {MIN_SAMPLES} samples or more; got {len(problem)} samples. Pass more."
        )
    return problem


@check_arguments
def learning_curve(
    train_fn: TrainFunction | RunSpec | Any,
    data: Any = None,
    *,
    score: ScoreFunction | str | None = None,
    max_interval_width: float | None = None,
    design: str = AUTO,
    groups: Any = None,
    times: Any = None,
    seed: int = 0,
    cache_dir: str | Path | None = None,
    workers: int = 1,
    data_root: str | Path | None = None,
) -> LearningCurve:
    r"""Predict the accuracy, or any other score, with all samples from training runs on subsets.

    Every run is scored on samples that it was not trained on, and the scores are extrapolated to all samples. This
    evaluates the training function (architecture, optimizer and all else), not one network, on new samples with the
    same label noise. All samples stay available for the final network. Formulas and constants are in
    `gapscope.accuracy.extrapolation` and `gapscope.accuracy.continued_runs`.

    Training on a subset takes as many optimizer steps as on all samples if `train_fn` is a spec; a function should
    count steps, not epochs. Networks that fit their subset worse than those on larger subsets are
    under-trained: there is no prediction then, and `abstained_because` has the reason. A continued design refits the
    last layer, so that it is valid only for networks that this helps little (`describe_undertrained`). Otherwise "auto"
    goes on with "half and quarter", at most the score on training samples, and a note says so; a design by name gives
    no prediction.
    A note names a falling curve. Ctrl-C returns the finished training runs, without a prediction.

    Args:
        train_fn: A function (x, y) -> trained network, called with subsets of the data in the form of `data` (a mapping
            of tensors for a mapping); or a `gs.RunSpec`, which brings its data; or an estimator with scikit-learn's
            interface, of which clones are fitted. A function with a parameter `steps_fraction` must take that fraction
            of its optimizer steps. Every call builds a new network; one that is trained again and again has seen the
            samples that it is scored on. With `score` it may return any object.
        data: Training data with targets, in any form that `gapscope.measure` takes. With `score` or an estimator also a
            pair (x, y) of frames, sparse matrices, lists of texts or other containers with rows, which are passed on
            as they are; or a Dataset, of which `train_fn` and `score` receive a `torch.utils.data.Subset` and None.
        score: A function (object, inputs, targets) that scores what `train_fn` returns on unseen samples: one number,
            or one per sample; or the name of a scorer of scikit-learn, such as "f1_macro". Larger is better. Scores
            between 0 and 1 are extrapolated towards 1; others by their slope alone. None for accuracy or R^2 (the mean
            over targets). The interval of one number is a jackknife over ten blocks, so that the function is called
            eleven times.
        max_interval_width: Largest width of the 90 % interval. The cheapest design that reaches it is used, predicted
            from a run on a quarter of the samples. None uses the default design.
        design: By name "short continued halves" (cost 0.5 training runs), "continued halves" (2), "half and quarter"
            (2), "two halves and quarter" (3), "five folds and quarter" (6), "ten folds and quarter" (11), "hold-out"
            (1). "auto" is the first if a fraction of the steps can be trained (a spec, or `steps_fraction`), else
            the second; "half and quarter" with groups or `score`; "two halves and quarter" for an estimator; a hold-out
            of a tenth above 20,000 samples.
        groups: One label per sample; samples of one group (patient, author, period) are never on both sides of a split,
            and the interval counts groups, not samples.
        times: One sortable value per sample. The latest quarter is scored, by runs on the three quarters before it and
            on the later half of these (cost 2). Not with `groups` or `design`.
        seed: Seed of the subsets and of the training runs.
        cache_dir: Folder for finished training runs, so that an interrupted call continues; None keeps nothing. It
            belongs to one training function: its code, default values, enclosing and global values, and the arguments
            of `functools.partial`. Not compared are code of other modules, counters that the function changes, and
            objects other than numbers, texts, arrays, tensors, networks, estimators, data classes and containers of
            these (data sets, open files, random generators).
        workers: Processes that train in parallel, one thread each; above 1 `train_fn` must be picklable.
        data_root: Folder of the data sets of a spec; None for GAPSCOPE_DATA or the user's cache.

    Raises:
        InvalidInput: The data have no targets, fewer than 40 samples or 12 groups, `train_fn` does not return
            a network or trains the same one again, `score` returns no finite numbers, `cache_dir` holds other training
            runs, or `groups` or `times` have the index of the data in another order.
        GapscopeError: A training run failed (its error is the cause).
        KeyboardInterrupt: It was stopped before the first training run was finished.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> from sklearn.linear_model import LogisticRegression
    >>> curve = gs.learning_curve(LogisticRegression(max_iter=1000), (train.inputs.flatten(1), train.y))
    >>> print("\n".join(curve.sentences))
    Predicted accuracy with all 300 samples: 91.5 % (90 % interval 87.7 to 95.3 %)
      design two halves and quarter; cost 3.00 full-training equivalents
    >>> curve.to_pandas()
             name  trained_on  scored_on     score  training_score  steps
    0     quarter          75        225  0.875556        1.000000    1.0
    1        half         150        150  0.906667        0.980000    1.0
    2  other half         150        150  0.920000        0.993333    1.0
    """
    check_choice("design", design, (AUTO, *DESIGNS))
    if max_interval_width is not None:
        check_range("max_interval_width", max_interval_width, 0, low_open=True)
    if times is not None and (groups is not None or design != AUTO):
        raise InvalidInput(
            "times choose the design and the parts; got groups or a design as well. Pass times alone."
        )
    problem = _problem_of(train_fn, data, score, data_root)
    check_sample_order(data, groups, "groups")
    check_sample_order(data, times, "times")
    groups, times = (problem.per_sample(values) for values in (groups, times))
    numbers = group_numbers(groups, len(problem))
    if numbers.max() + 1 < MIN_GROUPS:
        raise InvalidInput(
            f"A learning curve needs {MIN_GROUPS} groups; got {numbers.max() + 1}. Use `gs.forecast_accuracy`."
        )
    lone_notes = () if groups is None else problem.lone_classes_note(numbers)
    score_range = problem.score_range
    is_r2 = score_range is not None and score_range[1] == 1
    is_auto = design == AUTO
    if times is None:
        design = _choose_design(design, problem, groups, max_interval_width)
        used_design = DESIGNS.get(design, LADDER[0])
        splits = ()
    else:
        used_design = FORWARD
        splits = forward_in_time(times, len(problem))
    job = partial(train_and_score, problem, seed, numbers)
    note = ""
    undertrained = ""
    unreliable = ""
    is_interrupted = False
    with tempfile.TemporaryDirectory() as temporary:
        if cache_dir is not None:
            claim_cache(Path(cache_dir), problem, seed, numbers)
        folder = Path(temporary if cache_dir is None else cache_dir) / "trainings"
        with (
            progress("learning curve", used_design.cost * len(problem)) as steps,
            explained_memory(),
        ):
            subset_runs = SubsetRuns(
                job, numbers, folder, workers, steps, is_kept=cache_dir is not None,
                score_range=score_range,
            )  # fmt: skip
            try:
                if splits:
                    small, large = (subset_runs.run([split]) for split in splits)
                    is_fraction = subset_runs.are_fractions or is_r2
                    result = extrapolate(large, small, len(problem), is_fraction=is_fraction)
                elif used_design is HOLD_OUT:
                    large = subset_runs.run(
                        [hold_out(numbers, HELD_OUT, _generator(seed, "hold-out"))]
                    )
                    result = extrapolate(
                        large, None, len(problem), is_fraction=subset_runs.are_fractions or is_r2
                    )
                elif used_design.is_continued and isinstance(problem, NetworkProblem):
                    result, undertrained = _run_continued(subset_runs, problem, used_design, seed)
                    if undertrained and not is_auto:
                        unreliable = (
                            f"{undertrained}. Use design={LADDER[0].name!r}, or train longer"
                        )
                    elif undertrained:
                        used_design = LADDER[0]
                        _, result, _ = _run_cheapest_design(
                            subset_runs, used_design.name, None, seed, is_r2
                        )
                        fits = [run.training_score for run in subset_runs.runs_of(used_design)]
                        result = replace(result, value=min(result.value, max(fits)))
                        note = f"{undertrained}. {used_design.name!r} predicts the score of the networks."
                else:
                    used_design, result, note = _run_cheapest_design(
                        subset_runs, design, max_interval_width, seed, is_r2
                    )
            except KeyboardInterrupt:
                if not subset_runs.done:
                    raise
                result = _score_of_largest(subset_runs, used_design)
                is_interrupted = True
                unreliable = f"interrupted after {len(subset_runs.done)} training runs; cache_dir= keeps them."
    curve = _curve(problem, subset_runs, used_design, result, note, unreliable, is_interrupted)
    return replace(curve, notes=(*curve.notes, *lone_notes))


def _duplicates_note(problem: NetworkProblem | MetricProblem, groups: np.ndarray) -> str:
    """Return a warning about repeated samples (empty without any, or with groups)."""
    if len(np.unique(groups)) < len(problem):
        return ""
    n_duplicates = problem.n_repeats
    if not n_duplicates:
        return problem.near_copies_note
    return (
        f"{describe_repeats(n_duplicates, len(problem))}, so that subsets are scored on copies of their own samples. "
        "Remove them, or pass groups=."
    )


def _curve(
    problem: NetworkProblem | MetricProblem,
    subset_runs: SubsetRuns,
    design: Design,
    prediction: Expectation,
    note: str,
    unreliable: str,
    is_interrupted: bool,
) -> LearningCurve:
    n = len(problem)
    runs = subset_runs.runs_of(design)
    small = min(runs, key=lambda run: run.trained_on)
    large = max(runs, key=lambda run: run.trained_on)
    notes = [*problem.notes, _duplicates_note(problem, subset_runs.groups)]
    if not design.is_continued and subset_runs.are_fractions:
        scores = [subset_runs.score_of([run.name]) for run in (large, small)]
        if scores[0].is_clearly_below(scores[1]):
            fall = f"{small.score:.3f} with {small.trained_on} samples, {large.score:.3f} with {large.trained_on}"
            notes.insert(0, f"The curve falls: {fall}.")
        # A smaller training set is fitted better, if training takes the steps that it needs. One that is fitted
        # significantly worse than the largest shows that it did not.
        counts_steps = not is_estimator(problem.train_fn)
        fits = [subset_runs.training_score_of([run.name]) for run in (small, large)]
        if counts_steps and not unreliable and fits[0].is_clearly_below(fits[1]):
            unreliable = (
                f"{small.name} ({small.trained_on} samples) reached a training score of {small.training_score:.3f}, "
                f"{large.name} ({large.trained_on}) {large.training_score:.3f}; subsets need as many optimizer steps "
                "as all samples. Let train_fn count steps, not epochs."
            )
    is_own = isinstance(problem, MetricProblem) and problem.has_own_score
    if is_own and not unreliable:
        unreliable, found = subset_runs.suspect_loss(runs, problem.score_name)
        notes = [*found, *notes]
    if n > LARGE and design is not HOLD_OUT:
        notes.append(
            f"Above {LARGE} samples a hold-out of a tenth is as good, and its network is usable."
        )
    notes += [slope_note(prediction, small, large, len(runs)), note]
    if problem.task == "multi-label":
        notes.append(base_rate_note(problem.labels))
    lowest, highest = subset_runs.score_range or (-math.inf, math.inf)
    if subset_runs.are_fractions:
        lowest, highest = 0.0, 1.0
    return LearningCurve(
        task=problem.task,
        score=min(max(prediction.value, lowest), highest),
        low=max(prediction.value - prediction.reach, lowest),
        high=min(prediction.value + prediction.reach, highest),
        standard_error=prediction.standard_error,
        samples=n,
        design=design.name,
        cost=subset_runs.cost,
        trainings=tuple(subset_runs.done.values()),
        abstained_because=unreliable,
        notes=tuple(text for text in notes if text),
        interrupted=is_interrupted,
        score_name=problem.score_name,
    )
