"""Variance of outputs over noise, and bias and variance over runs, against their definitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.data import load_dataset
from gapscope.measures.bias_variance import approximate_cross_entropy, bias_variance
from gapscope.measures.output_variance import error_detection, output_variance
from gapscope.training.loop import train


@pytest.fixture(scope="module")
def digits() -> tuple[nn.Module, Tensor, Tensor]:
    """A network trained on 200 digits, with the other inputs and labels."""
    features, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(features))
    x = torch.tensor(features[order] / 16)
    y = torch.tensor(labels[order])
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 10)).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for _ in range(200):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(x[:200]), y[:200]).backward()
        optimizer.step()
    return network, x[200:], y[200:]


def test_linear_network_has_the_same_closed_form_at_every_input():
    layer = nn.Linear(6, 4).double()
    expected = 0.2**2 * layer.weight.square().sum().item() / 4
    x = torch.randn(300, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    variance = output_variance(layer, x, noise_std=0.2, draws=3, space="logits")
    assert variance.shape == (300,)
    assert variance.mean() == pytest.approx(expected, rel=0.1)  # unbiased already with few draws
    assert output_variance(layer, x[:2], noise_std=0.2, draws=1000, space="logits").numpy() == pytest.approx(
        expected, rel=0.1
    )


def test_is_the_unbiased_variance_of_the_outputs_over_draws(digits):
    network, x, _ = digits
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        outputs = torch.stack(
            [network(x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)).softmax(1) for _ in range(4)]
        )
    expected = outputs.numpy().var(0, ddof=1).mean(1)
    measured = output_variance(network, x, draws=4, generator=torch.Generator().manual_seed(5), chunk_size=100)
    assert measured.numpy() == pytest.approx(expected, rel=1e-9, abs=1e-18)


@pytest.mark.parametrize("space", ["logits", "probabilities"])
def test_areas_are_those_of_scikit_learn(digits, space):
    network, x, y = digits
    result = error_detection(network, x, y, space=space, chunk_size=100)
    outputs = network(x).detach()
    wrong = outputs.argmax(1) != y
    assert (result.wrong, result.n) == (int(wrong.sum()), len(y))
    variance = output_variance(network, x, space=space)
    assert result.variance == pytest.approx(roc_auc_score(wrong, variance), rel=1e-12)
    assert result.max_probability == pytest.approx(roc_auc_score(wrong, -outputs.softmax(1).amax(1)), rel=1e-12)
    assert result.difference == pytest.approx(result.variance - result.max_probability, abs=1e-12)


def trained_on_images(name: str, root: Path, network: nn.Module) -> tuple[nn.Module, Samples]:
    """The network after 40 epochs on the first 1,000 images, and the test set."""
    problem = load_dataset(name, root=root)
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            module.reset_parameters()
    training = TrainingSpec(optimizer="adam", learning_rate=1e-3, epochs=40, batch_size=64)
    train(network, problem.train.subset(torch.arange(1000)), training)
    return network, problem.test


def fully_connected() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
@pytest.mark.parametrize("network", [fully_connected, convolutional])
def test_documented_areas(real_data_root, name, network):
    network, test = trained_on_images(name, real_data_root, network())
    behind = error_detection(network, test.inputs, test.y)
    raw = error_detection(network, test.inputs, test.y, space="logits")
    assert -0.06 < behind.difference < 0
    assert 0.45 < raw.variance < 0.65


def test_ties_count_half_and_standard_errors_are_those_of_the_bootstrap():
    rng = np.random.default_rng(0)
    margins = np.round(rng.exponential(size=400) * 2) / 2  # many ties
    labels = (rng.random(400) < 1 / (1 + np.exp(margins - 0.5))).astype(int)
    x = torch.tensor(np.stack([margins, np.zeros(400)], 1))
    y = torch.tensor(labels)
    result = error_detection(nn.Identity(), x, y)
    assert result.max_probability == pytest.approx(roc_auc_score(labels, -margins), rel=1e-12)
    variance = output_variance(nn.Identity(), x).numpy()
    areas = []
    for _ in range(200):
        pick = rng.integers(0, 400, 400)
        areas.append([roc_auc_score(labels[pick], -margins[pick]), roc_auc_score(labels[pick], variance[pick])])
    by_margin, by_variance = np.array(areas).T
    assert result.max_probability.standard_error == pytest.approx(by_margin.std(), rel=0.15)
    assert result.variance.standard_error == pytest.approx(by_variance.std(), rel=0.15)
    assert result.difference.standard_error == pytest.approx((by_variance - by_margin).std(), rel=0.15)


def test_probabilities_that_round_to_one_are_still_ranked():
    x = torch.tensor([[60.0, 0.0], [50.0, 0.0], [48.0, 0.0], [45.0, 0.0]])
    assert error_detection(nn.Identity(), x, torch.tensor([0, 0, 1, 1])).max_probability == 1


@given(
    runs=st.integers(1, 6),
    n=st.integers(1, 8),
    k=st.integers(1, 5),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    seed=st.integers(0, 1000),
)
def test_mse_is_bias_plus_variance(runs, n, k, scale, seed):
    rng = np.random.default_rng(seed)
    predictions, targets = scale * rng.normal(size=(runs, n, k)), scale * rng.normal(size=(n, k))
    parts = bias_variance(predictions, targets)
    assert parts.mse == pytest.approx(parts.bias + parts.variance, rel=1e-12)
    assert parts.mse == pytest.approx(np.square(predictions - targets).sum(2).mean(), rel=1e-12)
    assert parts.variance == pytest.approx(predictions.var(0).sum(1).mean(), rel=1e-12)
    assert parts.runs == runs


def test_labels_are_one_hot_targets_of_any_type():
    rng = np.random.default_rng(0)
    predictions = torch.tensor(rng.dirichlet(np.ones(4), size=(3, 6)))
    labels = torch.tensor([0, 3, 1, 1, 2, 0])
    one_hot = torch.eye(4)[labels]
    assert bias_variance(predictions, labels) == bias_variance(predictions, one_hot)
    assert bias_variance(predictions.numpy(), labels.numpy()) == bias_variance(predictions, labels)
    assert bias_variance(predictions.float().requires_grad_(), labels).mse == pytest.approx(
        bias_variance(predictions, labels).mse, rel=1e-6
    )


@pytest.mark.parametrize(("p", "tolerance"), [(0.999, 1e-6), (0.9, 6e-3)])
def test_with_two_classes_the_formula_is_the_cross_entropy_to_first_order(p, tolerance):
    approximation = approximate_cross_entropy(np.array([[[p, 1 - p]]]), np.array([0]))
    assert approximation == pytest.approx(1 - p, rel=1e-9)
    assert 0 < -np.log(p) - approximation < tolerance
