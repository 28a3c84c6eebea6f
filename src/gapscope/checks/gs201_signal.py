"""GS201: outputs that explode or vanish at initialization."""

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.outputs import inspection_mode, network_outputs

LARGE, SMALL = 20.0, 1e-3


@register_check("GS201", title="exploding or vanishing outputs", seconds=0.05)
def signal(context: Context) -> Outcome:
    """Report initial outputs with a standard deviation above 20 or below 0.001."""
    network = context.initial_network
    if network is None:
        return NotChecked("pass initial_state=, a clone of the state dictionary before training")
    with inspection_mode(network):
        outputs = network_outputs(network, context.samples.inputs).double()
    spread = float(outputs.std(0).mean())
    if SMALL <= spread <= LARGE:
        return Fine(f"outputs before training vary by {spread:.2g}")
    word = "explode" if spread > LARGE else "vanish"
    return Finding(
        f"outputs before training {word}: standard deviation {spread:.2g} over samples",
        "standardize the inputs, and initialize the layers for their fan-in (torch.nn.init.kaiming_normal_)",
        cost=0.2,
    )
