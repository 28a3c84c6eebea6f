"""Layers without gradients are refused before the first pass, and nothing is changed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn

from gapscope.base.errors import ReplaceLayer
from gapscope.measures.curvature import hessian_trace
from gapscope.measures.measurement import measure
from gapscope.measures.ntk import empirical_ntk, ntk_trace
from gapscope.measures.parameters import parameter_count, parameter_norm
from gapscope.penalties.gradient_norms import LossGradientPenalty
from gapscope.penalties.gradient_similarity import GradientSimilarityPenalty

TOKENS, LABELS = torch.tensor([[1, 2], [3, 4], [0, 3]]), torch.tensor([0, 1, 0])


@pytest.mark.parametrize("options", [{"max_norm": 0.5}, {"scale_grad_by_freq": True}])
@pytest.mark.parametrize("table", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_change_weights_or_gradients(table: Any, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    embedding = table(5, 4, **options)
    network = nn.Sequential(embedding, nn.Flatten(), nn.LazyLinear(2))
    network(TOKENS)
    with torch.no_grad():
        embedding.weight.mul_(3)
    before = embedding.weight.detach().clone()
    penalty = GradientSimilarityPenalty(0.1)
    for call in (ntk_trace, empirical_ntk, lambda network, x: penalty(network, x)):
        with pytest.raises(ReplaceLayer, match="max_norm=None"):
            call(network, TOKENS)
        assert torch.equal(embedding.weight, before)
    # values of outputs need no gradient
    score = measure(network, (TOKENS, LABELS), ["accuracy"])["accuracy"].value
    assert torch.equal(embedding.weight, before)
    assert float(score) == (network(TOKENS).argmax(1) == LABELS).double().mean()


def test_a_frozen_embedding_with_max_norm_has_no_gradient_to_be_wrong() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(5, 4, max_norm=0.5).requires_grad_(False)
    network = nn.Sequential(embedding, nn.Flatten(), nn.Linear(8, 2))
    before = embedding.weight.clone()
    trace = ntk_trace(network, TOKENS)
    assert torch.equal(embedding.weight, before)
    features = network[:2](TOKENS)
    assert trace == pytest.approx(2 * float((features.square().sum(1) + 1).sum()), rel=1e-5)


def test_dynamically_quantized_layers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that quantization moves to another package
        body = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(4, 8), nn.ReLU()), {nn.Linear}
        )
    network = nn.Sequential(nn.LayerNorm(4), body, nn.Linear(8, 2))
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    for penalty in (GradientSimilarityPenalty(0.1), LossGradientPenalty(0.1)):
        with pytest.raises(ReplaceLayer, match=r"a quantized layer"):
            penalty(network, x, LABELS)


def test_numbers_of_the_weights_of_quantized_layers() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that quantization moves to another package
        network = torch.ao.quantization.quantize_dynamic(
            nn.Sequential(nn.Linear(4, 8), nn.ReLU()), {nn.Linear}
        )
    for size in (parameter_count, parameter_norm):
        with pytest.raises(ReplaceLayer, match="a quantized layer"):
            size(network)


def test_a_bag_of_embeddings_has_no_second_derivatives() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.EmbeddingBag(5, 4), nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    assert ntk_trace(network, TOKENS) > 0
    penalties = (GradientSimilarityPenalty(0.1), LossGradientPenalty(0.1))
    for penalty in penalties:
        with pytest.raises(ReplaceLayer, match="EmbeddingBag '0'"):
            penalty(network, TOKENS, LABELS)
    with pytest.raises(ReplaceLayer, match="has none of embedding_bag"):
        hessian_trace(network, TOKENS, LABELS)
    network[0].requires_grad_(False)
    for penalty in penalties:
        penalty(network, TOKENS, LABELS).backward()
