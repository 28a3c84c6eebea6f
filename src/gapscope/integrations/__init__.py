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

# loaded on first use: their modules need an extra
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
