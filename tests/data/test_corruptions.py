from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.data.corruptions import add_target_noise, balanced_subset, inject_label_noise, subset


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(
    n=st.integers(0, 200),
    rate=st.floats(0, 1),
    n_classes=st.integers(2, 20),
    seed=st.integers(0, 1000),
)
def test_exactly_round_rate_n_labels_become_another_class(n: int, rate: float, n_classes: int, seed: int) -> None:
    labels = torch.arange(n) % n_classes
    noisy = inject_label_noise(labels, rate, n_classes, seeded(seed))
    assert int((noisy != labels).sum()) == round(rate * n)
    assert torch.equal(labels, torch.arange(n) % n_classes), "the input must stay as it is"
    if n:
        assert int(noisy.min()) >= 0
        assert int(noisy.max()) < n_classes


def test_the_other_classes_are_equally_likely() -> None:
    noisy = inject_label_noise(torch.full((90_000,), 3), 1.0, 10, seeded())
    counts = torch.bincount(noisy, minlength=10).double()
    assert counts[3] == 0
    # Chi-squared with 8 degrees of freedom exceeds 26 with probability 0.001.
    assert ((counts[counts > 0] - 10_000) ** 2 / 10_000).sum() < 26


def test_the_same_class_may_be_drawn_on_request() -> None:
    labels = torch.zeros(100_000, dtype=torch.int64)
    noisy = inject_label_noise(labels, 0.8, 10, seeded(), may_keep_class=True)
    # 80,000 draws of 10 classes: 72,000 wrong, standard deviation 85.
    assert abs(int((noisy != labels).sum()) - 72_000) < 4 * 85


def test_a_larger_rate_keeps_the_wrong_labels_of_a_smaller_one() -> None:
    labels = torch.arange(500) % 10
    low, high = (inject_label_noise(labels, rate, 10, seeded(1)) for rate in (0.3, 0.6))
    wrong = low != labels
    assert torch.equal(high[wrong], low[wrong])


@pytest.mark.parametrize(
    ("rate", "n_classes", "message"),
    [
        (1.5, 10, r"rate of label_noise must lie in \[0, 1\]; got 1.5"),
        (float("nan"), 10, "rate of label_noise must lie in"),
        (0.5, 1, r"n_classes of label_noise must lie in \[2, inf\); got 1"),
        (0.5, 2, "Labels must be smaller than n_classes = 2; got 2"),
    ],
)
def test_impossible_label_noise_is_refused(rate: float, n_classes: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        inject_label_noise(torch.tensor([0, 1, 2]), rate, n_classes)


def test_target_noise_has_the_stated_standard_deviation() -> None:
    targets = torch.full((20_000, 2), 5.0)
    noise = add_target_noise(targets, 10.0, seeded()).double() - 5
    # 40,000 draws: the mean has standard error 0.05, the standard deviation 0.035.
    assert abs(noise.mean()) < 0.2
    assert abs(noise.std() - 10) < 0.14
    assert abs(torch.corrcoef(noise.T)[0, 1]) < 0.03
    assert torch.equal(targets, torch.full((20_000, 2), 5.0))


SAMPLES = Samples(torch.arange(60.0).reshape(30, 2), torch.arange(30) % 3)


def rows(samples: Samples) -> list[int]:
    return [int(value) // 2 for value in samples.inputs[:, 0]]


@given(n=st.integers(1, 30), seed=st.integers(0, 1000))
def test_a_subset_has_no_sample_twice_and_keeps_targets(n: int, seed: int) -> None:
    drawn = subset(SAMPLES, n, seeded(seed))
    assert len(set(rows(drawn))) == n == len(drawn)
    assert drawn.targets is not None
    assert drawn.targets.tolist() == [row % 3 for row in rows(drawn)]
    assert rows(subset(SAMPLES, 30, seeded(seed)))[:n] == rows(drawn)


@given(each=st.integers(1, 10), seed=st.integers(0, 1000))
def test_a_balanced_subset_has_equally_many_of_every_class(each: int, seed: int) -> None:
    drawn = balanced_subset(SAMPLES, 3 * each, 3, seeded(seed))
    assert drawn.targets is not None
    assert torch.bincount(drawn.targets).tolist() == [each] * 3
    assert len(set(rows(drawn))) == 3 * each
    assert drawn.targets.tolist() == [row % 3 for row in rows(drawn)]


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (31, "multiple of the number of classes, 3; got 31. Use 30"),
        (2, "multiple of the number of classes, 3; got 2. Use 3"),
        (33, "Every class must have 11 samples for a balanced subset of 33; class 0 has 10. Use at most 30"),
        (0, "n of balanced_subset must lie in"),
    ],
)
def test_impossible_balanced_subsets_are_refused(n: int, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        balanced_subset(SAMPLES, n, 3)


def test_subsets_of_too_few_samples_or_without_labels_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"n of subset must lie in \[1, 30\]; got 31"):
        subset(SAMPLES, 31)
    with pytest.raises(InvalidInput, match="needs class labels; these samples have none"):
        balanced_subset(Samples(torch.zeros(4, 2), torch.zeros(4, 1)), 2, 2)
