"""Gradients of the outputs by the weights, layer by layer, without ever forming the whole Jacobian.

A forward pass is recorded (`recording`), the derivatives of the outputs by the outputs of layers are propagated
(`tape`), and each layer's rule (`rules`, registered by `layer_rules.layer_rule`) says what its call adds to the
Jacobian as `contributions`: factors, read rows of a table, or plain values. From these come squared norms (`traces`),
kernels (`kernel`, `contractions`) and log determinants (`log_determinant`), all of them differentiable once more. What
has no rule goes through `per_sample`; `self_check` makes sure that nothing is silently wrong.
"""
