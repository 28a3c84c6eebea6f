"""Groups of nearly equal rows, such as repeated recordings of one person, in any order."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.statistics.baselines import sample_features

# Rows that are compared with all others; numbers of rows times columns above which none are (a second of one core).
QUERIES, MAX_ENTRIES = 400, 20_000_000
# with fewer there are no two distances after that of the nearest neighbour to compare
MIN_ROWS = 4
# distances in memory at a time: 32 MB
MAX_DISTANCES = 2**22
# A row has near copies if, from its second neighbour on, one of its first 50 is 2.5 times as far as the one before. Of
# independent rows in m dimensions the ratio of the distances of neighbours k and k + 1 is r with a probability of
# r^(-mk). Chosen on 26 tables: at most .22 of their rows have near copies (docs/checks/gs108.md).
NEIGHBOURS, JUMP, MIN_FRACTION = 50, 2.5, 0.5

_OF_OTHERS = "If new data are of other groups (patients, objects, recordings), pass groups=."
LEFT_ONE_OUT = f"They are predicted from each other. {_OF_OTHERS}"
SCORED_ON_COPIES = f"Subsets are scored on copies of their own samples. {_OF_OTHERS}"
SHARED_ERRORS = (
    "An error that the copies share cannot be found. If they belong together, pass groups=."
)


def median_group_size(
    features: Float[Tensor, "n d"], labels: Int[Tensor, " n"] | None = None, *, seed: int = 0
) -> tuple[float, int] | None:
    """Return the fraction of rows with several near copies, and their median number of copies, the row included.

    Rows are compared with all others by Euclidean distances. None if there are too many rows or fewer than four, or if
    these groups may be the classes themselves: fewer than three groups per class.

    Args:
        features: Standardized features.
        labels: Class of each row; None for regression.
        seed: Seed of the rows that are compared.
    """
    n, d = features.shape
    if n * d > MAX_ENTRIES or n < MIN_ROWS:
        return None
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randperm(n, generator=generator)[:QUERIES]
    # in double precision, for products of matrices leave distances of equal rows of the root of the precision
    features = features.double()
    nearest: list[Tensor] = []
    medians: list[Tensor] = []
    for some in rows.split(max(1, MAX_DISTANCES // n)):
        distances = torch.cdist(features[some], features)
        nearest.append(distances.topk(min(n, NEIGHBOURS + 2), largest=False).values[:, 1:])
        medians.append(distances.median())
    near = torch.cat(nearest)
    # exact copies are no near ones
    floor = 1e-6 * torch.stack(medians).median()
    jumps = torch.where(near[:, 1:-1] > floor, near[:, 2:] / near[:, 1:-1], 0.0)
    largest, position = jumps.max(1)
    has_copies = largest >= JUMP
    fraction = float(has_copies.double().mean())
    if not bool(has_copies.any()):
        return fraction, 1
    size = 3 + int(position[has_copies].median())
    if labels is not None and n / size < 3 * len(labels.unique()):
        return None
    return fraction, size


def describe_groups(samples: Samples, noun: str, *, seed: int = 0) -> str:
    """Return how many of the samples have near copies, a clause; empty if fewer than half have.

    Tables of more than `MAX_ENTRIES` numbers are not searched.

    Args:
        samples: The samples, with targets.
        noun: What the samples are, such as "rows".
        seed: Seed of the rows that are compared.
    """
    if samples.inputs.numel() > MAX_ENTRIES:
        return ""
    labels = None
    if samples.is_classification:
        labels = samples.y.cpu()
    fraction, size = median_group_size(sample_features(samples), labels, seed=seed) or (0.0, 1)
    if fraction < MIN_FRACTION:
        return ""
    return (
        f"{100 * fraction:.0f} % of the {noun} have several near copies, in groups of about {size}"
    )


def grouped_rows_note(samples: Samples, consequence: str) -> tuple[str, ...]:
    """Return the note on samples most of which have near copies; none for others and for positions.

    Args:
        samples: The samples, with targets.
        consequence: What follows and what to do, sentences.
    """
    groups = ""
    if samples.kind != "positions":
        groups = describe_groups(samples, "samples")
    return (f"{groups}. {consequence}",) if groups else ()
