"""Penalties in training mode: BatchNorm, dropout, learned positions, combined.

The right answers come from plain autograd in float64. With BatchNorm the network is written again as a function of its
weights and its statistics: the Jacobian is that by the weights alone, and the statistics, which are made of the
weights, move in the gradient of the penalty. With dropout the rows are taken from the very graph of the shared pass.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev
from torch.nn.modules.batchnorm import _BatchNorm

import gapscope as gs
from gapscope.base.errors import GapscopeError, InvalidInput, ReplaceLayer, SlowGradients
from gapscope.batch_norm.layers._channel_norm import ChannelNorm
from gapscope.batch_norm.layers.ghost import GhostBatchNorm, GhostBatchNorm2d
from gapscope.batch_norm.layers.partial import MeanOnlyBatchNorm, VarianceOnlyBatchNorm
from gapscope.batch_norm.layers.population import PopulationNorm
from gapscope.gradients.backward import draw_probe, probe_scale
from gapscope.measures.ntk import empirical_ntk, ntk_logdet, ntk_trace
from gapscope.networks.adapters import LogitsOnly
from gapscope.penalties.gradient_norms import InputJacobianPenalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from support.door_networks import bert_classifier

KINDS: list[dict[str, Any]] = [
    {"method": "exact"},
    {"kind": "logdet"},
    {"probe": "class"},
    {"probe": "rademacher"},
    {"probe": "batch_sum"},
]
Statistics = list[tuple[Tensor, Tensor]]
# own layers, and the parts of 7 samples by the size of a ghost batch
OWN: dict[str, tuple[str, dict[str, Any]]] = {
    "ghosts": ("GhostBatchNorm", {"ghost_size": 2}),
    "one ghost": ("GhostBatchNorm", {"ghost_size": 4}),
    "population": ("PopulationNorm", {}),
    "mean": ("MeanOnlyBatchNorm", {}),
    "mean without scale": ("MeanOnlyBatchNorm", {"scale": False}),
    "deviation": ("VarianceOnlyBatchNorm", {}),
    "mean square": ("VarianceOnlyBatchNorm", {"rms": True}),
}
PARTS = {2: [0, 0, 0, 1, 2, 1, 2], 4: [0] * 7}


def _batch_normalized() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.Conv2d(3, 2, 2, bias=False),
        nn.BatchNorm2d(2, affine=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.BatchNorm1d(5),
        nn.Tanh(),
        nn.Linear(5, 3),
    )
    for parameter in network.parameters():
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return network.double()


def _batch(n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 5, 5, dtype=torch.float64, generator=generator), torch.arange(n) % 3


def _moments(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and variance that a layer normalizes each sample by, as the layers' docstrings define them."""
    axes = [0, *range(2, x.ndim)]
    if isinstance(layer, PopulationNorm):
        shape = (1, -1, *[1] * (x.ndim - 2))
        return layer.running_mean.view(shape), layer.running_var.view(shape)
    if isinstance(layer, GhostBatchNorm):
        parts = torch.tensor(PARTS[layer.ghost_size])
        by_part = [_moments(nn.BatchNorm1d(1), x[parts == part]) for part in parts.unique()]
        mean, variance = (torch.cat(moments)[parts] for moments in zip(*by_part, strict=True))
        return mean, variance
    variance, mean = torch.var_mean(x, axes, correction=0, keepdim=True)
    if isinstance(layer, MeanOnlyBatchNorm):
        return mean, torch.ones_like(mean)
    if isinstance(layer, VarianceOnlyBatchNorm):
        rms = x.square().mean(axes, keepdim=True)
        return torch.zeros_like(mean), rms if layer.rms else variance
    return mean, variance


def _run(
    network: nn.Sequential, weights: Mapping[str, Tensor], x: Tensor, given: Statistics | None
) -> tuple[Tensor, Statistics]:
    """The network by hand, with the statistics of its own batch or with given ones."""
    statistics: Statistics = []
    for i, layer in enumerate(network):
        own = {name: weights[f"{i}.{name}"] for name, _ in layer.named_parameters()}
        if not isinstance(layer, _BatchNorm | ChannelNorm):
            x = F.relu(x) if isinstance(layer, nn.ReLU) else functional_call(layer, own, (x,))
            continue
        shape = (1, -1, *[1] * (x.ndim - 2))
        mean, variance = _moments(layer, x) if given is None else given[len(statistics)]
        statistics.append((mean, variance))
        x = (x - mean) / (variance + layer.eps).sqrt()
        if own:
            x = x * own.get("weight", x.new_ones(x.shape[1])).view(shape) + own["bias"].view(shape)
    return x, statistics


