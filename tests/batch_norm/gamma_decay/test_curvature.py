"""Curvature by gamma and beta against autograd, and the data on which it is measured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from batch_norm.some_networks import Residual, images, plain, warmed_up
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.batch_norm.gamma_decay.curvature import (
    EvaluationData,
    derivatives_along,
    hessian_diagonals,
    normalized_input,
    output_gradient,
    output_hessian_factor,
    prepare,
    tapped_forward,
)
from gapscope.batch_norm.norm_layers import batch_norm_layers
from gapscope.inspection.losses import Loss, sample_losses


def quartic(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs - targets) ** 4).mean(1) + outputs[:, 0] * outputs[:, 1] + outputs.square().sum(1)


def own_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize(
    ("loss", "labels"), [(sample_losses, True), (sample_losses, False), (own_cross_entropy, True), (quartic, False)]
)
def test_factor_of_the_hessian_by_outputs(loss: Loss, labels: bool) -> None:
    outputs = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.randint(0, 3, (6,)) if labels else torch.randn(6, 3, dtype=torch.float64)
    factor = output_hessian_factor(loss, outputs, targets)
    for i in range(6):
        dense = torch.autograd.functional.hessian(lambda o, i=i: loss(o[None], targets[i : i + 1])[0], outputs[i])
        torch.testing.assert_close(factor[i] @ factor[i].T, dense)
        gradient = torch.func.grad(lambda o, i=i: loss(o[None], targets[i : i + 1])[0])(outputs[i])
        torch.testing.assert_close(output_gradient(loss, outputs, targets)[i], gradient)


def test_losses_are_checked() -> None:
    outputs, targets = torch.randn(4, 2), torch.randn(4, 2)
    with pytest.raises(InvalidInput, match=r"one number per sample, shape \[4\]; got \[\]"):
        output_gradient(lambda o, t: (o - t).square().mean(), outputs, targets)
    with pytest.raises(InvalidInput, match="needs a loss convex in the outputs"):
        output_hessian_factor(lambda o, t: o.cos().sum(1), torch.zeros(4, 2), targets)


@pytest.mark.parametrize("make", [plain, Residual])
def test_derivatives_by_gamma_and_beta_sample_by_sample(make: type[nn.Module]) -> None:
    network = warmed_up(make().double())
    layers = batch_norm_layers(network)
    samples = images(5)
    outputs, taps = tapped_forward(network, layers, samples.inputs)
    direction = torch.randn(5, 3, dtype=torch.float64)
    found = {name: (by_gamma, by_beta) for name, by_gamma, by_beta in derivatives_along(outputs, taps, direction)}
    for i in range(5):
        value = (network(samples.inputs[i : i + 1]) * direction[i]).sum()
        for name, layer in layers.items():
            by_gamma, by_beta = torch.autograd.grad(value, [layer.weight, layer.bias], retain_graph=True)
            torch.testing.assert_close(found[name][0][i], by_gamma)
            torch.testing.assert_close(found[name][1][i], by_beta)


def test_hessian_diagonals_with_unit_vectors_are_exact() -> None:
    network = warmed_up(plain())
    samples = images(6)
    labels = samples.targets
    assert labels is not None
    layers = batch_norm_layers(network)
    probes = [
        {name: torch.zeros(layer.num_features) for name, layer in layers.items()}
        | {one: torch.eye(other.num_features)[i]}
        for one, other in layers.items()
        for i in range(other.num_features)
    ]
    found = {name: torch.zeros(3, layer.num_features, dtype=torch.float64) for name, layer in layers.items()}
    for diagonals in hessian_diagonals(network, layers, samples.inputs, labels, sample_losses, probes):
        for name, diagonal in diagonals.items():
            found[name] += diagonal
    for name, layer in layers.items():
        c = layer.num_features

        def total(values: Tensor, name: str = name, c: int = c) -> Tensor:
            changed = {f"{name}.weight": values[:c], f"{name}.bias": values[c:]}
            outputs = torch.func.functional_call(network, changed, (samples.inputs,))
            return nn.functional.cross_entropy(outputs, labels, reduction="sum")

        dense = torch.autograd.functional.hessian(total, torch.cat([layer.weight, layer.bias]).detach())
        assert isinstance(dense, Tensor)
        expected = [dense[:c, :c].diagonal(), dense[c:, c:].diagonal(), dense[:c, c:].diagonal()]
        torch.testing.assert_close(found[name], torch.stack(expected))


def test_random_signs_are_unbiased() -> None:
    network = warmed_up(plain())
    samples = images(6)
    assert samples.targets is not None
    layers = {"8": batch_norm_layers(network)["8"]}
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 6)  # all of them: the mean is exact
    probes = [{"8": row} for row in signs]
    arguments = (network, layers, samples.inputs, samples.targets, sample_losses)
    mean = torch.stack([d["8"] for d in hessian_diagonals(*arguments, probes)]).mean(0)
    exact = sum(d["8"] for d in hessian_diagonals(*arguments, [{"8": row} for row in torch.eye(6)]))
    torch.testing.assert_close(mean, exact)


def test_normalized_input() -> None:
    layer = nn.BatchNorm1d(2, eps=0.0).double()
    assert layer.running_mean is not None and layer.running_var is not None
    layer.running_mean.fill_(1.0)
    layer.running_var.fill_(4.0)
    assert normalized_input(layer, torch.tensor([[3.0, 5.0]], dtype=torch.float64)).tolist() == [[[1.0], [2.0]]]


def test_chunks_cover_all_samples_in_their_order() -> None:
    samples = Samples(torch.randn(10, 3), torch.arange(10))
    chunks = list(EvaluationData(nn.Linear(3, 10), {}, samples, sample_losses, 4).chunks())
    assert [part for part, _, _ in chunks] == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert torch.equal(torch.cat([x for _, x, _ in chunks]), samples.inputs)
    assert torch.cat([y for _, _, y in chunks]).tolist() == list(range(10))


def test_a_batch_is_any_choice_of_samples() -> None:
    samples = Samples(torch.randn(10, 3), torch.arange(10))
    x, y = EvaluationData(nn.Linear(3, 10), {}, samples, sample_losses, 4).batch(torch.tensor([7, 2]))
    assert torch.equal(x, samples.inputs[[7, 2]]) and y.tolist() == [7, 2]


class TwoInputs(nn.Module):
    """Adds two inputs, and returns its logits in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, *, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(left + right)}


def test_targets_are_needed_and_networks_of_several_inputs_are_adapted() -> None:
    network, x, y = TwoInputs(), torch.randn(3, 2), torch.tensor([0, 1, 0])
    with pytest.raises(InvalidInput, match="must hold targets"):
        prepare(network, {"left": x, "right": x})
    adapted, samples = prepare(network, {"left": x, "right": 2 * x, "labels": y})
    assert torch.equal(adapted(samples.inputs), network.layer(3 * x))
    assert len(samples) == 3
