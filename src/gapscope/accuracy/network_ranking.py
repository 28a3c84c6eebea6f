"""Rank networks before training: by their forecast of accuracy, or by output sensitivity."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gapscope.accuracy.forecast import check_prediction_data
from gapscope.accuracy.loo_rows import (
    NTK,
    add_network_rows,
    combine_rows,
    forecast_interval,
    mean_score,
    reason_to_abstain,
)  # fmt: skip
from gapscope.accuracy.ranking_result import (
    Candidate,
    NetworkRanking,
    RankedNetwork,
    build_untrained,
    instantiate,
    name_candidates,
)
from gapscope.accuracy.scores import scales_of, scores_of_predictions
from gapscope.accuracy.subset_problems import comparable_outputs
from gapscope.base.arguments import check_arguments
from gapscope.base.budget import DEFAULT_BUDGET, CpuBudget
from gapscope.base.errors import (
    GapscopeError,
    InvalidInput,
    NotMeasurable,
    check_choice,
    check_range,
)
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import NetworkSpec
from gapscope.base.user_warnings import warn_user
from gapscope.batch_norm.refresh import with_data_statistics
from gapscope.inspection.hooks import Weighted, record_module_calls
from gapscope.inspection.memoization import memo_scope
from gapscope.inspection.memory import explained_memory
from gapscope.inspection.norms import has_running_statistics
from gapscope.inspection.outputs import measurement_mode, prepare_inputs
from gapscope.inspection.validation import Ready, ready, settled_by
from gapscope.inspection.wrapped_networks import refuse_estimator
from gapscope.measures.before_training import (
    connection_sensitivity,
    jacobian_covariance,
    synaptic_flow,
)
from gapscope.measures.cpu_budget import COMBINATIONS, forward_seconds
from gapscope.measures.embed import extract_features
from gapscope.measures.fitted_labels import FEATURES, is_large
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.measures.parameters import parameter_count
from gapscope.results.progress import progress
from gapscope.statistics.baselines import (
    LooRow,
    most_frequent_class,
    rbf_ridge,
    sample_features,
    target_matrix,
)
from gapscope.statistics.correlations import ranks_of
from gapscope.statistics.intervals import normal_quantile, student_quantile
from gapscope.statistics.kernel_ridge import log_evidence_per_sample
from gapscope.statistics.row_groups import grouped_rows_note

BY = ("loo_accuracy", "output_sensitivity")
# key of notes that concern every candidate
ALL = "all networks"
COMPARED_ON_COPIES = (
    "They are predicted from each other: every accuracy is too high for other groups (patients, objects, recordings), "
    "and the order may differ for these. Pass one sample per group."
)
# by judgment, one pass with gradients
MAX_SAMPLES_OF_SCORES = 128


def _interval(values: Sequence[float], level: float) -> tuple[float, float]:
    """Student's interval of the mean, on the scale of logarithms: S is positive and skewed."""
    mean = statistics.fmean(values)
    n = len(values)
    if mean == 0:
        return 0.0, 0.0
    quantile = student_quantile(level, n - 1)
    factor = math.exp(quantile * statistics.stdev(values) / math.sqrt(n) / mean)
    return mean / factor, mean * factor


@dataclass(frozen=True)
class _Scores:
    """Scores of one candidate: numbers, S per initialization, combined rows, and notes."""

    numbers: dict[str, Any]
    sensitivities: list[float]
    training_only: bool
    combined: tuple[LooRow, ...]
    notes: tuple[str, ...]

    @property
    def sensitivity(self) -> float | None:
        if self.sensitivities:
            return statistics.fmean(self.sensitivities)
        return None


def _sensitivities(
    candidate: NetworkSpec | nn.Module, samples: Samples, seeds: list[int], settings: dict[str, Any]
) -> list[float]:
    values: list[float] = []
    for seed in seeds:
        network = build_untrained(
            candidate, samples, settings["n_outputs"], "standard_normal", seed
        )
        prepared = ready(network, samples)
        values.append(
            float(
                output_sensitivity(
                    prepared.network, prepared.samples.inputs, **settings["sensitivity"]
                )
            )
        )
        if not math.isfinite(values[-1]):
            raise NotMeasurable(
                "S must be finite; with standard normal weights the outputs overflow and S is "
                f"{values[-1]}. Use by='loo_accuracy'."
            )
    return values


def _value_or_none(score: Callable[[], Any]) -> float | None:
    """Return a score's value (None if it does not apply to the network)."""
    try:
        return float(score())
    except GapscopeError:
        return None


