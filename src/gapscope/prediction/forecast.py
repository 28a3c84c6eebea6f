"""What accuracy training will reach, said before training, and what more data would bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.randomness import derive_seed
from gapscope.base.samples import Samples, as_samples
from gapscope.measures.kernel_leave_one_out import KernelLeaveOneOut, kernel_leave_one_out
from gapscope.results.progress import progress
from gapscope.results.result import Result

if TYPE_CHECKING:
    import pandas

SUBSET_FRACTIONS = (0.25, 0.5)
N_SUBSETS = 3


@dataclass(frozen=True)
class LearningCurvePoint:
    """Left-out score at one number of samples.

    Attributes:
        samples: Number of samples.
        score: Accuracy, or for regression the explained share of the variance; a mean over draws of the samples.
        extrapolated: Whether it is continued from smaller sizes instead of computed.
    """

    samples: int
    score: float
    extrapolated: bool = False


@dataclass(frozen=True, repr=False)
class AccuracyForecast(Result):
    """What `expected_accuracy` found; printing it gives sentences and the learning curve.

    Attributes:
        task: "classification" or "regression".
        score: Left-out accuracy of the kernel machine on all samples; for regression the explained share of variance.
        standard_error: Binomial standard error of an accuracy on so many samples (None for regression). It says how
            well these samples tell the kernel machine's accuracy, not how far the trained network is from it.
        curve: Scores at fewer samples, at all of them, and continued to twice as many.
        disagreeing_indices: Indices of the samples whose left-out prediction is another class than their label, those that
            are contradicted most first; empty for regression.
        loo: Predictions and facts of the kernel machine on all samples.
    """

    task: str
    score: float
    standard_error: float | None
    curve: tuple[LearningCurvePoint, ...]
    disagreeing_indices: Tensor
    loo: KernelLeaveOneOut

    @property
    def gain_from_doubling_data(self) -> float:
        """Continued score at twice as many samples minus the score at hand."""
        return self.curve[-1].score - self.score

    def to_pandas(self) -> pandas.DataFrame:
        """Return the learning curve, one row a size."""
        import pandas

        return pandas.DataFrame(
            {"samples": point.samples, "score": point.score, "extrapolated": point.extrapolated} for point in self.curve
        )

    def to_dict(self) -> dict[str, Any]:
        """Return score, curve and contradicted samples as plain values; predictions stay out."""
        return {
            "task": self.task,
            "score": self.score,
            "standard_error": self.standard_error,
            "curve": self.to_pandas().to_dict("records"),
            "contradicted": [int(i) for i in self.disagreeing_indices],
            **{name: value for name, value in self.loo.scalars().items() if name != "accuracy"},
        }

    def __repr__(self) -> str:
        n, what = self.curve[-2].samples, "accuracy" if self.task == "classification" else "explained share of variance"
        error = "" if self.standard_error is None else f" ± {self.standard_error:.3f}"
        lines = [
            f"expected {what} on data like these {n} samples: {self.score:.3f}{error}",
            f"twice as many samples: about {self.curve[-1].score:.3f} (continued from {self.curve[0].samples} on)",
        ]
        if len(self.disagreeing_indices):
            share = len(self.disagreeing_indices) / n
            lines.append(f"labels contradicted by all others: {share:.1%}, the most clearly: sample "
                         f"{', sample '.join(str(int(i)) for i in self.disagreeing_indices[:5])}")  # fmt: skip
        return "\n".join([*lines, "", self.to_pandas().to_string(index=False, float_format="{:.3f}".format)])


def _score(found: KernelLeaveOneOut) -> float:
    return found.explained if found.labels is None else found.accuracy


def _draws(share: float) -> int:
    return max(1, min(N_SUBSETS, round(1 / share)))


def _score_at_fraction(
    network: nn.Module, samples: Samples, share: float, seed: int, **options: Any
) -> LearningCurvePoint:
    """Mean score over random subsets; of many samples one subset says as much as several of few."""
    size = max(3, round(share * len(samples)))
    scores: list[float] = []
    for draw in range(_draws(share)):
        generator = torch.Generator().manual_seed(derive_seed(seed, f"subset {share} {draw}"))
        part = samples.subset(torch.randperm(len(samples), generator=generator)[:size])
        assert part.targets is not None
        scores.append(_score(kernel_leave_one_out(network, part.inputs, part.targets, **options)))
    return LearningCurvePoint(size, sum(scores) / len(scores))


def extrapolate_power_law(points: Sequence[tuple[int, float]], samples: int) -> float:
    r"""Score at more samples, from the power law $1 - s(n) \propto n^{-b}$ through the given points by least squares.

    Args:
        points: Numbers of samples and scores, two or more.
        samples: Where to.

    Returns:
        The continued score; never below that of the largest size, because more data do not hurt on average.

    >>> round(continued([(100, 0.6), (200, 0.8)], 400), 6)
    0.9
    """
    import numpy

    last = points[-1][1]
    sizes, errors = numpy.log([n for n, _ in points]), numpy.log([max(1 - score, 1e-6) for _, score in points])
    slope = min(0.0, float(numpy.polyfit(sizes, errors, 1)[0]))
    return 1 - (1 - last) * (samples / points[-1][0]) ** slope


def _loo_disagreements(found: KernelLeaveOneOut) -> Tensor:
    if found.labels is None:
        return torch.empty(0, dtype=torch.int64)
    given = found.predictions.gather(1, found.labels[:, None]).squeeze(1)
    margin = given - found.predictions.max(1).values  # 0 where the label is the prediction
    order = margin.argsort(stable=True)
    return order[margin[order] < 0].cpu()


def forecast_accuracy(
    network: nn.Module,
    data: Any,
    *,
    max_exact: int = 2000,
    landmarks: int = 1000,
    chunk_size: int | None = None,
    seed: int = 0,
) -> AccuracyForecast:
    """Say before training which accuracy a network will reach on new data like the training data.

    The number is the left-out accuracy of ridge regression on the gradients of the *untrained* network
    (`kernel_leave_one_out`): no training, no validation data, nothing fitted to other networks. "Like the training
    data" includes their wrong labels: with a share of them wrong, new labels are taken to be wrong as often. For
    regression it is the explained share of the variance.

    It judges the data and what these gradients make of them. Where training learns much better features (convolutional
    networks on many photographs) it is too low; batch normalisation, augmentation and trouble of the optimiser it
    cannot see, so it says little about which of two architectures is better. docs/estimating-the-gap.md has what was
    measured.

    Args:
        network: The network with its initial weights; trained weights would let the labels leak into the number.
        data: Training data with targets, in any form that `gs.measure` takes.
        max_exact: As for `kernel_leave_one_out`.
        landmarks: As for `kernel_leave_one_out`.
        chunk_size: As for `empirical_ntk`.
        seed: Seed of the subsets of the learning curve and of the landmarks.

    Returns:
        Score, learning curve, and the samples that all others contradict.

    Raises:
        InvalidInput: The data have no targets, or fewer than 12 samples.
        NotMeasurable: The network has no trainable parameters.
        UnsupportedLayer: The network mixes samples.

    >>> x = torch.linspace(-1, 1, 40)[:, None]
    >>> print(round(expected_accuracy(nn.Linear(1, 2), (x, (x[:, 0] > 0).long())).score, 2))
    1.0
    """
    check_range("max_exact", max_exact, 1)
    samples = as_samples(data)
    if samples.targets is None:
        raise InvalidInput("data must hold targets; got inputs alone. Pass (x, y).")
    if len(samples) < 12:
        raise InvalidInput(f"expected_accuracy needs 12 samples or more; got {len(samples)}. Pass more samples.")
    options: dict[str, Any] = {"max_exact": max_exact, "landmarks": landmarks, "chunk_size": chunk_size}
    generator = torch.Generator().manual_seed(derive_seed(seed, "landmarks"))
    # the cost of a kernel grows with the square of the samples
    with progress("expecting", 1 + sum(_draws(share) * share**2 for share in SUBSET_FRACTIONS)) as bar:
        bar.step("all samples")
        whole = kernel_leave_one_out(network, samples.inputs, samples.targets, generator=generator, **options)
        bar.advance()
        points: list[LearningCurvePoint] = []
        for share in SUBSET_FRACTIONS:
            bar.step(f"{share:.0%} of the samples")
            points.append(_score_at_fraction(network, samples, share, seed, **options))
            bar.advance(_draws(share) * share**2)
    points.append(LearningCurvePoint(len(samples), _score(whole)))
    doubled = extrapolate_power_law([(point.samples, point.score) for point in points], 2 * len(samples))
    score = points[-1].score
    return AccuracyForecast(
        task="classification" if samples.is_classification else "regression",
        score=score,
        standard_error=(score * (1 - score) / len(samples)) ** 0.5 if samples.is_classification else None,
        curve=(*points, LearningCurvePoint(2 * len(samples), doubled, extrapolated=True)),
        disagreeing_indices=_loo_disagreements(whole),
        loo=whole,
    )
