"""Subsets and noise: small pure functions, each drawing from one generator."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from gapscope.base.errors import InvalidInput, check_range
from gapscope.base.random_streams import resolve_generator
from gapscope.base.samples import Samples


def inject_label_noise(
    labels: Int64[Tensor, " n"],
    rate: float,
    n_classes: int,
    generator: torch.Generator | None = None,
    *,
    may_keep_class: bool = False,
) -> Int64[Tensor, " n"]:
    """Return the labels with exactly round(rate * n) of them resampled uniformly.

    The same generator state and a larger rate replace the same labels by the same classes, and then more of them.
    `round` is Python's: halves go to the even number.

    Args:
        rate: Fraction that is replaced, 0 to 1.
        may_keep_class: Whether a label may be replaced by itself. If not (the default), every replaced label is
            wrong, uniformly among the other classes; else it is correct with probability 1 / n_classes.

    Raises:
        InvalidInput: rate or n_classes is out of range, or a label is not below n_classes.

    >>> noisy = inject_label_noise(torch.zeros(10, dtype=torch.int64), 0.3, 5)
    >>> int((noisy != 0).sum())
    3
    """
    check_range("rate of label_noise", rate, 0, 1)
    check_range("n_classes of label_noise", n_classes, 2)
    if len(labels) and int(labels.max()) >= n_classes:
        raise InvalidInput(f"Labels must be smaller than n_classes = {n_classes}; got {int(labels.max())}.")
    generator = resolve_generator(generator, "label noise")
    n = len(labels)
    chosen = torch.randperm(n, generator=generator)[: round(rate * n)]
    steps = torch.randint(0 if may_keep_class else 1, n_classes, (n,), generator=generator)
    noisy = labels.clone()
    noisy[chosen] = (labels[chosen] + steps[chosen].to(labels.device)) % n_classes
    return noisy


def add_target_noise(
    targets: Float[Tensor, "n k"], std: float, generator: torch.Generator | None = None
) -> Float[Tensor, "n k"]:
    """Return regression targets plus Gaussian noise of standard deviation `std`.

    Args:
        std: Standard deviation in the targets' units, 0 or larger.

    Raises:
        InvalidInput: std is negative.

    >>> add_target_noise(torch.ones(2, 1), 0.0).tolist()
    [[1.0], [1.0]]
    """
    check_range("std of target_noise", std, 0)
    noise = torch.randn(targets.shape, generator=resolve_generator(generator, "target noise"), dtype=targets.dtype)
    return targets + std * noise.to(targets.device)


def subset(samples: Samples, n: int, generator: torch.Generator | None = None) -> Samples:
    """Return n samples without replacement, in random order.

    The same generator state and a larger n give the same samples first.

    Raises:
        InvalidInput: There are fewer than n samples.

    >>> len(subset(Samples(torch.zeros(5, 2)), 3))
    3
    """
    check_range("n of subset", n, 1, len(samples))
    return samples.subset(torch.randperm(len(samples), generator=resolve_generator(generator, "training subset"))[:n])


def balanced_subset(samples: Samples, n: int, n_classes: int, generator: torch.Generator | None = None) -> Samples:
    """Sample n indices without replacement, equally many per class, in random order.

    Raises:
        InvalidInput: The samples have no class labels, n is no multiple of n_classes, or a class has too few samples.

    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> balanced_subset(Samples(torch.zeros(6, 2), labels), 4, 2).targets.sum().item()
    2
    """
    if samples.targets is None or not samples.is_classification:
        raise InvalidInput("A balanced subset needs class labels; these samples have none. Use a plain subset.")
    check_range("n of balanced_subset", n, 1)
    if n % n_classes:
        raise InvalidInput(
            f"The size of a balanced subset must be a multiple of the number of classes, {n_classes}; got {n}. "
            f"Use {n - n % n_classes or n_classes}."
        )
    counts = torch.bincount(samples.targets, minlength=n_classes)[:n_classes]
    if int(counts.min()) < n // n_classes:
        raise InvalidInput(
            f"Every class must have {n // n_classes} samples for a balanced subset of {n}; "
            f"class {int(counts.argmin())} has {int(counts.min())}. Use at most {int(counts.min()) * n_classes}."
        )
    order = torch.randperm(len(samples), generator=resolve_generator(generator, "training subset"))
    labels = samples.targets[order]
    drawn = torch.zeros(len(order), dtype=torch.bool)
    for label in range(n_classes):
        drawn[(labels == label).nonzero().flatten()[: n // n_classes]] = True
    return samples.subset(order[drawn])
