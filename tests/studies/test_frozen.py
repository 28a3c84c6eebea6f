"""Frozen numbers: every study at smoke scale gives the numbers that it gave before (frozen/<study>.json).

The files hold the numbers of each part, without wall times, prose and verdicts. They were written again where a study
itself was changed: training images, noise sizes, losses for wrong labels, draws of networks, Student's t below ten
clusters. Made with one thread on one machine; another processor rounds differently, hence the tolerance.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gapscope.cli.study import load_study
from smoke_studies import SmokeStudy

FROZEN = {path.stem: json.loads(path.read_text()) for path in sorted((Path(__file__).parent / "frozen").glob("*.json"))}
LONGEST_NAME = 60


def _is_prose(value: Any) -> bool:
    return isinstance(value, str) and len(value) > LONGEST_NAME


def slim(value: Any) -> Any:
    """Plain values without wall times, verdicts and prose."""
    if isinstance(value, dict):
        left_out = ("share_of_training", "outcome")
        kept = {key: item for key, item in value.items() if "seconds" not in key and key not in left_out}
        return {key: slim(item) for key, item in kept.items() if not _is_prose(item)}
    return [slim(item) for item in value if not _is_prose(item)] if isinstance(value, list) else value


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-7) or (math.isnan(a) and math.isnan(b))
    return a == b


def _same_claim(a: Any, b: Any) -> bool:
    return all(_close(float(a[name]), float(b[name])) for name in ("ours", "low", "high", "seeds"))


def changed(frozen: Any, found: Any, where: str = "") -> Iterator[str]:
    """Where a frozen value is missing or another."""
    if isinstance(frozen, dict) and isinstance(found, dict):
        for key, value in frozen.items():
            if key == "claims":  # there may be others, and other words; their numbers stand
                kept = [row for row in value if not any(_same_claim(row, other) for other in found[key])]
                yield from (f"{where}/claims has no more {row}" for row in kept)
            elif key not in found:
                yield f"{where}/{key} is missing"
            else:
                yield from changed(value, found[key], f"{where}/{key}")
    elif isinstance(frozen, list) and isinstance(found, list):
        if len(frozen) != len(found):
            yield f"{where} has {len(found)} items, had {len(frozen)}"
        for number, pair in enumerate(zip(frozen, found, strict=False)):
            yield from changed(*pair, f"{where}/{number}")
    elif not _close(frozen, found):
        yield f"{where} is {found!r}, was {frozen!r}"


def numbers_of(content: Any) -> Any:
    """What a part computed; claims as rows, as they were kept among the numbers."""
    rows = [
        {"source": c["source"], "the paper says": c["says"], "quantity": c["quantity"], "ours": c["value"],
         "low": c["low"], "high": c["high"], "seeds": c["units"]}
        for c in content["claims"]
    ]  # fmt: skip
    return slim({"claims": rows, **content["numbers"]})


@pytest.mark.thorough
@pytest.mark.parametrize(("study", "part"), [(study, part) for study in FROZEN for part in FROZEN[study]])
def test_a_part_gives_the_frozen_numbers(study: str, part: str, smoke: Callable[[str], SmokeStudy]) -> None:
    found = numbers_of(smoke(study).content(part))
    assert not [*changed(FROZEN[study][part], found, part)][:10]


def test_every_study_is_frozen_and_every_frozen_part_exists() -> None:
    for study in ("forouzesh2021", "luo2019", "overfitting_alarm", "szolnoky2022", "zhao2022"):
        assert set() < set(FROZEN[study]) <= {part.name for part in load_study(study).parts}


def test_a_change_is_seen() -> None:
    frozen = {"a": [1.0, {"b": "x"}], "c": "NaN"}
    assert not [*changed(frozen, {"a": [1.0 + 1e-9, {"b": "x", "new": 1}], "c": "NaN"})]
    assert [*changed(frozen, {"a": [1.001, {"b": "y"}]})] == [
        "/a/0 is 1.001, was 1.0", "/a/1/b is 'y', was 'x'", "/c is missing",
    ]  # fmt: skip
    assert [*changed([1], [1, 2])] == [" has 2 items, had 1"]
    claims = [{"ours": "NaN", "low": "-Infinity", "high": "Infinity", "seeds": 1}]
    assert not [*changed({"claims": claims}, {"claims": claims})]
    assert [*changed({"claims": claims}, {"claims": [claims[0] | {"ours": 0.5}]})]
    assert slim({"a_seconds": 1, "b": ["x" * 61, 2], "outcome": "held"}) == {"b": [2]}