def _loo(
    prepared: Ready, rbf: LooRow, chunk_size: int | None, seed: int, budget: CpuBudget
) -> tuple[dict[str, Any], tuple[LooRow, ...], list[str]]:
    """Forecast of one network, its two readings, the scores of other authors, and notes."""
    samples = prepared.samples
    targets = samples.y.cpu()
    if samples.is_classification:
        n_classes = max(prepared.n_outputs, int(targets.max()) + 1)
    else:
        n_classes = None
    generator = torch.Generator().manual_seed(derive_seed(seed, "landmarks"))
    rows = [rbf]
    notes = list[str]()
    options: dict[str, Any] = {
        "max_exact": 2000, "landmarks": 1000, "combinations": COMBINATIONS, "chunk_size": chunk_size,
        "generator": generator,
    }  # fmt: skip
    used = add_network_rows(rows, notes, prepared, n_classes, options, budget, None)
    is_trainable = any(parameter.requires_grad for parameter in prepared.bare.parameters())
    if not is_trainable:
        raise InvalidInput(
            "it has no trainable weights (all are frozen, requires_grad=False, or there are none), so that it has no "
            "training to forecast. Unfreeze those that are trained, or pass (network, 'new') for a new last layer."
        )
    if used is None or len(rows) == 1:
        raise InvalidInput(notes[-1])
    by_name = {row.name: row for row in rows}
    combined = combine_rows(rows, targets, large=is_large(prepared.bare))
    score = mean_score(combined)
    low, high = forecast_interval(score, len(samples)) if n_classes is not None else (None, None)
    few = used.samples.subset(torch.arange(min(len(samples), MAX_SAMPLES_OF_SCORES)))
    network = with_data_statistics(used.network, used.samples.inputs)
    readings: dict[str, Callable[[], Any]] = {
        "log_evidence": lambda: log_evidence_per_sample(
            extract_features(used.network, used.samples, batch_size=chunk_size).values.double(),
            # of the classes that occur: the evidence of a column of zeros says nothing
            target_matrix(targets if n_classes is None else targets.unique(return_inverse=True)[1]),
        ),
        "synaptic_flow": lambda: synaptic_flow(network, few.inputs),
        "jacobian_covariance": lambda: jacobian_covariance(
            network, few.inputs, chunk_size=chunk_size
        ),
        "connection_sensitivity": lambda: connection_sensitivity(
            network, few.inputs, few.y, chunk_size=chunk_size
        ),
    }
    with budget.enforced(network):
        others = {name: _value_or_none(score) for name, score in readings.items()}
    return {
        "expected_accuracy": score,
        "low": low,
        "high": high,
        "features_accuracy": by_name[FEATURES].score if FEATURES in by_name else None,
        "ntk_accuracy": by_name[NTK].score if NTK in by_name else None,
    } | others, combined, notes  # fmt: skip


def _evaluate(
    name: str,
    candidate: Any,
    samples: Samples,
    seeds: list[int],
    rbf: LooRow | None,
    settings: dict[str, Any],
    budget: CpuBudget,
) -> _Scores:
    """Scores of one candidate, at the weights that training would start from."""
    instance = instantiate(name, candidate, samples, seeds[0])
    network = instance
    if isinstance(instance, NetworkSpec):
        network = build_untrained(
            instance, samples, settings["n_outputs"], instance.initialization, seeds[0]
        )
    prepared = ready(network, samples, needs=() if rbf is None else ("outputs",))
    own_notes = tuple(note for note in prepared.notes if note not in samples.notes)
    if rbf is not None:
        comparable_outputs(prepared)
    # S uses all samples if it is what the order is by, else those of the other scores
    if rbf is None:
        few = samples
    else:
        few = samples.subset(torch.arange(min(len(samples), MAX_SAMPLES_OF_SCORES)))
    training_only = any(
        has_running_statistics(module) or isinstance(module, nn.modules.dropout._DropoutNd)  # pyright: ignore[reportPrivateUsage]
        for module in prepared.bare.modules()
    )
    with measurement_mode(prepared.network) as network, torch.no_grad():
        calls = record_module_calls(network, prepare_inputs(network, prepared.samples.inputs[:1]))
    numbers: dict[str, Any] = {
        "parameters": int(parameter_count(prepared.bare)),
        "layers": sum(isinstance(call.module, Weighted) for call in calls),
    }
    if rbf is None:
        return _Scores(
            numbers, _sensitivities(instance, few, seeds, settings), training_only, (), own_notes
        )
    with memo_scope():
        readings, combined, notes = _loo(
            prepared, rbf, settings["sensitivity"]["chunk_size"], settings["seed"], budget
        )
    sensitivities = list[float]()
    # S does not depend on batch norm and dropout, which act during training only
    if not training_only and budget.affords(
        len(seeds) * 2 * len(few) * forward_seconds(prepared) / len(samples)
    ):
        with contextlib.suppress(GapscopeError):
            sensitivities = _sensitivities(instance, few, seeds, settings)
    notes = tuple(dict.fromkeys((*own_notes, *notes)))
    return _Scores(numbers | readings, sensitivities, training_only, combined, notes)


