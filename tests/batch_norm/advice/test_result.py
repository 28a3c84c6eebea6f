"""Advice as text: the sentences follow from the numbers alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gapscope.batch_norm.advice.result import BatchNormAdvice, LayerRegularization
from gapscope.results.estimate import Estimate

ZERO = Estimate(0.0, 0.0)


def layer(name: str, excess: float, new: float = 0.0) -> LayerRegularization:
    estimate = Estimate(excess, 0.001)
    return LayerRegularization(
        layer=name, gamma_squared=4.0, decay=estimate, predicted=estimate, excess=estimate,
        new_excess=Estimate(new, 0.001),
    )  # fmt: skip


@pytest.fixture
def advice() -> BatchNormAdvice:
    """Half of a regularization of 0.1 is missing, and everything about it is known well."""
    return BatchNormAdvice(
        batch_size=32, new_batch_size=64, samples=10_000, loss=1.0, running_loss=1.0,
        layers=(layer("first", 0.08, 0.04), layer("last", 0.02, 0.01)), total=layer("all layers", 0.1, 0.05),
        missing=Estimate(0.05, 0.001), ghost_size=32, dropout=Estimate(0.1, 0.01), dropout_before=("head",),
        decay_strength=Estimate(1.1, 0.1),
    )  # fmt: skip


def test_what_is_there_what_is_lost_and_what_restores_it(advice: BatchNormAdvice) -> None:
    present, change, ghost, dropout, decay = advice.sentences
    assert present.endswith(
        "to the training loss of 1 (10.0%); the largest part is that of first (80% of the layers' sum)."
    )
    assert change == "Batches of 64 would add 0.05 ± 0.001: 50% of the regularization would be lost."
    assert "replace_batch_norm(network, 'ghost', ghost_size=32)" in ghost
    assert dropout == "A dropout rate of 0.1 ± 0.01 before head adds as much to the loss."
    assert "GammaDecayPenalty(1.1, batch_size=32, batch_norm_size=64)" in decay
    assert len(advice.caveats) == 1 and advice.caveats[0].startswith("these numbers hold for the present weights")


@pytest.mark.parametrize(
    ("changes", "caveat"),
    [
        ({"missing": Estimate(0.05, 0.02)}, "is rough: take more passes"),
        ({"running_loss": 2.0}, "the running statistics are stale"),
        ({"samples": 200}, "are a large part of the 200 samples"),
        ({"dropout": Estimate(0.7, 0.01)}, "a dropout rate of 0.70 is no small noise"),
        ({"decay_strength": Estimate(3.0, 0.1)}, "needs a strength of 3 to match"),
    ],
)
def test_each_reason_for_distrust_is_said_where_it_holds(
    advice: BatchNormAdvice, changes: dict[str, object], caveat: str
) -> None:
    assert any(caveat in text for text in replace(advice, **changes).caveats)  # type: ignore[arg-type]
    assert not any(caveat in text for text in advice.caveats)


def test_a_prediction_that_is_off_is_said(advice: BatchNormAdvice) -> None:
    off = replace(advice, total=replace(advice.total, predicted=Estimate(0.2, 0.001)))
    assert "gives 0.2 where 0.1 is measured" in off.caveats[0]


def test_as_a_table_and_as_plain_values(advice: BatchNormAdvice) -> None:
    table = advice.to_pandas()
    assert table["layer"].tolist() == ["first", "last", "all layers"]
    assert table["zeta"].tolist() == pytest.approx([0.02, 0.005, 0.025])
    content = advice.to_dict()
    assert content["missing"] == {"value": 0.05, "standard_error": 0.001} and content["advice"] == list(
        advice.sentences
    )
