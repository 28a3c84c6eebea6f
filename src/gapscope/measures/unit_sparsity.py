"""Unit sparsity of a layer by cumulative unit ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from gapscope.ablation.class_curves import (
    ClassCurves,
    areas,
    below_chance,
    class_curves,
    reversed_turning_points,
    turning_points,
)
from gapscope.base.errors import check_range
from gapscope.base.targets import check_labels
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.network_adapter import class_network
from gapscope.inspection.outputs import measurement_mode, prepare_inputs
from gapscope.measures._forward import Inputs, Labels, number_of_outputs
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.result import Result

if TYPE_CHECKING:
    import pandas

# as the networks of the paper
MIN_TRAIN_ACCURACY = 0.97


@dataclass(frozen=True, eq=False, repr=False)
class UnitSparsity(Result):
    r"""Zeta and kappa of one layer, with the curves of each class.

    Attributes:
        layer: Name of the ablated layer.
        n_units: Its number of units M.
        n_classes: C of the chance level 1 / C.
        classes: Classes with samples, in ascending order; all further fields have one entry or row per class.
        n_samples: Number of samples.
        curves: Accuracy E(n) after removal of n = 0..M units, the most active first.
        reversed_curves: Accuracy E_r(n) in the exactly reversed order.
        turning_points: n_0, the first n at which E is at chance.
        reversed_turning_points: n_0^r, the n at which E_r is largest.
        class_zeta: zeta per class.
        class_kappa: kappa per class.
        reached_chance: Whether E fell to chance; if not, n_0 is the first minimum of E.
    """

    layer: str
    n_units: int
    n_classes: int
    classes: tuple[int, ...]
    n_samples: tuple[int, ...]
    curves: Float[Tensor, "c n"]
    reversed_curves: Float[Tensor, "c n"]
    turning_points: Int[Tensor, " c"]
    reversed_turning_points: Int[Tensor, " c"]
    class_zeta: Float[Tensor, " c"]
    class_kappa: Float[Tensor, " c"]
    reached_chance: Bool[Tensor, " c"]

    @property
    def zeta(self) -> float:
        """Mean over classes of (n_0 + M - n_0^r) / (2 M), eq. 4 and 6 (small if sparse)."""
        return self.class_zeta.mean().item()

    @property
    def kappa(self) -> float:
        """Mean over classes of the area between the curves, eq. 5 and 6 (large if sparse)."""
        return self.class_kappa.mean().item()

    @property
    def accuracy(self) -> float:
        """Accuracy of the whole network on all samples."""
        n_correct = (self.curves[:, 0] * torch.tensor(self.n_samples)).sum()
        return n_correct.item() / sum(self.n_samples)

    @property
    def n_never_at_chance(self) -> int:
        """Number of classes whose curve E never fell to chance."""
        return int((~self.reached_chance).sum())

    @property
    def caveats(self) -> tuple[str, ...]:
        """Reasons to doubt both numbers for this network (empty if there are none)."""
        result = []
        if self.accuracy < MIN_TRAIN_ACCURACY:
            result.append(
                f"The networks of the paper fit their training data (accuracy at least {MIN_TRAIN_ACCURACY}); here it "
                f"is {self.accuracy:.3f}. Classes that are never predicted look sparse (zeta 1/(2M), kappa 0)."
            )
        if self.n_never_at_chance:
            result.append(
                f"For {self.n_never_at_chance} of {len(self.classes)} classes accuracy never fell to chance; their n_0 "
                "is the first position of the minimum."
            )
        return tuple(result)

    def scalars(self) -> dict[str, float]:
        """Return zeta and kappa by name."""
        return {"zeta": self.zeta, "kappa": self.kappa}

    def _content(self) -> dict[str, Any]:
        """Return zeta, kappa and all fields."""
        return self.scalars() | super()._content()

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per class: samples, accuracy, turning points, zeta, kappa, chance."""
        import pandas

        columns = {
            "n_samples": self.n_samples,
            "accuracy": self.curves[:, 0],
            "turning_point": self.turning_points,
            "reversed_turning_point": self.reversed_turning_points,
            "zeta": self.class_zeta,
            "kappa": self.class_kappa,
            "reached_chance": self.reached_chance,
        }
        content = {
            name: values.tolist() if isinstance(values, Tensor) else values
            for name, values in columns.items()
        }
        return pandas.DataFrame(content, index=pandas.Index(self.classes, name="class"))

    def __repr__(self) -> str:
        head = (
            f"UnitSparsity(zeta={self.zeta:.4f}, kappa={self.kappa:.4f}, layer={self.layer!r}, "
            f"{self.n_units} units, {len(self.classes)} classes)"
        )
        return "\n".join([head, *self.caveats])


