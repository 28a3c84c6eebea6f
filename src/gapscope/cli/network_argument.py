"""Network arguments of the command line: weights of a pool, or `module:function`."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from gapscope.base.samples import Samples
    from gapscope.pools.readings import RunOptions
    from gapscope.results.records import Record

HELP = "a weights file of a pool, or module:function that returns (network, training data)"
_FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def is_factory(source: Path) -> bool:
    """Return True for `module:function`, False for a file."""
    return _FACTORY.fullmatch(str(source)) is not None and not source.exists()


def import_function(source: Path | str) -> Any:
    """Return the function named by `module:function` (the current folder is searched).

    Raises:
        InvalidInput: There is no such module or function.
        ModuleNotFoundError: The module itself imports one that is not installed.
    """
    from gapscope.base.errors import InvalidInput, did_you_mean

    if _FACTORY.fullmatch(str(source)) is None:
        raise InvalidInput(f"{source} must be module:function, such as my_models:load.")
    module_name, function_name = str(source).split(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name.split(".")[0] and error.name != module_name:
            raise
        raise InvalidInput(
            f"{source} must name a module that can be imported from here; there is no {module_name!r}. Run the command "
            "in the folder that holds it."
        ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        near = did_you_mean(function_name, [name for name in vars(module) if not name.startswith("_")])
        raise InvalidInput(f"{source} must name a function of {module_name}; it has no {function_name!r}.{near}")
    return function


def call_factory(source: Path, what: str = "network") -> tuple[Any, Any]:
    """Return the network (or training function) and data that a function returns.

    Args:
        what: What it returns beside the data, for the message.

    Returns:
        The network, and its data in any form that `gapscope.measure` takes.

    Raises:
        InvalidInput: There is no such module or function, or it returns something else.
    """
    from gapscope.base.errors import InvalidInput

    function = import_function(source)
    try:
        made = function()
    except Exception as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        raise InvalidInput(
            f"{source} must return ({what}, training data); it raised {type(error).__name__}: {error} "
            f"({line.filename}, line {line.lineno}). Call it in Python to see the traceback."
        ) from error
    if not isinstance(made, tuple) or len(made) != 2:
        raise InvalidInput(f"{source} must return ({what}, training data); it returned {type(made).__name__}.")
    return made


def check_no_network(train_fn: Any, source: Path) -> None:
    """Raise InvalidInput for a network where a function (x, y) -> trained network is needed."""
    from torch import nn

    from gapscope.base.errors import InvalidInput

    if isinstance(train_fn, nn.Module):
        raise InvalidInput(
            f"{source} must return (train_fn, data) with a function (x, y) -> trained network; got a "
            f"{type(train_fn).__name__}. For a network as it is use gapscope forecast or gapscope estimate."
        )


def first_samples(samples: Samples, n: int | None) -> Samples:
    """Return the first n samples (None for all)."""
    import torch

    return samples if n is None or n >= len(samples) else samples.subset(torch.arange(n))


def load_network_argument(source: Path, data_root: Path | None) -> tuple[str, nn.Module, Any]:
    """Return a short name, the network and its training data."""
    from gapscope.pools.loading import load_network

    if is_factory(source):
        return str(source).split(":")[1], *call_factory(source)
    network, problem = load_network(source, None if data_root is None else str(data_root))
    return source.parent.name[:8], network, problem.train


def load_with_initial_state(source: Path, data_root: Path | None) -> tuple[nn.Module, Any, Any]:
    """Return the network, its training data, and its initial weights if a pool has them."""
    from gapscope.pools.loading import load_with_initial

    if is_factory(source):
        return *call_factory(source), None
    network, initial, problem = load_with_initial(source, None if data_root is None else str(data_root))
    return network, problem.train, initial


def record_from_argument(source: Path, options: RunOptions, family: str = "") -> Record:
    """Return a record with the network's readings (`family` for networks of your own)."""
    from gapscope.base.samples import as_samples
    from gapscope.pools.loading import measure_stored_network, record_network

    if not is_factory(source):
        return measure_stored_network(source, options)
    network, data = call_factory(source)
    samples = first_samples(as_samples(data), options.measure_samples)
    return record_network(network, samples, name=str(source), family=family, measures=options.measures)
