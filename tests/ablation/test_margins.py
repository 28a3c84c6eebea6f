from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from ablation.some_networks import built, initialized, noise
from gapscope.ablation.class_curves import boundary_distances, default_layers, quartile_features
from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples
from gradients.reference import Wrapped


def two_layers() -> nn.Sequential:
    return initialized(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))).double()


def test_distances_and_variations_are_those_of_the_definition() -> None:
    network, x, y = two_layers(), noise(9, 4, dtype=torch.float64), torch.arange(9) % 3
    result, variances = boundary_distances(
        network, Samples(x, y), ["input", "0"], epsilon=1e-6, chunk_size=4
    )
    for i, (start, rest) in enumerate(((x, network), (network[0](x), network[1:]))):
        for sample in range(9):
            outputs = rest(start[sample])
            other = max((k for k in range(3) if k != y[sample]), key=lambda k: outputs[k])
            jacobian: Tensor = torch.autograd.functional.jacobian(rest, start[sample])  # type: ignore[assignment]
            gradient = jacobian[y[sample]] - jacobian[other]
            distance = (outputs[y[sample]] - outputs[other]) / (
                1e-6 + gradient.square().sum()
            ).sqrt()
            assert result[i, sample].item() == pytest.approx(distance.item(), rel=1e-12)
        assert torch.allclose(variances[i], start.var(0, correction=0), rtol=1e-12, atol=0)


def test_an_activation_in_place_does_not_change_what_a_layer_returned() -> None:
    samples = Samples(noise(7, 4), torch.arange(7) % 3)
    plain = initialized(lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)))
    in_place = initialized(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True), nn.Linear(6, 3))
    )
    of_plain, of_in_place = (
        boundary_distances(network, samples, ["input", "0"], epsilon=0.0, chunk_size=7)
        for network in (plain, in_place)
    )
    assert torch.equal(of_plain[0], of_in_place[0]) and torch.equal(
        of_plain[1][1], of_in_place[1][1]
    )


def test_default_layers_are_evenly_spaced() -> None:
    vgg = built("vgg16", width_multiplier=0.03, head="paper", head_width=8)
    result = ["input", "block3_conv1_norm", "block4_conv3_norm", "fc2"]  # 5th, 10th and 15th of 15
    assert default_layers(vgg, noise(1, 3, 32, 32)) == result
    assert default_layers(built("lenet5"), noise(1, 3, 32, 32)) == ["input", "conv2", "fc1", "fc2"]
    assert default_layers(two_layers(), noise(1, 4, dtype=torch.float64)) == ["input", "0"]
    assert default_layers(nn.Linear(4, 2), noise(1, 4)) == ["input"]


def test_a_layer_that_is_called_twice_is_passed_over() -> None:
    shared = nn.Linear(4, 4)
    network = nn.Sequential(
        shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)
    )
    assert default_layers(network, noise(1, 4)) == ["input", "4"]


def test_layers_that_do_not_reach_the_outputs() -> None:
    detached = Wrapped(
        lambda net, x: net.head(x + net.side(x).detach()),
        side=nn.Linear(4, 4),
        head=nn.Linear(4, 3),
    )
    samples = Samples(noise(5, 4), torch.arange(5) % 3)
    with pytest.raises(NotMeasurable, match="layer 'side'"):
        boundary_distances(detached, samples, ["input", "side"], epsilon=0.0, chunk_size=5)
    tokens = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 3))
    words = Samples(torch.tensor([[0, 1], [2, 4]]), torch.tensor([0, 1]))
    for layers in (["input", "0"], ["input"]):
        with pytest.raises(NotMeasurable, match="inputs without 'input'"):
            boundary_distances(tokens, words, layers, epsilon=0.0, chunk_size=5)
    assert boundary_distances(tokens, words, ["0"], epsilon=0.0, chunk_size=5)[0].shape == (1, 2)


def test_fences_are_the_extremes_within_reach_of_the_quartiles() -> None:
    margins = torch.tensor(
        [[-90.0, 1, 2, 3, 4, 5, 6, 7, 100], [0.0, 1, 2, 3, 4, 5, 6, 7, 8]]
    ).double()
    assert quartile_features(margins).tolist() == [[1, 2, 4, 6, 7], [0, 2, 4, 6, 8]]
