"""Adapters of timm, torchvision and transformers models (in-place activations disabled)."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from gapscope.base.errors import InvalidInput, MissingExtra, require_extra
from gapscope.base.random_streams import resolve_generator
from gapscope.networks.initialization import seeded_by


def _import(package: str, extra: str) -> ModuleType:
    require_extra(package, extra)
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as error:
        raise MissingExtra(
            f"The package '{package}' is installed but cannot be imported with torch {torch.__version__}: {error}. "
            "Install builds of torch and torchvision that belong together, both for the CPU or both for the same CUDA."
        ) from error


def _without_inplace(model: nn.Module) -> nn.Module:
    """Disable in-place activations, which break backward hooks and overwrite measured values."""
    for module in model.modules():
        if getattr(module, "inplace", False):
            module.inplace = False  # type: ignore[assignment]
    return model


def _seeded(make: Callable[..., nn.Module], generator: torch.Generator | None, *args: Any, **options: Any) -> nn.Module:
    with seeded_by(resolve_generator(generator, "initial weights")):
        return _without_inplace(make(*args, **options))


def from_timm(name: str, *, n_outputs: int, generator: torch.Generator | None = None, **options: Any) -> nn.Module:
    """Return a timm model with `n_outputs` logits and seeded initial weights.

    `options` are passed to `timm.create_model`, such as `in_chans=1`, `img_size=32` or `pretrained=True`.
    """
    return _seeded(_import("timm", "vision").create_model, generator, name, num_classes=n_outputs, **options)


def from_torchvision(
    name: str, *, n_outputs: int, generator: torch.Generator | None = None, **options: Any
) -> nn.Module:
    """Return a torchvision model with `n_outputs` logits and seeded initial weights.

    `options` are passed to `torchvision.models.get_model`.
    """
    return _seeded(_import("torchvision", "vision").models.get_model, generator, name, num_classes=n_outputs, **options)


class LogitsOnly(nn.Module):
    """Network that returns the field `logits` of a model's output.

    If the inputs are token numbers, the model also gets an `attention_mask`, which excludes the token `padding`.
    """

    def __init__(self, model: nn.Module, padding: int | None = None) -> None:
        super().__init__()
        self.model, self.padding = model, padding

    def forward(self, x: Shaped[Tensor, "n ..."]) -> Float[Tensor, "n k"]:
        """Return the logits of images, or of token numbers [n, length]."""
        is_masked = self.padding is not None and not x.is_floating_point()
        output = self.model(x, attention_mask=(x != self.padding).long()) if is_masked else self.model(x)
        if not hasattr(output, "logits"):
            raise InvalidInput(
                f"The model must return an object with `logits`; {type(self.model).__name__} returned "
                f"{type(output).__name__}. Use a classification model, such as BertForSequenceClassification."
            )
        return output.logits


def _from_config(config: Any, n_outputs: int | None, generator: torch.Generator | None) -> nn.Module:
    transformers = _import("transformers", "hf")
    config = copy.deepcopy(config)
    if n_outputs is not None:
        config.num_labels = n_outputs
    for task in ("Image", "Sequence"):
        if type(config) in getattr(transformers, f"MODEL_FOR_{task.upper()}_CLASSIFICATION_MAPPING"):
            return _seeded(getattr(transformers, f"AutoModelFor{task}Classification").from_config, generator, config)
    raise InvalidInput(
        f"transformers must have an image or sequence classifier for the config; got {type(config).__name__}. "
        "Build the model yourself and pass it instead of the config."
    )


def from_transformers(
    source: Any, *, n_outputs: int | None = None, generator: torch.Generator | None = None
) -> LogitsOnly:
    """Return a transformers classifier as a network from inputs to logits.

    Token numbers equal to the config's `pad_token_id` are excluded by the attention mask.

    Args:
        source: A model, or a config from which one is built with new weights.

    Raises:
        InvalidInput: No classifier belongs to the config, or a model came with `n_outputs`.
    """
    if isinstance(source, nn.Module) and n_outputs is not None:
        raise InvalidInput(
            "n_outputs can be chosen only where from_transformers builds the model; "
            f"got a ready {type(source).__name__}. Pass its config, or omit n_outputs."
        )
    model = source if isinstance(source, nn.Module) else _from_config(source, n_outputs, generator)
    padding = getattr(getattr(model, "config", None), "pad_token_id", None)
    return LogitsOnly(_without_inplace(model), padding)
