"""Labels that are no classes: marks of positions that do not count (255, -1), missing ones, two spellings of one."""

from __future__ import annotations

from typing import Any

import numpy
import pandas
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.label_marks import check_no_mark, find_marks, notes_beside, notes_on_marks
from gapscope.base.samples import as_samples
from gapscope.base.second_data import as_second


@pytest.fixture(scope="module")
def pictures() -> tuple[Tensor, Tensor]:
    x = torch.rand(60, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0.5).long()


VERBS: dict[str, Any] = {
    "predictions": lambda data: gs.out_of_sample(None, data),
    "features": lambda data: gs.out_of_sample(torch.rand(60, 6, 6, 3), data),
    "forecast": lambda data: gs.forecast_accuracy(None, data),
    "noise": lambda data: gs.estimate_label_noise(None, data),
    "check": lambda data: gs.check(None, data),
    "measure": lambda data: gs.measure(nn.Conv2d(1, 2, 3, padding=1), data, ["accuracy"]),
    "mask": lambda data: gs.measure(nn.Conv2d(1, 1, 3, padding=1), data, ["accuracy"]),
    "train": lambda data: gs.train(nn.Conv2d(1, 2, 1), data, gs.TrainingSpec(epochs=1)),
}


@pytest.mark.parametrize("mark", [255, -1])
@pytest.mark.parametrize("verb", VERBS)
def test_a_mark_is_refused_with_the_way_to_mark_it(
    pictures: tuple[Tensor, Tensor], verb: str, mark: int
) -> None:
    x, y = pictures
    y = y.clone()
    y[:, 0] = mark
    with pytest.raises(InvalidInput) as caught:
        VERBS[verb]((x, y))
    assert f"y.long().masked_fill(y == {mark}, -100)" in str(caught.value)


def test_a_mark_of_the_test_samples_alone_is_refused(pictures: tuple[Tensor, Tensor]) -> None:
    x, y = pictures
    marked = y.clone()
    marked[:, 0] = 255
    with pytest.raises(InvalidInput, match="masked_fill"):
        gs.check(None, (x, y), test=(x, marked), only=["GS101"])


def test_marked_positions_do_not_count(pictures: tuple[Tensor, Tensor]) -> None:
    x, y = pictures
    y = y.clone()
    y[:, 0] = -100
    assert gs.out_of_sample(None, (x, y)).score > 0.9


@pytest.mark.parametrize(
    ("labels", "is_marked"),
    [
        ([0, 1, 255], True),
        ([0, 255], True),
        ([*range(19), 255], True),
        ([*range(150), 255], True),
        ([*range(21), 254, 255], True),
        ([0, 1, 99], True),
        (range(256), False),
        (range(0, 256, 3), False),
        ([0, 1, 2, 7, 15], False),
        ([1, 2, 3, 17, 44, 62, 90], False),
        ([0, 1], False),
        ([3], False),
        ([101, 2003, 2023, 30000], False),
    ],
)
def test_marks_are_told_from_classes(labels: Any, is_marked: bool) -> None:
    values = torch.tensor([*labels, -100])
    if not is_marked:
        check_no_mark(values)
        return
    with pytest.raises(InvalidInput, match=r"do not count|foreground"):
        check_no_mark(values)


def test_a_network_with_an_output_per_number_decides(pictures: tuple[Tensor, Tensor]) -> None:
    x, y = pictures
    y = y.clone()
    y[:, 0] = 255
    assert "accuracy" in gs.measure(nn.Conv2d(1, 256, 1), (x, y), ["accuracy"])


def test_a_mask_of_0_and_255_keeps_its_foreground(pictures: tuple[Tensor, Tensor]) -> None:
    x, y = pictures
    network = nn.Conv2d(1, 2, 3, padding=1)
    for call in (
        lambda: gs.find_label_issues(None, (x, 255 * y)),
        lambda: gs.measure(network, (x, 255 * y), ["accuracy"]),
    ):
        with pytest.raises(InvalidInput, match=r"pass \(y > 0\)\.long\(\)") as caught:
            call()
        assert "masked_fill" not in str(caught.value)


