"""Clones of estimators that are fitted on parts of the data, without what the estimator has learned."""

from __future__ import annotations

from typing import Any

from torch import nn

from gapscope.base.errors import InvalidInput


def _trained_module(estimator: Any) -> str:
    """Return the parameter with a module that `fit` trains in place, if it was fitted (empty if there is none).

    The fitted module shares its weights with the parameter, of which `sklearn.base.clone` makes a copy.
    """
    history: Any = getattr(estimator, "history", None)
    if isinstance(history, list) and not history:  # of skorch: initialized, and not trained
        return ""
    fitted = [
        module
        for name, module in vars(estimator).items()
        if name.endswith("_") and isinstance(module, nn.Module)
    ]
    weights = {id(weight) for module in fitted for weight in module.parameters()}
    for name, value in estimator.get_params(deep=False).items():
        if isinstance(value, nn.Module) and any(id(each) in weights for each in value.parameters()):
            return name
    return ""


def refuse_trained_modules(estimator: Any) -> None:
    """Raise InvalidInput for an estimator whose clones start from the weights that it has learned.

    skorch trains a module that it gets as an object, so that clones have seen all samples before they are fitted.

    Args:
        estimator: Estimator, or one that holds others, such as a pipeline.

    Raises:
        InvalidInput: It holds a module that was trained in place.
    """
    inner = estimator.get_params(deep=True).values()
    for each in (estimator, *(value for value in inner if hasattr(value, "get_params"))):
        if isinstance(each, type) or not (name := _trained_module(each)):
            continue
        module = type(each.get_params(deep=False)[name]).__name__
        raise InvalidInput(
            "Estimators are fitted again without some samples, from untrained weights; got a fitted "
            f"{type(each).__name__} whose {name}= is an object, a {module}, which has learned from all samples. Pass "
            f"its class ({name}=Net, with {name}__... for its arguments), or an estimator that was never fitted, with "
            "a new module."
        )


def unfitted_clone(estimator: Any) -> Any:
    """Return a clone that has learned nothing.

    Args:
        estimator: Estimator with scikit-learn's interface.

    Raises:
        InvalidInput: Its clones would start from weights that it has learned.
    """
    from sklearn.base import clone

    refuse_trained_modules(estimator)
    return clone(estimator)
