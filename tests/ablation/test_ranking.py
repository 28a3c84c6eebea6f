from __future__ import annotations

import pytest
import torch
from torch import nn

from gapscope.ablation.class_curves import class_selectivity, mean_absolute_activation, rank_units, weight_norm
from gapscope.base.errors import NotMeasurable


def test_activations_count_without_their_sign() -> None:
    values = torch.tensor([[[2.0, -2.0], [1.0, 1.0]], [[0.0, 4.0], [1.0, 1.0]]])
    assert mean_absolute_activation(values).tolist() == [2.0, 1.0]


def test_selectivity_of_units_that_serve_one_class_all_or_none() -> None:
    means = torch.tensor([[2.0, 1.0, 0.0, 3.0], [0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    assert class_selectivity(means).tolist() == pytest.approx([1.0, 0.0, 0.0, 2.5 / 3.5])
    with pytest.raises(NotMeasurable, match="needs at least 2; got samples of 1"):
        class_selectivity(means[:1])


def test_weight_norms_are_those_of_the_filters() -> None:
    convolution = nn.Conv2d(2, 3, 1, bias=False)
    convolution.weight.data.copy_(torch.tensor([[1.0, -2.0], [0.0, 0.0], [5.0, 0.0]])[..., None, None])
    assert weight_norm(convolution, "a").tolist() == [3.0, 0.0, 5.0]
    with pytest.raises(NotMeasurable, match=r"units of 'somewhere'; none was found. Pass a function"):
        weight_norm(None, "somewhere")


def test_ranking_is_descending_and_stable() -> None:
    assert rank_units(torch.tensor([0.0, 2.0, 0.0, 5.0])).tolist() == [3, 1, 0, 2]
