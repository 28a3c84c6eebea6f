from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gapscope as gs
from gapscope.gradients import layer_rules
from gapscope.gradients.contributions import Contribution, DenseJacobian
from gapscope.gradients.layer_rules import Call, layer_rule, rule_of
from gradients.reference import Wrapped, check_traces, dense_jacobian, gradient_of, headed


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_convolution(data: Any) -> None:
    dims = data.draw(st.integers(1, 3))
    transposed = data.draw(st.booleans())
    groups = data.draw(st.sampled_from((1, 2)))
    stride, kernel, dilation = (data.draw(st.tuples(*[st.integers(1, 2)] * dims)) for _ in range(3))
    padding = data.draw(st.tuples(*[st.integers(0, 1)] * dims))
    space = data.draw(st.tuples(*[st.integers(3, 4)] * dims))
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    options: dict[str, Any] = {
        "stride": stride,
        "dilation": dilation,
        "padding": padding,
        "groups": groups,
    }
    if transposed:
        options["output_padding"] = data.draw(st.tuples(*[st.integers(0, 1)] * dims))
        assume(
            all(
                o < max(s, d)
                for o, s, d in zip(options["output_padding"], stride, dilation, strict=True)
            )
        )
    else:
        options["padding_mode"] = data.draw(st.sampled_from(("zeros", "replicate", "circular")))
    torch.manual_seed(0)
    layer: nn.Module = kind(2, 4, kernel, bias=data.draw(st.booleans()), **options).double()
    x = torch.randn(2, 2, *space, dtype=torch.float64)
    try:
        features = layer(x)[0].numel()
    except RuntimeError:  # no window fits
        reject()
    check_traces(headed(layer, features=features, outputs=2).double(), x)


class _Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


@pytest.mark.parametrize("factor", [None, 1, 2])
def test_a_layer_of_ones_own_works_without_a_rule_and_with_a_correct_or_wrong_one(
    factor: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def scale(call: Call, gradient: Tensor) -> list[Contribution]:
        calls.append(call.name)
        return [DenseJacobian((call.parameters["weight"],), (factor or 1) * gradient * call.inputs)]

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), _Scale(), nn.Tanh(), nn.Linear(4, 2)).double()
    monkeypatch.setattr(layer_rules, "_RULES", dict(layer_rules._RULES))
    if factor is not None:
        layer_rule(_Scale)(scale)
    check_traces(network, torch.randn(3, 3, dtype=torch.float64))
    assert set(calls) == (set() if factor is None else {"1"})


def test_subclasses_and_other_parameters_have_no_rule() -> None:
    class Twice(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    torch.manual_seed(0)
    assert rule_of(Twice(2, 2), {}) is None
    plain = nn.Linear(2, 2)
    assert rule_of(plain, dict(plain.named_parameters())) is not None
    assert rule_of(plain, {"weight_g": nn.Parameter(torch.ones(2))}) is None
    check_traces(
        nn.Sequential(Twice(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(),
        torch.randn(3, 3, dtype=torch.float64),
    )


def test_keyword_arguments() -> None:
    torch.manual_seed(0)
    network = Wrapped(
        lambda net, x: net.second(input=torch.tanh(net.first(input=x))),
        first=nn.Linear(3, 4),
        second=nn.Linear(4, 2),
    )
    check_traces(network.double(), torch.randn(3, 3, dtype=torch.float64))


CHANGED: dict[str, tuple[nn.Module, tuple[int, ...], dict[str, Any]]] = {
    "padding": (nn.Conv2d(2, 3, 3, stride=3), (2, 6, 6), {"padding": (1, 1)}),
    "no padding": (nn.Conv2d(2, 3, 3, padding=1), (2, 6, 6), {"padding": 0}),
    "grouped": (nn.Conv2d(2, 4, 3, groups=2), (2, 6, 6), {"padding": (1,), "stride": 3}),
    "dilated": (
        nn.Conv2d(2, 3, 3, padding=1, stride=2),
        (2, 6, 5),
        {"stride": (1, 1), "dilation": 2, "padding": (2, 2)},
    ),
    "valid": (nn.Conv1d(2, 3, 3, padding="same"), (2, 6), {"padding": "valid"}),
    "same": (nn.Conv2d(2, 3, (2, 3)), (2, 6, 5), {"padding": "same", "dilation": (1, 2)}),
    "zeros": (nn.Conv1d(2, 3, 3, padding_mode="circular"), (2, 6), {"padding_mode": "zeros"}),
    "transposed": (
        nn.ConvTranspose2d(2, 3, 3),
        (2, 4, 5),
        {"padding": (1,), "stride": 2, "output_padding": (1, 1), "dilation": 2},
    ),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CHANGED)
def test_settings_that_were_changed_after_construction(name: str) -> None:
    torch.manual_seed(0)
    layer, shape, changes = CHANGED[name]
    for key, value in changes.items():
        setattr(layer, key, value)
    layer.double()
    x = torch.randn(3, *shape, dtype=torch.float64)
    features = layer(x)[0].numel()
    network = nn.Sequential(layer, nn.Tanh(), nn.Flatten(), nn.Linear(features, 2)).double()
    check_traces(network, x)
    penalty = gs.GradientSimilarityPenalty(1.0, method="exact", reduction="sum")
    expected = dense_jacobian(network, x, create_graph=True).square().sum()
    actual = gradient_of(penalty(network, x), network)
    torch.testing.assert_close(actual, gradient_of(expected, network))


class TiedPadding(nn.Module):
    """Embedding with a padding whose weight is also the last layer, in several spellings."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.e = nn.Embedding(9, 6, padding_idx=-9 if spelling == "negative" else 0)
        self.l = nn.Linear(6, 6)
        self.spelling = spelling

    def forward(self, x: Tensor) -> Tensor:
        if self.spelling == "torch.embedding":
            rows = torch.embedding(self.e.weight, x, 0)
        else:
            rows = self.e(x)
        h = torch.tanh(self.l(rows.mean(1)))
        match self.spelling:
            case "linear":
                return nn.functional.linear(h, self.e.weight)
            case "einsum":
                return torch.einsum("nd,vd->nv", h, self.e.weight)
            case _:
                return h @ self.e.weight.T


@pytest.mark.parametrize("spelling", ["matmul", "linear", "einsum", "negative", "torch.embedding"])
def test_the_padding_of_a_tied_embedding_has_no_gradient_in_any_sample(spelling: str) -> None:
    torch.manual_seed(0)
    network = TiedPadding(spelling).double()
    x = torch.randint(0, 9, (12, 5))
    x[:4, 1:] = 0
    jacobian = dense_jacobian(network, x)
    assert (
        float(jacobian[:, :, :6].abs().max()) > 0
    )  # the row of the padding is used by the last layer
    expected = jacobian.square().sum((1, 2))
    for size in (1, 5, 12):
        actual = gs.functional.ntk_trace(network, x, chunk_size=size)
        torch.testing.assert_close(float(actual), float(expected.sum()), rtol=1e-10, atol=0)
    check_traces(network, x)


def test_a_penalty_on_a_tied_embedding_with_padding_has_its_gradient() -> None:
    torch.manual_seed(0)
    network = TiedPadding("linear").double()
    x = torch.randint(0, 9, (5, 4))
    x[:3, 1:] = 0
    penalty = gs.GradientSimilarityPenalty(1.0, method="exact", reduction="sum")
    expected = dense_jacobian(network, x, create_graph=True).square().sum()
    actual = gradient_of(penalty(network, x), network)
    torch.testing.assert_close(actual, gradient_of(expected, network))
