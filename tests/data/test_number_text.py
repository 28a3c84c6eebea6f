"""Text that holds numbers or dates, in inputs and targets, and in a second table."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.cli.arguments import read_labelled_table
from gapscope.data.frames import encode_frame, encode_inputs
from gapscope.data.number_text import (
    TextFormat,
    _number_format,
    amounts_format,
    find_format,
)
from gapscope.data.table_targets import split_frames

N = 60
VALUES = numpy.round(numpy.exp(numpy.random.default_rng(0).normal(8, 1, N)), 2)
OTHER = numpy.random.default_rng(1).normal(size=N)
GERMAN = str.maketrans(",.", ".,")


def us(value: float) -> str:
    return f"{value:,.2f}"


@pytest.mark.parametrize(
    "text",
    [
        us,
        lambda v: f"${us(v)}",
        lambda v: f"-${us(v)}",
        lambda v: f"({us(v)})",
        lambda v: f"€ {us(v).translate(GERMAN)}",
        lambda v: f"{us(v).translate(GERMAN)} EUR",
        lambda v: us(v).replace(",", "\u202f").replace(".", ","),
        lambda v: f"CHF {us(v).replace(',', chr(39))}",
        lambda v: f"{v:.2f} kg",
        lambda v: f"{v:.2f}%",
        lambda v: f"{v:.2f} m²",
    ],
)
def test_marks_of_numbers_are_no_words(text: Any) -> None:
    cells = [text(value) for value in VALUES]
    encoded, notes = encode_frame(pandas.DataFrame({"price": cells, "x": OTHER}))
    sign = -1 if cells[0][0] in "-(" else 1
    assert numpy.allclose(encoded["price"], sign * VALUES)
    assert any(note.startswith("price") and cells[0][1:4] is not None for note in notes)


@pytest.mark.parametrize(
    "cells",
    [
        [f"{k:05d}" for k in range(N)],
        [f"{20_000 + 977 * k}" for k in range(N - 1)] + ["94103-1234"],
        [f"{20_000 + 977 * k}" for k in range(N - 1)] + ["K1A 0B1"],
        [f"+49170{k + 1_000_000}" for k in range(N)],
        [f"555 {k:03d} {k + 100}" for k in range(N)],
        [f"(555) 123-{k:04d}" for k in range(N)],
        [f"{k}A" for k in range(N)],
        [f"1.{k % 7}.{k}" for k in range(N)],
        [f"192.168.1.{k}" for k in range(N)],
        [f"{k % 8}" for k in range(N - 2)] + ["K", "K"],
        ["18 to 25", "26 to 40"] * (N // 2),
        [str(977 * k) for k in range(N)],  # text on purpose
    ],
)
def test_codes_and_categories_stay_text(cells: list[str]) -> None:
    assert find_format(pandas.Series(cells)) is None


@pytest.mark.parametrize("wrong", ["12.3.4", "missing", "1O7"])
def test_wrong_cells_are_missing_and_named(wrong: str, tmp_path: Path) -> None:
    cells = [wrong if k == 7 else str(value) for k, value in enumerate(VALUES)]
    objects = [wrong if k == 7 else value for k, value in enumerate(VALUES)]
    few = [wrong if k == 7 else str(k % 5) for k in range(N)]
    for column in (cells, objects, few):
        frame = pandas.DataFrame({"price": column, "x": OTHER, "y": ["a", "b"] * (N // 2)})
        frame.to_csv(tmp_path / "t.csv", index=False)
        features, notes = encode_frame(read_labelled_table(tmp_path / "t.csv", "y").inputs)
        for encoded in (encode_frame(frame[["price", "x"]])[0], features):
            expected = pandas.to_numeric(pandas.Series(column), errors="coerce")
            assert numpy.allclose(encoded["price"], expected.fillna(expected.median()))
        assert any(repr(wrong) in note and "row 8" in note for note in notes)


def test_a_second_table_is_read_by_the_rule_of_the_first(tmp_path: Path) -> None:
    first = pandas.DataFrame({"price": [us(v).translate(GERMAN) for v in VALUES], "x": OTHER})
    encoded, _ = encode_frame(first)
    second = pandas.DataFrame({"price": ["1.234", "5,5", "oops", "7"], "x": OTHER[:4]})
    values, notes = encode_frame(second, like=encoded)
    assert values["price"].tolist() == [1234, 5.5, numpy.median(VALUES), 7]
    assert any("'oops' (row 3)" in note for note in notes)
    labels = ["a", "b"] * (N // 2)
    first.assign(y=labels).to_csv(tmp_path / "a.csv", index=False)
    pandas.DataFrame({"price": ["1.234", "2.345"], "x": [1, 2], "y": ["a", "b"]}).to_csv(
        tmp_path / "b.csv", index=False
    )
    table = read_labelled_table(tmp_path / "a.csv", "y")
    other = read_labelled_table(tmp_path / "b.csv", None, like=table)
    _, (features, _), _ = encode_inputs(table.pair, other.pair)
    assert features["price"].tolist() == [1234, 2345]
    with pytest.raises(InvalidInput, match="price"):
        encode_frame(second.assign(price=["3 kg", "4 kg", "5 kg", "6 kg"]), like=encoded)
    plain, _ = encode_frame(pandas.DataFrame({"price": VALUES}))
    with pytest.raises(InvalidInput, match="price"):
        encode_frame(pandas.DataFrame({"price": ["3 kg", "4 kg"]}), like=plain)


@pytest.mark.parametrize("text", [lambda v: f"${v:.2f}", lambda v: f"{v:,.0f}", lambda v: f"{v} €"])
def test_a_target_of_text_is_regressed(text: Any) -> None:
    frame = pandas.DataFrame({"x": numpy.log(VALUES), "z": OTHER, "y": [text(v) for v in VALUES]})
    pair = (frame[["x", "z"]], frame["y"])
    for data in (pair, (pair[0].to_numpy(), frame["y"].tolist())):
        result = gs.forecast_accuracy(None, data, time_budget=1)
        assert result.score_name == "R^2" and any("regression" in note for note in result.notes)
    (_, y), (_, second) = split_frames(frame, frame.iloc[:5], "y")
    assert numpy.allclose(y, VALUES, atol=0.5) and second.tolist() == y[:5].tolist()
    _, (_, second), notes = encode_inputs(pair, (pair[0].iloc[:5], frame["y"].iloc[:5]))
    assert list(second) == y[:5].tolist() and any("regression" in note for note in notes)
    with pytest.raises(InvalidInput, match=r"'\?' \(row 4\)"):
        split_frames(
            frame.assign(y=["?" if k == 3 else text(v) for k, v in enumerate(VALUES)]), None, "y"
        )


@pytest.mark.parametrize(
    ("form", "order"),
    [
        ("%d/%m/%Y", "dmy"),
        ("%m/%d/%Y", "mdy"),
        ("%m/%d/%y %I:%M %p", "mdy"),
        ("%d.%m.%Y %H:%M", "dmy"),
        ("%Y/%m/%d", "ymd"),
        ("%Y-%m-%d", ""),
    ],
)
def test_dates_are_days_by_their_order(form: str, order: str) -> None:
    times = pandas.Series(pandas.date_range("2020-01-01 10:00", periods=N, freq="31h"))
    cells = times.dt.strftime(form)
    known = pandas.to_datetime(cells, format=form)
    wrong = cells.where(cells.index != 4, "later")
    for column in (cells, wrong):
        encoded, notes = encode_frame(pandas.DataFrame({"when": column, "x": OTHER}))
        days = (known - pandas.Timestamp(0)) / pandas.Timedelta("1D")
        rows = (column != "later").to_numpy()
        assert numpy.allclose(encoded["when"][rows], days[rows])
        assert any("days since 1970" in note for note in notes)
    assert (found := find_format(wrong)) is not None and found.order == order
    # the first 12 days alone are ambiguous, but the first table tells
    second, _ = encode_frame(pandas.DataFrame({"when": cells[:9], "x": 1.0}), like=encoded)
    assert numpy.allclose(second["when"], days[:9])


def test_ambiguous_dates_are_never_guessed() -> None:
    cells = [f"0{1 + k % 9}/0{1 + k % 7}/2020" for k in range(N)]
    encoded, notes = encode_frame(pandas.DataFrame({"when": cells, "x": OTHER}))
    assert list(encoded) == ["x"] and any("when: dropped" in note for note in notes)
    with pytest.raises(InvalidInput, match="when"):
        encode_frame(pandas.DataFrame({"when": cells}))
    dates = pandas.date_range("2020-01-01", periods=N, freq="3D")
    known, _ = encode_frame(pandas.DataFrame({"when": dates}))
    with pytest.raises(InvalidInput, match="when"):
        encode_frame(pandas.DataFrame({"when": cells}), like=known)


def test_omitted_dates_have_one_note() -> None:
    frame = pandas.DataFrame({"when": pandas.date_range("2020-01-01", periods=N), "x": OTHER})
    for column in (frame["when"], frame["when"].dt.strftime("%d/%m/%Y")):
        _, notes = encode_frame(frame.assign(when=column))
        assert len(notes) == 1 and "omitted" in notes[0]


MIXED: list[tuple[list[object], list[float]]] = [
    ([str(2 * k) if k % 2 else 2 * k for k in range(N)], [2.0 * k for k in range(N)]),
    ([str(k % 3) if k % 2 else k % 3 for k in range(N)], [float(k % 3) for k in range(N)]),
    (
        [Decimal(k) if k % 2 else f"{k}.5" for k in range(N)],
        [k if k % 2 else k + 0.5 for k in range(N)],
    ),
    # three decimals after a comma, beside numbers of their size
    (
        [f"{3 * k},125" if k % 2 else 3 * k + 0.125 for k in range(N)],
        [3 * k + 0.125 for k in range(N)],
    ),
]


@pytest.mark.parametrize(("cells", "values"), MIXED)
def test_text_beside_numbers_is_read_as_numbers(cells: list[object], values: list[float]) -> None:
    column = pandas.Series(cells, dtype=object, name="c")
    frame = pandas.DataFrame({"c": column, "x": OTHER})
    encoded, notes = encode_frame(frame)
    assert encoded["c"].tolist() == values and "read as numbers" in notes[0]
    frame.loc[3, "c"] = None
    assert encode_frame(frame)[0]["c"].tolist()[4:] == values[4:]
    for targets in (column, column.to_numpy(), cells):
        (_, y), (_, second), notes = encode_inputs(
            (OTHER[:, None], targets), (OTHER[:4, None], targets[:4])
        )
        assert y.tolist() == values and list(second) == values[:4] and "read as" in notes[0]
        assert (y.dtype == "int64") == (len(set(values)) == 3 and second.dtype == "int64")


def test_a_number_and_its_text_are_one_category() -> None:
    cells = pandas.Series(["a", 1, "1", 1.0] * (N // 4), dtype=object)
    encoded, _ = encode_frame(pandas.DataFrame({"c": cells, "x": OTHER}))
    assert [name for name in encoded if name != "x"] == ["c_1", "c_a"]
    second, _ = encode_frame(pandas.DataFrame({"c": ["1", 1], "x": [0, 0]}), like=encoded)
    assert second["c_1"].tolist() == [1, 1]


def test_long_whole_numbers_with_an_error_are_codes() -> None:
    cells = ["n/a", *(f"{10 ** (15 + k % 4) + k}" for k in range(1, N))]
    assert find_format(pandas.Series(cells)) is None


def test_whole_numbers_with_as_many_values_as_rows_are_amounts_and_codes_of_one_length_are_not() -> (
    None
):
    numbers = numpy.random.default_rng(2).integers(5, 90_000, N)
    frame = pandas.DataFrame({"people": numbers.astype(str), "x": OTHER})
    assert numpy.allclose(encode_frame(frame)[0]["people"], numbers)
    for cells in (numbers % 25, 10_000 + numbers):  # categories, and ZIP codes
        assert amounts_format(pandas.Series(cells.astype(str))) is None


def test_years_of_two_digits_are_those_of_spreadsheets() -> None:
    days = pandas.Series([f"{k % 28 + 1}/2/{year}" for k, year in enumerate([29, 30, 64, 99] * 10)])
    found = find_format(days)
    assert found is not None
    assert found.values(days).dt.year.tolist()[:4] == [2029, 1930, 1964, 1999]


AMOUNTS = numpy.random.default_rng(5).normal(size=60) * 3000
DAYS = pandas.date_range("2020-01-01", periods=60, freq="37h")


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (pandas.Categorical([f"{amount:,.2f}" for amount in AMOUNTS]), AMOUNTS.round(2)),
        (
            [f"{abs(amount):.2f}{'-' if amount < 0 else ''}" for amount in AMOUNTS],
            AMOUNTS.round(2),
        ),
        (DAYS.strftime("%d-%b-%Y"), (DAYS.normalize() - pandas.Timestamp(0)).days),
        (DAYS.strftime("%B %d, %Y"), (DAYS.normalize() - pandas.Timestamp(0)).days),
    ],
    ids=["declared categories", "minus at the end", "day and named month", "named month and day"],
)
def test_more_text_is_read_as_numbers_and_dates(cells: Any, expected: Any) -> None:
    frame = pandas.DataFrame({"x": cells})
    encoded, _ = encode_frame(frame)
    assert numpy.allclose(encoded["x"], expected)
    second, _ = encode_frame(frame.iloc[:5], like=encoded)
    assert second["x"].equals(encoded["x"][:5])


def test_cells_by_which_a_column_is_not_read_are_named() -> None:
    cells = [f"{amount:.2f}" for amount in AMOUNTS]
    for row in range(0, 60, 7):
        cells[row] = f"about x{row}"
    _, notes = encode_frame(pandas.DataFrame({"x": cells, "y": AMOUNTS}))
    assert any(
        "x: most cells are numbers" in note and "'about x0' (row 1)" in note for note in notes
    )
    _, plain = encode_frame(
        pandas.DataFrame({"x": [f"Mr {a:.2f} K" for a in AMOUNTS], "y": AMOUNTS})
    )
    assert len(plain) == 1


def test_few_declared_categories_stay() -> None:
    cells = pandas.Categorical([f"{k % 5}.50" for k in range(60)])
    assert encode_frame(pandas.DataFrame({"x": cells, "y": AMOUNTS}))[0].shape == (60, 6)


class _CountedText(str):
    """Text that counts how often it is looked up in a set or mapping."""

    lookups = 0

    def __hash__(self) -> int:
        _CountedText.lookups += 1
        return super().__hash__()


def test_a_format_is_found_in_time_that_grows_with_the_rows_alone() -> None:
    lookups: list[int] = []
    for n in (50, 200):
        counts: Counter[str] = Counter([_CountedText(f"$ {number}.5") for number in range(n)])
        _CountedText.lookups = 0
        assert _number_format(counts, (), 0.95) == TextFormat("number", affix=("$", ""))
        lookups.append(_CountedText.lookups)
    assert lookups[1] < 5 * lookups[0]
