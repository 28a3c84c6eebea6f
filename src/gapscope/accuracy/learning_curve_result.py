"""Result of a learning curve, with its training runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gapscope.results.result import Result, axes_or_new

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class SubsetRun:
    """One training run on a subset, with mean scores of unseen and of training samples."""

    name: str
    trained_on: int
    scored_on: int
    score: float
    training_score: float
    steps: float = 1.0  # optimizer steps, in multiples of a training run on all samples


@dataclass(frozen=True, repr=False)
class LearningCurve(Result):
    """Result of `learning_curve`, with its training runs.

    Attributes:
        task: "classification" (scores are accuracies), "regression" (explained fractions of the variance, R2), or "own
            metric".
        score: Predicted score with all samples, on new samples with the same label noise.
        low: Lower end of the 90 % interval.
        high: Upper end.
        standard_error: Standard error of the score.
        samples: Number of all samples.
        design: Name of the design.
        cost: Optimizer steps of all training runs, in multiples of one on all samples.
        trainings: The training runs, the quarter first if there is one.
        unreliable_because: Why the score is no prediction: networks on subsets were under-trained; else empty.
        note: A better design, or an interval width that was not reached; empty if there is nothing to note.
        interrupted: Whether training runs are missing because of Ctrl-C.
        score_name: Name of the score: "accuracy", "R^2", or that of the user's function.
    """

    task: str
    score: float
    low: float
    high: float
    standard_error: float
    samples: int
    design: str
    cost: float
    trainings: tuple[SubsetRun, ...]
    unreliable_because: str = ""
    note: str = ""
    interrupted: bool = False
    score_name: str = "accuracy"

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per training run."""
        import pandas

        return pandas.DataFrame([vars(item) for item in self.trainings])

    @property
    def sentences(self) -> tuple[str, ...]:
        """The prediction with its interval, the design with its cost, and a note if there is one."""
        headline = (
            f"Predicted {self.score_name} with all {self.samples:,} samples: {self.score:.3f} "
            f"({self.low:.3f} to {self.high:.3f}, 90 % interval)"
        )
        return (
            f"No prediction: {self.unreliable_because}" if self.unreliable_because else headline,
            f"  design {self.design}; cost {self.cost:.2f} full-training equivalents",
            *([self.note] if self.note else []),
        )

    def __repr__(self) -> str:
        return "\n".join([*self.sentences, "", self.to_pandas().to_string(index=False, float_format="{:.3f}".format)])

    def plot(self, axes: Any = None) -> Any:
        """Plot the scores of the runs and the prediction with its interval, and return the axes."""
        axes = axes_or_new(axes, height=3.0)
        axes.plot([run.trained_on for run in self.trainings], [run.score for run in self.trainings], "o", label="runs")
        error = [[self.score - self.low], [self.high - self.score]]
        axes.errorbar(self.samples, self.score, yerr=error, fmt="s", capsize=4, label="prediction, 90 % interval")
        axes.set(xlabel="training samples", ylabel=self.score_name)
        axes.legend(fontsize=8)
        return axes
