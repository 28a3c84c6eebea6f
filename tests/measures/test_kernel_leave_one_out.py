"""LOO predictions and neighbours in gradient space against dense gradients in float64, and on real digits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.data import load_dataset
from gapscope.measures.gradient_neighbours import gradient_neighbours
from gapscope.measures.kernel_leave_one_out import (
    KernelLeaveOneOut,
    kernel_leave_one_out,
    kernel_leave_one_out_at_both_weights,
)
from gapscope.measures.measurement import measure
from gapscope.networks import build_network
from gradients.reference import dense_jacobian


def network_of(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def refitted(features: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Primal ridge regression with a free intercept on all but one sample, solved by centring; one a sample."""
    predictions = []
    for i in range(len(features)):
        keep = [j for j in range(len(features)) if j != i]
        centre, mean = features[keep].mean(0), targets[keep].mean(0)
        z, b = features[keep] - centre, targets[keep] - mean
        weights = torch.linalg.solve(
            z.T @ z + ridge * torch.eye(z.shape[1], dtype=z.dtype), z.T @ b
        )
        predictions.append((features[i] - centre) @ weights + mean)
    return torch.stack(predictions)


@pytest.mark.parametrize("task", ["classes", "regression"])
def test_equals_refits_without_each_sample(task: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(14, 4, dtype=torch.float64, generator=generator)
    # classes of unequal sizes
    y = torch.tensor([0] * 8 + [1] * 4 + [2] * 2) if task == "classes" else x[:, :2].square()
    network = network_of()
    result = kernel_leave_one_out(network, x, y)
    features = dense_jacobian(network, x).flatten(1)
    targets = torch.nn.functional.one_hot(y).double() if task == "classes" else y
    ridge = result.ridge * float(features.square().sum()) / len(x)
    expected = refitted(features, targets, ridge)
    torch.testing.assert_close(result.predictions, expected, rtol=1e-7, atol=1e-7)
    assert result.squared_error == pytest.approx(float((targets - expected).square().sum(1).mean()))
    constant = torch.stack([targets[[j for j in range(14) if j != i]].mean(0) for i in range(14)])
    errors, most = ((targets - each).square().mean(0) for each in (expected, constant))
    if task == "classes":
        explained = 1 - errors.sum() / most.sum()
    else:
        explained = (1 - errors / most).mean()
    assert result.explained == pytest.approx(float(explained))
    if task == "classes":
        assert result.accuracy == float((expected.argmax(1) == y).double().mean())
    else:
        assert result.accuracy != result.accuracy and "accuracy" not in result.scalars()


def exact_and_by_landmarks(
    n: int, landmarks: int, **options: Any
) -> tuple[KernelLeaveOneOut, KernelLeaveOneOut]:
    digits = load_dataset("digits")
    samples = digits.train.subset(torch.arange(n))
    network = build_network("fully_connected", input_shape=digits.input_shape, n_outputs=10, width=64,
                            generator=torch.Generator().manual_seed(0), **options)  # fmt: skip
    exact = kernel_leave_one_out(network, samples.inputs, samples.y)
    return exact, kernel_leave_one_out(
        network, samples.inputs, samples.y, max_exact=100, landmarks=landmarks
    )


def test_landmarks_are_close_to_the_exact_result() -> None:
    exact, near = exact_and_by_landmarks(400, 200)
    assert not torch.equal(near.predictions, exact.predictions)  # the landmarks were used
    assert near.accuracy == pytest.approx(exact.accuracy, abs=0.03)


def test_all_samples_as_landmarks_give_the_exact_result() -> None:
    # the mean dominates this float32 kernel: its other eigenvalues are small, and still not rounding
    exact, near = exact_and_by_landmarks(300, 300, n_hidden=3)
    assert near.effective_dimension == pytest.approx(exact.effective_dimension, rel=0.01)
    assert near.squared_error == pytest.approx(exact.squared_error, rel=0.01)


def test_both_weights_are_those_of_two_networks() -> None:
    network = network_of()
    initial = copy.deepcopy(network.state_dict())
    x = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    y = torch.arange(20) % 3
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)
    both = kernel_leave_one_out_at_both_weights(network, x, y, initial_state=initial).scalars()
    for weights, one in (("initial", network_of()), ("trained", network)):
        expected = kernel_leave_one_out(one, x, y).scalars()
        assert {name: both[f"{weights}.{name}"] for name in expected} == expected
    assert both["memorised"] == both["trained.accuracy"] - both["initial.accuracy"]


