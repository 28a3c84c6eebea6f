"""All registered penalties on all network cases, and their registry."""

from __future__ import annotations

import copy
import inspect
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gapscope.base.errors import GapscopeError, InvalidInput, NotMeasurable
from gapscope.penalties import base
from gapscope.penalties.base import Penalty, make_penalty, penalties, register_penalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty
from gapscope.penalties.weight import L2Penalty
from support.cases import CASES, each

OPTIONS: dict[str, dict[str, Any]] = {"gamma_decay": {"batch_size": 4}}
PENALTIES = [name for name in penalties() if name != "automatic_dropout"]  # that adds 0 to the loss
every_penalty = pytest.mark.parametrize("kind", PENALTIES)


def _made(kind: str) -> Penalty:
    return make_penalty(kind, {"strength": 0.1, **OPTIONS.get(kind, {})})


def _refused(kind: str, name: str) -> bool:
    """Return whether a penalty is undefined: no gammas of batch norm, or token ids."""
    return (kind == "gamma_decay" and "batch norm" not in CASES[name].has) or (
        kind == "input_jacobian" and bool(CASES[name].tokens)
    )


@each()
@every_penalty
def test_a_penalty_shares_the_forward_pass_and_can_be_differentiated(kind: str, name: str) -> None:
    network, samples = CASES[name].make(dtype=torch.float64)
    if _refused(kind, name):
        with pytest.raises(GapscopeError):
            _made(kind).forward_with_penalty(network, samples.inputs, samples.y)
        return
    expected = network(samples.inputs)
    state = {key: tensor.clone() for key, tensor in network.state_dict().items()}
    random_state, inputs = torch.get_rng_state(), samples.inputs.clone()
    outputs, value = _made(kind).forward_with_penalty(network, samples.inputs, samples.y)
    torch.testing.assert_close(outputs, expected, rtol=1e-12, atol=1e-12)
    assert value.shape == () and float(value.detach()) > 0
    (nn.functional.cross_entropy(outputs, samples.y) + value).backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.requires_grad]
    assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)
    assert all(
        parameter.grad is None for parameter in network.parameters() if not parameter.requires_grad
    )
    assert all(torch.equal(state[key], tensor) for key, tensor in network.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random_state) and torch.equal(samples.inputs, inputs)
    assert not any(
        module._forward_hooks or module._forward_pre_hooks for module in network.modules()
    )


@pytest.mark.parametrize(
    ("kind", "name"), [(k, n) for n in CASES for k in PENALTIES if not _refused(k, n)]
)
def test_a_small_step_down_the_gradient_lowers_the_penalty(kind: str, name: str) -> None:
    network, samples = CASES[name].make(dtype=torch.float64)
    before = _made(kind)(network, samples.inputs, samples.targets)
    before.backward()
    moved = [parameter for parameter in network.parameters() if parameter.grad is not None]
    slope = sum(float(parameter.grad.square().sum()) for parameter in moved)  # type: ignore[union-attr]
    assert slope > 0
    step = 1e-5 * float(before.detach()) / slope
    with torch.no_grad():
        for parameter in moved:
            parameter -= step * parameter.grad  # type: ignore[operator]
    after = _made(kind)(network, samples.inputs, samples.targets)
    # gamma decay holds zeta constant in the backward pass, and measures it again afterwards
    rate = float((before - after).detach()) / (step * slope)
    assert rate == pytest.approx(1, abs=0.02) or kind == "gamma_decay"


def _with_batch_norm() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


X, Y = torch.linspace(-1, 1, 40).reshape(8, 5).sin(), torch.arange(8) % 3


@every_penalty
def test_wrappers_of_a_network_change_nothing(kind: str) -> None:
    expected = _made(kind)(_with_batch_norm(), X, Y).detach()
    wrappers: list[Any] = [partial(torch.compile, backend="eager"), nn.DataParallel]
    for wrapper in wrappers:
        wrapped = wrapper(_with_batch_norm())
        torch.testing.assert_close(_made(kind)(wrapped, X, Y).detach(), expected)


def _gradients(kind: str, network: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)  # of the dropout masks
    network = copy.deepcopy(network)  # of which the pass changes the running statistics
    outputs, value = _made(kind).forward_with_penalty(network, x, Y)
    parameters = list(network.parameters())
    return list(torch.autograd.grad(outputs.square().sum() + value, parameters))


@every_penalty
@pytest.mark.parametrize("layers", [[], [nn.BatchNorm1d(4)]])
def test_a_compiled_network_has_the_gradient_of_the_plain_one(
    kind: str, layers: list[nn.Module]
) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 4), *layers, nn.Tanh(), nn.Linear(4, 3))
    if kind == "gamma_decay" and not layers:
        return
    compiled: Any = torch.compile(copy.deepcopy(network), backend="aot_eager")
    torch.testing.assert_close(_gradients(kind, compiled, X), _gradients(kind, network, X))


class _Checkpointed(nn.Module):
    """Attention or BatchNorm in a checkpoint, of which a backward pass runs the layers again."""

    def __init__(self, layer: nn.Module, *, is_checkpointed: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first = nn.Linear(5, 8)
        self.layer = layer
        self.last = nn.Linear(8, 3)
        self.is_checkpointed = is_checkpointed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        if self.is_checkpointed:
            h = checkpoint(self.layer, h, use_reentrant=False)
        else:
            h = self.layer(h)
        return self.last(h.flatten(1, -2).mean(1) if h.ndim > 2 else h)


@every_penalty
@pytest.mark.parametrize("layer", ["attention", "batch norm"])
def test_a_checkpoint_changes_no_gradient(kind: str, layer: str) -> None:
    if kind == "gamma_decay" and layer == "attention":
        return
    torch.manual_seed(0)
    block = nn.BatchNorm1d(8)
    x = X
    if layer == "attention":
        block = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.1, batch_first=True)
        x = torch.stack([X, X.flip(0)], 1)
    plain, checkpointed = (_Checkpointed(block, is_checkpointed=b) for b in (False, True))
    torch.testing.assert_close(_gradients(kind, checkpointed, x), _gradients(kind, plain, x))


