"""Loss and accuracy against scikit-learn."""

from __future__ import annotations

import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss, mean_squared_error
from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.inspection.losses import loss_of, scores


def test_classification_agrees_with_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 4, generator=generator), torch.randint(0, 3, (50,), generator=generator)
    network = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    result = scores(network, Samples(x, y), chunk_size=7)
    with torch.no_grad():
        logits = network[0](x).double()
    assert result["accuracy"] == accuracy_score(y, logits.argmax(1))
    assert result["loss"] == pytest.approx(log_loss(y, logits.softmax(1).numpy()), rel=1e-6)
    assert network.training


def test_regression_agrees_with_scikit_learn() -> None:
    x, y = torch.randn(20, 4), torch.randn(20, 2)
    network = nn.Linear(4, 2)
    result = scores(network, Samples(x, y))
    assert result.keys() == {"loss"}
    assert result["loss"] == pytest.approx(mean_squared_error(y, network(x).detach()), rel=1e-5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="Scores need targets"):
        scores(nn.Identity(), Samples(torch.zeros(3, 2)))
    with pytest.raises(InvalidInput, match=r"shape of the outputs, \[3, 2\]; got \[3, 1\]"):
        loss_of(torch.zeros(3, 2), torch.zeros(3, 1))
    with pytest.raises(InvalidInput, match="number of outputs, 2; got 2"):
        scores(nn.Identity(), Samples(torch.zeros(3, 2), torch.tensor([0, 1, 2])))
