from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ablation.some_networks import Untraceable, initialized, naive_predictions, noise
from gapscope.base.samples import Samples
from gapscope.base.specs import TrainingSpec
from gapscope.measures.measurement import measure
from gapscope.measures.unit_sparsity import unit_sparsity
from gapscope.networks import build_network
from gapscope.training.loop import train


def planted(
    units_of: list[list[int]], units: int, *, share: float = 0.5
) -> tuple[nn.Module, Tensor, Tensor]:
    """A network and one sample a class: class j needs more than `share` of its own units, which are equally active.

    The last output wins where no class has enough, so that every class can fall to accuracy 0.
    """
    classes = len(units_of)
    inner, head = nn.Linear(classes, units, bias=False), nn.Linear(units, classes + 1)
    with torch.no_grad():
        for parameter in (inner.weight, head.weight, head.bias):
            parameter.zero_()
        for j, own in enumerate(units_of):
            inner.weight[own, j] = 1.0
            head.weight[j, own] = 1.0 / len(own)
        head.bias[-1] = share
    return nn.Sequential(inner, nn.ReLU(), head), torch.eye(classes), torch.arange(classes)


def test_one_unit_for_each_class() -> None:
    units = 5
    network, x, y = planted([[j] for j in range(units)], units)
    result = unit_sparsity(network, x, y)
    assert result.layer == "1" and result.n_units == units and result.classes == tuple(range(units))
    assert torch.equal(result.curves, torch.tensor([[1.0, 0, 0, 0, 0, 0]] * units).double())
    assert torch.equal(
        result.reversed_curves, torch.tensor([[1.0, 1, 1, 1, 1, 0]] * units).double()
    )
    assert (
        result.turning_points.tolist() == [1] * units
        and result.reversed_turning_points.tolist() == [units - 1] * units
    )
    assert result.zeta == pytest.approx(1 / units) and result.kappa == pytest.approx(
        (units - 1) / units
    )


def test_planted_units_give_their_turning_points() -> None:
    # class 0 falls when 2 of its 3 units are gone, class 1 when 3 of its 5 are, class 2 with its only one
    network, x, y = planted([[0, 1, 2], [3, 4, 5, 6, 7], [8]], 12)
    result = unit_sparsity(network, x, y)
    assert result.turning_points.tolist() == [2, 3, 1]
    # the other way round the silent units go first, then 1 of 3, 2 of 5 and none are still too few to fall
    assert result.reversed_turning_points.tolist() == [10, 9, 11]
    assert result.zeta == pytest.approx(
        sum((first + 12 - last) / 24 for first, last in ((2, 10), (3, 9), (1, 11))) / 3
    )
    assert result.kappa == pytest.approx((9 + 7 + 11) / 12 / 3)


def test_a_constant_head_looks_sparse_with_caveats() -> None:
    network = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    nn.init.zeros_(network.get_parameter("2.weight"))
    network.get_parameter("2.bias").data.copy_(torch.tensor([0.0, 1.0, 0.0, 0.0]))
    result = unit_sparsity(network, noise(8, 3), torch.arange(8) % 4)
    assert result.class_zeta.tolist() == pytest.approx([1 / 12] * 4) and result.kappa == 0
    assert (
        result.reached_chance.tolist() == [True, False, True, True]
        and result.n_never_at_chance == 1
    )
    assert result.accuracy == 0.25
    accuracy, chance = result.caveats
    assert (
        "accuracy at least 0.97); here it is 0.250" in accuracy and "For 1 of 4 classes" in chance
    )
    assert repr(result).endswith(chance)


def digits() -> tuple[Tensor, Tensor]:
    content: Any = load_digits()
    return torch.tensor(content.images, dtype=torch.float32)[:, None] / 16, torch.tensor(
        content.target
    )


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor, Tensor]:
    """A convolutional network that fits 300 digits, and the first 120 of them: each is run once a unit ablated."""
    x, y = (tensor[:300] for tensor in digits())
    network = build_network(
        "small_cnn",
        input_shape=(1, 8, 8),
        n_outputs=10,
        width_multiplier=0.25,
        initialization="he_normal",
        generator=torch.Generator().manual_seed(0),
    )
    train(
        network,
        Samples(x, y),
        TrainingSpec(optimizer="adam", learning_rate=0.005, epochs=20, batch_size=50),
    )
    return network.eval(), x[:120], y[:120]


def mean_activation(values: Tensor) -> Tensor:
    """The paper's attribute, from activations [n, M, ...]."""
    return values.double().abs().transpose(0, 1).flatten(1).mean(1)


def naive_curves(network: nn.Module, layer: str, x: Tensor, y: Tensor) -> Tensor:
    """E and E_r of every class by the definition: [2, c, M + 1]."""
    curves, kept = [], []
    for label in y.unique():
        handle = network.get_submodule(layer).register_forward_hook(
            lambda module, args, output: kept.append(output)
        )
        network(x[y == label])
        handle.remove()
        ranking = mean_activation(kept.pop()).argsort(descending=True, stable=True)
        curves.append(
            (naive_predictions(network, layer, x[y == label], ranking) == label).double().mean(1)
        )
    return torch.stack(curves, 1)


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.thorough)], ids=str
)
def test_curves_of_a_trained_network_are_those_of_the_naive_loop(
    trained: tuple[nn.Module, Tensor, Tensor], dtype: torch.dtype
) -> None:
    network, x, y = trained
    network, x = copy.deepcopy(network).to(dtype), x.to(dtype)
    for layer in ("conv3_relu", "conv2_relu", "fc1_relu"):
        result = unit_sparsity(network, x, y, layers=layer)
        expected = naive_curves(network, layer, x, y)
        assert torch.equal(torch.stack([result.curves, result.reversed_curves]), expected), layer
    assert result.accuracy > 0.97 and not [c for c in result.caveats if "0.97" in c]


def test_a_network_that_cannot_be_traced() -> None:
    network, x = initialized(Untraceable), noise(12, 6)
    y = network(x).argmax(1)
    result = unit_sparsity(network, x, y, layers="body")
    assert torch.equal(
        torch.stack([result.curves, result.reversed_curves]), naive_curves(network, "body", x, y)
    )


def test_tables_and_readings(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    network, x, y = trained
    result = unit_sparsity(network, x, y)
    table: Any = result.to_pandas()
    assert table.index.tolist() == list(range(10)) and table["n_samples"].sum() == len(y)
    assert table["zeta"].mean() == pytest.approx(result.zeta) and table[
        "kappa"
    ].mean() == pytest.approx(result.kappa)
    assert result.scalars() == {"zeta": result.zeta, "kappa": result.kappa}
    readings = measure(network, (x, y), measures=("unit_sparsity",))
    assert readings["unit_sparsity.zeta"].value == result.zeta
    assert readings["unit_sparsity.kappa"].direction == "higher"
    assert repr(result).startswith(
        f"UnitSparsity(zeta={result.zeta:.4f}, kappa={result.kappa:.4f}, layer='conv3_relu'"
    )


def test_classes_without_samples_are_omitted(trained: tuple[nn.Module, Tensor, Tensor]) -> None:
    network, x, y = trained
    some = (y == 3) | (y == 8)
    result = unit_sparsity(network, x[some], y[some])
    whole = unit_sparsity(network, x, y)
    assert result.classes == (3, 8) and torch.equal(result.curves, whole.curves[[3, 8]])
    assert result.zeta == pytest.approx(whole.class_zeta[[3, 8]].mean().item())
