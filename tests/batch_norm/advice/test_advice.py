"""Advice on batch norm against measured regularization, and its sentences."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import gapscope
from batch_norm.some_networks import images, plain, warmed_up
from gapscope.base.budget import BudgetSpent
from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import Samples
from gapscope.batch_norm import replace_batch_norm
from gapscope.batch_norm.advice.batch_norm import DropoutLoss
from gapscope.batch_norm.advice.result import BatchNormAdvice, LayerRegularization
from gapscope.batch_norm.gamma_decay.measured_excess import random_batches
from gapscope.penalties.gamma_decay import GammaDecayPenalty
from gapscope.results.estimate import Estimate
from gradients.reference import Wrapped

N = 2000
Data = tuple[Tensor, Tensor]


def one_layer(gamma: float = 1.0) -> nn.Sequential:
    """Batch norm and the identity: for u = -1 or 1 and targets u the noise costs gamma^2 a^2."""
    network = nn.Sequential(nn.BatchNorm1d(1, eps=1e-12), nn.Linear(1, 1, bias=False)).double()
    with torch.no_grad():
        network[0].weight.fill_(gamma)  # type: ignore[operator]
        network[1].weight.fill_(1.0)  # type: ignore[operator]
    return network.eval()


class Norm(nn.BatchNorm1d):
    """A subclass that adds nothing to the function."""


@pytest.mark.parametrize("kind", [Norm, nn.SyncBatchNorm])
def test_layers_with_the_function_of_batch_norm_are_seen(
    kind: type[nn.Module], signs: Data
) -> None:
    network = one_layer()
    expected = gapscope.advise_batch_norm(network, signs, batch_size=20)
    network[0] = kind(1, eps=1e-12).double().eval()  # type: ignore[call-arg]
    assert gapscope.advise_batch_norm(network, signs, batch_size=20).to_dict() == expected.to_dict()


@pytest.fixture(scope="module")
def signs() -> Data:
    u = torch.tensor([[-1.0], [1.0]], dtype=torch.float64).repeat(N // 2, 1)
    return u, u


@pytest.fixture(scope="module")
def advice(signs: Data) -> BatchNormAdvice:
    return gapscope.advise_batch_norm(
        one_layer(), signs, batch_size=20, new_batch_size=100, passes=30, draws=16
    )


def variance(batch_size: int) -> float:
    """Variance of the mean of u over a batch sampled without replacement."""
    return (N - batch_size) / (batch_size * (N - 1))


def test_the_regularization_follows_the_one_over_m_law(advice: BatchNormAdvice) -> None:
    total = advice.total
    assert total.gamma_squared == 1 and total.zeta == pytest.approx(variance(20), rel=1e-6)
    for excess, size in ((total.excess, 20), (total.new_excess, 100)):
        assert excess.standard_error is not None and excess.standard_error < 0.1 * variance(size)
        # 1/sigma_B - 1 is of order 1/M here (a two-point distribution): the excess has a further part of order 1/M^2
        assert float(excess) == pytest.approx(
            variance(size), abs=4 * excess.standard_error + 2 / size**2
        )
    assert advice.missing == pytest.approx(total.excess - total.new_excess)


def test_the_dropout_rate_is_that_of_the_closed_form(advice: BatchNormAdvice) -> None:
    # dropping an input of size 1 costs p / (1 - p)
    expected = advice.missing / (1 + advice.missing)
    assert advice.dropout is not None and advice.dropout.standard_error is not None
    assert float(advice.dropout) == pytest.approx(expected, rel=0.1)
    assert advice.dropout.standard_error < 0.2 * expected


def test_following_the_advice_restores_the_loss(advice: BatchNormAdvice, signs: Data) -> None:
    u, y = signs
    assert advice.ghost_size == 20 and advice.decay_strength is not None
    ghost = replace_batch_norm(one_layer(), "ghost", ghost_size=20).train()
    losses = [
        (ghost(u[batch]) - y[batch]).square().mean().item()
        for part in random_batches(N, 100, 30, 1, torch.Generator().manual_seed(1))
        for batch in part
    ]
    assert sum(losses) / len(losses) == pytest.approx(float(advice.total.excess), rel=0.08)
    penalty = GammaDecayPenalty(
        float(advice.decay_strength), batch_size=20, batch_norm_size=100, draws=None
    )
    assert penalty(one_layer(), u, y).item() == pytest.approx(float(advice.missing), rel=0.01)


def test_gammas_of_zero_regularize_nothing(signs: Data) -> None:
    advice = gapscope.advise_batch_norm(
        one_layer(gamma=0.0), signs, batch_size=20, new_batch_size=100
    )
    assert advice.total.excess == advice.total.decay == advice.missing == 0
    assert (
        advice.dropout is None and advice.decay_strength is None and not advice.loses_regularization
    )
    assert "no change is needed" in advice.sentences[1] and len(advice.sentences) == 2


def test_smaller_batches_regularize_more(signs: Data) -> None:
    advice = gapscope.advise_batch_norm(one_layer(), signs, batch_size=100, new_batch_size=20)
    assert advice.missing < 0 and advice.ghost_size is None and advice.dropout is None
    assert "would grow by 0.04" in advice.sentences[1] and "population norm" in advice.sentences[2]


@pytest.fixture
def seconds_per_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a forward pass of 200 samples take one second of the processor, and all else none."""
    clock = [0.0]
    forward = nn.Tanh.forward

    def take(self: nn.Tanh, x: Tensor) -> Tensor:
        clock[0] += len(x) / 200
        return forward(self, x)

    monkeypatch.setattr(nn.Tanh, "forward", take)
    monkeypatch.setattr(time, "process_time", lambda: clock[0])


