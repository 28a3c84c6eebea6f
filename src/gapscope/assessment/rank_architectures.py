"""Compare architectures before training: output sensitivity at initialisation, beside the number of parameters."""

from __future__ import annotations

import copy
import math
import statistics
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gapscope.base.errors import InvalidInput, check_choice, check_range
from gapscope.base.progress import progress, say
from gapscope.base.randomness import stream_seed
from gapscope.base.results import Rows
from gapscope.base.samples import Samples, as_samples
from gapscope.base.specs import INITIALIZATIONS, NetworkSpec
from gapscope.measures.output_sensitivity import output_sensitivity
from gapscope.measures.parameter_count import parameter_count
from gapscope.networks.building import build
from gapscope.networks.initialization import initialize

if TYPE_CHECKING:
    import pandas

_TRAINING_ONLY = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


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
        tied_with_best: Whether the interval reaches into that of the smallest S.
    """

    name: str
    sensitivity: float
    low: float
    high: float
    parameters: int
    rank_by_sensitivity: int
    rank_by_size: int
    tied_with_best: bool


class ArchitectureRanking(Rows[RankedArchitecture]):
    """Candidates by S before training, smallest first; shows itself as a table."""

    def to_pandas(self) -> pandas.DataFrame:
        """One row a candidate, indexed by its name."""
        return super().to_pandas().set_index("name")


def _n_outputs(samples: Samples, given: int | None) -> int:
    if given is not None:
        check_range("n_outputs", given, 1)
        return given
    if samples.targets is None:
        raise InvalidInput("n_outputs must be given where the data have no targets; got inputs alone. Pass n_outputs.")
    return int(samples.targets.max()) + 1 if samples.is_classification else samples.targets.shape[1]


def _made(name: str, candidate: Any) -> NetworkSpec | nn.Module:
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
    return build(
        candidate.name,
        input_shape=tuple(samples.inputs.shape[1:]),
        n_outputs=_n_outputs(samples, n_outputs),
        initialization=kind,
        generator=generator,
        **candidate.options,
    )


def _interval(values: list[float], level: float) -> tuple[float, float]:
    """Student's interval of the mean, on the scale of logarithms: S is positive and skewed."""
    from scipy.stats import t

    mean, n = statistics.fmean(values), len(values)
    if mean == 0:
        return 0.0, 0.0
    quantile = float(t.ppf((1 + level) / 2, n - 1))
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


def _sensitivities(
    candidate: NetworkSpec | nn.Module,
    samples: Samples,
    seeds: list[int],
    *,
    initialization: str,
    n_outputs: int | None,
    **options: Any,
) -> tuple[list[float], int, bool]:
    """S of every initialisation, the number of parameters, and whether there are layers that S is blind to."""
    values, parameters, blind = [], 0, False
    for seed in seeds:
        network = _untrained(candidate, samples, n_outputs, initialization, seed)
        values.append(float(output_sensitivity(network, samples.inputs, **options)))
        parameters = int(parameter_count(network))
        blind = any(isinstance(module, _TRAINING_ONLY) for module in network.modules())
    return values, parameters, blind


def rank_architectures(
    candidates: Mapping[str, NetworkSpec | nn.Module | Callable[[], nn.Module]],
    data: Any,
    *,
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

    Args:
        candidates: Name -> NetworkSpec (its own `initialization` is not used), a module, which stays as it is, or a
            function without arguments that makes one.
        data: Inputs alone, (x, y), or whatever `as_samples` takes.
        initializations: Draws of the weights, 2 or more (the paper's: 10).
        initialization: How weights are drawn.
        n_outputs: Outputs of networks given by spec; None takes it from the targets.
        noise_std: Standard deviation of the noise on every input entry.
        draws: Draws of noise a sample.
        level: Nominal coverage of the intervals.
        seed: Seed of the weights; initialisation i has the same seed for every candidate.
        chunk_size: Samples a pass, without effect beyond rounding; None for as many as memory allows.

    Returns:
        The candidates, smallest S first.

    Raises:
        InvalidInput: There is no candidate, or an option, the data or a network cannot be used.
        KeyboardInterrupt: It was stopped before two candidates were finished.

    >>> narrow, wide = (NetworkSpec(options={"width": width}) for width in (8, 64))
    >>> ranking = rank_architectures({"wide": wide, "narrow": narrow}, torch.rand(50, 5), n_outputs=3)
    >>> [item.name for item in ranking]
    ['narrow', 'wide']
    """
    if not isinstance(candidates, Mapping):
        raise InvalidInput(
            f"candidates must be a mapping from names to architectures; got {type(candidates).__name__}. Pass "
            "{name: NetworkSpec(...)}."
        )
    if not candidates:
        raise InvalidInput("candidates must hold one architecture or more; got none. Pass {name: NetworkSpec(...)}.")
    check_choice("initialization", initialization, INITIALIZATIONS)
    check_range("initializations", initializations, 2)
    check_range("level", level, 0, 1, low_open=True, high_open=True)
    samples = as_samples(data)
    seeds = [stream_seed(seed, f"initialisation {i}") for i in range(initializations)]
    options = {"noise_std": noise_std, "draws": draws, "chunk_size": chunk_size}
    measured = {}
    with progress("ranking", len(candidates)) as bar:
        for name, candidate in candidates.items():
            bar.step(name)
            try:
                measured[name] = _sensitivities(
                    _made(name, candidate),
                    samples,
                    seeds,
                    initialization=initialization,
                    n_outputs=n_outputs,
                    **options,
                )
            except KeyboardInterrupt:
                if len(measured) < 2:
                    raise
                say(f"stopped: {', '.join(measured)} are ranked")
                break
            bar.advance()
    _warn_of_caveats(initialization, [name for name, (_, _, blind) in measured.items() if blind])
    means = {name: statistics.fmean(values) for name, (values, _, _) in measured.items()}
    ordered = sorted(measured, key=lambda name: means[name])
    sizes = sorted(parameters for _, parameters, _ in measured.values())
    best_high = _interval(measured[ordered[0]][0], level)[1]
    ranked = []
    for position, name in enumerate(ordered, start=1):
        values, parameters, _ = measured[name]
        low, high = _interval(values, level)
        ranked.append(
            RankedArchitecture(
                name=name,
                sensitivity=means[name],
                low=low,
                high=high,
                parameters=parameters,
                rank_by_sensitivity=position,
                rank_by_size=sizes.index(parameters) + 1,
                tied_with_best=low <= best_high,
            )
        )
    return ArchitectureRanking(ranked)
