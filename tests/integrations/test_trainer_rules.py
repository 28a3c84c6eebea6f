"""The Trainer's rules of accumulated gradients: each branch, and whole runs without and with accumulation."""

# ruff: noqa: E402
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.quiet_trainer import training_arguments

transformers: Any = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from gapscope.integrations import trainer_rules
from gapscope.integrations.memorization_monitor import add_memorization_monitor
from gapscope.integrations.trainer_rules import accumulation_divisor
from gapscope.integrations.transformers import add_penalty
from gapscope.penalties import L2Penalty

pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning"
)

IDS = torch.randint(1, 20, (16, 6), generator=torch.Generator().manual_seed(0))
ROWS = [{"input_ids": row, "labels": int(row[0] % 4)} for row in IDS]


class Net(nn.Module):
    """A classifier of sentences; token 0 occurs in none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 4)

    def forward(self, input_ids: Tensor, labels: Any = None) -> dict[str, Tensor]:
        logits = self.head(self.embedding(input_ids).mean(1))
        if labels is None:
            return {"logits": logits}
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Ignoring(Net):
    """Takes the number of items and ignores it."""

    def forward(self, input_ids: Tensor, labels: Any = None, **_: Any) -> dict[str, Tensor]:
        return super().forward(input_ids, labels)


class Counting(Net):
    """Divides the summed loss by the number of items."""

    def forward(
        self, input_ids: Tensor, labels: Any = None, num_items_in_batch: Any = None, **_: Any
    ) -> dict[str, Tensor]:
        result = super().forward(input_ids, labels)
        if num_items_in_batch is not None:
            result["loss"] = result["loss"] * len(input_ids) / num_items_in_batch
        return result


def summed(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


def averaged(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return F.cross_entropy(outputs["logits"], labels)


def trainer_of(folder: Path, model: Any, steps: int, loss: Any = None, **options: Any) -> Any:
    arguments = training_arguments(
        folder, per_device_train_batch_size=4, gradient_accumulation_steps=steps, num_train_epochs=2, optim="sgd",
        lr_scheduler_type="constant", max_grad_norm=0.0, **options,
    )  # fmt: skip
    return transformers.Trainer(model, arguments, train_dataset=ROWS, compute_loss_func=loss)


@pytest.mark.parametrize(
    ("facts", "options", "divisor"),
    [
        ({}, {}, 1.0),
        ({}, {"num_items_in_batch": 8}, 1.0),
        ({"model_accepts_loss_kwargs": True}, {"num_items_in_batch": 8}, 2.0),
        ({"model_accepts_loss_kwargs": True}, {"num_items_in_batch": None}, 1.0),
        ({"compute_loss_func": averaged}, {"num_items_in_batch": None}, 2.0),
        ({"compute_loss_func": averaged, "loss_is_scaled_for_ga": False}, {}, 1.0),
        ({"loss_is_scaled_for_ga": True}, {}, 2.0),
    ],
)
def test_each_branch_of_the_divisor(
    facts: dict[str, Any], options: dict[str, Any], divisor: float
) -> None:
    given = {"model_accepts_loss_kwargs": False, "compute_loss_func": None} | facts
    arguments = SimpleNamespace(gradient_accumulation_steps=4)
    trainer = SimpleNamespace(args=arguments, current_gradient_accumulation_steps=2, **given)
    assert accumulation_divisor(trainer, options) == divisor


def test_earlier_versions_look_at_the_model_and_the_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trainer_rules, "_IGNORES_MISSING_COUNT", True)
    trainer = SimpleNamespace(
        args=SimpleNamespace(gradient_accumulation_steps=4),
        model_accepts_loss_kwargs=True,
        compute_loss_func=None,
    )
    assert accumulation_divisor(trainer, {"num_items_in_batch": None}) == 4.0


CASES: list[tuple[Any, Any]] = [
    (Net, None), (Ignoring, None), (Counting, None), (Net, summed), (Net, averaged), (Ignoring, summed),
]  # fmt: skip


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("kind", "loss"), CASES)
def test_a_penalty_has_its_strength_for_any_number_of_accumulated_batches(
    tmp_path: Path, kind: Any, loss: Any, steps: int
) -> None:
    model = kind()
    trainer = trainer_of(tmp_path, model, steps, loss, learning_rate=0.01)
    add_penalty(trainer, L2Penalty(0.05))
    before = model.embedding.weight.detach()[0].clone()
    trainer.train()
    # token 0 is moved by the penalty alone, by 0.1 times its weight in each step
    expected = before * (1 - 0.01 * 0.1) ** trainer.state.global_step
    assert torch.allclose(model.embedding.weight[0], expected, rtol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize(("kind", "loss"), CASES)
def test_the_training_loss_is_the_mean_for_any_number_of_accumulated_batches(
    tmp_path: Path, kind: Any, loss: Any, steps: int
) -> None:
    model = kind()
    trainer = trainer_of(tmp_path, model, steps, loss, learning_rate=0.0)
    monitor = add_memorization_monitor(trainer, trace_samples=0)
    trainer.train()
    labels = torch.tensor([row["labels"] for row in ROWS])
    expected = Net()(IDS, labels)["loss"].item()
    assert [row["training_loss"] for row in monitor.rows] == pytest.approx([expected] * 2, rel=1e-5)
    assert not monitor.unmeasured


def test_a_loss_that_needs_a_number_without_gradient_is_called_again(tmp_path: Path) -> None:
    def strict(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return summed(outputs, labels, float(num_items_in_batch.numpy()))

    model = Net()
    trainer = trainer_of(tmp_path, model, 2, strict, learning_rate=0.0)
    monitor = add_memorization_monitor(trainer, trace_samples=0)
    trainer.train()
    expected = Net()(IDS, torch.tensor([row["labels"] for row in ROWS]))["loss"].item()
    assert monitor.rows[-1]["training_loss"] == pytest.approx(expected, rel=1e-5)