@pytest.mark.usefixtures("seconds_per_pass")
def test_a_budget_leaves_out_layers_and_holds() -> None:
    network, data = warmed_up(plain()), images(200)
    whole = gapscope.advise_batch_norm(network, data, batch_size=16, passes=4, time_budget=None)
    before = time.process_time()
    part = gapscope.advise_batch_norm(network, data, batch_size=16, passes=4, time_budget=30)
    assert time.process_time() - before < 30
    # a layer takes 4 passes with batches and 4 with noise, and 8 are kept back for all layers
    assert [layer.layer for layer in part.layers] == ["1", "4"] and part.left_out == ("8",)
    assert (
        part.layers == whole.layers[:2]
        and part.missing == whole.missing
        and part.dropout == whole.dropout
    )
    assert part.total.excess == whole.total.excess and part.total.decay == whole.total.decay
    assert part.total.predicted != whole.total.predicted  # one layer of second order
    assert "1 of 3 layers have no row" in repr(part) and whole.left_out == ()


@pytest.mark.usefixtures("seconds_per_pass")
def test_a_budget_below_what_all_layers_take_is_said_before_it_starts() -> None:
    network, data = warmed_up(plain()), images(200)
    with pytest.raises(BudgetSpent, match=r"time_budget=10.*25 CPU s.*time_budget=38"):
        gapscope.advise_batch_norm(network, data, batch_size=16, passes=4, time_budget=10)
    assert time.process_time() < 3  # trials of few samples


def test_a_network_without_batch_norm_is_told_so_before_its_batch_size() -> None:
    network, data = nn.Linear(2, 2), (torch.ones(9, 2), torch.arange(9) % 2)
    with pytest.raises(NotMeasurable, match="normalization layers"):
        gapscope.advise_batch_norm(network, data, batch_size=32)
    with pytest.raises(NotMeasurable, match="normalization layers"):
        gapscope.batch_norm.batch_norm_excess(network, data, batch_sizes=(32,))


@pytest.mark.usefixtures("seconds_per_pass")
def test_a_short_budget_takes_random_directions() -> None:
    network, data = warmed_up(plain()), images(200)
    advice = gapscope.advise_batch_norm(network, data, batch_size=16, passes=4, time_budget=26)
    assert advice.directions == 2 and "2 random directions" in repr(advice)
    exact = gapscope.advise_batch_norm(network, data, batch_size=16, passes=4, time_budget=None)
    assert exact.directions is None
    assert float(advice.total.decay) == pytest.approx(float(exact.total.decay), rel=0.3)


def test_without_batch_statistics_all_regularization_is_missing() -> None:
    network, data = warmed_up(plain()), images(200)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    advice = gapscope.advise_batch_norm(network, data, batch_size=16, passes=4)
    assert advice.missing == advice.total.excess > 0 and advice.ghost_size is None
    assert [layer.layer for layer in advice.layers] == [
        "1",
        "4",
        "8",
    ] and advice.dropout_before == ("10",)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    shown = repr(advice)
    assert (
        "all layers" in shown
        and "Without batch statistics all of it is lost" in shown
        and "Caution" in shown
    )
    content = advice.to_dict()
    assert content["missing"]["value"] == float(advice.missing) and len(content["layers"]) == 4


