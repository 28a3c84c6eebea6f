"""Frames of pandas as data: order of rows, repeated names, cells that hold arrays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import gapscope as gs
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.base.samples import as_samples
from gapscope.base.targets import SOFT_NOTE, WHOLE_NOTE
from gapscope.inspection.validation import ready

X = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
ORDER = np.random.default_rng(1).permutation(60)


def frame() -> pd.DataFrame:
    return pd.DataFrame(X, columns=list("abcd"))


SHUFFLED: dict[str, Callable[[], Any]] = {
    "labels": lambda: (frame(), pd.Series(Y).iloc[ORDER]),
    "inputs": lambda: (frame().iloc[ORDER], pd.Series(Y)),
    "a frame of labels": lambda: (frame(), pd.DataFrame({"y": Y}).iloc[ORDER]),
    "one of several inputs": lambda: ((frame(), frame()), pd.Series(Y).iloc[ORDER]),
    "a mapping": lambda: {"x": frame(), "labels": pd.Series(Y).iloc[ORDER]},
    "names as index": lambda: (
        frame().set_index(np.array([f"row {i}" for i in range(60)])),
        pd.Series(Y, index=[f"row {i}" for i in range(60)]).iloc[ORDER],
    ),
}


@pytest.mark.parametrize("name", SHUFFLED)
def test_an_index_in_another_order_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="another order"):
        as_samples(SHUFFLED[name]())


def test_estimators_see_the_same_refusal() -> None:
    tree = pytest.importorskip("sklearn.tree").DecisionTreeClassifier()
    for verb in (gs.out_of_sample, gs.learning_curve):
        with pytest.raises(InvalidInput, match="another order"):
            verb(tree, SHUFFLED["labels"]())


PROBABILITIES = pd.DataFrame({0: 0.7 - 0.4 * Y, 1: 0.3 + 0.4 * Y})
GROUPS = pd.Series(np.arange(60) // 2)
PER_SAMPLE: dict[str, Callable[[Any, Any], Any]] = {
    "groups of out_of_sample": lambda data, order: gs.out_of_sample(
        None, data, groups=GROUPS.iloc[order]
    ),
    "features of out_of_sample": lambda data, order: gs.out_of_sample(frame().iloc[order], data),
    "groups of learning_curve": lambda data, order: gs.learning_curve(
        lambda x, y: torch.nn.Linear(4, 2), data, groups=GROUPS.iloc[order]
    ),
    "times of learning_curve": lambda data, order: gs.learning_curve(
        lambda x, y: torch.nn.Linear(4, 2), data, times=pd.Series(np.arange(60)).iloc[order]
    ),
    "features of forecast_accuracy": lambda data, order: gs.forecast_accuracy(
        None, data, features=frame().iloc[order]
    ),
    "pred_probs with data": lambda data, order: gs.find_label_issues(
        None, data, pred_probs=PROBABILITIES.iloc[order]
    ),
    "pred_probs with labels": lambda data, order: gs.find_label_issues(
        labels=data[1], pred_probs=PROBABILITIES.iloc[order]
    ),
    "features with data": lambda data, order: gs.estimate_label_noise(
        None, data, features=frame().iloc[order]
    ),
    "names": lambda data, order: gs.find_label_issues(
        None, data, names=pd.Series([f"row {i}" for i in range(60)]).iloc[order]
    ),
}


@pytest.mark.parametrize("form", ["pandas", "arrays"])
@pytest.mark.parametrize("name", PER_SAMPLE)
def test_values_per_sample_with_an_index_in_another_order_are_refused(name: str, form: str) -> None:
    data = (X, Y)
    if form == "pandas":
        data = (frame(), pd.Series(Y))
    with pytest.raises(InvalidInput, match="another order"):
        PER_SAMPLE[name](data, ORDER)
    with contextlib.suppress(NotMeasurable):  # no rate, but no refusal of the order either
        PER_SAMPLE[name](data, np.arange(60))


def test_values_per_sample_in_the_order_of_shuffled_data_are_accepted() -> None:
    data = (X[ORDER], pd.Series(Y).iloc[ORDER])
    own = gs.out_of_sample(None, data, groups=GROUPS.iloc[ORDER])
    of_arrays = gs.out_of_sample(None, (X[ORDER], Y[ORDER]), groups=GROUPS.to_numpy()[ORDER])
    assert own.score == of_arrays.score


@pytest.mark.parametrize(
    "y",
    [
        lambda: pd.Series(Y),
        lambda: pd.Series(Y, index=range(100, 160)),
        lambda: pd.Series(Y, index=[0] * 60),
        lambda: pd.Series(Y, index=range(30, 90)),
        lambda: pd.Series(Y).iloc[ORDER].to_numpy()[np.argsort(ORDER)],
    ],
    ids=["the same", "other values", "repeated values", "overlapping", "no index"],
)
def test_other_indexes_are_matched_by_position(y: Callable[[], Any]) -> None:
    assert torch.equal(as_samples((frame(), y())).y, torch.from_numpy(Y))


def test_rows_dropped_from_both_match() -> None:
    keep = ORDER[:40]
    samples = as_samples((frame().iloc[keep], pd.Series(Y).iloc[keep]))
    assert torch.equal(samples.y, torch.from_numpy(Y[keep]))


def test_columns_of_one_name_are_numbered() -> None:
    twice = frame().set_axis(["a", "a", "b", "a.1"], axis=1)
    assert torch.equal(as_samples((twice, Y)).inputs, torch.from_numpy(X))
    forecast = gs.forecast_accuracy(None, (twice, Y))
    assert forecast.score == gs.forecast_accuracy(None, (X, Y)).score


def test_a_target_of_several_columns_is_refused() -> None:
    twice = frame().set_axis(["a", "a", "b", "c"], axis=1)
    with pytest.raises(InvalidInput, match="one column of each"):
        gs.find_label_issues(None, twice, target="a")


ARRAYS: dict[str, Callable[[], Any]] = {
    "series": lambda: pd.Series(list(X)),
    "series of lists": lambda: pd.Series(X.tolist()),
    "array of objects": lambda: pd.Series(list(X)).to_numpy(),
    "a column": lambda: pd.DataFrame({"embedding": list(X)}),
    "a column of tensors": lambda: pd.DataFrame({"embedding": list(torch.from_numpy(X))}),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_cells_that_hold_arrays_are_features(name: str) -> None:
    forecast = gs.forecast_accuracy(None, (ARRAYS[name](), Y))
    assert forecast.score == gs.forecast_accuracy(None, (X, Y)).score


@pytest.mark.parametrize(
    "cell",
    [[1.0, "a"], {"a": 1}, {1, 2}, [[1.0], [1.0, 2.0]]],
    ids=["text", "mapping", "set", "ragged"],
)
def test_cells_that_hold_something_else_are_refused(cell: Any) -> None:
    table = frame().assign(e=[cell] * 60)
    with pytest.raises(InvalidInput, match="'e'"):
        gs.forecast_accuracy(None, (table, Y))


def test_arrays_of_several_lengths_are_refused() -> None:
    table = pd.DataFrame({"e": [row[: 3 + i % 2] for i, row in enumerate(X)], "w": ["a", "b"] * 30})
    with pytest.raises(InvalidInput, match="one length"):
        gs.forecast_accuracy(None, (table, Y))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["a", None, "b"] * 20, "20 of 60 are missing"),
        ([0, None, 1] * 20, "20 of 60 are missing"),
        (np.array(["2024-01-01", "2024-01-02"] * 30, dtype="datetime64[D]"), "classes or numbers"),
        (pd.Series(pd.to_datetime(["2024-01-01", "2024-01-02"] * 30)), "classes or numbers"),
    ],
    ids=["missing names", "missing numbers", "dates", "series of dates"],
)
def test_labels_that_are_no_labels_get_one_message(labels: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        as_samples((X, labels))


def test_small_integers_get_the_advice_of_their_type() -> None:
    with pytest.raises(InvalidInput, match=r"Use x\.float\(\)"):
        as_samples((torch.ones(60, 4, dtype=torch.int8), Y))
    with pytest.raises(InvalidInput, match="/ 255"):
        as_samples((torch.ones(60, 4, dtype=torch.uint8), Y))


def test_dates_of_a_column_whose_name_is_a_number() -> None:
    table = pd.DataFrame({0: X[:, 0], 1: pd.to_datetime(["2024-01-01", "2024-06-01"] * 30)})
    assert "1: days since 1970." in gs.forecast_accuracy(None, (table, Y)).notes


@pytest.mark.parametrize(
    ("targets", "note"),
    [
        (np.stack([Y * 0.8 + 0.1, 0.9 - Y * 0.8], 1), SOFT_NOTE),
        (Y + 1.0, WHOLE_NOTE),
        (X[:, 0], None),
        (np.arange(60.0), None),
        (X[:, :2], None),
    ],
    ids=["probabilities", "whole numbers", "real", "many whole numbers", "two columns"],
)
def test_regression_targets_that_may_be_classes_get_a_note(targets: Any, note: str | None) -> None:
    notes = as_samples((X, targets)).notes
    assert (note is None and not notes) or notes == (note,)
    assert as_samples((X, targets), task="regression").notes == ()


def test_a_column_that_numbers_or_names_the_rows_is_no_label() -> None:
    rows = np.random.default_rng(0).permutation(40)
    frame = pd.DataFrame({"a": rows % 7, "number": rows, "name": [f"s{row}" for row in rows]})
    frame["price"] = rows * 13 + 100
    for target in ("number", "name"):
        with pytest.raises(InvalidInput, match="40 rows"):
            gs.check(None, frame, target=target)
    assert gs.check(None, frame, target="price").task == "regressor"


def test_integers_with_few_samples_per_value_may_be_amounts() -> None:
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    amounts = (torch.arange(60) * 7) % 40
    assert any("amounts" in note for note in as_samples((x, amounts)).notes)
    assert any("amounts" in note for note in gs.forecast_accuracy(None, (x, amounts)).notes)
    for labels in (amounts % 12, amounts.double(), np.array([f"c{value}" for value in amounts])):
        assert not any("amounts" in note for note in as_samples((x, labels)).notes)
    # a network with an output per class decides
    subject = ready(torch.nn.Linear(3, 40), as_samples((x, amounts)))
    assert not any("amounts" in note for note in subject.notes)


def test_repeated_names_in_another_order_are_matched_in_their_order() -> None:
    twice = frame().set_axis(["a", "a", "b", "c"], axis=1)
    second = twice.iloc[:, [2, 0, 3, 1]]
    network = torch.nn.Linear(4, 2)
    issues = gs.find_label_issues(network, (twice, Y), test=(second, Y))
    assert len(issues.test_duplicates) == 60


@pytest.mark.parametrize(
    "labels",
    [
        lambda: list(Y),
        lambda: [torch.tensor(value) for value in Y],
        lambda: [Decimal(int(value)) for value in Y],
        lambda: [np.float32(value) for value in Y],
        lambda: pd.Series([Decimal(int(value)) for value in Y]),
        lambda: list(torch.eye(2)[torch.from_numpy(Y)]),
    ],
    ids=[
        "integers of numpy",
        "tensors",
        "decimals",
        "floats of numpy",
        "a series of decimals",
        "rows",
    ],
)
def test_lists_of_numbers_of_any_library_are_labels(labels: Callable[[], Any]) -> None:
    assert torch.equal(as_samples((X, labels())).y, torch.from_numpy(Y))
    mapping = {"x": X, "label": labels(), "y": X[:, 0]}
    if labels()[0].__class__ is not torch.Tensor or labels()[0].ndim == 0:
        assert torch.equal(as_samples(mapping).y, torch.from_numpy(Y))


class OneHotLists(torch.utils.data.Dataset[Any]):
    """A data set whose labels are lists, which torch collates transposed."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[Any, list[int]]:
        return X[i], np.eye(2, dtype=int)[Y[i]].tolist()