def _sparsity(result: ClassCurves, n_classes: int) -> UnitSparsity:
    units = result.forward.shape[1] - 1
    first = turning_points(result.forward, n_classes)
    last = reversed_turning_points(result.reverse)
    return UnitSparsity(
        layer=result.layer,
        n_units=units,
        n_classes=n_classes,
        classes=result.classes,
        n_samples=result.counts,
        curves=result.forward,
        reversed_curves=result.reverse,
        turning_points=first,
        reversed_turning_points=last,
        class_zeta=(first + units - last).double() / (2 * units),
        class_kappa=areas(result.forward, result.reverse),
        reached_chance=below_chance(result.forward, n_classes).any(1),
    )


@overload
def unit_sparsity(
    network: nn.Module, x: Tensor, y: Tensor, *, layers: str | None = None, **options: Any
) -> UnitSparsity: ...


@overload
def unit_sparsity(
    network: nn.Module, x: Tensor, y: Tensor, *, layers: Sequence[str], **options: Any
) -> dict[str, UnitSparsity]: ...


@register_measure(
    title="hidden units that each class needs",
    labels=True,
    compares_classes=True,
    numbers={
        "zeta": ScalarInfo("fraction of units", "lower", "mean over classes"),
        "kappa": ScalarInfo("accuracy", "higher", "mean over classes, area over fraction of units"),
    },
    cost_class="many",
    sampling=Sampling("whole", 256, lambda k: 50),
    reference="Zhao, Zhang and Hu 2022, eq. 2-6",
)
def unit_sparsity(
    network: nn.Module,
    x: Inputs,
    y: Labels,
    *,
    layers: str | Sequence[str] | None = None,
    unit_axis: int | None = None,
    chunk_size: int | None = None,
) -> UnitSparsity | dict[str, UnitSparsity]:
    r"""Compute the unit sparsity zeta and kappa of a layer by cumulative ablation (exact).

    .. math:: \zeta = \frac1C \sum_j \frac{n_0^j + M - n_0^{r,j}}{2M}, \qquad
              \kappa = \frac1C \sum_j \frac1M \sum_{n=0}^M |E_r^j(n) - E^j(n)|

    For the samples of each class j (by their labels) units are set to zero one after the other: the most active first
    gives the accuracy curve E(n), the exact reverse E_r(n), n = 0..M. A unit is a channel of a feature map or a unit of
    a linear layer, after its activation, ranked per class by its mean absolute activation over samples and positions.
    $n_0$ is the first n with $E(n) \le 1/C$, $n_0^r$ the last of the $\arg\max_{n < M} E_r(n)$. Both numbers are means
    over the classes with samples. Where the text of the paper is ambiguous, the figures and the authors' program
    decide.

    The default layer is the activation after the last convolution (before pooling; after the sum of a residual
    block), in a network without convolutions the activation of the last hidden layer. If no activation follows that
    layer, name one by `layers`. Predictions are those of a loop over n that multiplies the output of the layer by a
    mask; if the two largest outputs agree up to 64 units of rounding, that loop itself is run.

    Args:
        network: Network that returns logits [n, K]; one output z stands for the logits 0 and z of two classes.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        layers: Name of the module whose output is ablated; None for the default layer. A sequence of names returns a
            dictionary of results by layer, even for one name.
        unit_axis: Axis of the units in the output of the layer; None for the last one after a linear layer (also for
            tokens with features), else the first after the samples.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.

    Returns:
        Both numbers with curves, turning points and caveats; by layer for a sequence.

    >>> network = nn.Sequential(nn.Linear(3, 3, bias=False), nn.ReLU(), nn.Linear(3, 4))
    >>> for layer in (network[0], network[2]):
    ...     _ = nn.init.eye_(layer.weight)
    >>> _ = network[2].bias.data.copy_(torch.tensor([0.0, 0.0, 0.0, 0.5]))
    >>> result = unit_sparsity(network, torch.eye(3), torch.arange(3))  # one unit per class
    >>> result.zeta == 1 / 3, result.kappa == 2 / 3
    (True, True)
    """
    if chunk_size is not None:
        check_range("chunk_size", chunk_size, 1)
    if layers is None or isinstance(layers, str):
        names = [layers]
    else:
        names = layers
    results = {}
    with measurement_mode(network) as network:
        check_sample_independence(network, prepare_inputs(network, x[:64]))
        n_outputs = number_of_outputs(network, x)
        n_classes = max(n_outputs, 2)
        check_labels(y, n_classes)
        network = class_network(network, n_outputs)
        for name in names:
            curves = class_curves(network, x, y, name, unit_axis, chunk_size)
            results[str(name)] = _sparsity(curves, n_classes)
    if names is layers:
        return results
    return next(iter(results.values()))
