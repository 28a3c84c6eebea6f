"""Result of a learning curve, with its training runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapscope.accuracy.extrapolation import Expectation
from gapscope.results.answer import Answer
from gapscope.results.result import axes_or_new

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class SubsetRun:
    """One training run on a subset, with mean scores of unseen and of training samples.

    Attributes:
        name: Name of the subset, such as "half".
        trained_on: Number of samples that it was trained on.
        scored_on: Number of unseen samples that it was scored on.
        score: Mean score of the unseen samples.
        training_score: Mean score of the samples that it was trained on.
        steps: Optimizer steps, in multiples of a training run on all samples.
    """

    name: str
    trained_on: int
    scored_on: int
    score: float
    training_score: float
    steps: float = 1.0


@dataclass(frozen=True, repr=False, kw_only=True)
class LearningCurve(Answer):
    """Result of `learning_curve`: an `Answer` with all samples, with its training runs.

    The score is that of new samples with the same label noise. There is no answer (`abstained_because`) if networks on
    subsets were under-trained, or if Ctrl-C ended the training runs; the score is then what the finished runs give.

    Attributes:
        task: "classification", "multi-label", "positions", "regression" or "own metric".
        score: Score with all samples, on new data with the same label noise: accuracy in [0, 1], R^2, or the user's
            own.
        samples: Number of samples that it is predicted for.
        low: Lower end of its interval; NaN without one.
        high: Upper end; NaN without one.
        level: Nominal coverage of the interval.
        score_name: "accuracy", "R^2", or the name of the user's score.
        abstained_because: Why there is no answer, such as under-trained networks; empty if there is one.
        notes: Sentences about the data, approximations, and what was omitted.
        interrupted: Whether Ctrl-C ended it; the score is then what the finished runs give.
        standard_error: Standard error of the score.
        design: Name of the design.
        cost: Optimizer steps of all training runs, in multiples of one on all samples.
        trainings: The training runs, the quarter first if there is one.
    """

    standard_error: float
    design: str
    cost: float
    trainings: tuple[SubsetRun, ...]

    _title = "Predicted"

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per training run."""
        import pandas

        return pandas.DataFrame([vars(item) for item in self.trainings])

    @property
    def _subject(self) -> str:
        return f" with all {self.samples:,} samples"

    @property
    def _details(self) -> tuple[str, ...]:
        return (f"  design {self.design}; cost {self.cost:.2f} full-training equivalents",)

    def __repr__(self) -> str:
        table = self.to_pandas().to_string(index=False, float_format="{:.3f}".format)
        return f"{super().__repr__()}\n\n{table}"

    def plot(self, axes: Any = None) -> Any:
        """Plot the scores of the runs and the prediction with its interval, and return the axes.

        Args:
            axes: Matplotlib axes; None for a new figure.
        """
        axes = axes_or_new(axes, height=3.0)
        axes.plot(
            [run.trained_on for run in self.trainings],
            [run.score for run in self.trainings],
            "o",
            label="runs",
        )
        error = [[self.score - self.low], [self.high - self.score]]
        axes.errorbar(
            self.samples,
            self.score,
            yerr=error,
            fmt="s",
            capsize=4,
            label="prediction, 90 % interval",
        )
        axes.set(xlabel="training samples", ylabel=self.score_name)
        axes.legend(fontsize=8)
        return axes


def slope_note(prediction: Expectation, small: SubsetRun, large: SubsetRun, n_runs: int) -> str:
    """Return a sentence if the prediction does not follow the observed growth.

    Args:
        prediction: The prediction.
        small: Run on the fewest samples.
        large: Run on the most samples.
        n_runs: Number of runs.
    """
    weight = prediction.slope_weight
    growth = large.score - small.score
    if weight is None or weight > 0 or growth <= 0 or n_runs > 2:
        return ""
    return (
        f"The growth from {small.trained_on} to {large.trained_on} samples ({growth:+.3f}) is within the noise of "
        "these runs: that of public learning curves is assumed. 'two halves and quarter' measures it better."
    )
