"""Reliability of an estimated label noise rate."""

from __future__ import annotations

import pytest

from gapscope.labels.results import LabelNoiseEstimate


@pytest.mark.parametrize(
    ("noise", "why"),
    [
        (LabelNoiseEstimate(0.2, 0.1, 0.3, 0.9, 500), ""),
        (LabelNoiseEstimate(0.2, 0.1, 0.3, 0.55, 500), "at 55%, at least 60%"),
        # what one training said of photographs a tenth of whose labels were wrong
        (LabelNoiseEstimate(0.43, 0.24, 0.63, 0.8, 760), "24% to 63%, at most 30% wide"),
        (LabelNoiseEstimate(0.2, 0.1, 0.3, float("nan"), 500), "at least 60%"),
    ],
)
def test_a_rate_that_cannot_be_believed_says_why(noise: LabelNoiseEstimate, why: str) -> None:
    assert (why in noise.unreliable_because) and bool(noise.unreliable_because) == bool(why)
