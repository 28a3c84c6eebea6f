"""Quantities of one forward pass that several measures use, and common types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from gapscope.base.errors import NotMeasurable
from gapscope.base.samples import slices
from gapscope.base.targets import check_labels
from gapscope.base.task import check_no_invalid, class_logits, has_no_largest
from gapscope.inspection.hooks import copied_calls, weighted_calls
from gapscope.inspection.memoization import memoize
from gapscope.inspection.outputs import (
    checked_outputs,
    measurement_mode,
    network_outputs,
    prepare_inputs,
    samples_per_pass,
)
from gapscope.inspection.sample_layout import sample_layouts
from gapscope.results.estimate import Estimate
from gapscope.results.result import Result

if TYPE_CHECKING:
    import pandas

FeatureRows = Float[Tensor, "n d"]
Inputs = Shaped[Tensor, "n ..."]
FloatInputs = Float[Tensor, "n ..."]
Targets = Shaped[Tensor, "n ..."]
Labels = Int[Tensor, " n"]


@dataclass(frozen=True, repr=False)
class Scalars(Result):
    """Named scalars of one measure, and reasons of missing ones, which are NaN."""

    values: Mapping[str, float]
    reasons: Mapping[str, str] = field(default_factory=dict)

    def scalars(self) -> dict[str, float]:
        """Return the numbers by name."""
        return {**self.values, **dict.fromkeys(self.reasons, math.nan)}

    def missing(self) -> dict[str, str]:
        """Return the reasons of NaN by name."""
        return dict(self.reasons)

    def __getitem__(self, name: str) -> float:
        """Return the number called `name`."""
        return self.scalars()[name]

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per number."""
        import pandas

        return pandas.DataFrame({"value": self.scalars()})


@dataclass(frozen=True)
class ForwardPass:
    """Outputs and features of one forward pass in evaluation mode, in float64 on the CPU.

    Features are the flattened inputs of `head`, the last linear or convolutional layer (None without one), with all
    rows of a sample in one.
    """

    outputs: Float[Tensor, "n k"]
    features: FeatureRows | None
    head: nn.Module | None

    @property
    def logits(self) -> Float[Tensor, "n c"]:
        """Return one logit per class (for a single output z these are 0 and z)."""
        return class_logits(self.outputs)


@memoize
def forward_pass(network: nn.Module, x: Tensor, *, chunk_size: int | None = None) -> ForwardPass:
    """Run a network once in evaluation mode, and return outputs and last-layer features.

    Raises:
        NotMeasurable: Outputs are NaN or infinite.
    """
    outputs = []
    features = []
    with measurement_mode(network) as network, torch.no_grad():
        x = prepare_inputs(network, x)
        calls = weighted_calls(network, x[:1])
        head = {}
        if calls:
            head = {calls[-1].name: calls[-1].module}
        layout = next(iter(sample_layouts(network, x, head, before=True).values()), None)
        with copied_calls(head, before=True) as head_calls:
            for part in slices(len(x), samples_per_pass(network, x, chunk_size)):
                head_calls.clear()
                outputs.append(
                    checked_outputs(network(x[part]), part.stop - part.start).double().cpu()
                )
                if head_calls and layout is not None:
                    rows = layout.by_sample(head_calls[-1].input, len(outputs[-1]))
                    features.append(rows.double().flatten(1).cpu())
    all_features = None
    if len(features) == len(outputs):
        all_features = torch.cat(features)
    all_outputs = torch.cat(outputs)
    check_no_invalid(int(has_no_largest(class_logits(all_outputs)).sum()), len(all_outputs))
    return ForwardPass(all_outputs, all_features, next(iter(head.values()), None))


def number_of_outputs(network: nn.Module, x: Inputs) -> int:
    """Return K, from one forward pass of one sample."""
    return network_outputs(network, x[:1]).shape[1]


def margins_of(logits: Float[Tensor, "n c"], y: Labels) -> Float[Tensor, " n"]:
    r"""Return $f_y - \max_{j \ne y} f_j$ of every sample."""
    check_labels(y, logits.shape[1])
    return logits.gather(1, y[:, None])[:, 0] - logits.scatter(1, y[:, None], -torch.inf).amax(1)


def mean_with_error(values: Float[Tensor, " n"]) -> Estimate:
    """Return the mean with the standard error of the values (None for a single one)."""
    error = None
    if len(values) > 1:
        error = values.std().item() / len(values) ** 0.5
    return Estimate(values.mean().item(), error)


def low_margin(margins: Float[Tensor, " n"]) -> float:
    """Return the tenth percentile: the k-th smallest of n margins, k = n // 10 (at least 1)."""
    return margins.kthvalue(max(1, len(margins) // 10)).values.item()


def features_of(result: ForwardPass, measure: str) -> FeatureRows:
    """Return the features of the last hidden layer, or raise NotMeasurable."""
    if result.features is None:
        raise NotMeasurable(
            f"{measure} needs a last linear or convolutional layer with equally many input rows of every sample, in "
            "an order that shows in their values; this network has none."
        )
    return result.features