def test_dropout_loss_is_that_of_the_closed_form(signs: Data) -> None:
    """The identity fits u = -1 or 1: dropping it with probability p costs p / (1 - p)."""
    network = nn.Sequential(nn.Identity(), nn.Linear(1, 1, bias=False)).double()
    nn.init.ones_(network[1].weight)  # type: ignore[arg-type]
    dropout = DropoutLoss(network, Samples(*signs), ["1"], draws=20)
    for rate in (0.1, 0.5):
        result = dropout.excess(rate)
        assert result.standard_error is not None and result.standard_error < 0.02
        assert float(result) == pytest.approx(
            rate / (1 - rate), abs=4 * result.standard_error + 1e-9
        )
    assert dropout.excess(0.0) == 0
    assert dropout.matching_rate(Estimate(20.0, 0.0)) is None


def test_dropout_before_a_layer_whose_output_changes_in_place() -> None:
    losses = []
    for change in (torch.relu, torch.relu_):
        torch.manual_seed(0)
        network = Wrapped(lambda net, x, change=change: change(net.head(x)), head=nn.Linear(3, 2))
        samples = Samples(torch.randn(40, 3), torch.arange(40) % 2)
        losses.append(float(DropoutLoss(network, samples, ["head"]).excess(0.5)))
    assert losses[0] == losses[1]


def regularization(name: str, excess: float, new: float = 0.0) -> LayerRegularization:
    estimate = Estimate(excess, 0.001)
    return LayerRegularization(
        layer=name, gamma_squared=4.0, decay=estimate, predicted=estimate, excess=estimate,
        new_excess=Estimate(new, 0.001),
    )  # fmt: skip


@pytest.fixture
def half_missing() -> BatchNormAdvice:
    """Half of a regularization of 0.1 is missing, all standard errors are small."""
    return BatchNormAdvice(
        batch_size=32, new_batch_size=64, samples=10_000, loss=1.0, running_loss=1.0,
        layers=(regularization("first", 0.08, 0.04), regularization("last", 0.02, 0.01)),
        total=regularization("all layers", 0.1, 0.05),
        missing=Estimate(0.05, 0.001), ghost_size=32, dropout=Estimate(0.1, 0.01), dropout_before=("head",),
        decay_strength=Estimate(1.1, 0.1),
    )  # fmt: skip


def test_sentences_on_regularization_its_loss_and_remedies(half_missing: BatchNormAdvice) -> None:
    present, change, ghost, dropout, decay = half_missing.sentences
    assert present.endswith(
        "to the training loss of 1 (10.0 %); the largest part is that of first (80 % of the layers' sum)."
    )
    assert (
        change == "Batches of 64 would add 0.05 ± 0.001: 50 % of the regularization would be lost."
    )
    assert "replace_batch_norm(network, 'ghost', ghost_size=32)" in ghost
    assert dropout == "A dropout rate of 0.1 ± 0.01 before head adds as much to the loss."
    assert "GammaDecayPenalty(1.1, batch_size=32, batch_norm_size=64)" in decay
    assert len(half_missing.caveats) == 1 and half_missing.caveats[0].startswith(
        "these numbers are for the current"
    )


@pytest.mark.parametrize(
    ("changes", "caveat"),
    [
        ({"missing": Estimate(0.05, 0.02)}, "is uncertain: use more passes"),
        ({"running_loss": 2.0}, "the running statistics are stale"),
        ({"samples": 200}, "are a large fraction of the 200 samples"),
        ({"dropout": Estimate(0.7, 0.01)}, "a dropout rate of 0.70 is large noise"),
        ({"decay_strength": Estimate(3.0, 0.1)}, "needs a strength of 3, theory predicts 1"),
        (
            {
                "total": replace(
                    regularization("all layers", 0.1, 0.05), predicted=Estimate(0.2, 0.001)
                )
            },
            "predicts 0.2",
        ),
    ],
)
def test_each_caveat_appears_only_if_it_applies(
    half_missing: BatchNormAdvice, changes: dict[str, object], caveat: str
) -> None:
    assert any(caveat in text for text in replace(half_missing, **changes).caveats)  # type: ignore[arg-type]
    assert not any(caveat in text for text in half_missing.caveats)
