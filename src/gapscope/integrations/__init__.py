"""Callbacks and sinks for other frameworks (each module needs its own extra).

Common parameters:
    monitor: `gapscope.Monitor`; its `every` counts training epochs.
    stop: Whether a raised alarm ends the training.
    trainer: Trainer of the other framework, before training starts.
    penalty, penalties: Penalties, in the same order when training resumes.
    epoch, numbers: Epoch of a recording, and name -> value.
    args, state, control, model: Arguments of a Transformers callback.
"""

import lazy_loader

# modules and names are loaded on first use: they need extras
__getattr__, _, _names = lazy_loader.attach_stub(__name__, __file__)
_MODULES = {"lightning", "mlflow", "tensorboard", "transformers", "wandb"}
# without the modules, so that listing the names needs no extra
__all__ = [name for name in _names if name not in _MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return list(__all__)
