"""GS403: units that are never active."""

import torch
from torch import Tensor, nn

from gapscope.checks.context import Context
from gapscope.checks.registry import Finding, Fine, NotChecked, Outcome, register_check
from gapscope.inspection.hooks import forward_hooks, named_modules
from gapscope.inspection.outputs import inspection_mode, network_outputs

RECTIFIERS = (nn.ReLU, nn.ReLU6)
FROM = 0.2


@register_check("GS403", title="dead units", seconds=0.05)
def dead_units(context: Context) -> Outcome:
    """Report a fifth or more of the units behind rectifiers that no training sample activates."""
    network = context.initial_network if context.is_untrained else context.network
    assert network is not None
    modules = {name: module for name, module in named_modules(network).items() if isinstance(module, RECTIFIERS)}
    if not modules:
        return NotChecked("no ReLU layers")
    active: dict[tuple[str, int], Tensor] = {}
    calls: dict[str, int] = {}

    def record(name: str, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # a module may be called several times in one pass; each call has units of its own
        key = (name, calls.get(name, 0))
        calls[name] = key[1] + 1
        unit = 1 if output.ndim > 1 else 0
        axes = tuple(axis for axis in range(output.ndim) if axis != unit)
        now = (output > 0).any(dim=axes[0]) if len(axes) == 1 else (output > 0).amax(dim=axes)
        before = active.get(key)
        active[key] = now.cpu() if before is None or before.shape != now.shape else before | now.cpu()

    with inspection_mode(network), forward_hooks(modules, record), torch.no_grad():
        for start in range(0, len(context.samples), 256):
            calls.clear()
            network_outputs(network, context.samples.inputs[start : start + 256], chunk_size=256)
    units, dead = sum(len(units) for units in active.values()), sum(int((~units).sum()) for units in active.values())
    if not units:
        return NotChecked("no ReLU layer ran")
    if dead < FROM * units:
        return Fine(f"{dead} of {units} units are never active")
    worst = max(active, key=lambda key: float((~active[key]).double().mean()))
    return Finding(
        f"{dead} of {units} units are never active on the training samples, most in {worst[0] or 'the network'}",
        "lower the learning rate or the bias, use LeakyReLU, or make the layer narrower",
        cost=0.05 * dead / units,
    )