@pytest.mark.parametrize("write", ["{:.2f} €", "{:.2f}", "$ {:.2f}", "EUR {:.2f}", "{:.1f} kg"])
@pytest.mark.parametrize("comma", [".", ","])
def test_amounts_written_as_text_get_a_note(write: str, comma: str) -> None:
    texts = [write.format(100 + k / 7).replace(".", comma) for k in range(60)]
    notes = " ".join(as_samples((torch.zeros(60, 2), texts)).notes)
    assert "If they are amounts, pass numbers" in notes
    words = [f"{word} {k}" for k, word in enumerate(["alpha", "gamma", "delta"] * 20)]
    assert "amounts" not in " ".join(as_samples((torch.zeros(60, 2), words)).notes)
    few = [texts[k % 3] for k in range(60)]
    assert "amounts" not in " ".join(as_samples((torch.zeros(60, 2), few)).notes)


WORDS = numpy.array(list("abc"))[numpy.arange(60) % 3]
FEATURES = numpy.random.default_rng(0).normal(size=(60, 3)) + numpy.arange(60)[:, None] % 3
OMITTED = numpy.arange(60) % 10 == 0


@pytest.mark.parametrize("labels", [WORDS, numpy.arange(60) % 3], ids=["words", "numbers"])
def test_masked_labels_are_missing(labels: Any) -> None:
    with pytest.raises(InvalidInput, match="of 60 are missing"):
        as_samples((FEATURES, numpy.ma.masked_array(labels, OMITTED)))


@pytest.mark.parametrize(
    ("labels", "marks"),
    [
        ([0, 1, 2, 255], "255"),
        ([0, 1, 2, 99, 255], "99, 255"),
        ([0, 1, -9], "-9"),
        ([0, 1, 2, -1], "-1"),
        ([0, 1, 2, -999], "-999"),
        ([1, 2, 3, 99], "99"),
        ([1, 2, -1], "-1"),
        ([0, 1, 2, 3, 998, 999], ""),
        ([0, 1, -9, -1], "-9, -1"),
        ([0, 1, -(2**63)], str(-(2**63))),
        ([0, 1, -100], ""),
        ([1, 2, 3], ""),
        ([-1, 1], ""),
        ([-1, 0, 1], ""),
        ([-2, -1, 0, 1, 2], ""),
        ([0, 255], ""),
        ([0, 2, 4, 6], ""),
        ([10, 20, 30], ""),
        (range(3, 10), ""),
        ([3, 17, 401], ""),
        ([0, 1, 9], ""),
        (range(256), ""),
        ([*range(98), 99], ""),
        ([0, 1, 7, 255], "255"),
        ([0, 2, 255], "255"),
        ([1, 3, 5, 999], "999"),
        ([0, 2, 98, 99], ""),
        ([0, 40, 255], ""),
        ([*range(0, 40, 2), 99], ""),
        ([0, 2, 3, -1], ""),
        ([-1, 0, 2], ""),
        ([50, 51, 99], ""),
    ],
)
def test_marks_of_missing_labels_are_told_from_classes(labels: Any, marks: str) -> None:
    values = torch.tensor([*labels, *labels])
    for form in (values, values[:, None]):
        assert ", ".join(map(str, find_marks(form))) == marks
    assert find_marks(values.double()) == find_marks(values.repeat(2, 1)) == []


def _forms_of(x: numpy.ndarray, y: numpy.ndarray) -> dict[str, Any]:
    """Return calls that read the same labels in many forms of data."""
    frame = pandas.DataFrame(x, columns=list("abc")).assign(y=y)
    tensors = torch.tensor(x), torch.tensor(y)
    pairs = torch.utils.data.TensorDataset(*tensors)
    estimator = LogisticRegression().fit(x, y)
    forest = RandomForestClassifier(5, oob_score=True)
    return {
        "arrays": lambda: as_samples((x, y)),
        "lists": lambda: as_samples((x.tolist(), y.tolist())),
        "samples": lambda: gs.Samples(*tensors),
        "loader": lambda: as_samples(torch.utils.data.DataLoader(pairs, 7)),
        "mapping": lambda: as_samples({"x": tensors[0], "labels": tensors[1]}),
        "test": lambda: gs.check(None, (x, abs(y) % 3), test=(x, y), only=["GS101"]),
        "frame": lambda: gs.find_label_issues(None, frame, target="y"),
        "pair": lambda: gs.forecast_accuracy(None, (frame[["a", "b"]], frame["y"])),
        "fitted": lambda: gs.check(estimator, (x, y), only=["GS101"]),
        "fitted frame": lambda: gs.check(estimator, frame, target="y", only=["GS101"]),
        "unfitted": lambda: gs.out_of_sample(LogisticRegression(), (x, y)),
        "bytes": lambda: gs.out_of_sample(forest, (x, y if y.min() < 0 else y.astype("uint8"))),
        "curve": lambda: gs.learning_curve(LogisticRegression(), (x, y)),
    }


