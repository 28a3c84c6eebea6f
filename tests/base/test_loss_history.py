"""Histories of training losses: the forms of several libraries, their order, and what is no history."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from gapscope.base.errors import InvalidInput
from gapscope.base.loss_history import loss_history

pandas = pytest.importorskip("pandas")

LOSSES = [3.0, 2.0, 1.5]
OURS = [{"epoch": i + 1, "train_loss": loss} for i, loss in enumerate(LOSSES)]
TRANSFORMERS = [
    {"loss": 3.5, "grad_norm": 1.0, "epoch": 0.5, "step": 5},
    {"loss": 2.5, "epoch": 1.0, "step": 10},
    {"eval_loss": 9.0, "epoch": 1.0, "step": 10},
    {"loss": 2.0, "epoch": 1.9, "step": 19},
    {"epoch": 2, "training_loss": 7.0, "canary_gap": 0.1},
    {"loss": 1.5, "epoch": 3.0, "step": 30},
    {"train_loss": 8.0, "train_runtime": 1.0, "epoch": 3.0, "step": 30},
]
LIGHTNING = [
    {"epoch": 0, "train_loss_step": 4.0, "val_loss": math.nan},
    {"epoch": 0, "train_loss_epoch": 3.0},
    {"epoch": 1, "train_loss_epoch": 2.0},
    {"epoch": 2, "train_loss_epoch": 1.5},
]
FORMS: dict[str, Any] = {
    "ours": OURS,
    "reversed": OURS[::-1],
    "shuffled": [OURS[1], OURS[2], OURS[0]],
    "transformers": TRANSFORMERS,
    "reversed steps": TRANSFORMERS[::-1],
    "frame": pandas.DataFrame(TRANSFORMERS),
    "Lightning": pandas.DataFrame(LIGHTNING),
    "Keras": {"loss": LOSSES, "val_loss": [9.0, 9.0, 9.0]},
    "a list": LOSSES,
    "an array": pandas.Series(LOSSES).to_numpy(),
    "a result": SimpleNamespace(history=OURS),
    "a callback of Keras": SimpleNamespace(history={"loss": LOSSES}),
    "without epochs": [{"train_loss": loss} for loss in LOSSES],
}


@pytest.mark.parametrize("form", FORMS)
def test_losses_of_every_form_are_those_of_the_epochs(form: str) -> None:
    assert [row["train_loss"] for row in loss_history(FORMS[form])] == LOSSES
    again = loss_history(FORMS[form], needs_every_epoch=True)
    assert loss_history(again) == again


def test_runs_in_a_row_keep_their_order_and_values_that_are_not_finite_stay() -> None:
    assert [row["train_loss"] for row in loss_history(OURS + OURS)] == LOSSES + LOSSES
    losses = loss_history([{"train_loss": 1.0}, {"train_loss": math.nan}, {"train_loss": 0.5}])
    assert len(losses) == 3 and math.isnan(losses[1]["train_loss"])
    assert loss_history(None) == loss_history([]) == ()


@pytest.mark.parametrize(
    ("history", "match"),
    [
        (
            [{"epoch": 1, "eval_loss": 1.0}],
            "must hold train_loss .* got rows with epoch, eval_loss",
        ),
        ([{"train_runtime": 1.0, "train_loss": 1.0}], "got rows with train_runtime, train_loss"),
        ([1.0, "low"], "one mapping per epoch with a number train_loss; got 1.0"),
        ([{"loss": "low"}], "a number loss; got 'low'"),
        ("log.csv", "got str"),
        (7, "got int"),
        ({"loss": 1.0}, "got one mapping with loss"),
        ({"loss": [1.0], "epoch": [1, 2]}, "one length; got 1 to 2"),
    ],
)
def test_what_holds_no_losses_raises(history: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        loss_history(history)


@pytest.mark.parametrize("row", [{"val_loss": 1.0}, {"epoch": 4, "val_loss": 1.0}])
def test_an_epoch_without_a_loss_is_omitted_or_raises(row: dict[str, float]) -> None:
    assert len(loss_history([*OURS, row])) == 3
    with pytest.raises(InvalidInput, match="epoch; 1 have none"):
        loss_history([*OURS, row], needs_every_epoch=True)
