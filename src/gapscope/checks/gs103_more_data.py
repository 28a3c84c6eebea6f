"""GS103: gain in accuracy from more data."""

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check

FROM = 0.03


@register_check("GS103", title="more data would help", seconds=0.5, information=True)
def more_data(context: Context) -> Outcome:
    """Report an extrapolated gain of three points or more from twice the data."""
    forecast = context.forecast
    if forecast is None:
        return NotChecked(context.failures["forecast"])
    if forecast.abstained_because or not forecast.curve:
        return NotChecked(forecast.abstained_because or "no input varies")
    gain = forecast.gain_from_doubling_data
    if gain < FROM:
        return Fine(f"twice the data add about {100 * gain:.1f} points")
    return Finding(
        f"twice the data add about {100 * gain:.0f} points (power law of leave-one-out scores)",
        "collect more samples; confirm with gapscope.learning_curve",
        cost=gain,
    )
