"""Equations 3, 7 to 10 and remarks of Sec. VI-B, by computation or on trained networks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy
import torch

from gapscope.networks import build_network
from gapscope.theory.sensitivity import (
    WeightLayer,
    bias_contribution,
    expected_sensitivity,
    finite_noise_sensitivity,
    fully_connected_layers,
    predicted_variance,
)
from gapscope_studies.forouzesh2021.analysis import (
    DRAWS,
    LOGITS,
    Networks,
    PartResult,
    arms_of,
    by_draw,
    ratio_claim,
)
from gapscope_studies.forouzesh2021.networks import compute_outputs
from gapscope_studies.kit.claims import claim, identity
from gapscope_studies.kit.study import Outcome, RunSettings

TWICE = {"above": -math.log10(2), "below": math.log10(2)}  # of log10 of a ratio
SCALE_FACTOR = 4.0
HIDDEN = (6, 5, 4)
SMALL_NOISE = 1e-4


# --- by computation alone


def printed_bias_contribution(layers: Sequence[WeightLayer], n_outputs: int) -> float:
    r"""Return eq. (8) as printed for ReLU networks.

    $\frac1K \sum_{l=1}^M E[b_l^2] \prod_{i=l+1}^M \frac12 E[w_i^2] H_i$, with M hidden layers of $H_i$ units.

    >>> printed_bias_contribution(fully_connected_layers(7, [4]), 1)  # no product, and no output bias
    1.0
    """
    widths = [layer.fan_in for layer in layers[1:]]
    total = 0.0
    for place in range(len(widths)):
        later = range(place + 1, len(widths))
        total += layers[place].biases * math.prod(layers[i].weights * widths[i] / 2 for i in later)
    return total / n_outputs


def output_second_moment(layers: Sequence[WeightLayer]) -> float:
    """Return E f_k^2 of random ReLU networks at the input 0, layer by layer.

    >>> output_second_moment(fully_connected_layers(7, [4]))  # 4 units of bias 1, halved, and the output's bias
    3.0
    """
    signal = 0.0
    for place, layer in enumerate(layers):
        arriving = signal / 2 if place else 0.0  # the input is 0
        signal = layer.weights * layer.fan_in * arriving + layer.biases
    return signal


def rescaling_power(*, inputs: bool) -> float:
    """Return the power of a in which S falls with outputs over a (and `inputs` times a)."""
    torch.manual_seed(0)
    network = build_network("fully_connected", input_shape=(8,), n_outputs=3, width=32).double()
    for name, weight in network.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.zeros_(weight)
    x, noise = torch.randn(2, 200, 8, dtype=torch.float64)

    def sensitivity(factor: float) -> float:
        data = (factor if inputs else 1.0) * x
        with torch.no_grad():
            change = (network(data + SMALL_NOISE * noise) - network(data)) / factor
        return float(change.mean(1).var(correction=0))

    return math.log(sensitivity(1.0) / sensitivity(SCALE_FACTOR)) / math.log(SCALE_FACTOR)


def exact_checks(setting: RunSettings) -> Outcome:
    """Check eqs. (8) and (10) and the powers of Sec. VI-B, without training."""
    n_outputs = 3
    layers = fully_connected_layers(8, HIDDEN)
    exact = output_second_moment(layers) / n_outputs
    shares = {
        "as printed": printed_bias_contribution(layers, n_outputs) / exact,
        "corrected": bias_contribution(layers, n_outputs) / exact,
    }
    random = torch.Generator().manual_seed(0)
    x, noise = torch.randn(2, 400, 8, generator=random, dtype=torch.float64)
    equal = fully_connected_layers(8, [HIDDEN[0]] * 3)
    recursion = finite_noise_sensitivity(
        x.numpy(), SMALL_NOISE * noise.numpy(), equal, n_outputs, centred=False
    )
    spread = float(noise.square().mean())  # of this draw, not exactly 1
    limit = recursion / (expected_sensitivity(equal, n_outputs, noise_std=SMALL_NOISE) * spread) - 1
    powers = {inputs: rescaling_power(inputs=inputs) for inputs in (True, False)}
    off = "its relative distance to the biases' share of the outputs' second moment"
    claims = [
        identity("Eq. 8", "Sigma is the biases' part of the variance, as printed", off,
                 abs(shares["as printed"] - 1), below=1e-9),
        identity("Eq. 8", "Sigma is that part with all weight layers and their fan-in (corrected)", off,
                 abs(shares["corrected"] - 1), below=1e-9, ours=True),
        identity("Eq. 10", "S is D/K (H/2)^M of the noise's variance where noise is small",
                 "relative distance to the recursion over layers", abs(limit), below=1e-3),
        identity("Sec. VI-B", "inputs times a and outputs over a divide S by a^4", "power of a", powers[True],
                 paper=4.0, within=1.01),
        identity("Sec. VI-B", "outputs over a divide S by a^2", "power of a", powers[False], paper=2.0, within=1.01),
    ]  # fmt: skip
    return Outcome(
        numbers={"shares": shares, "limit": limit, "powers": [*powers.values()]},
        claims=claims,
        seeds=(0,),
    )


# --- on trained networks


def equations(networks: Networks) -> PartResult:
    """Check eq. (3) on the loss, and eq. (7) on the variance of probabilities over networks."""
    table = networks.points
    # variance over runs of the probabilities, summed over classes, mean over test samples (eq. 6)
    outputs_of_runs = (
        compute_outputs(networks.setting, item)[0] for item in networks.configurations
    )
    variances = [
        float(outputs.double().softmax(2).var(0).sum(1).mean()) for outputs in outputs_of_runs
    ]
    predicted = [
        predicted_variance(
            row.s_after, n_outputs=int(row.outputs), input_second_moment=row.mean_square_input
        )
        for row in table.itertuples()
    ]
    table = table.assign(variance_of_probabilities=variances, predicted_variance=predicted)
    kinds = table["initialization"] == "standard_normal"
    claims = [
        ratio_claim("Eq. 3", f"L is the mean distance of probabilities to labels over the root of 2 ({name})", group,
                    group, "test_loss", "L over that distance", over="half_distance", **TWICE)
        for name, group in (("standard normal", table[kinds]), ("other initializations", table[~kinds]))
    ]  # fmt: skip
    for name, group in (("all initializations", table), ("all but standard normal", table[~kinds])):
        ratios = numpy.log10(group["variance_of_probabilities"] / group["predicted_variance"])
        claims.append(
            claim("Eq. 7", f"the variance of probabilities over networks is that predicted from S ({name})",
                  "log10 of the variance over eq. (7)", ratios.to_list(), unit="configurations", **TWICE,
                  compared=arms_of(group), **LOGITS)
        )  # fmt: skip
    return PartResult(
        numbers={"variance_over_eq_7": (table["variance_of_probabilities"] / table["predicted_variance"]).to_list()},
        claims=claims, points=table, plots={"loss": ("half_distance", "test_loss")},
    )  # fmt: skip


def random_labels(networks: Networks) -> PartResult:
    """Check Sec. VI-B: random labels raise the loss above eq. (9), as S ignores labels."""
    table = networks.points
    excess = {}  # log10 of L over the root of S, mean over configurations, by draw
    for name, group in table.groupby("family", sort=False):
        s, loss = by_draw(group, "s_after", "test_loss")
        excess[name] = numpy.log10(loss / numpy.sqrt(s)).mean(0)
    rises = claim("Sec. VI-B", "random labels raise the loss more than S tells",
                  "log10 of L over the root of S, random minus clean labels",
                  excess["random labels"] - excess["clean"], unit=DRAWS, above=0.0, compared=arms_of(table),
                  **LOGITS)  # fmt: skip
    return PartResult(
        numbers={},
        claims=[rises],
        plots={"loss": ("s_after", "test_loss")},
        predicted=True,
        points=table,
    )
