"""neural-tangents 0.6.5 on jax 0.4.30 as a baseline, with its three implementations, all compiled."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from functools import partial
from typing import Any
from unittest.mock import MagicMock

from candidates import RATE, STRENGTH, Candidate, Work

from networks import OUTPUTS, jax_twin


def _import() -> tuple[Any, Any]:
    """Import it without TensorFlow, and re-expose private names of jax that its third implementation still reads."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.modules.setdefault("neural_tangents.experimental", MagicMock())
    warnings.filterwarnings("ignore")
    import jax  # type: ignore[import-not-found]

    for name in (
        "interpreters.ad",
        "interpreters.partial_eval",
        "interpreters.xla",
        "core",
        "api_util",
        "linear_util",
    ):
        try:
            public, private = (
                importlib.import_module(f"jax.{name}"),
                importlib.import_module(f"jax._src.{name}"),
            )
        except ImportError:
            continue
        for attribute in dir(private):
            if not hasattr(public, attribute):
                setattr(public, attribute, getattr(private, attribute))
    config: Any = importlib.import_module("jax._src.config")
    config.jax_enable_checks = getattr(config, "jax_enable_checks", False)
    return jax, importlib.import_module("neural_tangents")


def candidates(task: str, name: str, work: Work) -> dict[str, Candidate]:
    """Kernels, traces and penalty steps; it has no log determinant."""
    jax, nt = _import()
    import jax.numpy as jnp  # type: ignore[import-not-found]

    apply, parameters = jax_twin(name, work.network)
    x, y = jnp.array(work.x.permute(0, 2, 3, 1).cpu().numpy()), jnp.array(work.y.cpu().numpy())

    def ntk(implementation: int, *, traced: bool) -> Any:
        axes = {
            "trace_axes": (-1,) if traced else (),
            "vmap_axes": 0,
            "implementation": implementation,
        }
        return nt.empirical_ntk_fn(apply, **axes)

    def trace(implementation: int, p: Any, x: Any) -> Any:
        kernel = ntk(implementation, traced=True)
        return jax.vmap(lambda one: kernel(one[None], None, p)[0, 0])(x).sum()

    def cross_entropy(p: Any, x: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(apply(p, x)), y[:, None], 1).mean()

    # The library divides by C where it traces. It is multiplied back outside the compiled program: with the factor
    # inside, XLA returned wrong kernels for implementation 1 on the fully connected network.
    def compiled(function: Any, factor: int = 1) -> Candidate:
        fast = jax.jit(function)
        if factor == 1:
            return lambda: jax.block_until_ready(fast(parameters, x))
        return lambda: factor * jax.block_until_ready(fast(parameters, x))

    def step(loss: Any) -> Candidate:
        return compiled(
            lambda p, x: jax.tree_util.tree_map(lambda a, b: a - RATE * b, p, jax.grad(loss)(p, x))
        )

    result: dict[str, Candidate] = {}
    if task == "penalty":
        result["JAX plain"] = step(cross_entropy)
    for i in (1, 2, 3):
        label = f"neural-tangents {i}"
        if task == "kernel":
            result[f"{label} full"] = compiled(
                partial(lambda i, p, x: ntk(i, traced=False)(x, None, p), i)
            )
            result[f"{label} traced"] = compiled(
                partial(lambda i, p, x: ntk(i, traced=True)(x, None, p), i), OUTPUTS
            )
        elif task == "trace":
            result[f"{label} exact"] = compiled(partial(trace, i), OUTPUTS)
        elif task == "penalty":
            result[f"{label} exact"] = step(
                partial(
                    lambda i, p, x: cross_entropy(p, x) + STRENGTH * OUTPUTS * trace(i, p, x), i
                )
            )
    return result
