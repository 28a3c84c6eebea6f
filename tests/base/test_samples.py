"""Samples are checked once at the door; several inputs are packed as one tensor, and unpacked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import pandas
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from gapscope.base.errors import InvalidInput
from gapscope.base.input_layout import pack_inputs
from gapscope.base.samples import Samples, as_samples, slices
from gapscope.base.second_data import as_second

X, Y = torch.randn(7, 3), torch.tensor([0, 1, 2, 0, 1, 2, 0])


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X, Y],
        Samples(X, Y),
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=3),
    ],
    ids=["pair", "list", "samples", "dataset", "loader"],
)
def test_all_forms_of_data_are_the_same_samples(data: Any) -> None:
    samples = as_samples(data)
    assert (
        torch.equal(samples.inputs, X) and torch.equal(samples.y, Y) and samples.is_classification
    )


def test_inputs_alone_are_samples() -> None:
    assert as_samples(X).targets is None
    assert len(as_samples(DataLoader(X, batch_size=2))) == 7  # type: ignore[arg-type]
    assert as_samples(torch.tensor([[1, 2], [3, 4]])).inputs.dtype == torch.int64  # token ids


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("words", "must be a tensor x, a pair"),
        (
            (X, Y, X),
            r"a pair \(x, y\); got a tuple of 3: Tensor \[7, 3\], Tensor \[7\], Tensor \[7, 3\]",
        ),
        ((X, Y[:3]), "same length; got 7 and 3"),
        (torch.nn.Sequential(torch.nn.Linear(2, 2)), r"got a network \(Sequential\)"),
        (torch.nn.Linear(2, 2), r"got a network \(Linear\)"),
        (X[0], r"shape \[n, ...\] with one row per sample"),
        (X[:0], "at least one sample"),
        (torch.full((2, 2), float("nan")), "must be finite; 2 of 2 samples"),
        (torch.zeros(2, 2, dtype=torch.uint8), "must be floating point"),
        (torch.zeros(2, 2, dtype=torch.bool), "got torch.bool. Use x.float()"),
        (torch.zeros(2, 2, device="meta"), "meta device, which have none"),
        ((X, torch.zeros(7) * 1j), "targets must be real; got torch.complex64"),
        ((X, torch.full((7, 1), float("inf"))), "targets must be finite"),
        ((X, Y - 1), "must be 0 or larger; got -1"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), "the loader is empty"),
        (
            DataLoader([{"a": X[0]}, {"a": X[1], "b": X[1]}], batch_size=1),  # type: ignore[arg-type]
            "the same inputs; one has a, another a, b. ",
        ),
    ],
)
def test_wrong_data_get_one_sentence(data: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        as_samples(data)


def test_slices_cover_everything_once() -> None:
    assert [list(range(7))[part] for part in slices(7, 3)] == [[0, 1, 2], [3, 4, 5], [6]]
    with pytest.raises(InvalidInput, match="least 1; got 0"):
        list(slices(7, 0))


def test_sparse_matrices_are_read_up_to_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    scipy = pytest.importorskip("scipy.sparse")
    for data in ((scipy.csr_matrix(numpy.eye(3)), numpy.arange(3)), scipy.coo_array(numpy.eye(3))):
        samples = as_samples(data)
        assert torch.equal(samples.inputs, torch.eye(3)) and any(
            "sparse" in note for note in samples.notes
        )
    monkeypatch.setattr("gapscope.base.foreign_data.MAX_BYTES", 35)
    with pytest.raises(InvalidInput, match="TruncatedSVD"):
        as_samples(scipy.csr_matrix(numpy.eye(3)))


def test_tables_of_arrow_are_read() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": [1.0, 2.0], "b": [3, 4]})
    samples = as_samples((table, pyarrow.array(["no", "yes"])))
    assert samples.inputs.tolist() == [[1, 3], [2, 4]] and samples.class_names == ("no", "yes")


def test_polars_frames_are_read() -> None:
    polars = pytest.importorskip("polars")
    samples = as_samples((polars.DataFrame({"a": [1.0, 2.0]}), polars.Series(["no", "yes"])))
    assert samples.inputs.tolist() == [[1], [2]] and samples.y.tolist() == [0, 1]


def test_texts_are_words_with_the_same_columns_in_every_data_set() -> None:
    texts = ["the cat sat", "a dog ran", "the cat ran"]
    first, second = as_samples((texts, [0, 1, 0])), as_samples((texts[1:], ["x", "y"]))
    assert torch.equal(first.inputs[1:], second.inputs) and first.inputs.norm(dim=1).allclose(
        torch.ones(3)
    )
    assert any("Texts" in note for note in first.notes)


def test_string_labels_of_batches_are_numbered_by_the_names_of_all() -> None:
    batches = [
        {"x": torch.zeros(2, 3), "labels": numpy.array(["b", "c"])},
        {"x": torch.zeros(2, 3), "labels": numpy.array(["a", "c"])},
    ]
    samples = as_samples(batches)
    assert samples.y.tolist() == [1, 2, 0, 2]
    assert (
        samples.class_names == ("a", "b", "c")
        and sum("numbered" in note for note in samples.notes) == 1
    )
    rows = [{"x": torch.zeros(3), "label": name} for name in "bcac"]
    loader = DataLoader([(torch.zeros(3), name) for name in "bcac"], batch_size=2)  # type: ignore[arg-type]
    for data in (rows, loader):
        result = as_samples(data).targets
        assert result is not None and result.tolist() == [1, 2, 0, 2]
    with pytest.raises(InvalidInput, match="some are strings"):
        as_samples([batches[0], {"x": torch.zeros(2, 3), "labels": torch.tensor([0, 1])}])


def test_floats_of_one_type_lie_side_by_side() -> None:
    left, right = torch.randn(5, 2, 3), torch.randn(5)
    x, form = pack_inputs({"left": left, "right": right})
    assert x.shape == (5, 7) and form.names == ("left", "right") and not form.columns
    result = form.unpack(x[1:3])
    assert torch.equal(result[0], left[1:3]) and torch.equal(result[1], right[1:3])


def test_others_are_stored_whole_and_found_by_row() -> None:
    ids, weights = torch.arange(10).reshape(5, 2), torch.randn(5, 4)
    x, form = pack_inputs((ids, weights))
    # row numbers are below 0, so that an embedding refuses them
    assert x.tolist() == [[-1 - i] for i in range(5)] and form.names is None
    result = form.unpack(x[torch.tensor([3, 0])])
    assert torch.equal(result[0], ids[[3, 0]]) and torch.equal(result[1], weights[[3, 0]])


def test_one_input_is_itself() -> None:
    pixels = torch.randn(4, 3, 2, 2)
    x, form = pack_inputs({"pixel_values": pixels})
    assert x is pixels and form.unpack(x) == (pixels,)


class Plain:
    """A data set without a base class."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], int(self.y[index])


