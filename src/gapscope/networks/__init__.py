"""Built-in networks by name, and initial weights.

Common parameters of the builders, all of which return raw outputs:

Args:
    input_shape: Shape of one sample, (channels, height, width) for convolutional networks.
    n_outputs: Number of outputs (classes, or regression targets).
    width_multiplier: Factor of all channels and hidden units.
    dropout: Probability of dropout.
    batch_norm: Whether batch normalization precedes every activation.
    normalization: "batch", "group" (samples stay independent in training mode) or "none", after every convolution.
    generator: Source of the initial weights; None for the same ones in every call.
"""

from gapscope.networks.factory import build_network as build_network
from gapscope.networks.factory import check_network_options as check_network_options
from gapscope.networks.factory import network_names as network_names
from gapscope.networks.initialization import initialize as initialize
