"""Numbers of classes in a check: names in place of negative numbers, and codes numbered from 0 on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy
import torch

from gapscope.base.label_marks import check_no_mark
from gapscope.base.label_numbers import is_far_above
from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED


def with_class_names(data: Any, test: Any) -> tuple[Any, Any]:
    """Return pairs whose integer labels are names if some are negative: classes of an estimator, such as -1 and 1.

    Args:
        data: Training data.
        test: Test data; None for none.
    """
    pairs = [part for part in (data, test) if part is not None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        return data, test
    labels = [numpy.asarray(pair[1]) for pair in pairs]
    if any(each.dtype.kind != "i" or each.ndim != 1 for each in labels):
        return data, test
    values = numpy.concatenate(labels)
    if values.min(initial=0) >= 0 or IGNORED in values:
        return data, test
    named, named_test = (part and (part[0], _as_names(part[1])) for part in (data, test))
    return named, named_test


def number_classes(samples: Samples, test: Samples | None) -> tuple[Samples, Samples | None]:
    """Return both with classes numbered from 0 on and named by their labels, if these are far larger than their number.

    Arrays of scores have a column per number of a class, so that codes such as 30000000 would fill the memory.

    Args:
        samples: Training samples.
        test: Test samples; None for none.

    Raises:
        InvalidInput: A label of positions looks like a mark of positions that do not count.
    """
    if samples.kind not in ("classification", "positions") or samples.class_names:
        return samples, test
    parts = [samples]
    if test is not None and test.targets is not None:
        parts.append(test)
    if samples.kind == "positions":
        for part in parts:
            check_no_mark(part.y)
    values = torch.cat([part.y.cpu().flatten() for part in parts]).unique()
    values = values[values != IGNORED]
    if not len(values) or not is_far_above(int(values[-1]), len(values)):
        return samples, test
    names = tuple(map(str, values.tolist()))
    numbered = [
        replace(
            part,
            targets=torch.where(
                part.y == IGNORED, IGNORED, torch.searchsorted(values.to(part.y.device), part.y)
            ),
            unsettled=None,
            class_names=names,
        )
        for part in parts
    ]
    return numbered[0], (numbered[1] if len(numbered) > 1 else test)


def _as_names(labels: Any) -> Any:
    """Return integers as text; a pandas Series keeps its index."""
    if hasattr(labels, "index") and hasattr(labels, "map"):
        return labels.map(str)
    return numpy.asarray(labels).astype(str)