def test_combinations_of_outputs_are_ridge_on_their_dense_gradients() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(14, 4, dtype=torch.float64, generator=generator)
    y = torch.tensor([0] * 8 + [1] * 4 + [2] * 2)
    network = network_of()
    result = kernel_leave_one_out(network, x, y, combinations=2)
    square = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    combined = nn.Linear(3, 2, bias=False).double().requires_grad_(False)
    combined.weight.copy_((torch.linalg.qr(square).Q[:, :2] * (3 / 2) ** 0.5).T)
    features = dense_jacobian(nn.Sequential(network, combined), x).flatten(1)
    ridge = result.ridge * float(features.square().sum()) / len(x)
    expected = refitted(features, torch.nn.functional.one_hot(y).double(), ridge)
    torch.testing.assert_close(result.predictions, expected, rtol=1e-7, atol=1e-7)
    every = kernel_leave_one_out(network, x, y, combinations=3)
    torch.testing.assert_close(every.predictions, kernel_leave_one_out(network, x, y).predictions)


def test_neighbours_are_the_most_similar_gradients_of_a_dense_computation() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 4, generator=generator), torch.arange(20) % 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3)).eval()
    jacobian = dense_jacobian(network, x).flatten(1).double()
    similarity = torch.nn.functional.cosine_similarity(
        jacobian[:, None], jacobian[None], dim=2
    ).fill_diagonal_(-2)
    assert torch.equal(
        gradient_neighbours(network.train(), x, y, neighbours=5).neighbours,
        similarity.topk(5).indices,
    )
    assert network.training


def test_a_sample_without_a_gradient_is_not_a_nearest_neighbour() -> None:
    network = nn.Linear(2, 1, bias=False)
    x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 0.0], [1.0, 0.2]])
    neighbours = gradient_neighbours(
        network, x, torch.tensor([0, 0, 0, 0]), neighbours=2
    ).neighbours
    assert 2 not in neighbours[[0, 1, 3]]


def test_agreement_and_conflict_by_hand() -> None:
    # two directions; the last sample of each has the other's label
    x = torch.tensor([[1.0, 0.0], [1.0, 0.01], [1.0, 0.02], [0.0, 1.0], [0.01, 1.0], [0.02, 1.0]])
    y = torch.tensor([0, 0, 1, 1, 1, 0])
    network = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        # the network finds class 0 in the first direction, 1 in the second
        network.weight.copy_(5 * torch.eye(2))
    result = gradient_neighbours(network, x, y, neighbours=2, voters=2)
    assert result.conflict == pytest.approx(2 / 6)  # the two odd ones
    assert result.votes.sum(1).tolist() == [1.0] * 6
    assert result.votes[2].tolist() == [1.0, 0.0]
    assert result.scalars() == {"agreement": result.agreement, "conflict": result.conflict}


def test_several_labels_per_sample_are_columns() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(14, 4, dtype=torch.float64, generator=generator)
    y = torch.rand(14, 3, generator=generator) < 0.4
    network = network_of()
    expected = kernel_leave_one_out(network, x, y.double())
    for labels in (y, y.long()):
        result = kernel_leave_one_out(network, x, labels)
        assert torch.equal(result.predictions, expected.predictions)
        assert result.scalars() == expected.scalars() and "accuracy" not in result.scalars()
    state = copy.deepcopy(network.state_dict())
    measured = measure(network, (x, y), measures=["kernel_leave_one_out"], initial_state=state)
    assert measured.values()["kernel_leave_one_out.trained.squared_error"] == pytest.approx(
        expected.squared_error
    )
    with pytest.raises(InvalidInput, match="zeros and ones"):
        kernel_leave_one_out(network, x, 2 * y.long())


def test_missing_labels_are_to_be_dropped() -> None:
    y = torch.tensor([0, -100, 1, 2])
    with pytest.raises(InvalidInput, match="Drop these samples"):
        gs.functional.kernel_leave_one_out(network_of(), torch.eye(4).double(), y)
