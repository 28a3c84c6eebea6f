"""Noise-robust losses: values by hand, limits, gradients, resumption, messages."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import gapscope as gs
from gapscope.base.errors import InvalidInput


def batch(
    n: int = 6, classes: int = 4, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outputs = torch.randn(n, classes, generator=generator, dtype=torch.float64)
    return (
        outputs.requires_grad_(),
        torch.randint(classes, (n,), generator=generator),
        torch.arange(n),
    )


def test_generalized_cross_entropy_is_the_formula() -> None:
    outputs, labels, indices = batch()
    p = outputs.softmax(1)[indices, labels]
    assert torch.allclose(
        gs.penalties.GeneralizedCrossEntropy(0.7)(outputs, labels),
        ((1 - p**0.7) / 0.7).mean(),
        rtol=1e-12,
    )


def test_its_limits_are_cross_entropy_and_absolute_error() -> None:
    outputs, labels, _ = batch()
    assert torch.allclose(
        gs.penalties.GeneralizedCrossEntropy(1e-9)(outputs, labels),
        F.cross_entropy(outputs, labels),
    )
    one_hot = F.one_hot(labels, 4).double()
    absolute = (outputs.softmax(1) - one_hot).abs().sum(1).mean() / 2
    assert torch.allclose(
        gs.penalties.GeneralizedCrossEntropy(1.0)(outputs, labels), absolute, rtol=1e-12
    )


def test_early_learning_is_the_formula_step_by_step() -> None:
    loss, (outputs, labels, indices) = (
        gs.penalties.EarlyLearningRegularization(strength=2.0, momentum=0.6),
        batch(),
    )
    average = torch.zeros(6, 4, dtype=torch.float64)
    for step in range(3):
        logits = outputs.detach() * (1 + step)
        p = logits.softmax(1).clamp(1e-4, 1 - 1e-4)
        average = 0.6 * average + 0.4 * p / p.sum(1, keepdim=True)
        by_hand = F.cross_entropy(logits, labels) + 2.0 * torch.log(1 - (average * p).sum(1)).mean()
        assert torch.allclose(loss(logits, labels, indices), by_hand, rtol=1e-12)
    assert torch.allclose(loss.state_dict()["averages"], average)


SPECS = [
    gs.LossSpec(name="generalized_cross_entropy", options={"q": 0.5}),
    gs.LossSpec(name="early_learning", options={"strength": 1.0}),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_training_uses_it_and_resumes_as_if_uninterrupted(
    spec: gs.LossSpec, tmp_path: Path
) -> None:
    samples = gs.load_dataset("digits").train.subset(torch.arange(60))
    settings = gs.TrainingSpec(epochs=4, loss=spec)

    def network() -> torch.nn.Module:
        return gs.build_network(
            "fully_connected", input_shape=(1, 8, 8), n_outputs=10, generator=torch.Generator().manual_seed(0),
            n_hidden=1, width=8,
        )  # fmt: skip

    whole, plain, broken = network(), network(), network()
    gs.train(whole, samples, settings)
    gs.train(plain, samples, gs.TrainingSpec(epochs=4))

    def stop(_: torch.nn.Module, row: dict[str, float]) -> None:
        if row["epoch"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        gs.train(broken, samples, settings, folder=tmp_path, on_epoch=stop)
    broken = network()
    gs.train(broken, samples, settings, folder=tmp_path)
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, broken.state_dict()[name])
        assert not torch.equal(weight, plain.state_dict()[name])


def test_outputs_with_positions_are_rejected() -> None:
    with pytest.raises(InvalidInput, match=r"got \[4, 3, 2\]"):
        gs.penalties.GeneralizedCrossEntropy()(
            torch.zeros(4, 3, 2), torch.zeros(4, dtype=torch.int64), torch.arange(4)
        )


def test_the_default_keeps_the_ids_of_older_runs() -> None:
    assert gs.RunSpec().id == gs.RunSpec(training=gs.TrainingSpec(loss=gs.LossSpec())).id
    assert "loss" not in gs.RunSpec().to_dict(omit_defaults=True).get("training", {})
    assert gs.RunSpec().id != gs.RunSpec(training=gs.TrainingSpec(loss=SPECS[0])).id
