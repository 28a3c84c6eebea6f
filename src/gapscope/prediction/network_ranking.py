"""Compare architectures before training: by output sensitivity or by expected accuracy, with their sizes beside it."""

from __future__ import annotations

import copy
import math
import statistics
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import INITIALIZATIONS, NetworkSpec
from gapscope.base.type_guards import is_mapping
from gapscope.measures.kernel_leave_one_out import KernelLeaveOneOut, kernel_leave_one_out
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.measures.parameter_count import parameter_count
from gapscope.networks.factory import build_network
from gapscope.networks.initialization import initialize
from gapscope.results.progress import notify, progress
from gapscope.results.result import RowResult

if TYPE_CHECKING:
    import pandas

BY = ("sensitivity", "expected_accuracy")
# PyTorch has no public names for all of a kind
_TRAINING_ONLY = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)  # pyright: ignore[reportPrivateUsage]


@dataclass(frozen=True, kw_only=True)
class RankedArchitecture:
    """One candidate.

    Attributes:
        name: Its name.
        sensitivity: Mean of S over initialisations.
        low: Lower end of the interval of that mean.
        high: Upper end.
        parameters: Number of trainable parameters.
        rank_by_sensitivity: 1 for the smallest S.
        rank_by_size: 1 for the fewest parameters; equal counts share the better rank.
        tied_with_best: By sensitivity: whether the interval reaches into that of the smallest S. By expected accuracy:
            whether the interval of the paired difference to the best, over samples, holds zero.
        expected_accuracy: Left-out accuracy of the untrained network, for regression the explained share of the
            variance; None unless it is what is ranked by.
        rank_by_expected_accuracy: 1 for the largest.
    """

    name: str
    sensitivity: float
    low: float
    high: float
    parameters: int
    rank_by_sensitivity: int
    rank_by_size: int
    tied_with_best: bool
    expected_accuracy: float | None = None
    rank_by_expected_accuracy: int | None = None


class ArchitectureRanking(RowResult[RankedArchitecture]):
    """Candidates, the one that is expected best first; shows itself as a table."""

    def to_pandas(self) -> pandas.DataFrame:
        """One row a candidate, indexed by its name; the expected accuracy where it was asked for."""
        return super().to_pandas().set_index("name").dropna(axis="columns", how="all")


def _n_outputs(samples: Samples, given: int | None) -> int:
    if given is not None:
        check_range("n_outputs", given, 1)
        return given
    if samples.targets is None:
        raise InvalidInput("n_outputs must be given where the data have no targets; got inputs alone. Pass n_outputs.")
    return int(samples.targets.max()) + 1 if samples.is_classification else samples.targets.shape[1]


def _instantiate(name: str, candidate: Any) -> NetworkSpec | nn.Module:
    """A candidate itself, or what a class or function without arguments makes."""
    made = candidate if isinstance(candidate, NetworkSpec | nn.Module) or not callable(candidate) else candidate()
    if not isinstance(made, NetworkSpec | nn.Module):
        raise InvalidInput(
            f"Candidates must be NetworkSpecs, modules, or functions without arguments that make one; {name!r} is "
            f"{type(candidate).__name__}. Pass a module."
        )
    return made


def _untrained(
    candidate: NetworkSpec | nn.Module, samples: Samples, n_outputs: int | None, kind: str, seed: int
) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    if isinstance(candidate, nn.Module):
        network = copy.deepcopy(candidate)
        initialize(network, kind, generator)
        return network
    return build_network(
        candidate.name,
        input_shape=tuple(samples.inputs.shape[1:]),
        n_outputs=_n_outputs(samples, n_outputs),
        initialization=kind,
        generator=generator,
        **candidate.options,
    )


def _interval(values: list[float], level: float) -> tuple[float, float]:
    """Student's interval of the mean, on the scale of logarithms: S is positive and skewed."""
    from scipy.special import stdtrit  # pyright: ignore[reportMissingTypeStubs]

    mean, n = statistics.fmean(values), len(values)
    if mean == 0:
        return 0.0, 0.0
    quantile = float(stdtrit(n - 1, (1 + level) / 2))
    factor = math.exp(quantile * statistics.stdev(values) / math.sqrt(n) / mean)
    return mean / factor, mean * factor


def _warn_of_caveats(initialization: str, blind: list[str]) -> None:
    if initialization != "standard_normal":
        warnings.warn(
            "S before training compares widths and depths of standard normal networks only: other initialisations are "
            f"scaled so that it hardly depends on the number of units; got {initialization!r}. "
            "Use initialization='standard_normal'.",
            UserWarning,
            stacklevel=3,
        )
    if blind:
        warnings.warn(
            "S before training cannot see batch normalisation and dropout, which act in training alone; "
            f"{', '.join(blind)} have them. Compare networks without them, or S after training.",
            UserWarning,
            stacklevel=3,
        )


