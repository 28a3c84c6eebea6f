"""GS105: inputs that are badly scaled: constant, dominating or far from zero."""

import torch

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check

DOMINATES, FAR, LARGE = 30.0, 30.0, 30.0


@register_check("GS105", title="unscaled inputs", seconds=0.01)
def scaling(context: Context) -> Outcome:
    """Report columns of deviating scale or location."""
    x = context.samples.inputs
    if not x.is_floating_point() or context.samples.form is not None:
        return NotChecked("scaling needs one floating point input")
    x = x.double().cpu()
    columns = x.flatten(1) if x.ndim == 2 else x.movedim(1, -1).flatten(0, -2)
    spread, mean = columns.std(0), columns.mean(0).abs()
    varying = spread > 1e-12 * (1 + mean)
    if not bool(varying.any()):
        return Finding("no input varies", "pass inputs that differ between samples", cost=1.0)
    typical = float(spread[varying].median())
    what = "column" if x.ndim == 2 else "channel"
    names = [str(int(i)) for i in torch.nonzero((spread > DOMINATES * typical) & varying).flatten()]
    if names:
        ratio = float(spread.max()) / typical
        return Finding(
            f"{what} {', '.join(names[:5])} has {ratio:,.0f} times the typical spread",
            "standardize the inputs (mean 0, standard deviation 1) before training",
            cost=0.1,
        )
    far = (mean > FAR * spread) & varying
    if bool(far.any()) or typical > LARGE:
        return Finding(
            f"values have a spread of {typical:,.3g} around {float(mean[varying].median()):,.3g}",
            "standardize the inputs (mean 0, standard deviation 1) before training",
            cost=0.1,
        )
    constant = int((~varying).sum())
    return Fine(f"spread {typical:.3g}" + (f", {constant} constant {what}s" if constant and x.ndim == 2 else ""))