def _rows(network: nn.Sequential, x: Tensor) -> Tensor:
    """[N, C, P] by the weights at fixed statistics, differentiable by weights and statistics."""
    weights = dict(network.named_parameters())
    statistics = _run(network, weights, x, None)[1]
    rows: Any = jacrev(lambda moved: _run(network, moved, x, statistics)[0])(weights)
    return torch.cat([part.flatten(2) for part in rows.values()], 2)


def _expected(
    rows: Tensor, *, kind: str = "trace", method: str = "probe", probe: str = "class"
) -> Tensor:
    n, c, _ = rows.shape
    if kind == "logdet":
        flat = rows.flatten(0, 1)
        return torch.logdet(torch.eye(n * c, dtype=rows.dtype) + flat @ flat.T)
    if method == "exact":
        return rows.square().sum()
    drawn = draw_probe(probe, n, c, torch.Generator().manual_seed(0)).to(rows)
    products = torch.einsum("nc,ncp->np", drawn, rows)
    products = products.sum(0) if probe == "batch_sum" else products
    return probe_scale(probe, c) * products.square().sum()


def _gradient(value: Tensor, network: nn.Module) -> Tensor:
    result = torch.autograd.grad(
        value, list(network.parameters()), retain_graph=True, materialize_grads=True
    )
    return torch.cat([gradient.flatten() for gradient in result])


def _gathered(network: nn.Module) -> Tensor:
    """All `.grad`, zero where there is none."""
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
            for p in network.parameters()
        ]
    )


def _check(value: Tensor, expected: Tensor, network: nn.Module, rtol: float = 1e-9) -> None:
    torch.testing.assert_close(value, expected, rtol=rtol, atol=0)
    right = _gradient(expected, network)
    torch.testing.assert_close(
        _gradient(value, network), right, rtol=0, atol=rtol * float(right.abs().max())
    )


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_batch_statistics_are_held_fixed(options: dict[str, Any]) -> None:
    network, (x, _) = _batch_normalized(), _batch()
    twin = copy.deepcopy(network)
    penalty = GradientSimilarityPenalty(1.0, reduction="sum", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowGradients)
        outputs, value = penalty.forward_with_penalty(network, x)
    assert torch.equal(outputs, twin(x))
    _check(value, _expected(_rows(network, x), **options), network)


def test_the_loss_and_the_running_statistics_are_those_of_plain_training() -> None:
    network, (x, y) = _batch_normalized(), _batch()
    twin = copy.deepcopy(network)
    for options in KINDS:
        outputs, _ = GradientSimilarityPenalty(1.0, **options).forward_with_penalty(network, x)
        network.zero_grad()
        twin.zero_grad()
        F.cross_entropy(outputs, y).backward()
        F.cross_entropy(twin(x), y).backward()
        assert torch.equal(_gathered(network), _gathered(twin))
        for one, other in zip(network.buffers(), twin.buffers(), strict=True):
            assert torch.equal(one, other)
    assert not any(module._forward_hooks for module in network.modules())


def _with_own_layers(kind: str) -> nn.Sequential:
    network = _batch_normalized()
    family, options = OWN[kind]
    for i, dimensions in ((1, 2), (4, 2), (8, 1)):
        old: Any = network[i]
        make = getattr(gs.batch_norm, f"{family}{dimensions}d")
        network[i] = make(old.num_features, affine=old.affine, **options).double()
        for tensor in (*network[i].parameters(), *network[i].buffers()):
            if tensor.is_floating_point():
                nn.init.uniform_(tensor, 0.5, 1.5)
    return network


@pytest.mark.parametrize("kind", OWN)
def test_own_layers_are_held_fixed(kind: str) -> None:
    network, (x, _) = _with_own_layers(kind), _batch(7)
    twin = copy.deepcopy(network)
    rows = _rows(network, x)
    for options in KINDS[:2]:
        penalty = GradientSimilarityPenalty(1.0, reduction="sum", **options)
        with warnings.catch_warnings():
            warnings.simplefilter("error", SlowGradients)
            outputs, value = penalty.forward_with_penalty(network, x)
        assert torch.equal(outputs, twin(x))
        torch.testing.assert_close(value, _expected(rows, **options), rtol=1e-9, atol=0)
        if kind != "population":  # of which the gradient is not that of its function
            _check(value, _expected(rows, **options), network)
    value = InputJacobianPenalty(1.0, method="exact")(network, x)
    weights = dict(network.named_parameters())
    statistics = _run(network, weights, x, None)[1]
    by_inputs: Any = jacrev(lambda inputs: _run(network, weights, inputs, statistics)[0])(x)
    torch.testing.assert_close(value, by_inputs.square().sum() / (7 * 3), rtol=1e-9, atol=0)
    assert float(ntk_trace(network, x, mode="train")) == pytest.approx(
        float(rows.detach().square().sum())
    )