class Batches:
    """A loader without a base class, in its own order or in a new one each time."""

    def __init__(self, x: Tensor, y: Tensor, shuffles: bool) -> None:
        self.x, self.y, self.shuffles = x, y, shuffles
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = (
            torch.randperm(len(self.x), generator=self.generator)
            if self.shuffles
            else torch.arange(len(self.x))
        )
        for rows in order.split(8):
            yield self.x[rows], self.y[rows]


def test_data_sets_and_loaders_are_known_by_their_methods() -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 3
    for data in (
        Plain(x, y),
        Batches(x, y, shuffles=False),
        [(x[i], int(y[i])) for i in range(20)],
    ):
        samples = as_samples(data)
        assert torch.equal(samples.inputs, x) and torch.equal(samples.y, y) and samples.has_order
    assert not as_samples(Batches(x, y, shuffles=True)).has_order


def test_an_iterator_can_be_read_once_only() -> None:
    with pytest.raises(InvalidInput, match="a zip is not"):
        as_samples(zip(torch.randn(5, 2), torch.arange(5), strict=True))


@pytest.mark.parametrize("form", ["tensor", "column", "array", "loader"])
def test_minus_one_and_one_are_two_classes(form: str) -> None:
    signs = 2 * (Y > 0).long() - 1
    data: Any = {
        "tensor": (X, signs),
        "column": (X, signs[:, None].int()),
        "array": (X, signs.numpy()),
        "loader": DataLoader(TensorDataset(X, signs), batch_size=1),
    }[form]
    samples = as_samples(data)
    assert torch.equal(samples.y, (Y > 0).long())
    assert samples.class_names == ("-1", "1") and any(
        "0 = '-1', 1 = '1'" in note for note in samples.notes
    )
    assert torch.equal(samples.targets_as_passed.flatten(), signs)


def test_a_second_data_set_may_hold_one_of_the_signs() -> None:
    first = as_samples((X, 2 * (Y > 0).long() - 1))
    for sign, code in ((1, 1), (-1, 0)):
        second = as_second((X, torch.full((7,), sign)), first)
        assert second.y.tolist() == [code] * 7


