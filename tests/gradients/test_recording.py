from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable, ReplaceLayer
from gapscope.gradients.recording import record_forward
from gapscope.gradients.traces import one_hot_cotangents, per_sample_traces, square_norms
from gapscope.gradients.verification import verify
from gradients.reference import CASES, VisionTransformer, Wrapped, check_traces, dense_jacobian


def _square_norms_on_the_graph(network: nn.Module, outputs: Tensor) -> Tensor:
    """[N], by one backward pass an output of a sample."""
    parameters = list(network.parameters())
    rows = [
        torch.autograd.grad(output, parameters, retain_graph=True) for output in outputs.flatten()
    ]
    squares = [sum(gradient.square().sum() for gradient in row) for row in rows]
    return torch.stack([torch.as_tensor(square) for square in squares]).view_as(outputs).sum(1)


def test_batch_norm_without_statistics_raises_with_the_fix() -> None:
    network = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 2)
    )
    with pytest.raises(ReplaceLayer, match=r"samples.*'1' uses the statistics.*module.eval\(\)"):
        record_forward(network.eval(), torch.randn(4, 3))


def test_a_network_without_trainable_parameters_raises() -> None:
    with pytest.raises(NotMeasurable, match="must have trainable parameters"):
        record_forward(nn.Linear(2, 2).requires_grad_(False), torch.zeros(1, 2))


@pytest.mark.parametrize(
    "activation", [nn.ReLU(inplace=True), nn.SiLU(inplace=True), nn.LeakyReLU(inplace=True)]
)
def test_in_place_activations_are_exact(activation: nn.Module) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(3, 5), activation, nn.Linear(5, 4), nn.LayerNorm(4), activation, nn.Linear(4, 2)
    )
    network, x = network.double(), torch.randn(3, 3, dtype=torch.float64)
    check_traces(network, x)


def test_an_input_that_is_changed_in_place_afterwards_raises() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        h = x * 1
        bias_only = net.shift(h)
        h += 1
        return net.head(bias_only + h)

    network = Wrapped(forward, shift=nn.Linear(3, 3, bias=False), head=nn.Linear(3, 2))
    tape, outputs = record_forward(network, torch.randn(2, 3))
    with pytest.raises(ReplaceLayer, match=r"layer 'shift' was changed.*x"):
        tape.contributions(outputs, one_hot_cotangents(outputs))


def test_inputs_that_mix_before_every_parameter_are_no_mixing() -> None:
    """The rows J_n are then those of the mixed inputs, for autograd too: nothing is wrong with them."""
    network = Wrapped(lambda net, x: net.layer(x - x.mean(0)), layer=nn.Linear(3, 2)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    tape, outputs = record_forward(network, x)
    expected = 2 * ((x - x.mean(0)).square().sum(1) + 1)
    torch.testing.assert_close(square_norms(tape, outputs, one_hot_cotangents(outputs)), expected)


@pytest.mark.filterwarnings("ignore::gapscope.base.errors.SlowGradients")
def test_random_numbers_next_to_a_parameter_outside_layers_are_detected() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        return net.head(net.dropout(torch.tanh(net.layer(x) + net.token)))

    network = Wrapped(
        forward,
        layer=nn.Linear(3, 64),
        head=nn.Linear(64, 2),
        dropout=nn.Dropout(0.5),
        token=nn.Parameter(torch.ones(64)),
    )
    tape, outputs = record_forward(network.double().train(), torch.randn(4, 3, dtype=torch.float64))
    norms = square_norms(tape, outputs, one_hot_cotangents(outputs))
    assert not tape.per_sample
    torch.testing.assert_close(norms, _square_norms_on_the_graph(network, outputs))
    tape, outputs = record_forward(network.eval(), torch.randn(4, 3, dtype=torch.float64))
    verify(tape, outputs)
    assert not tape.per_sample


def test_transformer_training_with_dropout_is_seen_with_its_masks() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.5, batch_first=True)
    network = nn.Sequential(encoder, nn.Flatten(), nn.Linear(12, 2)).double().train()
    tape, outputs = record_forward(network, torch.randn(3, 3, 4, dtype=torch.float64))
    norms = square_norms(tape, outputs, one_hot_cotangents(outputs))
    torch.testing.assert_close(
        norms, _square_norms_on_the_graph(network, outputs), rtol=1e-10, atol=0
    )