def _ties(
    scores: Mapping[str, _Scores], best: str, samples: Samples, level: float
) -> dict[str, bool]:
    """Return which candidates are not significantly different from the best."""
    if not scores[best].combined:
        high = _interval(scores[best].sensitivities, level)[1]
        return {
            name: _interval(item.sensitivities, level)[0] <= high for name, item in scores.items()
        }
    targets = samples.y.cpu()
    scales = scales_of(samples)

    def of_samples(row: LooRow) -> Tensor:
        """Score of every sample: 1 if correct, or its R^2."""
        if targets.is_floating_point():
            return torch.from_numpy(scores_of_predictions(row.predictions, samples, scales))
        return row.correct(targets).double()

    sample_scores = {name: torch.stack([of_samples(row) for row in item.combined]).mean(0)
                     for name, item in scores.items()}  # fmt: skip
    differences = {name: sample_scores[best] - values for name, values in sample_scores.items()}
    quantile = normal_quantile(level) / math.sqrt(len(targets))
    return {name: float(d.mean()) <= quantile * float(d.std()) for name, d in differences.items()}


def _ranks(values: Mapping[str, float | None]) -> dict[str, int]:
    """Rank values, 1 for the smallest (equal values share a rank, missing ones have none)."""
    known = {name: value for name, value in values.items() if value is not None}
    return {name: int(rank) for name, rank in ranks_of(known).items()}


def _rows(scores: Mapping[str, _Scores], samples: Samples, level: float) -> list[RankedNetwork]:
    by_sensitivity = _ranks({name: item.sensitivity for name, item in scores.items()})
    by_size = _ranks({name: item.numbers["parameters"] for name, item in scores.items()})
    expected = {name: item.numbers.get("expected_accuracy") for name, item in scores.items()}
    by_expected = _ranks(
        {name: None if value is None else -value for name, value in expected.items()}
    )
    order = sorted(scores, key=(by_expected or by_sensitivity).__getitem__)
    ties = _ties(scores, order[0], samples, level)
    empty: dict[str, Any] = dict.fromkeys(RankedNetwork.__dataclass_fields__)
    rows: list[RankedNetwork] = []
    for name in order:
        item = scores[name]
        low, high = _interval(item.sensitivities, level) if item.sensitivities else (None, None)
        rows.append(
            RankedNetwork(**empty | item.numbers | {
                "name": name,
                "tied_with_best": ties[name],
                "sensitivity": item.sensitivity,
                "sensitivity_low": low,
                "sensitivity_high": high,
                "rank_by_expected_accuracy": by_expected.get(name),
                "rank_by_sensitivity": by_sensitivity.get(name),
                "rank_by_size": by_size[name],
            })
        )  # fmt: skip
    return rows