@dataclass(frozen=True)
class _CandidateScores:
    """What is known of one candidate: S of every initialisation, its size, and what it leaves out."""

    sensitivities: list[float]
    parameters: int
    blind: bool
    left_out: KernelLeaveOneOut | None

    @property
    def sensitivity(self) -> float:
        return statistics.fmean(self.sensitivities)

    @property
    def expected_accuracy(self) -> float | None:
        found = self.left_out
        return None if found is None else found.explained if found.labels is None else found.accuracy


def _loo_predictions(candidate: NetworkSpec | nn.Module, samples: Samples, n_outputs: int | None, seed: int) -> Any:
    """Left-out predictions at the weights that training would start from: a module's own, or drawn as its spec says."""
    network = candidate
    if isinstance(candidate, NetworkSpec):
        network = _untrained(candidate, samples, n_outputs, candidate.initialization, seed)
    return kernel_leave_one_out(network, samples.inputs, samples.targets)  # type: ignore[arg-type]


def _measure(
    candidate: NetworkSpec | nn.Module,
    samples: Samples,
    seeds: list[int],
    *,
    by: str,
    initialization: str,
    n_outputs: int | None,
    **options: Any,
) -> _CandidateScores:
    values: list[float] = []
    parameters, blind = 0, False
    for seed in seeds:
        network = _untrained(candidate, samples, n_outputs, initialization, seed)
        values.append(float(output_sensitivity(network, samples.inputs, **options)))
        parameters = int(parameter_count(network))
        blind = any(isinstance(module, _TRAINING_ONLY) for module in network.modules())
    left_out = _loo_predictions(candidate, samples, n_outputs, seeds[0]) if by == "expected_accuracy" else None
    return _CandidateScores(values, parameters, blind, left_out)


def _scores(found: KernelLeaveOneOut, targets: Tensor) -> Tensor:
    """Of every sample, larger is better: whether its left-out prediction is right, or minus the squared residual."""
    if found.labels is not None:
        return (found.predictions.argmax(1) == found.labels).double()
    return -(found.predictions - targets.to(found.predictions)).square().sum(1)


def _tied(best: Tensor, scores: Tensor, level: float) -> bool:
    """Whether the normal interval of the mean paired difference holds zero."""
    difference = best - scores
    width = statistics.NormalDist().inv_cdf((1 + level) / 2) * float(difference.std()) / math.sqrt(len(difference))
    return float(difference.mean()) <= width


def _ties(measured: Mapping[str, _CandidateScores], best: str, samples: Samples, level: float) -> dict[str, bool]:
    """Which candidates cannot be told from the best."""
    left_out = {name: item.left_out for name, item in measured.items() if item.left_out is not None}
    if left_out:
        assert samples.targets is not None
        scores = {name: _scores(found, samples.targets) for name, found in left_out.items()}
        return {name: _tied(scores[best], each, level) for name, each in scores.items()}
    high = _interval(measured[best].sensitivities, level)[1]
    return {name: _interval(item.sensitivities, level)[0] <= high for name, item in measured.items()}


def _ranks(values: Mapping[str, float]) -> dict[str, int]:
    """1 for the smallest; equal values share the better rank."""
    ordered = sorted(values.values())
    return {name: ordered.index(value) + 1 for name, value in values.items()}


def _ranked(measured: Mapping[str, _CandidateScores], samples: Samples, level: float) -> ArchitectureRanking:
    by_sensitivity = _ranks({name: item.sensitivity for name, item in measured.items()})
    by_size = _ranks({name: item.parameters for name, item in measured.items()})
    expected = {name: item.expected_accuracy for name, item in measured.items() if item.expected_accuracy is not None}
    by_expected = _ranks({name: -value for name, value in expected.items()})
    order = sorted(measured, key=(by_expected or by_sensitivity).__getitem__)
    ties = _ties(measured, order[0], samples, level)
    rows: list[RankedArchitecture] = []
    for name in order:
        low, high = _interval(measured[name].sensitivities, level)
        rows.append(
            RankedArchitecture(
                name=name,
                sensitivity=measured[name].sensitivity,
                low=low,
                high=high,
                parameters=measured[name].parameters,
                rank_by_sensitivity=by_sensitivity[name],
                rank_by_size=by_size[name],
                tied_with_best=ties[name],
                expected_accuracy=expected.get(name),
                rank_by_expected_accuracy=by_expected.get(name),
            )
        )
    return ArchitectureRanking(rows)


