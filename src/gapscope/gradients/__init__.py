"""Gradients of the outputs by the weights, layer by layer, without ever forming the whole Jacobian.

A forward pass is recorded (`recording`), the derivatives of the outputs by the outputs of layers are propagated
(`tape`), and each layer's rule (`rules`, registered by `layer_rules.layer_rule`) says what its call adds to the
Jacobian as `contributions`: factors, read rows of a table, or JSON-serializable values. From these come squared norms
(`traces`), kernels (`kernel`, `contractions`) and log determinants (`log_determinant`), all of them differentiable once
more. What has no rule goes through `per_sample`; `self_check` makes sure that nothing is silently wrong.

How the parts fit, for one weight W [O, K] that a layer uses at T places of each of N samples, with C outputs:

    forward pass            backward pass, one a output       what the layer's rule makes of one call
    (recording, tape)       (backward)                        (rules, layer_rules)

    inputs [N, ...]         gradients g [C, N, O, T]   --->   Factors(inputs, g, layout)    most weights
         |                        |                           Lookup(rows, g)               rows of a table
         | layout.unfold          |                           Dense(J)                      small, or without rule
         v (layouts)              |                                 |
    columns a [N, K, T]           |                                 |  combined: uses of the same weight are added,
         |                        |                                 v  no parameter is left in two contributions
         +-----------+------------+                           one contribution a key (contributions)
                     |                                              |
          J_nc = sum_t g_cnt a_nt^T                   +-------------+---------------+
          [O, K], never formed for all n, c           |             |               |
                                                square_norms     kernel        kernel_gradient
                                                sum_c |J_nc|^2   <J_nc, J_md>  of sum W <J_nc, J_md>
                                                (square_norms)   (contractions: explicit, gram or mixed order)
                                                      |             |               |
                                                    traces       kernel      log_determinant, penalties

Sums over all weights of the last row are those of the whole Jacobian [N C, P], whose rows are (n, c).
"""
