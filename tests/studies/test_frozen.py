"""Frozen numbers: every study at smoke scale gives the numbers that it gave before (frozen/<study>.json).

The files hold the numbers of each part, without wall times, prose and verdicts. They were written again where a study
itself was changed: training images, noise sizes, losses for wrong labels, draws of networks, Student's t below ten
clusters.

A processor with other vector instructions rounds differently, and training multiplies the difference. So the folder
also has the digest of a short training (`rounding`) on the processor that made the numbers. With the same digest, all
numbers must be equal; elsewhere all but the numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from gapscope.cli.study import load_study
from support.smoke_studies import SmokeStudy

FOLDER = Path(__file__).parent / "frozen"
FROZEN = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
LONGEST_NAME = 60
CHOSEN = ("best",)  # names that the numbers choose, so that on another processor they may be others
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


@cache
def rounding() -> str:
    """Digest of the weights of a small convolutional network with batch norm after ten steps on one thread."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(0)
        first = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten())
        network = nn.Sequential(*first, nn.Linear(576, 64), nn.Tanh(), nn.Linear(64, 5))
        x, y = torch.randn(32, 3, 8, 8), torch.randint(5, (32,))
        optimizer = torch.optim.Adam(network.parameters(), 1e-2)
        for _ in range(10):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(x), y).backward()
            optimizer.step()
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)
    weights = b"".join(weight.detach().numpy().tobytes() for weight in network.parameters())
    return hashlib.sha256(weights).hexdigest()[:16]


def _is_prose(value: Any) -> bool:
    return isinstance(value, str) and len(value) > LONGEST_NAME


def slim(value: Any) -> Any:
    """Plain values without wall times, verdicts and prose."""
    if isinstance(value, dict):
        skip = ("share_of_training", "outcome")
        rest = {
            key: item for key, item in value.items() if "seconds" not in key and key not in skip
        }
        return {key: slim(item) for key, item in rest.items() if not _is_prose(item)}
    return (
        [slim(item) for item in value if not _is_prose(item)] if isinstance(value, list) else value
    )


def _close(a: Any, b: Any, numbers: bool = True) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return (
            not numbers
            or math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-7)
            or (math.isnan(a) and math.isnan(b))
        )
    if (
        not numbers and isinstance(a, str) and isinstance(b, str)
    ):  # intervals are texts with numbers in them
        return _NUMBER.sub("#", a) == _NUMBER.sub("#", b)
    return a == b


def _same_claim(a: Any, b: Any, numbers: bool) -> bool:
    compared = ("ours", "low", "high", "seeds") if numbers else ("seeds",)
    return all(_close(float(a[name]), float(b[name])) for name in compared)


def changes(frozen: Any, result: Any, where: str = "", *, numbers: bool = True) -> Iterator[str]:
    """Places at which a frozen value is missing or another (or without `numbers`, is missing or another text)."""
    if isinstance(frozen, dict) and isinstance(result, dict):
        for key, value in frozen.items():
            if key == "claims":  # there may be others, and other words; their numbers stand
                rows = [
                    row
                    for row in value
                    if not any(_same_claim(row, other, numbers) for other in result[key])
                ]
                yield from (f"{where}/claims has no more {row}" for row in rows)
            elif key not in result:
                yield f"{where}/{key} is missing"
            elif numbers or key not in CHOSEN:
                yield from changes(value, result[key], f"{where}/{key}", numbers=numbers)
    elif isinstance(frozen, list) and isinstance(result, list):
        if len(frozen) != len(result):
            yield f"{where} has {len(result)} items, had {len(frozen)}"
        for number, pair in enumerate(zip(frozen, result, strict=False)):
            yield from changes(*pair, f"{where}/{number}", numbers=numbers)
    elif not _close(frozen, result, numbers):
        yield f"{where} is {result!r}, was {frozen!r}"


def numbers_of(content: Any) -> Any:
    """Numbers of a part, with its claims as rows."""
    rows = [
        {"source": c["source"], "the paper says": c["says"], "quantity": c["quantity"], "ours": c["value"],
         "low": c["low"], "high": c["high"], "seeds": c["units"]}
        for c in content["claims"]
    ]  # fmt: skip
    return slim({"claims": rows, **content["numbers"]})


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("study", "part"), [(study, part) for study in FROZEN for part in FROZEN[study]]
)
def test_a_part_gives_the_frozen_numbers(
    study: str, part: str, smoke: Callable[[str], SmokeStudy]
) -> None:
    content, page = smoke(study).content(part), smoke(study).page(part)
    # networks of a few epochs decide nothing: what is computed or simulated may hold, nothing else
    assert all(
        claim["exact"] or not claim["compared"]
        for claim in content["claims"]
        if claim["outcome"] == "held"
    )
    assert page.count("![") == len(list(smoke(study).results.glob(f"{part}-*.svg")))
    result = numbers_of(content)
    same_processor = (FOLDER / "rounding").read_text().strip() == rounding()
    assert not [*changes(FROZEN[study][part], result, part, numbers=same_processor)][:10]


def test_every_study_is_frozen_and_every_frozen_part_exists() -> None:
    for study in ("forouzesh2021", "luo2019", "overfitting_alarm", "szolnoky2022", "zhao2022"):
        assert set() < set(FROZEN[study]) <= {part.name for part in load_study(study).parts}


def test_a_change_is_seen() -> None:
    frozen = {"a": [1.0, {"b": "x"}], "c": "NaN"}
    assert not [*changes(frozen, {"a": [1.0 + 1e-9, {"b": "x", "new": 1}], "c": "NaN"})]
    assert [*changes(frozen, {"a": [1.001, {"b": "y"}]})] == [
        "/a/0 is 1.001, was 1.0", "/a/1/b is 'y', was 'x'", "/c is missing",
    ]  # fmt: skip
    assert [*changes([1], [1, 2])] == [" has 2 items, had 1"]
    assert [*changes({"a": 1.0, "b": "x", "c": 0}, {"a": 2.0, "b": "y"}, numbers=False)] == [
        "/b is 'y', was 'x'", "/c is missing",
    ]  # fmt: skip
    claims = [{"ours": "NaN", "low": "-Infinity", "high": "Infinity", "seeds": 1}]
    assert not [*changes({"claims": claims}, {"claims": claims})]
    assert [*changes({"claims": claims}, {"claims": [claims[0] | {"ours": 0.5}]})]
    assert slim({"a_seconds": 1, "b": ["x" * 61, 2], "outcome": "held"}) == {"b": [2]}