def test_other_negative_labels_are_no_classes() -> None:
    with pytest.raises(InvalidInput, match="missing labels by -100"):
        as_samples((X, Y - 1))
    assert as_samples((X, torch.stack([Y, Y - 5], 1))).kind == "regression"


@pytest.mark.parametrize("form", ["lists", "arrays", "tensors"])
def test_a_list_of_samples_is_their_stack(form: str) -> None:
    rows = {"lists": X.tolist(), "arrays": list(X.numpy()), "tensors": list(X)}[form]
    samples = as_samples((rows, Y.tolist()))
    assert torch.equal(samples.inputs, X) and torch.equal(samples.y, Y)


def test_items_beyond_a_label_are_noted_alike_in_a_list_and_a_data_set() -> None:
    rows = [(x, int(label), row) for row, (x, label) in enumerate(zip(X, Y, strict=True))]
    expected = as_samples(torch.utils.data.TensorDataset(X, Y, torch.arange(len(Y))))
    for form in (rows, [list(row) for row in rows], [(x.numpy(), *rest) for x, *rest in rows]):
        samples = as_samples(form)
        assert torch.equal(samples.inputs, X) and torch.equal(samples.y, Y)
        assert samples.notes == expected.notes != ()
    with pytest.raises(InvalidInput, match="must be a pair"):
        as_samples([[1.0, 2, 3], [4.0, 5, 6], [7.0, 8, 9]])


@pytest.mark.parametrize("kind", ["list", "data set", "loader", "names"])
def test_row_numbers_before_the_labels_are_no_labels(kind: str) -> None:
    n = 300
    x = torch.randn(n, 2)
    rows: Any = torch.arange(n) + 7
    labels = torch.arange(n) % 3
    if kind == "names":
        rows = [f"{row}.png" for row in range(n)]

    def read(second: Any, third: Any) -> Any:
        samples: Any = list(zip(x, second, third, strict=True))
        if kind == "loader":
            return as_samples(torch.utils.data.DataLoader(samples, batch_size=7, shuffle=True))
        return as_samples(samples if kind != "data set" else Data(samples))

    class Data(torch.utils.data.Dataset[Any]):
        def __init__(self, samples: list[Any]) -> None:
            self.samples = samples

        def __len__(self) -> int:
            return n

        def __getitem__(self, row: int) -> Any:
            return self.samples[row]

    for third in (labels, [("a", "b", "c")[label] for label in labels], torch.randn(n)):
        with pytest.raises(InvalidInput, match="must repeat; got 300"):
            read(rows, third)
    for third in (rows, torch.ones(n), torch.randn(n)):
        assert torch.equal(read(labels, third).y, labels)
    # a numbered class for each sample, without anything that could be the labels
    assert len(read(rows, torch.ones(n)).y.unique()) == n


def test_few_samples_of_different_classes_have_labels() -> None:
    x = torch.randn(25, 2)
    for labels in (torch.arange(25) * 2, torch.arange(25)[:12]):
        data = list(zip(x, labels, torch.arange(25) % 3, strict=False))
        assert torch.equal(as_samples(data).y, labels)