def test_attention_outputs_are_those_of_the_module() -> None:
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval()
    network = Wrapped(
        lambda net, x: net.attention(x, x, x, average_attn_weights=False)[0].flatten(1),
        attention=attention,
    )
    x = torch.randn(3, 5, 8)
    _, outputs = record_forward(network, x)
    torch.testing.assert_close(outputs, network(x))
    _, weights = attention(x, x, x, average_attn_weights=False)
    assert weights.shape == (3, 2, 5, 5)
    assert "forward" not in vars(attention)


def test_a_recorded_pass_leaves_no_hooks_and_fires_the_users() -> None:
    network, x = CASES["conv stack"].make()
    seen: list[str] = []
    network.get_submodule("0").register_forward_hook(
        lambda module, inputs, outputs: seen.append("user")
    )
    record_forward(network, x)
    assert seen == ["user"]
    assert all(
        len(module._forward_hooks) == (name == "0") for name, module in network.named_modules()
    )


def test_irregular_parameters_are_found_and_remembered() -> None:
    torch.manual_seed(0)
    network = VisionTransformer().double()
    x = torch.randn(3, 1, 4, 4, dtype=torch.float64)
    tape, outputs = record_forward(network, x)
    verify(tape, outputs)
    # the owner of the bare parameters is the network itself
    assert tape.whole_network == frozenset()
    network.positions.requires_grad_(False)
    per_sample_traces(network, x, None, chunk_size=64)
    passes = []
    network.patches.register_forward_hook(lambda *_: passes.append(1))
    per_sample_traces(network, x, None, chunk_size=64)
    first = len(passes)
    per_sample_traces(network, x, None, chunk_size=64)
    assert len(passes) == 2 * first


def test_the_self_check_can_fail() -> None:
    """A rule that forgets something is found out: the parameter then goes through the whole network."""
    network, x = CASES["used outside its module"].make()
    tape, outputs = record_forward(network, x)
    with torch.no_grad():
        parts = tape.contributions(outputs, one_hot_cotangents(outputs)).values()
        wrong = sum(float(part.square_norms().sum()) for part in parts)
    verify(tape, outputs)
    assert tape.whole_network == {id(network.get_parameter("first.weight"))}
    right = float(dense_jacobian(network, x).square().sum())
    assert (
        abs(float(square_norms(tape, outputs, one_hot_cotangents(outputs)).sum()) - right)
        < 1e-9 * right
    )
    assert abs(wrong - right) > 1e-3 * right


def test_a_diverged_network_gives_nan_not_an_error() -> None:
    network = nn.Linear(2, 2)
    nn.init.constant_(network.weight, float("nan"))
    tape, outputs = record_forward(network, torch.ones(2, 2))
    assert square_norms(tape, outputs, one_hot_cotangents(outputs)).shape == (2,)


def test_parameters_that_were_called_without_gradients() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = net.layer(x)
        return net.head(h)

    network = Wrapped(forward, layer=nn.Linear(3, 4), head=nn.Linear(4, 2)).double()
    x = torch.randn(3, 3, dtype=torch.float64)
    check_traces(network, x)


def test_outputs_that_do_not_depend_on_any_parameter() -> None:
    network = Wrapped(lambda net, x: x * (0 * net.layer(x).sum()), layer=nn.Linear(2, 2))
    tape, outputs = record_forward(network, torch.randn(3, 2))
    norms = square_norms(tape, outputs, one_hot_cotangents(outputs))
    torch.testing.assert_close(norms, torch.zeros_like(norms))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_close(dtype: torch.dtype) -> None:
    network, x = CASES["conv stack"].make()
    exact = per_sample_traces(network, x, None, chunk_size=64)[0]
    approximate = per_sample_traces(network.to(dtype), x.to(dtype), None, chunk_size=64)[0]
    torch.testing.assert_close(
        approximate, exact, rtol=1e-5 if dtype == torch.float32 else 5e-2, atol=0
    )


def test_outputs_without_a_gradient_raise() -> None:
    network = Wrapped(lambda net, x: net.layer(x).detach(), layer=nn.Linear(2, 2))
    tape, outputs = record_forward(network, torch.zeros(2, 2))
    with pytest.raises(NotMeasurable, match=r"outputs without a gradient.*torch\.no_grad"):
        verify(tape, outputs)
