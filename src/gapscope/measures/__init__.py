"""Measures of a network and its training data, and their registry.

Each family of measures is one file, each measure one function. `gapscope.measure` validates the data, calls them and
returns readings; `gapscope.functional` offers the most used ones as functions. Unless documented otherwise they
evaluate the network in evaluation mode. They leave no trace: modes, buffers, gradients and global random states are
restored. They raise `InvalidInput` for options out of range and for data that do not fit the network, and
`NotMeasurable` if the network has no trainable parameters or lacks another property that they need.

Common parameters:
    network: Network that returns raw outputs [n, K]; logits if labels are needed.
    x: Inputs [n, ...], usually the training data.
    y: Class labels [n] (int64) as they were trained on, or regression targets [n, K] if the measure accepts them.
    initial_state: State dictionary of the network before training.
    history: One mapping per epoch, as training returns it and records store it.
    draws: Number of noise samples.
    generator: Source of random numbers; None for the same numbers in every call.
    chunk_size: Samples per pass, without effect beyond rounding; None: as many as memory allows, up to a maximum.
    max_bytes: Memory for temporaries in bytes; None for a quarter of the free memory, at most 2 GiB.
"""
