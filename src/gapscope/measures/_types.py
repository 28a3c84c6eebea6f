"""Shapes of the arguments that measures share."""

from __future__ import annotations

from jaxtyping import Float, Int, Shaped
from torch import Tensor

Inputs = Shaped[Tensor, "n ..."]
FloatInputs = Float[Tensor, "n ..."]
Targets = Shaped[Tensor, "n ..."]
Labels = Int[Tensor, " n"]
