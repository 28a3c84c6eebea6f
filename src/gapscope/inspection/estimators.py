"""Networks inside scikit-learn objects: skorch networks and pipelines."""

from __future__ import annotations

from typing import Any

from torch import nn

from gapscope.base.errors import InvalidInput
from gapscope.base.type_guards import is_list, is_list_or_tuple


def _module_of(estimator: Any) -> Any:
    """Return the trained module of a skorch network (anything else as it is)."""
    module = getattr(estimator, "module_", None)
    if isinstance(module, nn.Module):
        return module
    if hasattr(estimator, "initialize") and hasattr(estimator, "module"):
        raise InvalidInput(
            f"The module of a {type(estimator).__name__} must exist; it is not initialized. Call .initialize() or "
            ".fit() first."
        )
    return estimator


def _transformed(steps: list[tuple[str, Any]], data: Any) -> Any:
    if not is_list_or_tuple(data) or len(data) != 2:
        raise InvalidInput(f"A pipeline needs data as a pair (x, y); got {type(data).__name__}. Pass (frame, labels).")
    x, y = data
    for name, step in steps:
        if step is None or isinstance(step, str):
            continue  # "passthrough"
        try:
            x = step.transform(x)
        except Exception as error:
            raise InvalidInput(
                f"Step {name!r} of the pipeline must transform the data; it raised {type(error).__name__}: "
                f"{str(error).splitlines()[0][:160]} Fit the steps first: pipeline[:-1].fit(x)."
            ) from error
    return (x.toarray() if hasattr(x, "toarray") else x), y


def unwrap_estimator(network: Any, data: Any) -> tuple[Any, Any]:
    """Return the network inside a skorch estimator or pipeline, and the data it receives.

    A module is returned unchanged. The x of a pipeline's data (x, y) goes through its fitted steps.

    Raises:
        InvalidInput: The pipeline is not fitted, or a skorch network is not initialized.
    """
    if network is None or isinstance(network, nn.Module | type):
        return network, data
    steps = getattr(network, "steps", None)
    if is_list(steps) and steps and hasattr(network, "named_steps"):
        last = _module_of(steps[-1][1])
        return (last, _transformed(steps[:-1], data)) if isinstance(last, nn.Module) else (last, data)
    return _module_of(network), data