def rank_networks(
    candidates: Mapping[str, NetworkSpec | nn.Module | Callable[[], nn.Module]],
    data: Any,
    *,
    by: str = "sensitivity",
    initializations: int = 10,
    initialization: str = "standard_normal",
    n_outputs: int | None = None,
    noise_std: float = 0.1,
    draws: int = 1,
    level: float = 0.95,
    seed: int = 0,
    chunk_size: int | None = None,
) -> ArchitectureRanking:
    r"""Rank architectures before training by $S_\mathrm{before}$, with intervals, and by size beside it.

    .. math:: S_\mathrm{before} = E_\theta \, \mathrm{Var}_{x, \varepsilon}\Big[ \frac1K \sum_k
              \big( f_k(x + \varepsilon) - f_k(x) \big) \Big]

    The mean over `initializations` draws of the weights of `output_sensitivity`, in squared output units; a smaller
    one predicts a smaller test loss (Forouzesh, Salehi and Thiran 2021, section V-D and Fig. 4). Every candidate sees
    the same inputs and the same noise. Labels are not used. Estimated: the interval is Student's for the mean over
    initialisations, on the scale of logarithms; it does not cover the choice of inputs.

    The paper's caveat is part of the method: it compares networks with standard normal weights and biases that are
    also trained from there, without batch normalisation, dropout or max-pooling. With He or Xavier initialisation S
    is the same for every width, and layers that act in training alone change nothing at initialisation. Both raise a
    warning. For such networks measure S after training. Ctrl-C ends it with the candidates that are finished, if these
    are two or more.

    What it predicts is the test loss, which grows with the size of the outputs, rather than the test error: in the
    authors' own runs the wider networks have the larger S, the larger loss and the higher accuracy. Over 21 standard
    normal networks, fully connected and convolutional, trained on 300 CIFAR-10 images (part `ranking` of the study
    `forouzesh2021`), Kendall's tau with the test loss was 0.95 [0.88, 1.00] for S before training and -0.10
    [-0.43, 0.28] for the number of parameters; with the test error it was 0.32 [0.06, 0.55] and -0.39 [-0.62, -0.14].
    Over 9 networks from He and Xavier initialisation S before training was misleading: tau -0.67 [-1.00, -0.21] with
    the loss.

    With `by="expected_accuracy"` the order is that of the left-out accuracy of `kernel_leave_one_out` at the weights
    that training would start from: those of a module as it stands (pass untrained ones), or drawn once as a spec says.
    It sees the labels, and He or Xavier weights; batch normalisation in training, augmentation and trouble of the
    optimiser it cannot see. Over 24 architectures trained on 400 images (part `architectures` of the study
    `expected_accuracy`) its tau with the accuracy reached was 0.52 [0.25, 0.74] on Fashion-MNIST and 0.34 [0.02, 0.60]
    on CIFAR-10, that of S 0.33 and 0.13, that of the number of parameters -0.01 and -0.09.

    Args:
        candidates: Name -> NetworkSpec, a module, which stays as it is, or a function without arguments that makes one.
        data: Inputs alone, (x, y), or whatever `as_samples` takes.
        by: What the order is by, "sensitivity" or "expected_accuracy"; S and the size stand beside it in both cases.
        initializations: Draws of the weights, 2 or more (the paper's: 10).
        initialization: How weights are drawn for S; the own `initialization` of a spec is for the expected accuracy.
        n_outputs: Outputs of networks given by spec; None takes it from the targets.
        noise_std: Standard deviation of the noise on every input entry.
        draws: Draws of noise a sample.
        level: Nominal coverage of the intervals.
        seed: Seed of the weights; initialisation i has the same seed for every candidate.
        chunk_size: Samples a pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The candidates, smallest S or largest expected accuracy first.

    Raises:
        InvalidInput: There is no candidate, or an option, the data or a network cannot be used.
        KeyboardInterrupt: It was stopped before two candidates were finished.

    >>> narrow, wide = (NetworkSpec(options={"width": width}) for width in (8, 64))
    >>> ranking = rank_architectures({"wide": wide, "narrow": narrow}, torch.rand(50, 5), n_outputs=3)
    >>> [item.name for item in ranking]
    ['narrow', 'wide']
    """
    if not is_mapping(candidates):
        raise InvalidInput(
            f"candidates must be a mapping from names to architectures; got {type(candidates).__name__}. Pass "
            "{name: NetworkSpec(...)}."
        )
    if not candidates:
        raise InvalidInput("candidates must hold one architecture or more; got none. Pass {name: NetworkSpec(...)}.")
    check_choice("by", by, BY)
    check_choice("initialization", initialization, INITIALIZATIONS)
    check_range("initializations", initializations, 2)
    check_range("level", level, 0, 1, low_open=True, high_open=True)
    samples = as_samples(data)
    if by == "expected_accuracy" and samples.targets is None:
        raise InvalidInput("by='expected_accuracy' needs data with targets; got inputs alone. Pass (x, y).")
    seeds = [derive_seed(seed, f"initialisation {i}") for i in range(initializations)]
    options = {"noise_std": noise_std, "draws": draws, "chunk_size": chunk_size}
    measured: dict[str, _CandidateScores] = {}
    with progress("ranking", len(candidates)) as bar:
        for name, candidate in candidates.items():
            bar.step(name)
            try:
                measured[name] = _measure(
                    _instantiate(name, candidate),
                    samples,
                    seeds,
                    by=by,
                    initialization=initialization,
                    n_outputs=n_outputs,
                    **options,
                )
            except KeyboardInterrupt:
                if len(measured) < 2:
                    raise
                notify(f"stopped: {', '.join(measured)} are ranked")
                break
            bar.advance()
    if by == "sensitivity":
        _warn_of_caveats(initialization, [name for name, item in measured.items() if item.blind])
    return _ranked(measured, samples, level)
