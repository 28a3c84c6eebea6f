"""Checks of the untrained network: GS201, GS202 and GS204."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import torch

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.inspection.timing import pass_seconds
from gapscope.measures.ntk import empirical_ntk
from gapscope.statistics.baselines import RBF

NEEDS_INITIAL_STATE = NotChecked(
    "pass initial_state=, a clone of the state dictionary before training"
)
# standard deviation of outputs; 1 by the usual initializations, the factors by judgment
MIN_SPREAD, MAX_SPREAD = 1e-3, 20.0


def _may_have_failed(context: Context) -> str:
    """Return why the weights may be those of a failed training, not initial ones; empty if nothing indicates it."""
    if context.initial_state is not None or context.initial_network is None:
        return ""
    spread = float(context.logits.double().std(0).mean())
    if MIN_SPREAD <= spread <= MAX_SPREAD:
        return ""
    outputs = f"the outputs vary by {spread:.2g} over samples"
    if not math.isfinite(spread):
        outputs = "the outputs are not finite"
    return (
        f"{outputs}: these may be the weights of a training that failed, not initial "
        "ones; pass initial_state=, a clone of the state dictionary before training"
    )


@register_check("GS201", title="exploding or vanishing outputs", seconds=0.05)
def signal(context: Context) -> Outcome:
    """Report initial outputs with a standard deviation above 20 or below 0.001."""
    network = context.initial_network
    if network is None:
        return NEEDS_INITIAL_STATE
    if len(context.samples) < 2:
        return NotChecked("needs two samples or more")
    advice = "initialize the layers for their fan-in (torch.nn.init.kaiming_normal_)"
    fixes = ("learning rate / 3", "learning rate x 3")
    # token ids have no scale
    if context.samples.inputs.is_floating_point():
        advice = f"standardize the inputs, and {advice}"
        fixes = ("standardize inputs", *fixes)
    with inspection_mode(network):
        outputs = network_outputs(network, context.samples.inputs).double()
    if not bool(outputs.isfinite().all()):
        return Finding(
            "outputs before training are not finite",
            advice,
            cost=context.shortfall,
            fixes=fixes[:-1],
        )
    spread = float(outputs.std(0).mean())
    if MIN_SPREAD <= spread <= MAX_SPREAD:
        return Fine(f"outputs before training vary by {spread:.2g}")
    verb = "explode" if spread > MAX_SPREAD else "vanish"
    # without the initial state a network that died in training looks like one that was not trained
    if context.initial_state is None:
        when = "outputs, untrained or after a training that failed,"
    else:
        when = "initial outputs"
    return Finding(
        f"{when} {verb}: standard deviation {spread:.2g} over samples",
        advice,
        cost=context.shortfall,
        fixes=fixes,
    )


# by judgment: 2,016 pairs
N_SAMPLES, MAX_CORRELATION = 64, 0.99
# Fewer samples, at least 28 pairs, where more take above this fraction of the budget that is left.
MIN_SAMPLES, PART_OF_BUDGET = 8, 0.5


@register_check("GS202", title="samples indistinguishable to the network", seconds=0.5)
def indistinguishable(context: Context) -> Outcome:
    """Report a median NTK correlation above 0.99 between different samples."""
    network = context.initial_network
    if network is None:
        return NEEDS_INITIAL_STATE
    if reason := _may_have_failed(context):
        return NotChecked(reason)
    n = min(N_SAMPLES, len(context.samples))
    if n < 2:
        return NotChecked("needs two samples or more")
    if context.seconds_left is not None:
        assert context.prepared is not None
        # a pass forward and, for each output, one back, which takes about two forward
        passes = 1 + 2 * context.prepared.n_outputs
        per_sample = passes * pass_seconds(network, context.samples.inputs) / len(context.samples)
        while n > MIN_SAMPLES and n * per_sample > PART_OF_BUDGET * context.seconds_left:
            n //= 2
        if n * per_sample > context.seconds_left:
            return NotChecked(
                f"the kernel of {n} samples takes about {n * per_sample:.0f} CPU s, and {context.seconds_left:.0f} are "
                "left. Pass a larger time_budget"
            )
    rows = torch.arange(0, len(context.samples), max(1, len(context.samples) // n))[:n]
    kernel = empirical_ntk(network, context.samples.inputs[rows], outputs="traced").double().cpu()
    if not bool(kernel.isfinite().all()):
        return NotChecked("the gradients of the network are not finite")
    scale = kernel.diagonal().clamp_min(1e-300).sqrt()
    correlation = kernel / scale[:, None] / scale
    median = float(correlation[~torch.eye(n, dtype=torch.bool)].median())
    if median < MAX_CORRELATION:
        return Fine(f"median NTK correlation {median:.2f}")
    return Finding(
        f"the gradients of different samples have a median correlation of {median:.4f}",
        "center the inputs and check their encoding, or use a shallower or normalized network",
        cost=context.shortfall,
        fixes=("standardize inputs", "learning rate x 3"),
    )


# by judgment, as for the gain of more data
MIN_LOSS = 0.03


def _why_no_ntk(context: Context, notes: Sequence[str]) -> str:
    """Return why a forecast has no NTK row, from its notes."""
    if context.everything.is_dense:
        return "needs one label per sample; the NTK has no answer for positions"
    reasons = [
        note for note in notes if re.match(r"There (is|are) no (NTK|rows of the network)", note)
    ]
    if not reasons:
        return "the NTK was not computed"
    return reasons[0][0].lower() + reasons[0][1:].rstrip(".")


@register_check(
    "GS204",
    title="network worse than an RBF kernel",
    seconds=1.0,
    information=True,
    min_cost=MIN_LOSS,
)
def network_gain(context: Context) -> Outcome:
    """Report an NTK that predicts significantly worse than an RBF kernel, which the trained network does not beat."""
    if context.initial_network is None:
        return NEEDS_INITIAL_STATE
    if reason := _may_have_failed(context):
        return NotChecked(reason)
    forecast = context.network_forecast
    if forecast is None:
        return NotChecked(context.failures["network forecast"])
    gain = forecast.network_gain
    if gain is None or forecast.abstained_because:
        return NotChecked(forecast.abstained_because or _why_no_ntk(context, forecast.notes))
    text = f"NTK minus RBF: {100 * gain.value:+.1f} points (95 % CI {100 * gain.low:.1f} to {100 * gain.high:.1f})"
    if gain.high >= 0 or gain.value >= -MIN_LOSS:
        return Fine(text)
    rbf = forecast.row(RBF)
    expected = None if context.untrained_because else context.comparable
    # training has changed the features
    if (
        expected is not None
        and rbf is not None
        and not expected.unclear
        and expected.value >= rbf.score
    ):
        score = context.show(expected.value)
        return Fine(
            f"{text}; after training {score} {expected.source}, RBF {context.show(rbf.score)}"
        )
    return Finding(
        text,
        "compare other architectures with gapscope.rank_networks",
        cost=-gain.value,
        interval=(-gain.high, -gain.low),
        fixes=("wider",),
    )