def test_derivatives_by_the_inputs_hold_the_statistics_too() -> None:
    network, (x, _) = _batch_normalized(), _batch()
    outputs, value = InputJacobianPenalty(1.0, method="exact").forward_with_penalty(network, x)
    weights = dict(network.named_parameters())
    statistics = _run(network, weights, x, None)[1]
    rows: Any = jacrev(lambda inputs: _run(network, weights, inputs, statistics)[0])(x)
    assert not rows[0, ..., 1, :, :, :].any()  # no sample acts on another
    _check(value, rows.square().sum() / outputs.numel(), network)


def test_kernels_in_training_mode() -> None:
    network, (x, _) = _batch_normalized(), _batch()
    before = copy.deepcopy(network.state_dict())
    rows = _rows(network, x).detach()
    other = _rows(network, x[:4].flip(0)).detach()
    network.eval()
    assert float(ntk_trace(network, x, mode="train")) == pytest.approx(
        float(rows.square().sum()), rel=1e-10
    )
    estimate = ntk_trace(network, x, mode="train", method="probe", probe="rademacher")
    assert float(estimate) == pytest.approx(float(_expected(rows, probe="rademacher")), rel=1e-10)
    kernel = torch.einsum("ncp,mdp->ncmd", rows, rows)
    torch.testing.assert_close(
        empirical_ntk(network, x, mode="train"), kernel, rtol=1e-10, atol=1e-10
    )
    across = torch.einsum("ncp,mcp->nm", rows, other)
    given = empirical_ntk(network, x, x[:4].flip(0), outputs="traced", mode="train", max_bytes=64)
    torch.testing.assert_close(given, across, rtol=1e-10, atol=1e-10)
    eigenvalues = torch.linalg.eigvalsh(kernel.flatten(2).flatten(0, 1))
    result = ntk_logdet(network, x, mode="train").eigenvalues
    torch.testing.assert_close(result, eigenvalues, rtol=0, atol=1e-10 * float(eigenvalues[-1]))
    assert not network.training
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_batch_in_training_mode_is_left_whole() -> None:
    network, (x, _) = _batch_normalized(), _batch()
    for measure in (ntk_trace, empirical_ntk, ntk_logdet):
        with pytest.raises(InvalidInput, match=r"batch.*got chunk_size=2"):
            measure(network, x, mode="train", chunk_size=2)
        with pytest.raises(InvalidInput, match="mode"):
            measure(network, x, mode="training")  # type: ignore[arg-type]


def test_statistics_that_cannot_be_held_raise() -> None:
    network, (x, _) = _batch_normalized(), _batch()
    network[1] = nn.BatchNorm2d(3, track_running_stats=False).double()
    GradientSimilarityPenalty(1.0)(network, x)
    with pytest.raises(ReplaceLayer, match="'1' uses"):
        GradientSimilarityPenalty(1.0)(network.eval(), x)
    network[1] = nn.SyncBatchNorm(3).double()
    with pytest.raises(ReplaceLayer, match=r"samples.*'1' uses"):
        GradientSimilarityPenalty(1.0)(network.train(), x)


class _NormAct(nn.BatchNorm2d):
    """As in model collections: normalization and activation in one layer."""

    def __init__(self, channels: int, activation: nn.Module) -> None:
        super().__init__(channels)
        self.activation = activation

    def forward(self, h: Tensor) -> Tensor:
        return self.activation(super().forward(h))


class _Formula(nn.BatchNorm2d):
    def forward(self, h: Tensor) -> Tensor:
        deviation = (h.var((0, 2, 3), unbiased=False, keepdim=True) + self.eps).sqrt()
        return (h - h.mean((0, 2, 3), keepdim=True)) / deviation


