"""Layers whose gradients autograd does not give, refused before the first pass."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from gapscope.base.errors import ReplaceLayer

Modules = Mapping[str, nn.Module]


def _check_embedding(name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    if module.weight.requires_grad and (module.max_norm is not None or module.scale_grad_by_freq):
        raise ReplaceLayer(
            f"{type(module).__name__} '{name}' must have max_norm=None and scale_grad_by_freq=False, which change "
            f"weights or gradients without autograd; got max_norm={module.max_norm}, "
            f"scale_grad_by_freq={module.scale_grad_by_freq}. Build the layer with the defaults."
        )


def check_not_quantized(modules: Modules) -> None:
    """Refuse quantized layers, whose weights are no parameters.

    Args:
        modules: Modules of the network by name.

    Raises:
        ReplaceLayer: There is such a layer.
    """
    for name, module in modules.items():
        # torch.ao.nn.quantized, .quantized.dynamic, .intrinsic.quantized and their old places in torch.nn
        path = type(module).__module__
        if path.startswith("torch.") and "quantized" in path.split("."):
            raise ReplaceLayer(
                f"Layers must have gradients; got {type(module).__name__} '{name}', a quantized layer, which has none "
                "by its weights or inputs. Pass the network from before quantization."
            )


def check_layers(modules: Modules, *, twice: bool = False) -> None:
    """Refuse layers that have no gradients by their weights or inputs.

    Args:
        modules: Modules of the network by name.
        twice: Whether the gradients will be differentiated, as those of a penalty.

    Raises:
        ReplaceLayer: There is such a layer.
    """
    for name, module in modules.items():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            _check_embedding(name, module)
        if twice and isinstance(module, nn.EmbeddingBag) and module.weight.requires_grad:
            raise ReplaceLayer(
                f"Gradients by the weights must be differentiable; those of EmbeddingBag '{name}' are not in torch. "
                "Use nn.Embedding and a sum or mean over the tokens, or freeze the table."
            )
    check_not_quantized(modules)
