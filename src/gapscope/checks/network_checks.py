"""Checks of the untrained network and of its training: GS201 to GS302."""

from __future__ import annotations

import torch

from gapscope.batch_norm.advice.batch_norm import advise_batch_norm
from gapscope.batch_norm.norm_layers import BATCH_NORMS
from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.outputs import inspection_mode, network_outputs
from gapscope.measures.ntk import empirical_ntk

NEEDS_INITIAL_STATE = NotChecked("pass initial_state=, a clone of the state dictionary before training")
MIN_SPREAD, MAX_SPREAD = 1e-3, 20.0


@register_check("GS201", title="exploding or vanishing outputs", seconds=0.05)
def signal(context: Context) -> Outcome:
    """Report initial outputs with a standard deviation above 20 or below 0.001."""
    network = context.initial_network
    if network is None:
        return NEEDS_INITIAL_STATE
    with inspection_mode(network):
        outputs = network_outputs(network, context.samples.inputs).double()
    spread = float(outputs.std(0).mean())
    if MIN_SPREAD <= spread <= MAX_SPREAD:
        return Fine(f"outputs before training vary by {spread:.2g}")
    verb = "explode" if spread > MAX_SPREAD else "vanish"
    return Finding(
        f"outputs before training {verb}: standard deviation {spread:.2g} over samples",
        "standardize the inputs, and initialize the layers for their fan-in (torch.nn.init.kaiming_normal_)",
        cost=0.2,
    )


N_SAMPLES, MAX_CORRELATION = 64, 0.99


@register_check("GS202", title="samples indistinguishable to the network", seconds=0.5)
def indistinguishable(context: Context) -> Outcome:
    """Report a median NTK correlation above 0.99 between different samples."""
    network = context.initial_network
    if network is None:
        return NEEDS_INITIAL_STATE
    n = min(N_SAMPLES, len(context.samples))
    rows = torch.arange(0, len(context.samples), max(1, len(context.samples) // n))[:n]
    kernel = empirical_ntk(network, context.samples.inputs[rows], outputs="traced").double().cpu()
    scale = kernel.diagonal().clamp_min(1e-300).sqrt()
    correlation = kernel / scale[:, None] / scale
    median = float(correlation[~torch.eye(n, dtype=torch.bool)].median())
    if median < MAX_CORRELATION:
        return Fine(f"median NTK correlation {median:.2f}")
    return Finding(
        f"the gradients of different samples have a median correlation of {median:.4f}",
        "center the inputs and check their encoding, or use a shallower or normalized network",
        cost=0.15,
    )


MAX_LOSS_CHANGE = 0.1


@register_check("GS203", title="stale batch norm statistics", seconds=3.0)
def batch_norm(context: Context) -> Outcome:
    """Report running statistics that change the loss by a tenth or more."""
    if not any(isinstance(module, BATCH_NORMS) for module in context.prepared.bare.modules()):
        return NotChecked("no batch norm")
    if context.is_untrained:
        return NotChecked("the network is untrained")
    if context.batch_size is None:
        return NotChecked("pass batch_size=, the batch size of training")
    advice = advise_batch_norm(context.network, context.tensor_samples, batch_size=context.batch_size, passes=4)
    if abs(advice.running_loss - advice.loss) > MAX_LOSS_CHANGE * max(advice.loss, 0.01):
        return Finding(
            f"running statistics are stale: loss {advice.running_loss:.2g} with them, {advice.loss:.2g} without",
            "refresh them with gapscope.batch_norm.refresh_population, or train longer at a lower momentum",
            cost=0.02,
        )
    return Fine(
        f"batches of {context.batch_size} add {advice.total.excess:.2g} to a training loss of {advice.loss:.2g}"
    )


MIN_LOSS_OF_ACCURACY = 0.03


@register_check("GS204", title="network worse than an RBF kernel", seconds=1.0, information=True)
def network_gain(context: Context) -> Outcome:
    """Report an NTK that predicts significantly worse than an RBF kernel."""
    if context.initial_network is None:
        return NEEDS_INITIAL_STATE
    forecast = context.forecast
    if forecast is None:
        return NotChecked(context.failures["forecast"])
    gain = forecast.network_gain
    if gain is None or forecast.abstained_because:
        return NotChecked(forecast.abstained_because or "the NTK was not computed")
    text = f"NTK minus RBF: {100 * gain.value:+.1f} points (95 % CI {100 * gain.low:.1f} to {100 * gain.high:.1f})"
    if gain.high < 0 and gain.value < -MIN_LOSS_OF_ACCURACY:
        return Finding(text, "compare other architectures with gapscope.rank_networks", cost=-gain.value / 2)
    return Fine(text)


@register_check("GS301", title="memorization of label errors", seconds=0.01, information=True)
def memorization(context: Context) -> Outcome:
    """Report an overfitting alarm that was raised during the monitored run."""
    alarm = getattr(context.monitor, "alarm", None)
    if alarm is None:
        return NotChecked("pass monitor=, a gapscope.Monitor with an alarm")
    if not alarm.raised:
        return Fine("the alarm was not raised")
    return Finding(
        f"the overfitting alarm was raised at epoch {alarm.raised_at}",
        "stop there, or train with gapscope.GradientSimilarityPenalty",
        cost=0.05,
    )


MIN_FALL, MARGIN = 0.1, 0.05


def _recent_fall(losses: list[float]) -> float:
    """Return the relative fall of the loss over the last fifth of the epochs."""
    k = max(2, len(losses) // 5)
    before, after = sum(losses[-2 * k : -k]) / k, sum(losses[-k:]) / k
    return (before - after) / max(abs(before), 1e-12)


@register_check("GS302", title="training has not converged", seconds=0.5)
def convergence(context: Context) -> Outcome:
    """Report a training accuracy below an RBF kernel's LOO accuracy, or a falling loss."""
    if not context.is_classifier:
        return NotChecked("needs class labels")
    monitored = next((f for f in getattr(context.monitor, "findings", ()) if f.code == "GS302"), None)
    if monitored is not None:
        return Finding(f"at epoch {monitored.epoch}: {monitored.evidence}", monitored.action, cost=0.1)
    if context.is_untrained:
        return NotChecked("the network is untrained")
    forecast = context.forecast
    rbf = None if forecast is None or forecast.abstained_because else forecast.row("RBF ridge")
    n, accuracy = len(context.samples), context.train_accuracy
    if rbf is not None:
        error = (rbf.score * (1 - rbf.score) / n + accuracy * (1 - accuracy) / n) ** 0.5
        if accuracy < rbf.score - MARGIN - 1.96 * error:
            return Finding(
                f"training accuracy {accuracy:.0%}; an RBF kernel predicts held-out samples at {rbf.score:.0%}",
                "train longer, or raise the learning rate or the width",
                cost=rbf.score - accuracy,
            )
    losses = [float(row["train_loss"]) for row in context.history if "train_loss" in row]
    is_low = accuracy < 0.9 and (rbf is None or accuracy < rbf.score + MARGIN)
    if is_low and len(losses) >= 10 and (fall := _recent_fall(losses)) > MIN_FALL:
        return Finding(
            f"the training loss fell by {fall:.0%} over the last fifth of the epochs, at a training accuracy of "
            f"{accuracy:.0%}",
            "train longer",
            cost=(1 - accuracy) / 4,
        )
    if rbf is None and not losses:
        return NotChecked("pass history=, one mapping per epoch with train_loss")
    return Fine(f"training accuracy {accuracy:.0%}")
