"""Per-sample gradients of the outputs, layer by layer, without the whole Jacobian.

A forward pass is recorded, the derivatives of the outputs by the outputs of layers are propagated (`tape`), and each
layer's rule (`rules`, registered by `layer_rules.layer_rule`) returns what its call adds to the Jacobian as
`contributions`: outer-product factors, embedding rows, or dense values. From these come squared norms (`traces`),
kernels (`kernel`, `contractions`) and log determinants (`kernel.log_determinant`), all of them differentiable once
more. Layers without a rule are run again per sample (`per_sample`). The graph of a pass proves usual networks
(`evidence`); of others `verification` compares all rows with autograd. Networks of linear layers in sequence are read
off the graph, without a record (`chains`).

The parts, for one weight W [O, K] that a layer uses at T positions of each of N samples, with C outputs:

    forward pass            backward pass, one per output     contribution of one call by the layer's rule
    (tape)                  (backward)                        (rules, layer_rules)

    inputs [N, ...]         gradients g [C, N, O, T]   --->   OuterProductFactors(inputs, g, layout)   most weights
         |                        |                           EmbeddingContribution(rows, g)           tables
         | layout.unfold          |                           DenseJacobian(J)                 small, or without rule
         v (layouts)              |                                 |
    columns a [N, K, T]           |                                 |  merge_contributions: add uses of one weight;
         |                        |                                 v  no parameter is in two contributions
         +-----------+------------+                           one contribution per key (broadcasts)
                     |                                              |
          J_nc = sum_t g_cnt a_nt^T                   +-------------+---------------+
          [O, K], never formed for all n, c           |             |               |
                                                square_norms     kernel        kernel_gradient
                                                sum_c |J_nc|^2   <J_nc, J_md>  of sum W <J_nc, J_md>
                                                (square_norms)   (contractions: explicit, gram or mixed order)
                                                      |             |               |
                                                    traces       kernel      kernel.log_determinant, penalties

Sums over all weights of the last row are those of the whole Jacobian [N C, P], whose rows are (n, c).

Common parameters: `network` in the mode to be measured, `x` inputs [n, ...], `outputs` [n, k] of the recorded pass on
`tape`, `cotangents` C weights of each output, `create_graph` whether the result is to be differentiated.
"""