@pytest.mark.filterwarnings("ignore::gapscope.base.errors.SlowGradients")
@pytest.mark.parametrize("activation", [nn.SiLU(), nn.ReLU(inplace=True), nn.Tanh()])
def test_a_subclass_that_does_more_equals_its_parts(activation: nn.Module) -> None:
    network, (x, _) = _batch_normalized(), _batch()
    whole = _NormAct(3, activation).double()
    parts = nn.Sequential(nn.BatchNorm2d(3), activation).double()
    nn.init.uniform_(whole.weight, 0.5, 1.5)
    parts[0].load_state_dict(whole.state_dict())
    _, _, _, *rest = network
    joined = nn.Sequential(network[0], whole, *rest)
    separate = nn.Sequential(network[0], parts, *rest)
    for penalty in (
        GradientSimilarityPenalty(1.0, method="exact"),
        InputJacobianPenalty(1.0, method="exact"),
    ):
        values = [penalty(each, x) for each in (joined, separate)]
        torch.testing.assert_close(values[0], values[1])
        sources = [list(each.parameters()) for each in (joined, separate)]
        gradients = [
            torch.autograd.grad(value, weights, materialize_grads=True)
            for value, weights in zip(values, sources, strict=True)
        ]
        torch.testing.assert_close(gradients[0], gradients[1])
    assert ntk_trace(joined, x, mode="train") == pytest.approx(ntk_trace(separate, x, mode="train"))
    assert "forward" not in vars(whole)


def test_a_subclass_with_a_formula_of_its_own_raises() -> None:
    network, (x, _) = _batch_normalized(), _batch()
    network[1] = _Formula(3).double()
    for penalty in (GradientSimilarityPenalty(1.0), InputJacobianPenalty(1.0)):
        with pytest.raises(ReplaceLayer, match=r"_Formula '1'.*eval\(\)"):
            penalty(network, x)


class _Divided(nn.Module):
    """A layer without weights that mixes samples, known to nothing."""

    def forward(self, h: Tensor) -> Tensor:
        return h / h.norm() if self.training else h


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3, 1, 1) + 0.5)

    def forward(self, h: Tensor) -> Tensor:
        return self.weight * (h - h.mean(0))


class _GhostAct(GhostBatchNorm2d):
    """Declares the normalization of its base class, and does more."""

    def forward(self, h: Tensor) -> Tensor:
        return 2 * super().forward(h)


@pytest.mark.parametrize("layer", [_Divided(), _Scaled(), _GhostAct(3)])
def test_unknown_layers_that_mix_samples_are_refused_by_name(layer: nn.Module) -> None:
    network, (x, _) = _batch_normalized(), _batch()
    network[1] = layer.double()
    kinds = [GradientSimilarityPenalty(1.0, **options) for options in KINDS[::4]]
    for penalty in (*kinds, InputJacobianPenalty(1.0)):
        with pytest.raises(GapscopeError, match=f"{type(layer).__name__}.*'1'"):
            penalty(network, x)
    with pytest.raises(GapscopeError, match="'1'"):
        ntk_trace(network, x, mode="train")
    if not isinstance(layer, _Scaled):
        assert float(ntk_trace(network, x)) > 0
        return
    with pytest.raises(GapscopeError, match="by _Scaled '1'"):
        ntk_trace(network, x)


@pytest.mark.parametrize("first", [1, 3])
def test_a_first_batch_of_equal_samples_clears_no_layer(first: int) -> None:
    x = torch.randn(4, 3)
    network = nn.Sequential(nn.Linear(3, 3), _Divided(), nn.Linear(3, 2))
    penalty = InputJacobianPenalty(1.0)
    penalty(network.eval(), x)
    penalty(network.train(), x[:1].repeat(first, 1))
    with pytest.raises(GapscopeError, match="_Divided '1'"):
        penalty(network, x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("is_named", [True, False])
def test_layers_are_checked_once_in_each_mode(training: bool, is_named: bool) -> None:
    network, (x, _) = _batch_normalized().train(training), _batch()
    penalty = InputJacobianPenalty(1.0)
    calls: list[nn.Module] = []
    network[0].register_forward_hook(lambda layer, *_: calls.append(layer))
    for expected in (3, 4):
        penalty(network, {"input": x} if is_named else x)
        assert len(calls) == expected


def _rows_of_graph(outputs: Tensor, network: nn.Module) -> Tensor:
    """[N, C, P] from the graph of one pass, in which every sample stands for itself."""
    parameters = list(network.parameters())
    rows = [
        torch.autograd.grad(
            output, parameters, retain_graph=True, create_graph=True, materialize_grads=True
        )
        for output in outputs.flatten()
    ]
    flat = torch.stack([torch.cat([gradient.flatten() for gradient in row]) for row in rows])
    return flat.view(*outputs.shape, -1)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_small_bert(options: dict[str, Any]) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12, "num_labels": 3}
    network = LogitsOnly(bert_classifier(**sizes), padding=0).double().train()
    x = torch.randint(1, 20, (4, 6))
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowGradients)
        outputs, value = GradientSimilarityPenalty(
            1.0, reduction="sum", **options
        ).forward_with_penalty(network, x)
    assert not torch.equal(outputs, network(x))
    _check(value, _expected(_rows_of_graph(outputs, network), **options), network)
