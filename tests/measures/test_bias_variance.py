"""Bias and variance over runs, against their definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gapscope.measures.bias_variance import bias_variance


@given(
    runs=st.integers(1, 6),
    n=st.integers(1, 8),
    k=st.integers(1, 5),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    seed=st.integers(0, 1000),
)
def test_mse_is_bias_plus_variance(runs, n, k, scale, seed):
    rng = np.random.default_rng(seed)
    predictions, targets = scale * rng.normal(size=(runs, n, k)), scale * rng.normal(size=(n, k))
    parts = bias_variance(predictions, targets)
    assert parts.mse == pytest.approx(parts.bias + parts.variance, rel=1e-12)
    assert parts.mse == pytest.approx(np.square(predictions - targets).sum(2).mean(), rel=1e-12)
    assert parts.variance == pytest.approx(predictions.var(0).sum(1).mean(), rel=1e-12)
    assert parts.runs == runs


def test_labels_are_one_hot_targets_of_any_type():
    rng = np.random.default_rng(0)
    predictions = torch.tensor(rng.dirichlet(np.ones(4), size=(3, 6)))
    labels = torch.tensor([0, 3, 1, 1, 2, 0])
    one_hot = torch.eye(4)[labels]
    assert bias_variance(predictions, labels) == bias_variance(predictions, one_hot)
    assert bias_variance(predictions.numpy(), labels.numpy()) == bias_variance(predictions, labels)
    assert bias_variance(predictions.float().requires_grad_(), labels).mse == pytest.approx(
        bias_variance(predictions, labels).mse, rel=1e-6
    )
