"""Unit ablation and margins at hidden layers.

Common parameters:
    network: The network, in evaluation mode.
    x: Inputs [n, ...]; one or two samples where only shapes matter.
    y: Class labels [n].
    chunk_size: Rows per pass (samples, or samples with masked units); None: as many as memory allows, up to a maximum.
"""
