"""What the outside review found wrong, and the networks of the grammar that show it.

Every network below was off, crashed or was not refused before the finding was mended (revision cf83a95).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzz.grammar import Sentence, sentence


@dataclass(frozen=True)
class Finding:
    """One kind of wrong number (W) or crash (C).

    Attributes:
        words: Constructs in a row of which each shows it.
        head: The read-out that lets it be seen.
        dtype: The precision in which it is seen.
        seed: Seed of the sizes and weights.
    """

    words: tuple[tuple[str, ...], ...]
    head: str = "all places"
    dtype: torch.dtype = torch.float64
    seed: int = 0

    def sentences(self) -> list[Sentence]:
        return [sentence(self.seed, words=w, head=self.head, dtype=self.dtype, alias=False) for w in self.words]


FINDINGS = {
    "W1 a module with two names loses its parameter": Finding(
        (
            ("linear", "alias of a layer that is also used by its weight"),
            ("linear", "layer listed twice and used by its weight"),
            ("linear", "encoder under two names, places first"),
        )
    ),
    "W2 checked while the gradient was zero": Finding(
        (("linear", "zero-initialized branch before a weight used twice"),)
    ),
    "W2 checked while the gradient was tiny": Finding(
        (("linear", "tiny layer scale before a weight used twice"),), dtype=torch.float32
    ),
    "W2 checked while the read-out was zero": Finding((("layer also used by its weight",),), head="zero-initialised"),
    "W3 a second derivative is lost": Finding(
        (
            ("linear", "own layer norm"),
            ("linear", "subclass of layer norm"),
            ("linear", "own instance norm"),
            ("linear", "transformer layer, places first"),
            ("linear", "transformer decoder, places first"),
        )
    ),
    "W4 rows in another order": Finding((("linear", "rows sorted and put back"),), seed=1),
    "W5 complex weights": Finding((("linear", "filter of complex weights"), ("linear", "complex linear layer"))),
    "W6 a copy that still calls the original": Finding(
        (("linear", "forward pass that closes over its module"), ("linear", "hook that closes over another module"))
    ),
    "W7 mixed batches not refused": Finding(
        (
            ("linear", "dropout that never stops"),
            ("linear", "detached scale of the batch"),
            ("linear", "batch norm without statistics"),
        )
    ),
    "W8 tolerance of half precision": Finding(
        (("layer also used by its weight",),), head="mean of the places", dtype=torch.bfloat16, seed=1
    ),
    "W14 not a number where it must be refused": Finding((("linear", "standardized over the batch"),)),
    "C1 scalar parameters": Finding((("linear", "scalar scale"), ("linear", "scalar temperature of a softmax"))),
    "C1 scalar parameter at the output": Finding((("linear",),), head="cosines with a scalar scale"),
    "C2 no called layer owns parameters": Finding(
        (
            ("list of parameters",),
            ("mapping of parameters",),
            ("child used by its weight alone",),
            ("vmap in the forward pass",),
        ),
        head="no parameters",
    ),
    "C3 sizes that coincide": Finding(
        (
            ("linear", "recurrent layers with their first state given"),
            ("linear", "attention with learned keys and a mask of places"),
            ("linear", "positions returned by a module"),
            ("linear", "packed sequences"),
        )
    ),
    "C4 sparse gradients": Finding((("linear", "sparse embedding"),)),
    "C5 networks that cannot be copied": Finding(
        (("linear", "weight norm and spectral norm by hooks"), ("linear", "pruned"))
    ),
    "C5 constants of single precision": Finding((("linear", "constants that are no buffers"),), dtype=torch.float32),
    "C6 complex weights of single precision": Finding((("linear", "filter of complex weights"),), dtype=torch.float32),
    "C7 batch norm without statistics": Finding((("linear", "batch norm without statistics"),)),
    "C8 outputs that do not depend on the inputs": Finding((("linear",),), head="constant outputs"),
    "C9 a checkpoint that hides its parameters": Finding(
        (("linear", "checkpoint that hides its parameters"),), head="mean of the places"
    ),
    "C10 a buffer of another size": Finding((("linear", "buffer of the size of the batch"),)),
}
