"""Positions without a label, such as padding, change no kernel, penalty or sensitivity of outputs at positions.

The right answers are those of the dense Jacobian of the other positions, in float64.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import SlowGradients
from gradients.reference import gradient_of

N, T, C = 4, 3, 2
LENGTHS = torch.tensor([3, 1, 2, 3])


class Tagger(nn.Module):
    """A token tagger, whose outputs at a token depend on the token before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(13, 4)
        self.mix = nn.Conv1d(4, 4, 2)
        self.head = nn.Linear(4, C)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        h = self.table(input_ids).transpose(1, 2)
        return self.head(torch.tanh(self.mix(F.pad(h, (1, 0)))).transpose(1, 2))


def batch(padding: int, **omitted: Any) -> dict[str, Tensor]:
    """Sentences of these lengths, with labels that are -100 in the padding."""
    mask = (torch.arange(T + padding) < LENGTHS[:, None]).long()
    ids = torch.arange(N * T).reshape(N, T) + 1
    ids = F.pad(ids, (0, padding)) * mask
    labels = torch.where(mask > 0, ids % C, -100)
    given = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {name: tensor for name, tensor in given.items() if name not in omitted}


def rows(network: nn.Module, given: dict[str, Tensor]) -> Tensor:
    """The dense Jacobian [outputs that count, P], differentiable."""
    outputs = network(given["input_ids"], given["attention_mask"])[given["attention_mask"] > 0]
    return torch.stack(
        [gradient_of(each, network, create_graph=True) for each in outputs.flatten()]
    )


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("source", ["labels", "mask"])
@pytest.mark.parametrize("noise", [1.0, None])
def test_padding_changes_no_penalty_on_gradients(
    padding: int, source: str, noise: float | None
) -> None:
    network = Tagger().double()
    given = batch(padding) if source == "labels" else batch(padding, labels=None)
    jacobian = rows(network, given)
    kernel = jacobian @ jacobian.T
    identity = torch.eye(len(kernel), dtype=kernel.dtype)
    expected = {
        "trace": kernel.trace(),
        "logdet": torch.logdet(kernel if noise is None else identity + kernel),
    }
    for kind, total in expected.items():
        penalty = gs.GradientSimilarityPenalty(1.0, kind=kind, method="exact", noise=noise)  # type: ignore[arg-type]
        with warnings.catch_warnings():
            warnings.simplefilter("error", SlowGradients)
            value = penalty(network, given)
        right = total / len(jacobian)
        torch.testing.assert_close(value, right, rtol=1e-9, atol=0)
        torch.testing.assert_close(gradient_of(value, network), gradient_of(right, network))
    probes = gs.GradientSimilarityPenalty(1.0, reduction="sum")
    draws = torch.stack([probes(network, given).detach() for _ in range(36)])
    error = float(draws.std()) / 6
    assert abs(float(draws.mean()) - float(kernel.detach().trace())) < 4 * error


def test_labels_count_before_the_mask_and_a_tensor_counts_whole() -> None:
    network = Tagger().double()
    given = batch(0)
    given["labels"] = given["input_ids"] % C  # also in the padding, as the loss counts it
    penalty = gs.GradientSimilarityPenalty(1.0, method="exact")
    everywhere = dict(given, attention_mask=torch.ones_like(given["attention_mask"]))
    torch.testing.assert_close(penalty(network, given), penalty(network, everywhere))
    flat = dict(batch(0, labels=None))
    labels = batch(0)["labels"].flatten()
    torch.testing.assert_close(penalty(network, flat, labels), penalty(network, batch(0)))


@pytest.mark.parametrize("labelled", [True, False])
def test_padding_changes_no_measure_of_outputs(labelled: bool) -> None:
    network = Tagger().double()
    names = ["ntk_trace", "ntk_logdet"]
    values = []
    for padding in (0, 4):
        given = batch(padding) if labelled else batch(padding, labels=None)
        values.append(dict(gs.measure(network, given, names, progress=False).values()))
    torch.testing.assert_close(values[0], values[1])
    kernel = rows(network, batch(0)).detach()
    kernel = kernel @ kernel.T
    assert values[0]["ntk_trace"] == pytest.approx(float(kernel.trace()))
    assert values[0]["ntk_logdet"] == pytest.approx(float(torch.logdet(kernel)))
    assert values[0]["ntk_logdet.rank"] == len(kernel)


class Outputs(nn.Module):
    """Outputs of this shape, whose Jacobian is the identity times the squared norm of the inputs."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape
        self.head = nn.Linear(6, math.prod(shape), bias=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.head(x + 0 * mask.sum()).reshape(-1, *self.shape)


@pytest.mark.filterwarnings("ignore:The value of")  # the network is linear
@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (4, 3), (2, 10), (5, 5)])
def test_a_mask_omits_outputs_at_its_tokens_alone(shape: tuple[int, int]) -> None:
    network = Outputs(*shape).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    mask = torch.arange(5) < torch.tensor([5, 1, 2, 3])[:, None]
    given = {"x": x, "mask": mask.long()}
    counted = torch.full((4,), math.prod(shape))
    if 5 in shape:
        counted = mask.sum(1) * counted // 5
    trace = (x.square().sum(1) * counted).sum()
    found = gs.measure(network, given, ["ntk_trace"], progress=False)
    assert found[0].value == pytest.approx(float(trace))
    penalty = gs.GradientSimilarityPenalty(1.0, kind="trace", method="exact", reduction="sum")
    torch.testing.assert_close(penalty(network, given).detach(), trace)
    assert any("many classes as" in note for note in found.notes) == (shape == (5, 5))


class Pixels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, C, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_pixels_without_a_label_change_no_response_to_the_inputs() -> None:
    network = Pixels().double()
    x = torch.randn(5, 1, 3, 3, dtype=torch.float64)
    y = torch.randint(0, C, (5, 3, 3))
    y[torch.rand(5, 3, 3) < 0.4] = -100
    y[0] = 1
    counted = (y != -100)[:, None].expand(5, C, 3, 3).flatten(1)
    by_inputs: Any = torch.func.vmap(torch.func.jacrev(lambda one: network(one[None])[0]))(x)
    by_inputs = by_inputs.detach()
    squares = by_inputs.flatten(4).flatten(1, 3).square().sum(2) * counted
    names = ["input_jacobian_norm", "output_sensitivity", "jacobian_covariance"]
    options = {"output_sensitivity": {"method": "zero_noise"}}
    values = gs.measure(network, (x, y), names, options=options, progress=False).values()
    assert values["input_jacobian_norm"] == pytest.approx(float(squares.sum(1).sqrt().mean()))
    weights = counted / counted.sum(1, keepdim=True)
    means = (by_inputs.flatten(4).flatten(1, 3) * weights[:, :, None]).sum(1)
    assert values["output_sensitivity"] == pytest.approx(0.01 * float(means.square().sum(1).mean()))
    penalty = gs.penalties.InputJacobianPenalty(1.0, method="exact")
    torch.testing.assert_close(penalty(network, x, y), squares.sum() / counted.sum())
