"""Exact and near-duplicates of rows (of pictures: test_picture_copies)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy
import pandas
import pytest
import torch

import gapscope as gs
from gapscope.base.samples import as_samples
from gapscope.data.frames import encode_frame
from gapscope.labels.conflicting_copies import conflicting_duplicates
from gapscope.labels.duplicates import (
    duplicate_pairs,
    duplicates_in_test,
    exact_copies_in_test,
    exact_repeats,
)


def test_rows_of_tables() -> None:
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    near = x[:3] + 1e-4
    both = gs.Samples(torch.cat([x, near]), torch.arange(53) % 2)
    assert duplicate_pairs(both) == [(0, 50), (1, 51), (2, 52)]
    assert conflicting_duplicates(both, duplicate_pairs(both)) == tuple(
        pair for pair in ((0, 50), (1, 51), (2, 52)) if sum(pair) % 2
    )


def test_few_samples() -> None:
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert duplicate_pairs(gs.Samples(x)) == [(0, 1)]
    assert duplicates_in_test(gs.Samples(x), gs.Samples(x[:1])) == ((0, 0),)


TEXTS = [
    "my card has not arrived yet, where is it?",
    "how do I change the address of my account?",
    "the exchange rate of this payment is wrong",
    "I was charged twice for the same purchase",
    "can I use the card abroad?",
]


def test_texts_with_an_added_word() -> None:
    copies = ["please, " + TEXTS[0], TEXTS[1].upper(), TEXTS[3] + " again"]
    samples = as_samples((TEXTS + copies, torch.arange(8) % 2))
    assert duplicate_pairs(samples) == [(0, 5), (1, 6), (3, 7)]
    assert duplicates_in_test(as_samples((TEXTS, [0] * 5)), as_samples((copies, [0] * 3))) == (
        (0, 0),
        (1, 1),
        (3, 2),
    )


def test_tokens_with_an_added_one() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = torch.zeros(40, 20, dtype=torch.int64)
    ids[:, :10] = torch.randint(1, 60, (40, 10), generator=generator)
    added = ids[:2].clone()
    added[0, 10] = 7
    added[1, 1:11] = ids[1, :10]
    other_order = ids[2:3].clone()
    other_order[0, :10] = ids[2, :10].flip(0)
    replaced = ids[3:4].clone()
    replaced[0, 4] = 59 if int(ids[3, 4]) != 59 else 58
    both = gs.Samples(torch.cat([ids, added, other_order, replaced]), torch.arange(44) % 2)
    assert duplicate_pairs(both) == [(0, 40), (1, 41)]
    test = gs.Samples(torch.cat([added, other_order]), torch.arange(3) % 2)
    assert duplicates_in_test(gs.Samples(ids, torch.arange(40) % 2), test) == ((0, 0), (1, 1))


X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))


def test_copies_with_other_labels_are_named_in_every_task() -> None:
    both = torch.cat([X, X[:3]])
    several = (X[:, :3] > 0).long()
    targets = X.sum(1, keepdim=True)
    rounded = targets[:1] + 1e-6
    for y, second, expected in (
        (several, 1 - several[:3], {(0, 60), (1, 61), (2, 62)}),
        (targets, torch.cat([rounded, targets[1:3] + 50]), {(1, 61), (2, 62)}),
    ):
        issues = gs.find_label_issues(None, (both, torch.cat([y, second])))
        assert set(issues.conflicts) == expected
        assert any("with different labels" in sentence for sentence in issues.sentences)


def test_copies_with_other_labels_of_positions() -> None:
    ids = torch.randint(0, 30, (60, 10), generator=torch.Generator().manual_seed(0))
    y = ids % 3
    second = y[:2].clone()
    second[0, 4] = (y[0, 4] + 1) % 3
    second[1, 5] = -100
    issues = gs.find_label_issues(None, (torch.cat([ids, ids[:2]]), torch.cat([y, second])))
    assert issues.conflicts == ((0, 60),)
    assert "0 and 60 (position 4)." in " ".join(issues.sentences)


def test_constant_columns_repeat_no_sample_by_chance() -> None:
    result = gs.check(None, (torch.ones(120, 5), torch.arange(120) % 2), only=["GS101"])
    assert result.codes == ("GS101",) and "different labels" in result.findings[0].evidence
    empty = gs.check(None, (torch.ones(60, 0), torch.arange(60) % 2))
    assert "GS101" in empty.codes and "GS105" not in {outcome.code for outcome in empty.fine}


NUMBERED = [
    f"the cat sat on mat {k}" if k % 2 else f"stocks fell by {k} points today" for k in range(100)
]
KINDS = [k % 2 for k in range(100)]


def pairs_of(rows: range) -> tuple[list[str], list[int]]:
    return [NUMBERED[k] for k in rows], [KINDS[k] for k in rows]


@pytest.mark.parametrize(
    "form",
    [
        lambda texts, labels: (texts, labels),
        lambda texts, labels: (numpy.array(texts), labels),
        lambda texts, labels: (pandas.Series(texts), pandas.Series(labels)),
        lambda texts, labels: (pandas.DataFrame({"text": texts}), labels),
        lambda texts, labels: (encode_frame(pandas.DataFrame({"text": texts}))[0], labels),
        lambda texts, labels: {"text": texts, "label": labels},
        lambda texts, labels: list(zip(texts, labels, strict=True)),
    ],
)
def test_texts_that_differ_in_one_digit_are_no_exact_repeats(
    form: Callable[[list[str], list[int]], Any],
) -> None:
    once = form(*pairs_of(range(100)))
    assert not gs.check(None, once, only=["GS101"]).findings
    assert not any("repeat" in note for note in gs.out_of_sample(None, once).notes)
    texts, labels = pairs_of(range(30))
    twice = form(NUMBERED + texts, KINDS + labels)
    result = gs.check(None, twice, only=["GS101"])
    assert result.indices("GS101") == list(range(100, 130))
    assert "30 of 130" in result.findings[0].evidence
    across = gs.check(None, once, test=form(texts, labels), only=["GS101"])
    assert across.codes == ("GS101",)


def test_texts_keep_their_identity_in_subsets_and_in_a_test_set() -> None:
    samples = as_samples(([*NUMBERED, NUMBERED[3]], [*KINDS, -100]))
    assert not exact_repeats(samples)
    assert exact_repeats(samples.subset(torch.tensor([3, 5, 3]))) == [(0, 2)]
    test = as_samples((["the cat sat on mat 3", "the cat sat on mat x"], [1, 1]))
    assert exact_copies_in_test(samples, test) == ((3, 0),)


def with_texts(n: int = 80, n_copies: int = 0) -> tuple[pandas.DataFrame, list[int]]:
    """Different texts beside a column of seven values, then copies of the first rows with ids of their own."""
    frame = pandas.DataFrame({"t": NUMBERED[:n], "num": [k % 7 for k in range(n)]})
    frame = pandas.concat([frame, frame[:n_copies]], ignore_index=True)
    ids = [f"row {7 * k % 1009}" for k in range(len(frame))]
    return frame.assign(id=ids), (KINDS[:n] + KINDS[:n_copies])


def test_rows_with_other_texts_beside_equal_numbers_are_no_copies() -> None:
    once, twice = with_texts(), with_texts(n_copies=8)
    assert not gs.check(None, once, only=["GS101"]).findings
    assert gs.check(None, twice, only=["GS101"]).indices("GS101") == list(range(80, 88))
    assert not gs.find_label_issues(None, once).conflicts
    assert not any("repeat" in note for note in gs.forecast_accuracy(None, once).notes)
    part = twice[0].iloc[70:], twice[1][70:]
    across = gs.check(None, once, test=part, only=["GS101"])
    assert "8 of 18 test samples" in across.findings[0].evidence
    shuffled = twice[0].iloc[::-1], twice[1][::-1]
    assert "8 of 88" in gs.check(None, shuffled, only=["GS101"]).findings[0].evidence


def test_texts_that_were_dropped_identify_rows_of_an_encoded_frame() -> None:
    frame, labels = with_texts(n_copies=8)
    encoded = encode_frame(frame)[0]
    again = encode_frame(encoded)[0]
    for part in (encoded, again, encoded.iloc[::-1]):
        assert len(exact_repeats(as_samples((part, labels)))) == 8
    second = encode_frame(frame.drop(columns="t"), like=encoded)[0]
    first = as_samples((encoded, labels))
    assert not exact_copies_in_test(first, as_samples((second, labels)))


@pytest.mark.parametrize("kind", ["line", "plane", "curve", "cells"])
def test_neighbours_on_lines_and_planes_are_no_copies(kind: str) -> None:
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    y = rng.integers(0, 2, 400)
    if kind == "line":
        x = x[:, :1]
    elif kind == "curve":
        x = numpy.stack([x[:, 0] ** k for k in range(1, 5)], 1)
    elif kind == "cells":
        x = numpy.concatenate([x[:, :1], rng.integers(0, 8, (400, 3))], 1)
    samples = gs.Samples(torch.from_numpy(x), torch.from_numpy(y))
    assert not duplicate_pairs(samples)
    assert not duplicates_in_test(samples, gs.Samples(samples.inputs[:50] + 1e-9))
    twice = gs.Samples(torch.cat([samples.inputs, samples.inputs[:9]]))
    assert duplicate_pairs(twice) == [(k, 400 + k) for k in range(9)]


@pytest.mark.parametrize("n", [30, 100, 1000])
def test_near_copies_in_space_are_found(n: int) -> None:
    rng = numpy.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    copies = x[:3] + 1e-3 * rng.normal(size=(3, 4))
    samples = gs.Samples(torch.from_numpy(numpy.concatenate([x, copies])))
    assert duplicate_pairs(samples) == [(k, n + k) for k in range(3)]


def test_few_values_are_named_only_where_they_are_few() -> None:
    rng = numpy.random.default_rng(0)
    x = rng.integers(0, 4, (200, 3)).astype(float)
    y = rng.integers(0, 2, 200)
    outcome = gs.check(None, (x, y), only=["GS101"]).fine[0]
    assert "their values are few" in outcome.evidence
    x[:130, 0] = rng.normal(size=130)
    twice = numpy.concatenate([x, x[:20]]), numpy.concatenate([y, y[:20]])
    outcome = gs.check(None, twice, only=["GS101"])
    evidence = (*outcome.findings, *outcome.fine)[0].evidence
    assert "columns were independent" in evidence and "few" not in evidence


def with_copies(**columns: list[str]) -> pandas.DataFrame:
    """A table of 60 rows, of which the last 12 are copies, and further columns."""
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(0)).numpy()
    frame = pandas.DataFrame(numpy.concatenate([x, x[:12]]), columns=["a", "b", "c"])
    return frame.assign(**columns, y=[0, 1] * 30)


CODES = [f"A-{i:04d}" for i in range(60)]


@pytest.mark.parametrize(
    ("column", "n_copies"),
    [
        ([f"img/{i:04d}.png" for i in range(60)], 12),
        (CODES, 12),
        ([f"visit {i + 7}" for i in range(60)], 12),
        ([str(uuid.uuid5(uuid.NAMESPACE_URL, str(i))) for i in range(60)], 12),
        ([f"A-{7919 * i % 10007}" for i in range(60)], 0),
        ([f"C{i % 15 + 1}H{2 * (i % 15) + 2}O{i // 15}" for i in range(60)], 0),
        ([f"A{i + 1}V" for i in range(60)], 0),
        ([f"00:{i:02d}:00" for i in range(60)], 0),
        ([f"{100 + i}x{480 - i}" for i in range(60)], 0),
        ([f"{i + 1}mg/{60 - i}ml" for i in range(60)], 0),
        ([f"10.0.1.{i}" for i in range(60)], 0),
        ([f"{i:016b}" for i in range(60)], 0),
        ([f"C1=CC({'C' * i})" for i in range(60)], 0),
        ([f"a note about visit {i}" for i in range(60)], 0),
        ([f"{1 + i % 12}/{1 + i % 11}/2020" for i in range(60)], 0),
        (CODES[:48] + CODES[:12], 12),
        (CODES[:30] + CODES[:30], 0),
    ],
)
def test_a_path_or_code_per_row_makes_no_copy_another_row(column: list[str], n_copies: int) -> None:
    frame = with_copies(m=column)
    result = gs.check(None, frame, target="y", only=["GS101"])
    evidence = (*result.findings, *result.fine)[0].evidence
    assert evidence.startswith(f"{n_copies} of 60 samples")
    is_left_out = "m: omitted when copies" in " ".join(result.notes)
    assert is_left_out == (n_copies > 0 and len(set(column)) == 60)


def test_copies_in_a_test_table_have_other_paths() -> None:
    frame = with_copies(m=[f"img/{i:04d}.png" for i in range(60)])
    test = frame.iloc[:20].assign(m=[f"new/{i}.png" for i in range(20)])
    result = gs.check(None, frame, target="y", test=test, only=["GS101"])
    assert "20 of 20 test samples" in result.findings[0].evidence


@pytest.mark.parametrize(
    "order", [torch.arange(60), torch.randperm(60, generator=torch.Generator().manual_seed(4))]
)
def test_copies_are_not_looked_for_through_row_numbers(order: torch.Tensor) -> None:
    """They may be times: rows that differ in them alone are no copies for sure."""
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
    x = torch.cat([x, x[:12]])
    numbered = torch.cat([x, order[:, None].float() + 5], 1)
    assert not exact_repeats(gs.Samples(numbered))
    (outcome,) = gs.check(None, (numbered, torch.arange(60) % 2), only=["GS101"]).not_checked
    assert "column 3 numbers the rows" in outcome.reason


def test_times_and_few_values_are_no_copies() -> None:
    days = numpy.arange(210)
    y = numpy.sin(days / 58) * 10 + days % 7
    frame = pandas.DataFrame({"day": days, "weekday": days % 7, "month": days // 30})
    weeks = frame.assign(weekday=days // 7)
    whole = pandas.DataFrame({"cost": numpy.resize(numpy.arange(150) ** 2, 210)})
    one = frame.drop(columns="month")
    for data in ((frame.to_numpy("float32"), y), (frame, y), (one, y), (weeks, y), (whole, y)):
        forecast = gs.forecast_accuracy(None, data)
        assert "repeat" not in " ".join([str(forecast), *forecast.notes])
        assert not gs.find_label_issues(None, data).conflicts
        assert not gs.check(None, data, only=["GS101"]).findings


def test_measured_values_and_ranks_are_compared() -> None:
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
    x = torch.cat([x, x[:12]])
    measured = torch.randn(60, 1, generator=torch.Generator().manual_seed(1))
    ranks = torch.stack([torch.randperm(60), torch.randperm(60)], 1).float()
    for columns in (measured, 0.5 * torch.arange(60.0)[:, None], ranks):
        assert exact_repeats(gs.Samples(torch.cat([x, columns], 1))) == []
