"""Equal functions have equal numbers, whatever the order in which their layers take tokens or frames."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import NotMeasurable

N, T = 12, 12


class Frames(nn.Module):
    """A network of every token or frame, and the mean of its outputs."""

    def __init__(self, order: str, *layers: nn.Module) -> None:
        super().__init__()
        self.order = order
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        n, t = x.shape[:2]
        if self.order == "tokens first":
            return self.layers(x.transpose(0, 1)).mean(0)
        if self.order == "samples, tokens":
            return self.layers(x.flatten(0, 1)).view(n, t, -1).mean(1)
        if self.order == "tokens, samples":
            return self.layers(x.transpose(0, 1).flatten(0, 1)).view(t, n, -1).mean(0)
        return self.layers(x).mean(1)


def tokens(order: str) -> Frames:
    torch.manual_seed(0)
    return Frames(order, nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def data(*shape: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(N, T, *shape, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(N) % 3


ORDERS = ["tokens first", "samples, tokens", "tokens, samples"]


@pytest.mark.parametrize(
    "measure",
    ["margin_signature", "davies_bouldin_mixup", "neural_collapse", "graph_label_variation"],
)
def test_measures_of_hidden_layers(measure: str) -> None:
    expected = gs.measure(tokens("samples first"), data(3), measure, time_budget=None).values()
    assert len(expected) > 1
    for order in ORDERS:
        got = gs.measure(tokens(order), data(3), measure, time_budget=None).values()
        assert got == pytest.approx(expected, rel=1e-4, nan_ok=True), order


@pytest.mark.parametrize("pooling", ["mean", "last", "none"])
def test_features(pooling: str) -> None:
    expected = gs.embed(tokens("samples first"), data(3)[0], pooling=pooling)
    for order in ORDERS:
        got = gs.embed(tokens(order), data(3)[0], pooling=pooling)
        torch.testing.assert_close(got, expected)


def test_feature_maps_of_frames_are_pooled_frame_by_frame() -> None:
    def images(order: str) -> Frames:
        torch.manual_seed(0)
        layers = (
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4, 3),
        )
        return Frames(order, *layers)

    name = "davies_bouldin_mixup"
    first, second = (
        gs.measure(images(order), data(1, 6, 6), name, time_budget=None).values()
        for order in ("samples, tokens", "tokens, samples")
    )
    assert first == pytest.approx(second, rel=1e-5)
    maps = gs.embed(images("tokens, samples"), data(1, 6, 6)[0], layer="layers.0")
    expected = images("")
    with torch.no_grad():
        frames = expected.layers[0](data(1, 6, 6)[0].flatten(0, 1))
    torch.testing.assert_close(maps, frames.view(N, T, 4, 16).mean((1, 3)))


def test_ablation_refuses_layers_of_other_orders() -> None:
    for order in ORDERS:
        with pytest.raises(NotMeasurable, match=r"'layers\.3'"):
            gs.measure(tokens(order), data(3), "unit_sparsity", time_budget=None)
