"""Measures as functions of a network and its data, in analogy to `torch.nn.functional`.

They take tensors and return a number or a result with several; `gapscope.measure` validates and calls them.
"""

from gapscope.measures.bias_variance import bias_variance as bias_variance
from gapscope.measures.gradient_neighbours import gradient_neighbours as gradient_neighbours
from gapscope.measures.input_jacobian_norm import input_jacobian_norm as input_jacobian_norm
from gapscope.measures.kernel_leave_one_out import kernel_leave_one_out as kernel_leave_one_out
from gapscope.measures.margin_signature import margin_signature as margin_signature
from gapscope.measures.ntk import empirical_ntk as empirical_ntk
from gapscope.measures.ntk import ntk_logdet as ntk_logdet
from gapscope.measures.ntk import ntk_trace as ntk_trace
from gapscope.measures.output_sensitivity import output_sensitivity as output_sensitivity
from gapscope.measures.parameters import (
    distance_from_initialization as distance_from_initialization,
)
from gapscope.measures.parameters import parameter_count as parameter_count
from gapscope.measures.parameters import parameter_norm as parameter_norm
from gapscope.measures.training_fit import accuracy as accuracy
from gapscope.measures.training_fit import loss as loss
from gapscope.measures.unit_sparsity import unit_sparsity as unit_sparsity
