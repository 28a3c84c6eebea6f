"""What is said of wrong labels: how many there are, and a ranking of samples by how likely theirs is wrong."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from jaxtyping import Float, Int
from torch import Tensor

from gapscope.results.result import Result

if TYPE_CHECKING:
    import pandas

RECALL = 0.9
# what predicts right labels less often than this cannot tell wrong labels from its own mistakes
LEAST_CLEAN_ACCURACY = 0.6
# a rate that is far too high makes `clean_accuracy`, which it enters, look good; its interval is wide then: .40 in the
# one case of 65 that was seen, at most .25 in the others
WIDEST = 0.3


@dataclass(frozen=True, repr=False)
class LabelNoiseEstimate(Result):
    """Share of labels that are wrong.

    Attributes:
        rate: The share; an upper bound that is tight where right labels are predicted well.
        low: Lower end of its 90 % interval (resampled samples and canaries; it knows nothing of a bound that is loose).
        high: Upper end.
        clean_accuracy: Share of *right* labels that are predicted by what has not seen them; the ground of the rate.
        samples: Number of samples that it is the share of.
    """

    rate: float
    low: float
    high: float
    clean_accuracy: float
    samples: int

    @property
    def unreliable_because(self) -> str:
        """Why this cannot be believed: right labels are predicted too badly, or the rate is a guess; else empty."""
        if not self.clean_accuracy >= LEAST_CLEAN_ACCURACY:
            why = (
                f"right ones must be predicted from the others at {LEAST_CLEAN_ACCURACY:.0%} or more, here it is "
                f"{max(self.clean_accuracy, 0):.0%}. Use more samples"
            )
        elif self.high - self.low > WIDEST:
            why = (
                f"the interval of the rate must be {WIDEST:.0%} wide at most, here it goes from {self.low:.0%} to "
                f"{self.high:.0%}. Use more samples, more canaries"
            )
        else:
            return ""
        return f"How many labels are wrong cannot be told: {why}, or an architecture that suits the data better."

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row."""
        import pandas

        return pandas.DataFrame([vars(self)])

    def __repr__(self) -> str:
        return (
            f"about {self.rate:.1%} of {self.samples} labels are wrong ({self.low:.1%} to {self.high:.1%}, 90 % "
            f"interval); right ones are predicted at {self.clean_accuracy:.0%}"
        )


@dataclass(frozen=True, repr=False)
class LabelIssues(Result):
    """Samples ranked by how much all others speak against their label.

    Attributes:
        order: Positions of the samples in the data, the most suspicious first, [n].
        given: Their labels, in the same order, [n].
        likelier: The class that the others say instead (the given one where they agree with it), [n].
        margin: Score of the given label less the largest other score, [n]: left out, in units of one-hot targets, where
            it was found before training; mean over a training, in units of logits, where from one.
        flagged: How many of the first have a margin like that of 90 % of labels made wrong on purpose.
        expected_precision: Share of these that are expected to be wrong; NaN where the noise is not known.
        noise: How many labels are wrong; None where the network is too weak to tell.
        note: Why noise is None, or empty.
    """

    indices: Int[Tensor, " n"]
    given_labels: Int[Tensor, " n"]
    suggested_labels: Int[Tensor, " n"]
    margin: Float[Tensor, " n"]
    n_flagged: int
    expected_precision: float
    noise: LabelNoiseEstimate | None
    note: str = ""

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row a sample, the most suspicious first."""
        import pandas

        return pandas.DataFrame(
            {
                "sample": self.indices.tolist(),
                "given": self.given_labels.tolist(),
                "likelier": self.suggested_labels.tolist(),
                "margin": self.margin.tolist(),
                "flagged": [rank < self.n_flagged for rank in range(len(self.indices))],
            }
        )

    def __repr__(self) -> str:
        lines = [self.note if self.noise is None else repr(self.noise)]
        if not math.isnan(self.expected_precision):
            lines.append(
                f"{self.n_flagged} are flagged; {self.expected_precision:.0%} of them are expected to be wrong"
            )
        table = self.to_pandas().head(8).to_string(index=False, float_format="{:.3f}".format)
        return "\n".join([*lines, "", table])


def rank_label_issues(
    positions: Int[Tensor, " n"],
    given: Int[Tensor, " n"],
    likelier: Int[Tensor, " n"],
    margins: Float[Tensor, " n"],
    cut: float,
    noise: LabelNoiseEstimate,
) -> LabelIssues:
    """Rank samples by their margin.

    Args:
        positions: Their positions in the data.
        given: Their labels.
        likelier: What is predicted instead.
        margins: Their margins.
        cut: Margin below which 90 % of the canaries lie: the last one that is flagged.
        noise: How many labels are wrong.

    Returns:
        The ranking; without the noise, and with the reason, where this cannot be believed.
    """
    order = margins.argsort(stable=True)
    weak, flagged = noise.unreliable_because, int((margins <= cut).sum())
    expected = math.nan if weak or not flagged else min(1.0, noise.rate * RECALL * len(order) / flagged)
    return LabelIssues(
        indices=positions[order],
        given_labels=given[order],
        suggested_labels=likelier[order],
        margin=margins[order],
        n_flagged=flagged,
        expected_precision=expected,
        noise=None if weak else noise,
        note=weak,
    )
