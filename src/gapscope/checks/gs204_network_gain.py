"""GS204: LOO accuracy of the untrained network compared with an RBF kernel."""

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check

FROM = 0.03


@register_check("GS204", title="network worse than an RBF kernel", seconds=1.0, information=True)
def network_gain(context: Context) -> Outcome:
    """Report an NTK that predicts significantly worse than an RBF kernel."""
    if context.initial_network is None:
        return NotChecked("pass initial_state=, a clone of the state dictionary before training")
    forecast = context.forecast
    if forecast is None:
        return NotChecked(context.failures["forecast"])
    gain = forecast.network_gain
    if gain is None or forecast.abstained_because:
        return NotChecked(forecast.abstained_because or "the NTK was not computed")
    text = f"NTK minus RBF: {100 * gain.value:+.1f} points (95 % CI {100 * gain.low:.1f} to {100 * gain.high:.1f})"
    if gain.high < 0 and gain.value < -FROM:
        return Finding(text, "compare other architectures with gapscope.rank_networks", cost=-gain.value / 2)
    return Fine(text)
