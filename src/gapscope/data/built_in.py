"""Problems that need no files: scikit-learn's handwritten digits and two noisy circles."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from gapscope.base.errors import check_range
from gapscope.base.samples import Samples
from gapscope.data.problem import Problem

_DIGITS_TEST_SIZE = 500


def digits() -> Problem:
    """Load 1,797 handwritten digits of 8 x 8 pixels from scikit-learn (500 for the test).

    Pixels are divided by 16. The split is stratified by class and always the same (scikit-learn's train_test_split
    with random_state 0).

    Reference: Alpaydin & Kaynak 1998, UCI "Optical Recognition of Handwritten Digits", test part.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch: Any = load_digits()
    inputs = torch.as_tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    labels = torch.as_tensor(bunch.target, dtype=torch.int64)
    train, test = (
        torch.from_numpy(indices)
        for indices in train_test_split(
            np.arange(len(labels)), test_size=_DIGITS_TEST_SIZE, stratify=bunch.target, random_state=0
        )
    )
    samples = Samples(inputs, labels)
    names = tuple(str(digit) for digit in range(10))
    return Problem("digits", "classification", samples.subset(train), samples.subset(test), 10, names)


def two_circles(
    *, n: int = 100, factor: float = 0.5, noise: float = 0.2, test_size: int = 1000, seed: int = 0
) -> Problem:
    r"""Make two concentric circles with noise: class 0 on radius 1, class 1 on radius `factor`.

    Points lie evenly on each circle, $x = r (\cos t, \sin t) + \epsilon$, $\epsilon \sim N(0, noise^2 I)$
    (scikit-learn's make_circles). At factor 0.5 and noise 0.2 the accuracy of the best classifier is 0.890.

    Args:
        n: Training points of both circles together, at least 2.
        factor: Radius of the inner circle, in [0, 1).
        noise: Standard deviation of the noise of each coordinate.
        test_size: Test points, at least 2, sampled independently of n.

    Raises:
        InvalidInput: An option is out of range.
    """
    from sklearn.datasets import make_circles

    check_range("n of two_circles", n, 2)
    check_range("test_size of two_circles", test_size, 2)
    check_range("factor of two_circles", factor, 0, 1, high_open=True)
    check_range("noise of two_circles", noise, 0)
    check_range("seed of two_circles", seed, 0)
    splits = []
    for stream, size in enumerate((n, test_size)):
        random = np.random.RandomState(np.random.MT19937(np.random.SeedSequence((seed, stream))))
        points, labels = make_circles(n_samples=size, factor=factor, noise=noise, random_state=random)
        splits.append(Samples(torch.as_tensor(points, dtype=torch.float32), torch.as_tensor(labels).long()))
    return Problem("two_circles", "classification", *splits, n_outputs=2, class_names=("outer", "inner"))
