"""Signature of the normalized margin distribution at the input and hidden layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor, nn

from gapscope.ablation.class_curves import boundary_distances, default_layers, quartile_features
from gapscope.base.errors import InvalidInput, NotMeasurable, check_range
from gapscope.base.samples import Samples
from gapscope.base.targets import check_labels
from gapscope.inspection.independence import check_sample_independence
from gapscope.inspection.network_adapter import class_network
from gapscope.inspection.outputs import measurement_mode, prepare_inputs
from gapscope.measures._forward import FloatInputs, Labels, number_of_outputs
from gapscope.measures.registry import Sampling, ScalarInfo, register_measure
from gapscope.results.result import Result

if TYPE_CHECKING:
    import pandas

FEATURES = ("lower_fence", "lower_quartile", "median", "upper_quartile", "upper_fence")
TAPS = ("input", "h1", "h2", "h3")
_LAYER_TITLES = (
    "at the input",
    "at the first hidden layer",
    "at the second hidden layer",
    "at the third hidden layer",
)


@dataclass(frozen=True, eq=False, repr=False)
class MarginSignature(Result):
    """Margin signature: five features of the margin distribution at each layer.

    Attributes:
        layers: Names of the layers, "input" for the network's input.
        signature: Natural logarithms of the features, one row per layer.
        margins: Normalized margins of the correctly classified samples.
        total_variation: Variance over all samples, summed over the coordinates of a layer.
        n_samples: Number of all samples.
    """

    layers: tuple[str, ...]
    signature: Float[Tensor, "l 5"]
    margins: Float[Tensor, "l c"]
    total_variation: Float[Tensor, " l"]
    n_samples: int

    def scalars(self) -> dict[str, float]:
        """Return the features of up to four layers, "input" and "h1" to "h3", else NaN."""
        hidden = iter(TAPS[1:])
        taps = ["input" if layer == "input" else next(hidden, None) for layer in self.layers]
        if None in taps:
            raise NotMeasurable(
                f"Got layers {', '.join(self.layers)}; readings have names for the input and at most 3 hidden layers. "
                "Use MarginSignature.signature."
            )
        result = dict(zip(taps, self.signature.tolist(), strict=True))
        missing = [math.nan] * len(FEATURES)
        return {
            f"{tap}.{name}": result.get(tap, missing)[i]
            for tap in TAPS
            for i, name in enumerate(FEATURES)
        }

    def missing(self) -> dict[str, str]:
        """Return the reasons of NaN by name."""
        n_hidden = len(self.layers) - 1
        reason = f"the network has {n_hidden or 'no'} hidden layer{'s' if n_hidden > 1 else ''}"
        return {
            f"{tap}.{feature}": reason for tap in TAPS[len(self.layers) :] for feature in FEATURES
        }

    def to_pandas(self) -> pandas.DataFrame:
        """Return one row per layer and one column per feature."""
        import pandas

        index = pandas.Index(self.layers, name="layer")
        return pandas.DataFrame(self.signature.tolist(), index=index, columns=list(FEATURES))

    def __repr__(self) -> str:
        return (
            f"MarginSignature({self.margins.shape[1]} of {self.n_samples} samples classified correctly)\n"
            f"{self.to_pandas()}"
        )


@register_measure(
    title="distances of the samples from the decision boundary",
    labels=True,
    compares_classes=True,
    numbers={
        f"{tap}.{feature}": ScalarInfo(
            "log of distance / spread of the layer",
            "higher",
            "over correctly classified samples",
            f"{title}, {feature.replace('_', ' ')}",
        )
        for tap, title in zip(TAPS, _LAYER_TITLES, strict=True)
        for feature in FEATURES
    },
    cost_class="backward",
    sampling=Sampling("whole", 256, lambda k: 4),
    reference="Jiang, Krishnan, Mobahi and Bengio 2019, arXiv 1810.00113",
)
def margin_signature(
    network: nn.Module,
    x: FloatInputs,
    y: Labels,
    *,
    layers: str | Sequence[str] | None = None,
    epsilon: float = 1e-6,
    chunk_size: int | None = None,
) -> MarginSignature:
    r"""Compute the margin signature: five features of the normalized margins per layer.

    .. math:: \hat d_l(x, y) = \frac1{\sqrt{\nu_l}} \cdot
              \frac{f_y - f_j}{\sqrt{\epsilon + \lVert \nabla_{x^l} (f_y - f_j) \rVert_2^2}}, \qquad
              \nu_l = \sum_c \mathrm{Var}_k[x^l_{k,c}]

    $f$ are logits, j is the runner-up class, $x^l$ the whole output of layer l for a sample. $\nu_l$ sums the
    population variances of its coordinates over all samples (the released code of Jiang et al. also divides the root by
    the number of samples, which only shifts logarithms). The fraction is the distance to the decision boundary to first
    order, exact if the rest of the network is linear. Only correctly classified samples count.

    The features are natural logarithms: of the smallest margin not below Q1 - 1.5 (Q3 - Q1), of Q1, of the median, of
    Q3, and of the largest margin not above Q3 + 1.5 (Q3 - Q1). Quantiles are those of the margins themselves over
    samples, interpolated linearly. Larger margins predict a smaller gap.

    Args:
        network: Network that returns logits [n, K]; one output z stands for the logits 0 and z of two classes.
        x: Inputs [n, ...], usually the training data.
        y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
        layers: Names of modules, and "input"; None for the input and up to three evenly spaced hidden layers, each the
            output of a convolution or linear layer after its normalization and before its activation.
        epsilon: Constant that keeps the root from 0; 0 is allowed.
        chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.

    Raises:
        InvalidInput: `layers` is empty or has a name twice.
        NotMeasurable: No sample is classified correctly, or a layer is constant or has no gradient.

    >>> import torch
    >>> network = nn.Linear(1, 2)  # f = (x, -x): the boundary is at 0
    >>> _ = network.weight.data.copy_(torch.tensor([[1.0], [-1.0]])), nn.init.zeros_(network.bias)
    >>> x = torch.tensor([[1.0], [2.0], [3.0]])
    >>> result = margin_signature(network, x, torch.zeros(3).long(), epsilon=0.0)
    >>> (result.signature.exp() * result.total_variation.sqrt()).round(decimals=5).tolist()
    [[1.0, 1.5, 2.0, 2.5, 3.0]]
    """
    check_range("epsilon", epsilon, 0)
    samples = Samples(x, y)
    with measurement_mode(network) as network:
        check_sample_independence(network, prepare_inputs(network, samples.inputs[:64]))
        n_outputs = number_of_outputs(network, x)
        check_labels(y, max(n_outputs, 2))
        network = class_network(network, n_outputs)
        if layers is None:
            names = default_layers(network, prepare_inputs(network, x[:1]))
        elif isinstance(layers, str):
            names = [layers]
        else:
            names = list(layers)
        if not names or len(set(names)) < len(names):
            raise InvalidInput(
                f"layers must name one or more different layers; got {names}. Use None for the default."
            )
        distances, variances = boundary_distances(network, samples, names, epsilon, chunk_size)
    variation = torch.stack([variance.sum() for variance in variances])
    margins = distances[:, (distances > 0).all(0)]
    if margins.shape[1] == 0:
        raise NotMeasurable(
            "A margin signature needs correctly classified samples; got none. Train the network."
        )
    if bool((variation == 0).any()):
        constant = names[int((variation == 0).nonzero()[0])]
        raise NotMeasurable(
            f"Layer '{constant}' must vary over the samples; it is constant. Name other layers."
        )
    margins = margins / variation.sqrt()[:, None]
    return MarginSignature(
        layers=tuple(names),
        signature=quartile_features(margins).log(),
        margins=margins,
        total_variation=variation,
        n_samples=len(samples),
    )