def _with_other_layers() -> nn.Sequential:
    torch.manual_seed(1)
    layers = [nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)]
    return nn.Sequential(*layers)


@every_penalty
@pytest.mark.parametrize("make", [_with_batch_norm, _with_other_layers])
def test_a_penalty_has_a_state_per_network(kind: str, make: Any) -> None:
    first, second, penalty = _with_batch_norm().eval(), make().eval(), _made(kind)
    with torch.no_grad():
        first[1].weight.mul_(3)  # type: ignore[operator]
    values = [penalty(network, X, Y).detach() for network in (first, second, first, second)]
    for network, found in ((first, values[::2]), (second, values[1::2])):
        fresh = _made(kind)
        torch.testing.assert_close([fresh(network, X, Y).detach() for _ in range(2)], found)
    # a loaded state is that of the next network
    other = _made(kind)
    other(first, X, Y)
    other.load_state_dict(penalty.state_dict())
    torch.testing.assert_close(other(second, X, Y), penalty(second, X, Y))


def test_a_value_without_a_gradient_warns_once() -> None:
    penalty = GradientSimilarityPenalty(0.1, method="exact")
    with pytest.warns(UserWarning, match=r"has no gradient by the weights.*look for"):
        penalty(nn.Linear(5, 3), X)
    penalty(nn.Linear(5, 3), X)


@every_penalty
@pytest.mark.parametrize("targets", [["a"] * 8, Y.numpy(), [0, 1] * 4])
def test_targets_that_are_no_tensor_are_refused(kind: str, targets: Any) -> None:
    with pytest.raises(InvalidInput, match="tensor"):
        _made(kind)(_with_batch_norm(), X, targets)


@every_penalty
def test_frozen_networks_are_refused(kind: str) -> None:
    with pytest.raises(NotMeasurable, match="frozen"):
        _made(kind)(_with_batch_norm().requires_grad_(False), X, Y)


@every_penalty
def test_without_gradients_there_is_a_value_or_a_reason(kind: str) -> None:
    with torch.no_grad():
        try:
            assert not _made(kind)(_with_batch_norm(), X, Y).requires_grad
        except GapscopeError as error:
            assert "no_grad" in str(error)


def test_penalties_are_made_by_name() -> None:
    made = make_penalty("weight", {"strength": 0.5})
    assert isinstance(made, L2Penalty) and made.strength == 0.5
    with pytest.raises(InvalidInput, match=r"'wieght'.*Did you mean 'weight'"):
        make_penalty("wieght", {})
    with pytest.raises(InvalidInput, match=r"'strenth'.*Did you mean 'strength'"):
        make_penalty("weight", {"strenth": 1})
    with pytest.raises(InvalidInput, match="setting 'strength'; got"):
        make_penalty("weight", {})


@pytest.mark.parametrize("name", sorted(penalties()))
def test_help_describes_every_parameter(name: str) -> None:
    for parameter in inspect.signature(penalties()[name]).parameters:
        assert f"\n    {parameter}: " in (penalties()[name].__doc__ or ""), (
            f"help() must describe {parameter}"
        )


def test_two_classes_of_one_name_raise() -> None:
    with pytest.raises(InvalidInput, match="penalty called 'weight'"):
        register_penalty("weight")(int)
    assert register_penalty("weight")(L2Penalty) is L2Penalty


def test_the_penalty_of_the_docs_stands_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_PENALTIES", dict(penalties()))
    page = (Path(__file__).parents[2] / "docs" / "add-a-penalty.md").read_text(encoding="utf-8")
    # as a user's own file would
    exec(page.split("```python\n")[1].split("```")[0], {"__name__": "confidence"})
    penalty = make_penalty("confidence", {"strength": 0.3})
    sure = torch.tensor([[1000.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    assert float(penalty(torch.nn.Identity(), sure)) == pytest.approx(0.3 * math.log(4))
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: penalty(torch.nn.Identity(), x), logits)
    entropy = float(torch.distributions.Categorical(logits=logits.detach()).entropy().mean())
    assert float(penalty(torch.nn.Identity(), logits.detach())) == pytest.approx(
        0.3 * (math.log(4) - entropy)
    )


@every_penalty
@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (torch.zeros(5, dtype=torch.int64), "one per sample, 12"),
        (torch.zeros(24, 3), "one per sample, 12"),
        (torch.tensor(1), "one per sample, 12"),
        (torch.arange(12), "smaller than the number of classes, 3; got 11"),
        (torch.arange(12) % 3 - 1, r"must lie in \[0, 2\]; got -1"),
    ],
)
def test_targets_that_do_not_fit_the_batch_are_refused(
    kind: str, targets: torch.Tensor, message: str
) -> None:
    network = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InvalidInput, match=message):
        _made(kind)(network, x, targets)
    fitting = torch.where(torch.arange(12) < 4, -100, torch.arange(12) % 3)
    assert bool(_made(kind)(network, x, fitting).isfinite())


def test_flattened_targets_of_positions_fit() -> None:
    network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    x = torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0))
    for targets in (torch.arange(35) % 3, torch.arange(35).reshape(5, 7) % 3):
        assert bool(_made("gradient_similarity")(network, x, targets).isfinite())
