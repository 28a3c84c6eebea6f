"""Measures of the loss at tokens, of which some have no label, equal dense float64 gradients in every division."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import gapscope as gs
from gapscope.base.errors import NotMeasurable, NotYetSupported
from gradients.reference import gradient_of
from penalties.test_positions import Tagger, batch

NAMES = [
    "gradient_norm",
    "fisher_trace",
    "gradient_noise",
    "connection_sensitivity",
    "hessian_top_eigenvalue",
    "worst_case_sharpness",
    "adaptive_sharpness",
]


@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("chunk_size", [1, 3])
def test_measures_of_the_loss_count_labelled_positions(padding: int, chunk_size: int) -> None:
    network, given = Tagger().double(), batch(padding)
    given["labels"][1] = -100  # a sample without any label
    labels = given["labels"]
    options = {name: {"chunk_size": chunk_size} for name in NAMES}
    options["worst_case_sharpness"]["steps"] = 1
    values = gs.measure(network, given, NAMES, options=options, progress=False).values()
    logits = network(given["input_ids"], given["attention_mask"]).transpose(1, 2)
    losses = F.cross_entropy(logits, labels, reduction="none").sum(1) / (labels >= 0).sum()
    rows = torch.stack([gradient_of(4 * loss, network, create_graph=True) for loss in losses])
    mean = rows.mean(0)
    squares = rows.square().sum(1)
    expected = {
        "gradient_norm.whole": mean.norm(),
        "fisher_trace": squares.mean(),
        "gradient_noise": squares.mean() - mean.square().sum(),
    }
    for name, value in expected.items():
        assert values[name] == pytest.approx(float(value.detach()), rel=1e-8)
    hessian = torch.stack([gradient_of(each, network) for each in mean])
    largest = torch.linalg.eigvalsh(hessian)
    assert values["hessian_top_eigenvalue"] == pytest.approx(float(largest[-1]), rel=1e-3)
    step = 0.05 * mean.detach() / mean.detach().norm()
    start = 0
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += step[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        moved = network(given["input_ids"], given["attention_mask"]).transpose(1, 2)
    rise = F.cross_entropy(moved, labels) - F.cross_entropy(logits, labels)
    assert values["worst_case_sharpness"] == pytest.approx(float(rise.detach()), rel=1e-8)


def test_positions_without_any_label_and_sampled_labels_are_refused() -> None:
    network, given = Tagger().double(), batch(0)
    options = {"fisher_trace": {"labels": "sampled"}}
    with pytest.raises(NotYetSupported, match="given"):
        gs.measure(network, given, ["fisher_trace"], options=options)
    given["labels"].fill_(-100)
    with pytest.raises(NotMeasurable, match="label"):
        gs.measure(network, given, ["gradient_norm"])