@pytest.mark.parametrize("mark", [-1, -9])
def test_every_form_of_data_refuses_negative_marks_of_missing_labels(mark: int) -> None:
    labels = numpy.where(OMITTED, mark, numpy.arange(60) % 3)
    for name, read in _forms_of(FEATURES, labels).items():
        with pytest.raises(InvalidInput, match=f"{mark} in 6 of") as caught:
            read()
        assert "write -100" in str(caught.value), name


def _spellings_of(y: numpy.ndarray) -> dict[str, Any]:
    """Return the same labels as numbers, categories and text."""
    return {
        "int64": y,
        "column": y[:, None],
        "tensor": torch.tensor(y),
        "categories": pandas.Series(y).astype("category"),
        "text": y.astype(str),
        "text of floats": y.astype(float).astype(str),
        "objects": pandas.Series(y.astype(str), dtype=object),
    }


def _noted(notes: Any) -> bool:
    return any("missing labels, drop these" in note for note in notes)


def test_marks_are_read_alike_in_every_spelling() -> None:
    negative, positive, unsigned = (
        _spellings_of(numpy.where(OMITTED, mark, numpy.arange(60) % 3))
        for mark in (-1, 255, 2**32 - 1)
    )
    unsigned["uint32"] = unsigned["int64"].astype("uint32")
    forest = RandomForestClassifier(3, oob_score=True)
    for labels in negative.values():
        with pytest.raises(InvalidInput, match="-1 in 6 of"):
            as_samples((FEATURES, labels))
        with pytest.raises(InvalidInput, match="-1 in 6 of"):
            gs.out_of_sample(forest, (FEATURES, labels))
    for name, labels in [*positive.items(), *unsigned.items()]:
        assert _noted(as_samples((FEATURES, labels)).notes), name
    for name, labels in positive.items():
        assert _noted(gs.out_of_sample(forest, (FEATURES, labels)).notes), name


def test_a_refused_mark_says_what_then_works() -> None:
    labels = numpy.where(OMITTED, -1, numpy.arange(60) % 3)
    for form in (labels, labels.astype(str)):
        with pytest.raises(InvalidInput, match="-1 in 6 of") as caught:
            gs.Samples(FEATURES, form)
        assert 'gs.Samples(x, y.astype(str), task="classification")' in str(caught.value)
    assert len(gs.Samples(FEATURES, labels.astype(str), task="classification").class_names) == 4


@pytest.mark.parametrize("n_classes", [3, 25])
def test_a_table_reads_marks_as_a_pair_does(n_classes: int) -> None:
    y = numpy.where(numpy.arange(240) % 12 == 0, 99, numpy.arange(240) % n_classes)
    frame = pandas.DataFrame({"a": numpy.arange(240) * 0.5, "y": y})
    assert _noted(gs.check(None, frame, target="y", only=["GS101"]).notes)
    with pytest.raises(InvalidInput, match="-1 in 20 of"):
        gs.check(None, frame.assign(y=numpy.where(y == 99, -1, y)), target="y", only=["GS101"])


