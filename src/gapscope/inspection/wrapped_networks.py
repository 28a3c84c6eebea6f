"""Networks inside skorch estimators and pipelines, and the data that they receive."""

from __future__ import annotations

from typing import Any

from torch import nn

from gapscope.base.errors import InvalidInput, first_line
from gapscope.base.type_guards import is_list, is_list_or_tuple
from gapscope.inspection.network_checks import check_module, is_estimator


def unwrap_estimator(network: Any, data: Any) -> tuple[Any, Any]:
    """Return the network inside a skorch estimator or pipeline, and the data that it receives.

    A module is returned unchanged. The x of a pipeline's data (x, y) goes through its fitted steps.

    Raises:
        InvalidInput: The pipeline is not fitted, or a skorch network is not initialized.
    """
    module = network_inside(network)
    steps = _steps_of(network)
    if steps and isinstance(module, nn.Module) and module is not network:
        return module, _transformed(steps[:-1], data)
    return module, data


def network_inside(network: Any) -> Any:
    """Return the network inside a skorch estimator or pipeline, other values as they are."""
    if network is None or isinstance(network, nn.Module | type):
        return network
    steps = _steps_of(network)
    if not steps:
        return _module_of(network)
    last = _module_of(steps[-1][1])
    if isinstance(last, nn.Module):
        return last
    return network


def refuse_estimator(network: Any) -> None:
    """Raise InvalidInput for an estimator that holds no network, before its data are read, which may be a raw frame."""
    module = network_inside(network)
    if is_estimator(module):
        check_module(module)


def _module_of(estimator: Any) -> Any:
    """Return the trained module of a skorch network (anything else as it is)."""
    if hasattr(estimator, "module_"):
        return estimator.module_
    if hasattr(estimator, "initialize") and hasattr(estimator, "module"):
        raise InvalidInput(
            f"Got a {type(estimator).__name__} that is not initialized; it must have a module. Call .initialize() or "
            ".fit() first."
        )
    return estimator


def _steps_of(network: Any) -> list[tuple[str, Any]]:
    """Return the steps of a pipeline, empty for other values."""
    steps = getattr(network, "steps", None)
    if is_list(steps) and hasattr(network, "named_steps"):
        return steps
    return []


def _transformed(steps: list[tuple[str, Any]], data: Any) -> Any:
    if not is_list_or_tuple(data) or len(data) != 2:
        raise InvalidInput(
            f"A pipeline needs data as a pair (x, y); got {type(data).__name__}. Pass (frame, labels)."
        )
    x, y = data
    for name, step in steps:
        if step is None or isinstance(step, str):
            continue  # "passthrough"
        try:
            x = step.transform(x)
        except Exception as error:
            raise InvalidInput(
                f"Step {name!r} of the pipeline raised {type(error).__name__}: {first_line(error)} The steps must be "
                "fitted. Call pipeline[:-1].fit(x)."
            ) from error
    return (x.toarray() if hasattr(x, "toarray") else x), y
