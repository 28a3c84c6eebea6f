"""Random networks against plain autograd, one sample and one output at a time: values, penalties, no trace left.

A failure prints its seed; `GAPSCOPE_FUZZ_SEED=123 pytest tests/fuzz -k given_seed` looks at that network alone.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import gapscope as gs
from fuzz.construct import CONSTRUCTS, HEADS
from fuzz.grammar import Sentence, sentence
from fuzz.oracle import leaves_no_trace, penalty_of_the_batch_as_run, problems
from gapscope.base.errors import SlowGradients
from gradients.reference import dense_jacobian, gradient_of

SEEDS = range(135)
# networks per test, so that the tests can be spread over processes
_TOGETHER = 15


def _check(*cases: Sentence, moved: bool = True) -> None:
    reports = []
    for case in cases:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowGradients)
            # true of constant outputs; gradients are compared with those of the oracle
            warnings.filterwarnings("ignore", "The value of .* has no gradient")
            if result := problems(case, moved=moved):
                reports.append("\n    ".join([f"GAPSCOPE_FUZZ_SEED={case.seed}: {case}", *result]))
    assert not reports, "\n".join(reports)


@pytest.mark.thorough
@pytest.mark.parametrize("first", SEEDS[::_TOGETHER])
def test_random_networks(first: int) -> None:
    _check(*(sentence(seed) for seed in range(first, first + _TOGETHER)))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(1000, 5000, 100))
def test_thousands_of_random_networks(first: int) -> None:
    _check(*(sentence(seed) for seed in range(first, first + 100)))


@pytest.mark.skipif("GAPSCOPE_FUZZ_SEED" not in os.environ, reason="GAPSCOPE_FUZZ_SEED is not set")
def test_given_seed() -> None:
    _check(sentence(int(os.environ["GAPSCOPE_FUZZ_SEED"])))


# what an outside review found wrong and no construct alone shows
REVIEW: list[dict[str, Any]] = [
    {"words": ("linear", "tiny layer scale before a weight used twice"), "dtype": torch.float32},
    {"words": ("layer also used by its weight",), "head": "zero-initialised"},
    {
        "words": ("layer also used by its weight",),
        "head": "mean of the places",
        "dtype": torch.bfloat16,
        "seed": 1,
    },
    {"words": ("linear", "rows sorted and put back"), "seed": 1},
    {"words": ("linear",), "head": "cosines with a scalar scale"},
    {"words": ("linear",), "head": "constant outputs"},
    {"words": ("list of parameters",), "head": "no parameters"},
    {"words": ("mapping of parameters",), "head": "no parameters"},
    {"words": ("child used by its weight alone",), "head": "no parameters"},
    {"words": ("vmap in the forward pass",), "head": "no parameters"},
    {"words": ("linear", "constants that are no buffers"), "dtype": torch.float32},
    {"words": ("linear", "filter of complex weights"), "dtype": torch.float32},
    {"words": ("vmap in the forward pass", "standardized over the batch")},
]


@pytest.mark.parametrize("finding", REVIEW, ids=str)
def test_what_the_review_found(finding: dict[str, Any]) -> None:
    _check(
        sentence(
            **{"seed": 0, "head": "all places", "dtype": torch.float64, "alias": False} | finding
        )
    )


@pytest.mark.thorough
@pytest.mark.parametrize("word", CONSTRUCTS)
def test_every_construct_alone(word: str) -> None:
    case = sentence(
        0, words=("linear", word), head="mean of the places", dtype=torch.float64, alias=False
    )
    _check(case, moved=False)


# BatchNorm in training mode, whose statistics the penalty holds, has tests of its own beside the other penalties.
_AS_RUN = [
    (word, training)
    for word, construct in CONSTRUCTS.items()
    for training in (False, True)
    if construct.refused and not (training and "batch norm" in word)
]


@pytest.mark.parametrize(("word", "training"), _AS_RUN)
def test_the_penalty_takes_the_gradients_of_the_batch_as_run(word: str, training: bool) -> None:
    case = sentence(
        0, words=("linear", word), head="mean of the places", dtype=torch.float64, alias=False
    )
    assert not penalty_of_the_batch_as_run(case, training=training)


def test_the_grammar_makes_every_construct_and_every_kind_of_network() -> None:
    cases = [sentence(seed) for seed in SEEDS]
    words = Counter(word for case in cases for word in case.words)
    assert set(words) == set(CONSTRUCTS)
    assert {case.head for case in cases} == set(HEADS)
    assert {case.dtype for case in cases} == {torch.float64, torch.float32, torch.bfloat16}
    assert sum(case.n == case.places == case.features for case in cases) > 20
    assert sum(case.alias for case in cases) > 10
    assert {case.chunk_size for case in cases} == {None, 1, 2, 3}


def test_a_seed_makes_the_same_network_every_time() -> None:
    case = sentence(3)
    first, second = case.network(), case.network()
    assert case == sentence(3)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    twin = case.network(torch.float64)
    for low, high in zip(first.parameters(), twin.parameters(), strict=True):
        assert torch.equal(low.double(), high)


def test_the_oracle_is_that_of_a_linear_network() -> None:
    network, x = nn.Linear(3, 2).double(), torch.randn(4, 3, dtype=torch.float64)
    rows = dense_jacobian(network, x)
    expected = torch.zeros(4, 2, 8, dtype=torch.float64)
    for c in range(2):
        expected[:, c, 3 * c : 3 * c + 3] = x
        expected[:, c, 6 + c] = 1
    torch.testing.assert_close(rows, expected)
    assert not gradient_of(rows.sum(), network).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_wrong_number_and_a_trace_are_seen(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = sentence(0, words=("linear",), head="all places", dtype=dtype)
    assert not problems(case)
    monkeypatch.setattr(
        "fuzz.oracle.ntk_trace",
        lambda *args, **options: 1.001 * gs.functional.ntk_trace(*args, **options),
    )
    assert any("ntk_trace" in problem for problem in problems(case))
    monkeypatch.setattr(
        "fuzz.oracle.input_jacobian_norm",
        lambda *args, **options: 1.001 * float(gs.functional.input_jacobian_norm(*args, **options)),
    )
    assert any("input_jacobian_norm" in problem for problem in problems(case))
    network = case.network()
    head = network.get_submodule("head.layer")
    with leaves_no_trace(network) as changed:
        head.weight = nn.Parameter(network.get_parameter("head.layer.weight").detach().clone())
        torch.rand(1)
    assert any("weight" in name for name in changed) and "random state" in changed
