"""Random networks: sizes that coincide, one to three constructs in a row, a read-out, a precision, a chunk size.

A sentence of the grammar is made from one seed alone, so that a printed seed reproduces its network.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fuzz import layers, modules, parameters  # noqa: F401  (they fill CONSTRUCTS and HEADS)
from fuzz.construct import CONSTRUCTS, HEADS, Construct, Sizes


@contextmanager
def _seeded(seed: int, dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # bfloat16 has no initialization of its own in every layer
        torch.set_default_dtype(torch.float32 if dtype == torch.bfloat16 else dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


def _rounded(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.is_complex():
        return tensor.to(torch.complex64)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


class Network(nn.Module):
    """Parts one after the other, each followed by tanh or added to its input; then a read-out."""

    def __init__(
        self, parts: Sequence[nn.Module], residual: Sequence[bool], head: nn.Module, *, alias: bool
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.residual = residual
        self.head = head
        if alias:
            self.first = self.parts[0]

    def forward(self, x: Tensor) -> Tensor:
        for part, added in zip(self.parts, self.residual, strict=True):
            h = part(x).tanh()
            x = x + h if added else h
        return self.head(x)


@dataclass(frozen=True)
class Sentence:
    """One network of the grammar."""

    seed: int  # from which it was drawn, and from which its weights are
    n: int
    places: int
    features: int
    outputs: int
    words: tuple[str, ...]  # names of its constructs, in their order
    residual: tuple[bool, ...]
    head: str
    alias: bool  # whether its first part has a second name
    dtype: torch.dtype
    chunk_size: int | None

    @property
    def constructs(self) -> list[Construct]:
        return [*(CONSTRUCTS[word] for word in self.words), HEADS[self.head]]

    @property
    def probe(self) -> str:
        return ("class", "rademacher", "batch_sum")[self.seed % 3]

    @property
    def second_order(self) -> bool:
        return all(construct.second_order for construct in self.constructs)

    @property
    def refused(self) -> bool:
        """Return whether measures must refuse it."""
        return any(construct.refused for construct in self.constructs)

    @property
    def refused_by_the_penalty(self) -> bool:
        return any(
            construct.refused and not construct.constant_mix for construct in self.constructs
        )

    def network(self, dtype: torch.dtype | None = None) -> nn.Module:
        """Build the network in evaluation mode; the same weights every time, in any precision."""
        dtype = dtype or self.dtype
        with _seeded(self.seed, dtype):
            built = self._built()
        if dtype == self.dtype == torch.float64:
            return built.eval()
        # weights of the lowest precision, so that the float64 network is the very same function
        with _seeded(self.seed, torch.float64):
            source = self._built()
        with torch.no_grad():
            for to, origin in (
                (built.parameters(), source.parameters()),
                (built.buffers(), source.buffers()),
            ):
                for tensor, entries in zip(to, origin, strict=True):
                    tensor.copy_(_rounded(entries, self.dtype))
        if dtype == torch.bfloat16:
            built = built.to(dtype)
        return built.eval()

    def _built(self) -> nn.Module:
        sizes = Sizes(self.n, self.places, self.features, self.outputs, random.Random(self.seed))
        parts = [CONSTRUCTS[word].build(sizes) for word in self.words]
        return Network(parts, self.residual, HEADS[self.head].build(sizes), alias=self.alias)

    def inputs(self, dtype: torch.dtype | None = None) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(
            self.n, self.places, self.features, generator=generator, dtype=torch.float64
        )
        return x.to(self.dtype).to(dtype or self.dtype)


def _sizes(choices: random.Random) -> tuple[int, int, int]:
    """Samples, places and features; equal more often than not."""
    free = [choices.randint(2, 5) for _ in range(3)]
    common = free[0]
    n, places, features = (common if choices.random() < 0.5 else size for size in free)
    return (choices.choice([1, 2 * places]) if choices.random() < 0.1 else n), places, features


def sentence(
    seed: int,
    *,
    words: tuple[str, ...] | None = None,
    head: str | None = None,
    dtype: torch.dtype | None = None,
    alias: bool | None = None,
) -> Sentence:
    """Describe one network; what is None is drawn from the seed."""
    choices = random.Random(seed)
    n, places, features = _sizes(choices)
    half = dtype is None and choices.random() < 0.06
    known = [word for word in sorted(CONSTRUCTS) if CONSTRUCTS[word].half or not half]
    # one construct goes by the seed, so that as many seeds as there are constructs show them all
    random_words = [known[seed % len(known)], *choices.choices(known, k=choices.choice([0, 1, 2]))]
    choices.shuffle(random_words)
    random_head = choices.choice([name for name in sorted(HEADS) if HEADS[name].half or not half])
    words, head = words or tuple(random_words), head or random_head
    constructs = [*(CONSTRUCTS[name] for name in words), HEADS[head]]
    if any(construct.refused for construct in constructs):
        # one sample mixes with none; constant outputs and zeros hide what is mixed
        n, head = max(n, 3), "mean of the places"
    return Sentence(
        seed=seed,
        n=n,
        places=places,
        features=features,
        outputs=choices.randint(1, 3),
        words=words,
        residual=tuple(choices.random() < 0.5 for _ in words),
        head=head,
        alias=(choices.random() < 0.2) if alias is None else alias,
        dtype=dtype
        or (torch.bfloat16 if half else choices.choice(3 * [torch.float64] + [torch.float32])),
        chunk_size=choices.choice([None, None, 1, 2, 3])
        if not any(c.refused for c in constructs)
        else None,
    )