def test_numbers_of_classes_that_a_network_or_the_training_data_have_are_no_marks() -> None:
    torch.manual_seed(0)
    network = nn.Linear(4, 100)
    x, y = torch.randn(400, 4), torch.arange(400) % 100
    part = torch.isin(y, torch.tensor([1, 2, 3, 99]))
    few = x[part].repeat(5, 1) + 0.1 * torch.randn(80, 4), y[part].repeat(5)
    assert _noted(as_samples(few).notes)
    assert not _noted(gs.measure(network, few, ["accuracy"]).notes)
    assert not _noted(gs.out_of_sample(network, few).notes)
    assert not _noted(gs.check(network, (x, y), test=few, only=["GS101"]).notes)
    assert not _noted(gs.check(None, (x, y), test=few, only=["GS101"]).notes)
    # a mark among the training labels may be one among the test labels too
    assert _noted(as_second(few, as_samples(few)).notes)
    probabilities = torch.full((80, 100), 0.01)
    found = gs.find_label_issues(None, few, pred_probs=probabilities)
    assert found.samples is not None
    assert not _noted(found.samples.notes)
    with pytest.raises(InvalidInput, match="a label is missing"):
        gs.measure(nn.Linear(4, 4), few, ["accuracy"])


def test_outputs_for_the_smaller_of_two_marks_leave_the_note() -> None:
    notes = notes_on_marks(torch.tensor([0, 1, 2, 99, 255]).repeat(5))
    assert [len(notes_beside(notes, (25, n))) for n in (100, 255, 256)] == [1, 1, 0]


def test_names_of_the_training_data_are_no_marks_in_test_data() -> None:
    y = pandas.Series(numpy.arange(60) % 5 - 2).astype("category")
    second = (FEATURES[y.isin([-1, 1, 2])], y[y.isin([-1, 1, 2])])
    gs.check(None, (FEATURES, y), test=second, only=["GS101"])


def test_a_named_task_or_a_named_class_is_no_mark() -> None:
    labels = numpy.where(OMITTED, 255, numpy.arange(60) % 3)
    samples = gs.Samples(FEATURES, labels, task="classification")
    assert not _noted(samples.notes)
    assert as_samples(samples).subset(torch.arange(30)).y.max() == 255
    forest = RandomForestClassifier(3, oob_score=True)
    assert not _noted(gs.out_of_sample(forest, samples).notes)
    assert gs.Samples(FEATURES, labels, task="regression").kind == "regression"


def test_a_class_of_a_data_set_that_means_no_label_is_noted() -> None:
    class Named(torch.utils.data.Dataset[Any]):
        classes = ("cat", "unknown")

        def __len__(self) -> int:
            return 20

        def __getitem__(self, row: int) -> Any:
            return torch.tensor([float(row)]), row % 2

    notes = as_samples(Named()).notes
    assert any("'unknown' (10)" in note and "isin(y, [1])" in note for note in notes)


MISSING = ["", " ", "NA", "n/a", "?", "unknown", "None", "unlabeled", "Missing", "NOT_LABELED"]


@pytest.mark.parametrize("word", MISSING)
def test_labels_that_may_be_missing_are_noted(word: str) -> None:
    labels = numpy.where(OMITTED, word, WORDS)
    for form in (labels, labels.astype("S"), pandas.Series(labels, dtype="category")):
        assert any(f"{word!r} (6)" in note for note in as_samples((FEATURES, form)).notes)


@pytest.mark.parametrize("word", ["A", "a ", " A"])
def test_several_spellings_of_a_label_are_noted(word: str) -> None:
    listed = ", ".join(map(repr, sorted(["a", word])))
    labels = numpy.where(OMITTED, word, WORDS)
    assert any(listed in note for note in as_samples((FEATURES, labels)).notes)
    batches = [{"x": torch.zeros(2, 3), "labels": names} for names in (["a", "b"], [word, "b"])]
    assert any(listed in note for note in as_samples(batches).notes)
    declared = pandas.Categorical(WORDS, categories=["a", "b", "c", word])
    for plain in (WORDS, pandas.Series(declared)):  # it is not used
        assert len(as_samples((FEATURES, plain)).notes) == 1


def test_a_categorical_alone_keeps_its_order() -> None:
    declared = pandas.Categorical(WORDS, categories=["c", "b", "a"])
    for labels in (declared, pandas.CategoricalIndex(declared), pandas.Series(declared)):
        assert as_samples((FEATURES, labels)).class_names == ("c", "b", "a")