def test_lists_of_a_data_set_are_labels() -> None:
    assert torch.equal(as_samples(OneHotLists()).y, torch.from_numpy(Y))
    loader = torch.utils.data.DataLoader(OneHotLists(), batch_size=2)
    assert torch.equal(as_samples(loader).y, torch.from_numpy(Y))


def test_labels_that_cannot_be_read_are_not_replaced_by_another_column() -> None:
    with pytest.raises(InvalidInput, match="label must hold labels"):
        as_samples({"x": X, "label": [{"box": 1}] * 60, "y": Y})


def test_bytes_are_names_of_classes() -> None:
    for labels in (np.array([b"cat", b"dog"])[Y], [(b"cat", b"dog")[value] for value in Y]):
        assert as_samples((X, labels)).class_names == ("cat", "dog")


def test_a_structured_array_is_a_table() -> None:
    table = np.array([(1.0, 2), (3.0, 4)] * 30, dtype=[("a", float), ("b", int)])
    with pytest.raises(InvalidInput, match=r"fields a, b.*pandas\.DataFrame"):
        as_samples((table, Y))


def test_arrays_of_booleans_get_the_advice_of_an_array() -> None:
    with pytest.raises(InvalidInput, match=r"x\.astype\(float\)"):
        as_samples((X > 0, Y))


def test_a_frame_that_holds_its_labels_is_not_told_to_encode_them() -> None:
    whole = frame().assign(label=np.where(Y > 0, "yes", "no"))
    with pytest.raises(InvalidInput, match=r"frame\.drop\(columns='label'\), frame\['label'\]"):
        gs.forecast_accuracy(None, whole)
