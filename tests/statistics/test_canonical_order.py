"""Orders of rows and columns by their values: the same for the same table in any order."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gapscope.base.samples import Samples
from gapscope.checks.text_leaks import decided_by_words
from gapscope.labels.boosted_trees import out_of_fold_log_probabilities
from gapscope.labels.error_model import confident_errors
from gapscope.labels.monitored import _ranks
from gapscope.labels.second_opinion import forest_opinion
from gapscope.measures.gradient_neighbours import gradient_neighbours
from gapscope.measures.representations import label_variation
from gapscope.statistics import canonical_order as module
from gapscope.statistics.baselines import feature_matrix, nearest_neighbours
from gapscope.statistics.calibration import reliability_curve
from gapscope.statistics.canonical_order import canonical_order, mixed_order


@pytest.mark.parametrize("max_values", [7, 4_000_000])
def test_a_shuffled_table_has_the_same_order(
    monkeypatch: pytest.MonkeyPatch, max_values: int
) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", max_values)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, (50, 9), generator=generator).double()
    x[:, 0] = torch.randn(50, generator=generator)
    y = torch.randint(0, 3, (50,), generator=generator)
    rows, columns = canonical_order(x, y)
    assert rows.sort().values.tolist() == list(range(50))
    for _ in range(3):
        by, across = torch.randperm(50, generator=generator), torch.randperm(9, generator=generator)
        shuffled, labels = x[by][:, across], y[by]
        r, c = canonical_order(shuffled, labels)
        assert torch.equal(shuffled[r][:, c], x[rows][:, columns])
        assert torch.equal(labels[r], y[rows])


def test_columns_with_equal_counts_are_told_apart_by_labels() -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(5, 1)
    y = torch.tensor([0, 1]).repeat(5)
    first = canonical_order(x, y)[1]
    assert torch.equal(canonical_order(x.flip(1), y)[1], 1 - first)


def test_equal_rows_are_mixed_whatever_their_labels() -> None:
    x = torch.arange(2.0).repeat_interleave(100)[:, None]
    y = torch.arange(200) % 2
    first = mixed_order(x, y)
    for place in (0, 1):
        labels = y[first[x[first, 0] == place]]
        assert 0.3 < float(labels[:50].double().mean()) < 0.7
    by = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    again = by[mixed_order(x[by], y[by])]
    assert torch.equal(x[again], x[first])
    assert torch.equal(y[again], y[first])


def test_a_table_in_another_order_has_the_same_answers() -> None:
    """Equal values are everywhere: of few whole numbers, in labels, scores and groups."""
    generator = torch.Generator().manual_seed(0)
    n = 120
    x = torch.randint(0, 3, (n, 4), generator=generator).double()
    y = (x[:, 0] + x[:, 1] + 2 * torch.rand(n, generator=generator) > 3).long()
    order = torch.randperm(n, generator=generator)
    scores = x[:, :2].float()
    network = nn.Linear(4, 2)
    nn.init.orthogonal_(network.weight, generator=generator)

    def of_kinds(predictions: Tensor, rows: Tensor) -> Tensor:
        # rows of equal values and labels may exchange their predictions
        table = torch.cat([x[rows], y[rows, None], predictions], 1).round(decimals=6)
        found, counts = table.unique(dim=0, return_counts=True)
        return torch.cat([found, counts[:, None]], 1)

    def read(rows: Tensor) -> list[Tensor]:
        features, labels = feature_matrix(x[rows]), y[rows]
        curve = reliability_curve(scores[rows].softmax(1), labels)
        return [
            torch.tensor(curve.observed),
            torch.tensor(confident_errors(scores[rows], labels)),
            torch.tensor(label_variation(x[rows], labels, 3)),
            of_kinds(nearest_neighbours(features, labels).predictions, rows),
            of_kinds(nearest_neighbours(features, x[rows, 2:] * labels[:, None]).predictions, rows),
            _ranks(scores[rows, 0])[rows.argsort()],
            torch.tensor(
                [*gradient_neighbours(network, x[rows].float(), labels).scalars().values()]
            ),
        ]

    for first, second in zip(read(torch.arange(n)), read(order), strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.thorough
def test_trees_that_hold_groups_out_do_not_depend_on_the_order() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    y = (x[:, 0] > 0).long()
    groups, order = torch.arange(60) // 2, torch.randperm(60, generator=generator)
    renamed = torch.randperm(30, generator=generator)[groups]
    first = forest_opinion(x, y, groups, seed=0, seconds=1)
    second = forest_opinion(x[order], y[order], renamed[order], seed=0, seconds=1)
    for of_rows, of_shuffled in ((None, None), (groups, renamed[order])):
        passed = out_of_fold_log_probabilities(Samples(x, y), y, 2, seed=0, groups=of_rows)
        shuffled = Samples(x[order][:, [2, 0, 1]], y[order])
        again = out_of_fold_log_probabilities(shuffled, y[order], 2, seed=0, groups=of_shuffled)
        assert passed is not None and again is not None
        torch.testing.assert_close(passed[order], again)
    torch.testing.assert_close(
        first.error[first.rows.argsort()], second.error[order[second.rows].argsort()]
    )


def test_halves_of_texts_and_their_words_do_not_depend_on_the_order() -> None:
    words = ["red blue", "blue green", "red", "green red", "blue", "green"]
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 2, (90,), generator=generator)
    texts = [words[k] for k in torch.randint(0, 6, (90,), generator=generator)]
    for _ in range(3):
        order = torch.randperm(90, generator=generator)
        shuffled = decided_by_words([texts[k] for k in order], labels[order])
        assert shuffled == decided_by_words(texts, labels)
