"""Paired canaries: p-value by enumeration, its bound, fair coins, data sets."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from gapscope.base.errors import InvalidInput
from gapscope.labels.monitored import PairedCanaries, paired_p_value


@pytest.mark.parametrize("pairs", [1, 2, 5, 9])
def test_the_p_value_counts_all_patterns_of_signs(pairs: int) -> None:
    values = np.random.default_rng(pairs).normal(0.3, 1, pairs)
    sums = [
        float(np.dot(signs, np.abs(values))) for signs in itertools.product((-1, 1), repeat=pairs)
    ]
    assert paired_p_value(list(values)) == np.mean([total >= values.sum() - 1e-9 for total in sums])


def test_many_pairs_have_the_bound_which_is_above_the_exact_value() -> None:
    values = np.random.default_rng(0).normal(0.5, 1, 32)
    statistic = values.sum() / math.sqrt((values**2).sum())
    assert paired_p_value(list(values)) < math.exp(-(statistic**2) / 2)
    assert paired_p_value([1.0] * 64) == pytest.approx(math.exp(-32))
    assert paired_p_value([-1.0] * 64) == 1.0


def test_under_fair_coins_small_p_values_are_as_rare_as_they_say() -> None:
    random = np.random.default_rng(1)
    sizes = random.lognormal(0, 2, 20)
    result = [paired_p_value(list(sizes * random.choice([-1, 1], 20))) for _ in range(400)]
    # 400 draws of at most .05 each: 20 expected, five standard deviations above is 42
    assert sum(value <= 0.05 for value in result) <= 42
    assert min(result) > 0


def _labelled(n: int = 40) -> list[dict[str, torch.Tensor]]:
    return [
        {"input_ids": torch.tensor([i, i + 1]), "labels": torch.tensor(i % 3)} for i in range(n)
    ]


def test_canaries_by_labels_are_wrong_and_in_the_data() -> None:
    data = _labelled()
    canaries = PairedCanaries.of_labels(data, n_classes=3, number=12, seed=1)
    changed = [
        i for i in range(len(data)) if int(canaries.dataset[i]["labels"]) != int(data[i]["labels"])
    ]
    assert len(changed) == len(canaries) == 12 and len(canaries.dataset) == 40  # type: ignore[arg-type]
    for one, other in zip(canaries.trained, canaries.others, strict=True):
        assert torch.equal(one["input_ids"], other["input_ids"])
        labels = {int(one["labels"]), int(other["labels"]), int(one["input_ids"][0]) % 3}
        assert labels == {0, 1, 2}
    coins = []
    for seed in range(20):
        made = PairedCanaries.of_labels(data, n_classes=3, seed=seed, number=20)
        coins += [
            int(a["labels"]) < int(b["labels"])
            for a, b in zip(made.trained, made.others, strict=True)
        ]
    assert 0.4 < sum(coins) / len(coins) < 0.6


def test_canaries_by_tokens_are_added_and_sampled_from_what_occurs() -> None:
    rows = [
        {"input_ids": torch.tensor([3, 5, 8]), "labels": torch.tensor([3, 5, 8])} for _ in range(6)
    ]
    canaries = PairedCanaries.of_tokens(rows, number=4)
    assert len(canaries.dataset) == 10 and canaries.dataset[9] is canaries.trained[3]  # type: ignore[arg-type]
    assert canaries.dataset[2] is rows[2]
    tokens = torch.cat([item["input_ids"] for item in [*canaries.trained, *canaries.others]])
    assert set(tokens.tolist()) <= {3, 5, 8}
    assert all(torch.equal(item["input_ids"], item["labels"]) for item in canaries.trained)


FORMS: dict[str, Any] = {
    "tensors": lambda tensor: tensor,
    "arrays": lambda tensor: tensor.numpy() if tensor.ndim else np.int64(tensor.item()),
    "lists": lambda tensor: tensor.tolist(),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("by", ["labels", "tokens"])
def test_values_of_canaries_have_the_types_of_the_rows(form: str, by: str) -> None:
    convert = FORMS[form]
    ids = torch.randint(1, 9, (20, 5), generator=torch.Generator().manual_seed(0))
    rows = [
        {
            "input_ids": convert(row),
            "attention_mask": convert(torch.ones_like(row)),
            "token_type_ids": convert(torch.zeros_like(row)),
            "labels": convert(row if by == "tokens" else row[0] % 3),
        }
        for row in ids
    ]
    if by == "tokens":
        canaries = PairedCanaries.of_tokens(rows, number=4)
    else:
        canaries = PairedCanaries.of_labels(rows, n_classes=3, number=4)
    data = [canaries.dataset[index] for index in range(len(canaries.dataset))]  # type: ignore[arg-type]
    for row in [*data, *canaries.others]:
        kinds = [(key, type(value), getattr(value, "dtype", None)) for key, value in row.items()]
        assert kinds == [
            (key, type(value), getattr(value, "dtype", None)) for key, value in rows[0].items()
        ]
    assert np.shape(data[-1]["labels"]) == np.shape(rows[0]["labels"])


def test_several_labels_per_sample_are_refused() -> None:
    rows = [{"input_ids": torch.zeros(2), "labels": torch.ones(3)} for _ in range(8)]
    with pytest.raises(InvalidInput, match=r"one class per sample.*\[3\]"):
        PairedCanaries.of_labels(rows, n_classes=3, number=2)


def test_what_does_not_fit_raises() -> None:
    with pytest.raises(InvalidInput, match="finite, one or more"):
        paired_p_value([])
    with pytest.raises(InvalidInput, match="input_ids and labels"):
        PairedCanaries.of_tokens(_labelled())
    with pytest.raises(InvalidInput, match="be mappings with labels"):
        PairedCanaries.of_labels([{"input_ids": torch.zeros(2)}] * 8, n_classes=2, number=2)


def test_canaries_replace_two_per_cent_of_the_labels_by_default() -> None:
    sizes = {n: len(PairedCanaries.of_labels(_labelled(n), n_classes=3)) for n in (40, 500, 2000)}
    assert sizes == {40: 2, 500: 10, 2000: 24}
    canaries = PairedCanaries.of_labels(_labelled(500), n_classes=3)
    assert "10 of 500 samples (2.0 %)" in repr(canaries) and canaries.smallest_p_value == 2.0**-10
    assert paired_p_value([1.0] * 10) == canaries.smallest_p_value


def _with_labels(label: Any, n: int = 40) -> list[dict[str, Any]]:
    return [{"input_ids": torch.tensor([i, i + 1]), "labels": label(i)} for i in range(n)]


@pytest.mark.parametrize(
    ("label", "n_classes", "match"),
    [
        (lambda i: i / 7, 4, "floating point; of_labels needs classes"),
        (lambda i: torch.tensor(i % 3 + 0.0), 4, "floating point"),
        (lambda i: 4 + i % 3, 4, r"Got the label \d; n_classes=4 allows 0 to 3"),
        (lambda _: -1, 4, "Got the label -1"),
        (lambda i: i % 2 == 0, 3, "Pass n_classes=2"),
        (lambda i: "ab"[i % 2], 2, "Got the label '[ab]'"),
        (lambda _: None, 2, "Got the label None"),
        (lambda _: -100, 2, "Got 0 samples with a label"),
    ],
)
def test_labels_that_are_no_classes_raise(label: Any, n_classes: int, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        PairedCanaries.of_labels(_with_labels(label), n_classes=n_classes, number=4)


def test_samples_that_do_not_count_are_no_canaries() -> None:
    data = _with_labels(lambda i: -100 if i % 2 else i % 3)
    canaries = PairedCanaries.of_labels(data, n_classes=3, number=12)
    assert len(canaries) == 12
    assert all(int(item["input_ids"][0]) % 2 == 0 for item in canaries.trained)
    assert [canaries.dataset[i]["labels"] for i in range(1, 40, 2)] == [-100] * 20


def test_booleans_are_two_classes() -> None:
    canaries = PairedCanaries.of_labels(_with_labels(lambda i: i % 2 == 0), n_classes=2, number=6)
    for one, other in zip(canaries.trained, canaries.others, strict=True):
        assert one["labels"] is not other["labels"]


@pytest.mark.parametrize("kind", [tuple, list])
def test_pairs_of_inputs_and_a_label_are_samples(kind: Any) -> None:
    data = [kind((torch.tensor([i]), i % 3)) for i in range(40)]
    canaries = PairedCanaries.of_labels(data, n_classes=3, number=6)
    for one, other in zip(canaries.trained, canaries.others, strict=True):
        assert type(one) is kind and {one[1], other[1], int(one[0]) % 3} == {0, 1, 2}


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ([], "0 samples; canaries need at least 4"),
        (_with_labels(lambda i: i % 3, 3), "3 samples; canaries need at least 4"),
        ({"input_ids": [[1]] * 8, "labels": [0] * 8}, "Got dict; .* whose items are samples"),
        (iter([]), "canaries need a data set with a length"),
        ([1.0] * 8, "must be mappings with labels; got float"),
    ],
)
def test_data_without_samples_raise(data: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        PairedCanaries.of_labels(data, n_classes=3)


def test_a_frame_and_a_number_that_is_not_whole_raise() -> None:
    pandas = pytest.importorskip("pandas")
    with pytest.raises(InvalidInput, match=r"Got DataFrame; .*from_pandas"):
        PairedCanaries.of_tokens(pandas.DataFrame({"input_ids": [1, 2], "labels": [0, 1]}))
    with pytest.raises(InvalidInput, match=r"number must be an"):
        PairedCanaries.of_labels(_labelled(), n_classes=3, number=4.5)  # type: ignore[arg-type]


def test_every_index_of_the_data_has_the_canaries() -> None:
    canaries = PairedCanaries.of_labels(_labelled(), n_classes=3, number=6)
    data: Any = canaries.dataset
    whole = [data[i] for i in range(40)]
    assert [data[i - 40] for i in range(40)] == whole
    assert data[3:9] == whole[3:9] and data[[5, -1]] == [whole[5], whole[-1]]
    assert data[-3:] == whole[-3:] and data["labels"].tolist() == [
        int(row["labels"]) for row in whole
    ]
    for index in (40, -41):
        with pytest.raises(IndexError):
            data[index]


def test_slices_of_hugging_face_data_are_columns() -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"input_ids": [[i, i + 1] for i in range(40)], "label": [i % 3 for i in range(40)]}
    data: Any = PairedCanaries.of_labels(
        datasets.Dataset.from_dict(rows), n_classes=3, number=6
    ).dataset
    part = data[:5]
    assert part["input_ids"] == rows["input_ids"][:5]
    assert part["label"] == [data[i]["label"] for i in range(5)]


IDS = torch.randint(20, 50, (12, 6), generator=torch.Generator().manual_seed(0))


def test_tags_of_tokens_are_drawn_from_the_tags() -> None:
    rows = [{"input_ids": row, "labels": row % 4} for row in IDS]
    rows[0]["labels"] = torch.tensor([-100, 1, 1, 2, 3, -100])
    canaries = PairedCanaries.of_tokens(rows, number=30)
    tags = torch.cat([item["labels"] for item in [*canaries.trained, *canaries.others]])
    tokens = torch.cat([item["input_ids"] for item in canaries.trained])
    assert set(tags.tolist()) == {0, 1, 2, 3} and int(tokens.min()) >= 20


def test_labels_that_are_the_next_token_stay_so() -> None:
    rows = [{"input_ids": row[:-1], "labels": row[1:].clone()} for row in IDS]
    rows[1]["labels"][:2] = -100
    canaries = PairedCanaries.of_tokens(rows, number=5)
    for item in canaries.others:
        assert torch.equal(item["input_ids"][1:], item["labels"][:-1])
        assert not torch.equal(item["input_ids"], item["labels"])


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        ([{"input_ids": [1, 2], "labels": [-100, -100]}] * 4, "all -100 in the first 4 samples"),
        ([{"input_ids": [1, 2], "labels": [0.5, 1.0]}] * 4, "needs integers"),
        ([{"input_ids": [1, 2], "labels": ["a", "b"]}] * 4, "Got labels \\['a', 'b'\\]"),
        ([{"input_ids": [1, 2], "labels": [-1, 2]}] * 4, "Got the label -1"),
        ([{"input_ids": [1, 2], "labels": [1, 2]}, {"input_ids": [1], "labels": [1, 2]}], "shape"),
        ([], "0 samples"),
    ],
)
def test_sequences_without_token_labels_raise(rows: Any, match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        PairedCanaries.of_tokens(rows)


class _Broken(Dataset[Any]):
    """Data set of samples with one label or one per token, one of which (None for all) cannot be read."""

    def __init__(self, broken: int | None, labels: Any) -> None:
        self.broken = broken
        self.labels = labels

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.broken in (index, None):
            raise OSError("truncated file")
        return {"input_ids": [1, 2, 3], "labels": self.labels}


def test_a_sample_that_cannot_be_read_is_named() -> None:
    with pytest.raises(InvalidInput, match=r"\d of _Broken raised OSError"):
        PairedCanaries.of_labels(_Broken(None, 1), n_classes=3, number=2)


@pytest.mark.parametrize("broken", [0, 1])
def test_a_sequence_that_cannot_be_read_is_named(broken: int) -> None:
    with pytest.raises(InvalidInput, match=rf"sample {broken} of _Broken raised OSError"):
        PairedCanaries.of_tokens(_Broken(broken, [1, 2, 3]), number=2)
