"""Initial weights: five schemes, sampled from a generator, the same on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from gapscope.base.errors import InvalidInput, check_choice
from gapscope.base.random_streams import resolve_generator
from gapscope.base.specs import INITIALIZATIONS
from gapscope.inspection.copies import copy_network
from gapscope.inspection.execution import exclusive
from gapscope.inspection.restoring import preserve_rng_state

_WEIGHT_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_WEIGHTS: dict[str, Callable[..., Tensor]] = {
    "torch": partial(nn.init.kaiming_uniform_, a=5**0.5),
    "standard_normal": nn.init.normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "he_uniform": partial(nn.init.kaiming_uniform_, nonlinearity="relu"),
    "he_normal": partial(nn.init.kaiming_normal_, nonlinearity="relu"),
}


@contextmanager
def seeded_by(generator: torch.Generator) -> Iterator[None]:
    """Run code under a seed of the global CPU random state from `generator`."""
    seed = int(torch.randint(2**63 - 1, (), generator=generator, device=generator.device))
    with exclusive(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _fill(parameter: Tensor, fill: Callable[..., Tensor], generator: torch.Generator) -> None:
    values = torch.empty(parameter.shape, dtype=parameter.dtype, device=generator.device)
    parameter.copy_(fill(values, generator=generator))


def _fill_bias(module: Any, kind: str, generator: torch.Generator) -> None:
    bound = module.weight[0].numel() ** -0.5
    if kind == "torch":
        _fill(module.bias, partial(nn.init.uniform_, a=-bound, b=bound), generator)
    elif kind == "standard_normal":
        _fill(module.bias, nn.init.normal_, generator)
    else:
        nn.init.zeros_(module.bias)


def _reset(module: nn.Module) -> None:
    # A copy in CPU memory does not use the random state of another device.
    reset = copy_network(module).cpu()
    reset.reset_parameters()  # type: ignore[operator]
    module.load_state_dict(reset.state_dict())


def initialize(
    network: nn.Module, kind: str = "torch", generator: torch.Generator | None = None
) -> None:
    r"""Reinitialize all weights of a network in place.

    With $n_\mathrm{in}$, $n_\mathrm{out}$ the fan-in and fan-out of a linear or convolutional layer:

    | kind | weights | biases |
    |---|---|---|
    | `"torch"` | $U(\pm 1/\sqrt{n_\mathrm{in}})$, PyTorch's default | the same |
    | `"standard_normal"` | $N(0, 1)$ | $N(0, 1)$ |
    | `"xavier_uniform"` | $U(\pm\sqrt{6/(n_\mathrm{in}+n_\mathrm{out})})$ | 0 |
    | `"he_uniform"` | $U(\pm\sqrt{6/n_\mathrm{in}})$ | 0 |
    | `"he_normal"` | $N(0, 2/n_\mathrm{in})$, variance | 0 |

    Other layers with `reset_parameters` (normalization, embeddings, recurrent layers) use it, with a seed from the
    generator; parameters of modules without it do not change. The last four kinds are those of Forouzesh et al. 2021
    (arXiv 2007.15378), Fig. 3.

    Args:
        network: Network whose parameters are set in place.
        kind: Distribution of the weights, one of the table; by default "torch".
        generator: Source of random numbers; None for the same ones at every call.

    Raises:
        InvalidInput: A weight is parametrized (weight norm), so that it cannot be set.
    """
    check_choice("initialization", kind, INITIALIZATIONS)
    generator = resolve_generator(generator, "initial weights")
    with torch.no_grad(), seeded_by(generator):
        for name, module in network.named_modules():
            if parametrize.is_parametrized(module):
                raise InvalidInput(
                    f"initialize needs weights without parametrization; '{name}' is parametrized. "
                    "Initialize the network before adding the parametrization."
                )
            if isinstance(module, _WEIGHT_LAYERS):
                _fill(module.weight, _WEIGHTS[kind], generator)
                if module.bias is not None:
                    _fill_bias(module, kind, generator)
            elif hasattr(module, "reset_parameters"):
                _reset(module)


def resampled_state(network: nn.Module) -> dict[str, Tensor]:
    """Return the state dictionary of a copy with resampled initial weights, always the same.

    Raises:
        InvalidInput: A module with parameters has no `reset_parameters`.
    """
    resampled = copy_network(network)
    with exclusive(), preserve_rng_state():
        torch.manual_seed(0)
        for name, module in resampled.named_modules():
            reset = getattr(module, "reset_parameters", None) or getattr(
                module, "_reset_parameters", None
            )
            if callable(reset):
                reset()
            elif any(True for _ in module.parameters(recurse=False)):
                raise InvalidInput(
                    "Initial weights can be resampled only where every layer has reset_parameters; "
                    f"{name or 'network'} ({type(module).__name__}) has none. "
                    "Pass initial_state=, the state dictionary before training."
                )
    return resampled.state_dict()