def test_a_list_of_two_inputs_stays_two_inputs() -> None:
    samples = as_samples(([X, 2 * X], Y))
    assert samples.form is not None and torch.equal(samples.parts[1], 2 * X)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.uint16, torch.uint32, torch.int8, torch.int16]
)
def test_labels_may_be_any_integers(dtype: torch.dtype) -> None:
    assert torch.equal(as_samples((X, Y.to(dtype))).y, Y)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (([[1.0, 2.0], [3.0]], [0, 1]), r"All samples must have the same shape; got \[1\], \[2\]"),
        ((numpy.ma.masked_less(X.numpy(), 0), Y), "of whose values are masked"),
        (
            (X, numpy.ma.masked_equal(Y.numpy(), 2)),
            "2 of 7 are missing",
        ),
        (DataLoader(TensorDataset(X, Y), batch_size=None), "yields single samples"),
    ],
)
def test_what_cannot_be_stacked_gets_one_sentence(data: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        as_samples(data)


TEXTS = [f"a {word} film" for word in ("good", "bad") * 10]
LABELS = [0, 1] * 10


@pytest.mark.parametrize(
    "data",
    [
        (TEXTS, LABELS),
        list(zip(TEXTS, LABELS, strict=True)),
        [{"text": text, "label": label} for text, label in zip(TEXTS, LABELS, strict=True)],
        {"sentence": TEXTS, "label": torch.tensor(LABELS), "idx": torch.arange(20)},
    ],
    ids=["pair", "list of pairs", "list of mappings", "mapping"],
)
def test_texts_are_read_in_every_form(data: Any) -> None:
    samples = as_samples(data)
    assert torch.equal(samples.inputs, as_samples((TEXTS, LABELS)).inputs)
    assert samples.y.tolist() == LABELS
    assert any("frequencies of words" in note for note in samples.notes)


def test_a_missing_text_gets_one_sentence() -> None:
    with pytest.raises(InvalidInput, match="1 of 20"):
        as_samples(([None, *TEXTS[1:]], LABELS))


def test_row_numbers_are_no_input() -> None:
    samples = as_samples({"x": X, "label": Y, "idx": torch.arange(7)})
    assert len(samples.parts) == 1 and any("numbers the rows" in note for note in samples.notes)
    assert len(as_samples({"x": X, "label": Y, "idx": Y}).parts) == 2


def test_the_format_of_a_hugging_face_data_set_is_kept() -> None:
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": X.tolist(), "leak": Y.tolist(), "label": Y.tolist()})
    form = as_samples(data.with_format("numpy", columns=["x", "label"])).form
    assert form is not None and form.names == ("x",)
    data.set_transform(
        lambda rows: {
            "z": [row[:1] for row in map(torch.tensor, rows["x"])],
            "label": rows["label"],
        }
    )
    transformed = as_samples(data)
    assert transformed.form is not None and transformed.form.names == ("z",)
    assert torch.equal(transformed.parts[0], X[:, :1])


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_several_labels_of_a_second_data_set_may_all_be_equal(value: float) -> None:
    first = as_samples((X, (X > 0).float()))
    assert as_second((X, torch.full((7, 3), value)), first).kind == "multi-label"


def test_labels_that_are_all_missing_are_refused() -> None:
    with pytest.raises(InvalidInput, match="all 7 are -100"):
        as_samples((X, torch.full((7,), -100)))


def test_pictures_of_pil_get_a_recipe() -> None:
    image = pytest.importorskip("PIL.Image")
    pictures = [image.new("RGB", (4, 4), (value, 0, 0)) for value in range(8)]
    labels = [0, 1] * 4
    for data in ((pictures, labels), list(zip(pictures, labels, strict=True))):
        with pytest.raises(InvalidInput, match="PIL pictures"):
            as_samples(data)


ROWS, CLASSES = [[0.5, 1.0], [1.5, -1.0], [2.5, 0.0], [0.0, 0.0]], [0, 2, 1, 2]
FORMS_OF_PAIRS: dict[str, Any] = {
    "lists": (ROWS, CLASSES),
    "arrays": (numpy.array(ROWS), numpy.array(CLASSES)),
    "tensor and list": (torch.tensor(ROWS), CLASSES),
    "list and tensor": (ROWS, torch.tensor(CLASSES)),
}


@pytest.mark.parametrize("form", FORMS_OF_PAIRS)
@pytest.mark.parametrize("task", [None, "classification", "regression"])
def test_samples_take_what_is_taken_as_data(form: str, task: Any) -> None:
    samples = Samples(*FORMS_OF_PAIRS[form], task=task)
    assert torch.equal(samples.inputs, torch.tensor(ROWS))
    expected = torch.tensor(CLASSES)
    if task == "regression":
        expected = expected.float()[:, None]
    assert torch.equal(samples.y, expected) and samples.y.dtype == expected.dtype


def test_samples_of_frames_have_their_names_and_axis() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(ROWS, columns=["a", "b"])
    samples = Samples(frame, pandas.Series(["no", "yes", "yes", "no"]))
    assert samples.columns == ("a", "b") and samples.class_names == ("no", "yes")
    assert samples.notes
    positions = Samples(ROWS, [[0, 1], [1, 0], [2, 2], [1, -100]], task="tokens")
    assert positions.is_dense and positions.class_axis == -1
    assert Samples(numpy.array(ROWS)).targets is None
    assert Samples(ROWS, [0, -100, 1, 1]).original([1]).tolist() == [2]


def test_names_are_no_regression_targets() -> None:
    with pytest.raises(InvalidInput, match="the names high, low"):
        Samples(ROWS, ["low", "high", "low", "low"], task="regression")


SEVERAL = torch.tensor([[0.0, 1.0], [1.0, 1.0], [-100.0, 0.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    "targets",
    [
        SEVERAL,
        SEVERAL.double().numpy(),
        SEVERAL.masked_fill(SEVERAL == -100, torch.nan),
        pandas.DataFrame(SEVERAL.numpy(), columns=["a", "b"]),
    ],
)
def test_several_labels_of_which_some_are_missing_are_refused(targets: Any) -> None:
    for task in (None, "multi-label"):
        with pytest.raises(InvalidInput, match="of 8 are missing"):
            as_samples((torch.randn(4, 3), targets), task=task)
    frame = pandas.DataFrame(SEVERAL.masked_fill(SEVERAL == -100, torch.nan).numpy())
    with pytest.raises(InvalidInput, match="of 8 are missing"):
        as_samples((pandas.DataFrame(torch.randn(4, 3).numpy()), frame))


def test_unlabelled_floats_of_two_classes_are_omitted_as_integers_are() -> None:
    samples = as_samples((X, torch.tensor([0.0, 1.0, -100.0, 1.0, 0.0, 1.0, 0.0])))
    assert samples.is_classification and len(samples) == 6
    numbers = as_samples((X, torch.tensor([0.5, 1.0, -100.0, 1.0, 0.0, 1.0, 0.0])))
    assert numbers.kind == "regression" and len(numbers) == 7


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_signs_in_several_columns_are_noted(dtype: torch.dtype) -> None:
    signs = torch.where(SEVERAL > 0, 1, -1).to(dtype)
    samples = as_samples((torch.randn(4, 3), signs)).settled((4, 2))
    assert samples.kind == "regression" and "pass y > 0" in samples.notes[-1]


YES = numpy.where(numpy.random.default_rng(0).normal(size=(40, 3)) > 0, "yes", "no")
FEATURES = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "data",
    [
        (FEATURES, YES),
        (FEATURES, pandas.DataFrame(YES, columns=["u", "v", "w"])),
        (FEATURES, pandas.DataFrame(YES, columns=["u", "v", "w"]).astype("category")),
        (FEATURES, YES.tolist()),
        [{"x": x, "labels": y} for x, y in zip(FEATURES, YES.tolist(), strict=True)],
        [{"x": FEATURES[i], "labels": YES[i].tolist()} for i in range(3)],
        {"x": FEATURES, "labels": YES},
    ],
    ids=["array", "frame", "categories", "lists", "mappings", "three mappings", "columns"],
)
def test_two_names_in_several_columns_are_several_labels(data: Any) -> None:
    samples = as_samples(data)
    assert samples.kind == "multi-label"
    assert torch.equal(samples.y, torch.from_numpy(YES == "yes")[: len(samples)])


def test_one_hot_names_are_classes_without_these_names() -> None:
    y = numpy.where(numpy.eye(3)[numpy.arange(40) % 3] > 0, "yes", "no")
    samples = as_samples((FEATURES, y))
    assert torch.equal(samples.y, torch.arange(40) % 3) and samples.class_names == ()
    samples = as_samples((FEATURES, pandas.DataFrame(y, columns=["u", "v", "w"])))
    assert samples.class_names == ("u", "v", "w")


@pytest.mark.parametrize("names", ["abc", "123"])
@pytest.mark.parametrize("form", [numpy.asarray, pandas.DataFrame, lambda y: y.tolist()])
def test_names_in_several_columns_are_never_numbers(names: str, form: Any) -> None:
    y = form(numpy.array(list(names))[numpy.arange(120).reshape(40, 3) % 7 % 3])
    samples = as_samples((FEATURES, y))
    assert samples.kind == samples.settled((40, 3)).kind == "positions"
    with pytest.raises(InvalidInput, match="numbers; got the names"):
        as_samples(samples, task="regression")


_ZERO_ONE = torch.tensor([0.0, 1.0] * 20)


@pytest.mark.parametrize(
    "y",
    [
        _ZERO_ONE,
        _ZERO_ONE[:, None],
        2 * _ZERO_ONE - 1,
        (2 * _ZERO_ONE - 1).long()[:, None],
        _ZERO_ONE[:, None].byte(),
        _ZERO_ONE[:, None].bool(),
        torch.arange(40).clamp(max=3) - 100 * (torch.arange(40) == 0),
        torch.arange(40) * 0.3,
    ],
)
def test_samples_read_targets_as_a_pair_does(y: Tensor) -> None:
    x = torch.randn(40, 3)
    samples, pair = Samples(x, y), as_samples((x, y))
    assert samples.kind == pair.kind
    assert samples.notes == pair.notes
    assert samples.class_names == pair.class_names
    assert torch.equal(samples.y, pair.y)
