"""GS404: outputs that react to tiny changes of the inputs."""

import torch
from torch import Tensor

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.losses import class_logits
from gapscope.inspection.outputs import inspection_mode, network_outputs

NOISE, FROM = 0.05, 0.1


def robust_spread(columns: Tensor) -> Tensor:
    """Return a robust spread per column [d] (the standard deviation if it is 0)."""
    ordered = columns.sort(0).values
    quartiles = ordered[len(ordered) * 3 // 4] - ordered[len(ordered) // 4]
    return torch.where(quartiles > 0, quartiles / 1.349, columns.std(0))


@register_check("GS404", title="predictions change under small noise", seconds=0.1)
def sensitivity(context: Context) -> Outcome:
    """Report a tenth or more of predictions changed by 5 % Gaussian input noise."""
    x = context.samples.inputs
    if not context.is_classifier or not x.is_floating_point() or context.samples.form is not None:
        return NotChecked("needs class labels and one floating point input")
    if context.is_untrained:
        return NotChecked("the network is untrained")
    generator = torch.Generator().manual_seed(context.seed)
    columns = x if x.ndim == 2 else x.movedim(1, -1).flatten(0, -2)
    # a few outliers of a table's column would make noise of its standard deviation large for all other samples
    spread = (robust_spread(x) if x.ndim == 2 else columns.std(0)).reshape(1, -1, *[1] * (x.ndim - 2))
    noise = torch.randn(x.shape, generator=generator).to(x) * spread * NOISE
    with inspection_mode(context.network):
        outputs = class_logits(network_outputs(context.network, x + noise)).cpu()
    changed = float((outputs.argmax(1) != context.logits.argmax(1)).double().mean())
    text = f"{changed:.1%} of predictions change under noise of 5 % of the inputs' spread"
    if changed < FROM:
        return Fine(text)
    return Finding(
        text, "train with input noise or augmentation, or gapscope.penalties.InputJacobianPenalty", cost=changed / 4
    )