@check_arguments
def rank_networks(
    candidates: Mapping[str, Candidate] | Sequence[Candidate],
    data: Any,
    *,
    by: str = "loo_accuracy",
    initializations: int = 10,
    n_outputs: int | None = None,
    noise_std: float = 0.1,
    level: float = 0.95,
    seed: int = 0,
    chunk_size: int | None = None,
    time_budget: float | None = DEFAULT_BUDGET,
) -> NetworkRanking:
    r"""Rank untrained or pretrained networks by their forecast accuracy before training.

    `by="loo_accuracy"`: by the forecast of `forecast_accuracy` at the weights that training would start from: the
    current ones of a module, those of one initialization of a spec. Its two readings are the leave-one-out accuracy of
    the last hidden features (lower) and of the NTK (upper); above a million parameters there are the features alone.
    The networks use the same samples, so that differences are paired. How well it ranks differs between sets of
    networks: docs/evidence/ranking.md.

    `by="output_sensitivity"`: by S before training, which needs no labels; a smaller one predicts a smaller test loss,

    .. math:: S_\mathrm{before} = E_\theta \, \mathrm{Var}_{x, \varepsilon}\Big[ \frac1K \sum_k
              \big( f_k(x + \varepsilon) - f_k(x) \big) \Big]

    (Forouzesh, Salehi and Thiran 2021, section V-D and Fig. 4): the mean of `output_sensitivity` over initializations,
    in squared output units, with Student's interval on the scale of logarithms. It compares networks that are trained
    from standard normal weights, without batch normalization, dropout or max-pooling; a warning names layers that it
    ignores.

    A candidate that has already fitted these labels is ranked by a copy with resampled weights, as `notes` says. One
    that cannot be ranked is named in `not_ranked` with its reason; the others are ranked. Ctrl-C returns the ranking of
    the finished candidates if these are two or more.

    Args:
        candidates: Name -> candidate, or a list of candidates: names and specs of built-in networks, modules (not
            changed), functions without arguments that return one, and pairs (network, head) with a head "new"
            or a module in place of the last linear layer.
        data: Training data with labels, in any form that `gapscope.measure` takes; inputs suffice for S.
        by: What the order is by, "loo_accuracy" or "output_sensitivity".
        initializations: Number of initializations for S, 2 or more (the paper's: 10).
        n_outputs: Outputs of networks given by name or spec; None takes it from the targets.
        noise_std: Standard deviation of the noise on every input entry, for S.
        level: Nominal coverage of the intervals of S and of paired differences.
        seed: Seed of the weights; initialization i has the same seed for every candidate.
        chunk_size: Samples per pass; None: as many as memory allows, up to a maximum.
        time_budget: CPU seconds of this process for all candidates with `by="loo_accuracy"`, None for no limit. Each
            candidate gets an equal part of what is left: features first, then the NTK. `notes` name what was omitted.

    Raises:
        InvalidInput: No candidate can be ranked, or an option or the data cannot be used.
        KeyboardInterrupt: It was stopped before two candidates were finished.

    >>> import gapscope as gs
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> candidates = {
    ...     name: gs.NetworkSpec(name="fully_connected", options={"width": width})
    ...     for name, width in {"narrow": 8, "wide": 128}.items()
    ... }
    >>> ranking = gs.rank_networks(candidates, train.first(100))
    >>> [item.name for item in ranking]
    ['wide', 'narrow']
    >>> print("\n".join(ranking.sentences))
    RBF ridge on the inputs, without a network: 0.910.
    """
    budget = CpuBudget(time_budget)
    named = name_candidates(candidates)
    check_choice("by", by, BY)
    check_range("initializations", initializations, 2)
    check_range("level", level, 0, 1, low_open=True, high_open=True)
    for candidate in named.values():
        refuse_estimator(candidate)
    samples = as_samples(data)
    for candidate in named.values():
        samples = settled_by(candidate, samples)
    rbf = None
    if by == "loo_accuracy":
        check_prediction_data(
            samples,
            "A ranking of networks",
            advice="Compare gs.forecast_accuracy(network, data) of each network.",
        )
        rbf = rbf_ridge(sample_features(samples), samples.y.cpu())
    seeds = [derive_seed(seed, f"initialization {i}") for i in range(initializations)]
    settings = {
        "seed": seed, "n_outputs": n_outputs, "sensitivity": {"noise_std": noise_std, "chunk_size": chunk_size},
    }  # fmt: skip
    scores: dict[str, _Scores] = {}
    not_ranked: dict[str, str] = {}
    interrupted = False
    with progress("ranking", len(named)) as bar:
        for number, (name, candidate) in enumerate(named.items()):
            bar.step(name)
            part = budget.part(1 / (len(named) - number))
            try:
                with explained_memory("Pass fewer samples, or a smaller chunk_size=."):
                    scores[name] = _evaluate(name, candidate, samples, seeds, rbf, settings, part)
            except KeyboardInterrupt:
                if len(scores) < 2:
                    raise
                interrupted = True
                not_ranked |= dict.fromkeys(list(named)[number:], "interrupted")
                break
            except GapscopeError as error:
                not_ranked[name] = str(error)
            except Exception as error:  # the user's function or network failed: rank the others
                not_ranked[name] = f"{type(error).__name__}: {error}"
            bar.advance()
    if not scores:
        raise InvalidInput(" ".join(f"{name}: {reason}" for name, reason in not_ranked.items()))
    training_only = [name for name, item in scores.items() if item.training_only]
    if by == "output_sensitivity" and training_only:
        warn_user(
            "S before training does not depend on batch normalization and dropout, which act during training only; "
            f"{', '.join(training_only)} have them. Compare networks without them, or S after training.",
        )
    rows = _rows(scores, samples, level)
    unreliable = ""
    if rbf is not None:
        targets = samples.y.cpu()
        networks = [row for item in scores.values() for row in item.combined]
        unreliable = reason_to_abstain([most_frequent_class(targets), rbf, *networks], targets)
    rbf_accuracy = None if rbf is None else rbf.score
    notes = {name: " ".join(item.notes) for name, item in scores.items() if item.notes}
    if rbf is not None and (grouped := grouped_rows_note(samples, COMPARED_ON_COPIES)):
        notes = {ALL: grouped[0]} | notes
    return NetworkRanking(
        rows, by=by, rbf_accuracy=rbf_accuracy, abstained_because=unreliable, not_ranked=not_ranked, notes=notes,
        interrupted=interrupted,
    )  # fmt: skip
