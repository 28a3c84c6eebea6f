"""Corrections of labels from a reviewed list."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch

from gapscope.base.arguments import check_arguments
from gapscope.base.errors import InvalidInput, join_names
from gapscope.base.position_labels import labels_on_grid
from gapscope.base.samples import Samples, as_samples
from gapscope.base.targets import IGNORED, require_targets
from gapscope.base.type_guards import is_list_or_tuple
from gapscope.data.frames import encode_inputs
from gapscope.data.named_columns import column_by_name, lacks_labels
from gapscope.data.number_text import TextFormat
from gapscope.data.table_targets import FORMAT, as_targets
from gapscope.data.tables import Cells, read_cells
from gapscope.labels.corrected_forms import as_series, keeps_form, with_corrections
from gapscope.labels.label_cells import (
    DROP,
    INTEGER,
    N_ROWS,
    LabelParser,
    are_equal,
    check_given,
    count_rows,
    folded,
    stripped,
)
from gapscope.results.csv_files import from_csv_cell

if TYPE_CHECKING:
    import pandas

ListPath = str | Path | Sequence[str | Path]
"""One reviewed list, or several of the same data."""
PLACE_COLUMNS = {"multi-label": "output", "positions": "position"}
"""Column of the place of a label within its sample, by the kind of the task."""


def _header(names: Sequence[str], needed: Sequence[str], path: str | Path) -> list[str]:
    """Return the columns of a list that have the needed names, whatever their case and spaces."""
    found: list[str] = []
    for name in needed:
        alike = [column for column in names if column.strip().casefold() == name]
        found += [name] if name in alike else alike
    if len(found) > len(needed):
        raise InvalidInput(
            f"{path} must have one column of each name; got {', '.join(found)}. Rename or drop the others."
        )
    if len(found) < len(needed):
        listed = f"{', '.join(needed[:-1])} and {needed[-1]}"
        raise InvalidInput(
            f"{path} must have the columns {listed}; got {', '.join(names)}. Write their names into the first line."
        )
    return found


def with_class_masks(samples: Samples) -> Samples:
    """Return samples whose one-hot masks are masks of classes, as the ranking names their positions.

    Args:
        samples: Samples of any task.
    """
    if samples.targets is None or samples.kind != "positions" or len(samples) == 0:
        return samples
    labels = labels_on_grid(samples.targets, samples.parts[0])
    n_classes = samples.targets[0].numel() // max(labels[0].numel(), 1)
    if labels.ndim == samples.targets.ndim or n_classes < 2:
        return samples
    return samples.with_position_labels(labels)


def _read_list(
    path: str | Path, samples: Samples, place: str = ""
) -> tuple[pandas.DataFrame, Cells]:
    """Return the columns `sample`, place, `label` and `given` of a reviewed list as text, and all its cells.

    The column `given` is blank if the list has none.

    Raises:
        InvalidInput: Such a column is missing, or the list was made for another number of rows.
    """
    cells = read_cells(path)
    table = cells.frame
    table.columns = [from_csv_cell(str(name)) for name in table.columns]
    needed = ["sample", *([place] if place else []), "label"]
    known = {name.strip().casefold() for name in table.columns}
    needed += [name for name in ("given", N_ROWS) if name in known]
    table = table[_header(list(table.columns), needed, path)].map(from_csv_cell)
    table.columns = needed
    table = table.reindex(columns=[*needed[: 3 if place else 2], "given", N_ROWS], fill_value="")
    n = count_rows(samples)
    for made_for in {cells.with_point(cell).strip() for cell in table.pop(N_ROWS)} - {""}:
        if made_for.partition(".")[0] != str(n):
            raise InvalidInput(
                f"{path} was made for {made_for} rows; the data have {n}. Pass the data of which it was made, and "
                "several lists of them together, path=[first, second]."
            )
    return table, cells


def _parse_sample(cell: str, samples: Samples, path: str | Path) -> int:
    """Return the index of the sample whose row number a cell holds."""
    n = count_rows(samples)
    if not INTEGER.fullmatch(cell.strip()) or not 0 <= int(cell.strip().partition(".")[0]) < n:
        raise InvalidInput(
            f"{path} names sample {cell!r}; the data have the samples 0 to {n - 1}. Pass the data of which the list "
            "was made, with several lists of them together, path=[first, second]; or write the number that "
            "`find_label_issues` gave to the sample."
        )
    return samples.position(int(cell.strip().partition(".")[0]))


def _numbers_of(cell: str, n: int, cells: Cells) -> list[str]:
    """Return the parts of a place of n numbers, such as "5, 3" or "(5, 3)"."""
    inner = cell.strip().strip("()[]")
    if n == 1:
        return [cells.with_point(inner).strip()]
    return [part for part in re.split(r"[\s,;]+", inner) if part]


def _parse_place(
    cell: str, shape: Sequence[int], names: Sequence[str], where: str, cells: Cells
) -> tuple[int, ...]:
    """Return the place of a label within its sample, such as (3,) or (3, 17); names come before numbers."""
    found = [k for k, name in enumerate(names) if name == cell]
    for way in (stripped, folded):
        found = found or [k for k, name in enumerate(names) if way(name) == way(cell)]
    if len(found) == 1:
        return (found[0],)
    n_long = sum(size > 1 for size in shape)
    parts = _numbers_of(cell, max(n_long, 1), cells)
    if len(parts) == n_long:  # lists name no axis of size 1
        numbers = iter(parts)
        parts = [next(numbers) if size > 1 else "0" for size in shape]
    is_valid = len(parts) == len(shape) and all(INTEGER.fullmatch(part) for part in parts)
    if is_valid:
        place = tuple(int(part.partition(".")[0]) for part in parts)
    else:
        place = ()
    if not is_valid or not all(0 <= index < size for index, size in zip(place, shape, strict=True)):
        if names:
            listed = f", or one of {join_names(map(repr, names))},"
        else:
            listed = ""
        example = ", ".join("0" for size in shape if size > 1) or "0"
        raise InvalidInput(
            f"{where}: got the place {cell!r}; indices below {list(shape)}{listed} are needed. Write it as the list "
            f"does, such as {example!r}."
        )
    return place


Decisions = dict[tuple[int, ...], float | None]


def _in_words(decision: float | None, samples: Samples) -> str:
    """Return a decision of a list as a message names it."""
    if decision is None:
        return DROP
    if samples.kind in ("classification", "positions") and samples.class_names:
        return repr(samples.class_names[int(decision)])
    return f"{decision:.6g}"


def _join(samples: Samples, lists: Sequence[tuple[str | Path, Decisions]]) -> Decisions:
    """Return the decisions of several lists, by sample and place.

    Args:
        samples: The samples.
        lists: Each list with its decisions.

    Raises:
        InvalidInput: Two lists contradict each other.
    """
    joined: dict[tuple[int, ...], tuple[float | None, str | Path]] = {}
    conflicts: list[str] = []
    for path, decisions in lists:
        for place, decision in decisions.items():
            known, first = joined.setdefault(place, (decision, path))
            if known == decision:
                continue
            words = [_in_words(value, samples) for value in (known, decision)]
            at = f", place {join_names(place[1:])}" if len(place) > 1 else ""
            conflicts.append(
                f"sample {int(samples.original(place[:1]))}{at} ({words[0]} in {first}, {words[1]} in {path})"
            )
    if conflicts:
        raise InvalidInput(
            f"Lists must agree; {len(conflicts)} of their labels do not: {join_names(conflicts)}. Write one label into "
            "both lists, or none into one of them."
        )
    return {place: decision for place, (decision, _) in joined.items()}


def _read_places(samples: Samples, path: str | Path) -> Decisions:
    """Return the decisions of a reviewed list of samples that have more than one label each, by sample and place.

    Raises:
        InvalidInput: As for `apply_label_corrections`, or a place is outside the sample.
    """
    column = PLACE_COLUMNS[samples.kind]
    table, cells = _read_list(path, samples, column)
    parser = LabelParser(samples, cells)
    old = samples.y
    decisions: dict[tuple[int, ...], tuple[float | None, int]] = {}
    compared: list[tuple[int, str, tuple[int, ...]]] = []
    for line, sample, cell, label, given in table.itertuples():
        if not label.strip() and not given.strip():
            continue
        where = f"{path}, line {line}"
        place = (
            _parse_sample(cells.with_point(sample), samples, path),
            *_parse_place(cell, old.shape[1:], samples.named_targets, where, cells),
        )
        compared.append((line, given, place))
        if not label.strip():
            continue
        decision = parser.parse(label, where)
        if decision is None and samples.kind == "multi-label":
            raise InvalidInput(
                f"{where}: one of several labels cannot be dropped. Write 0 or 1, or remove the line."
            )
        if place in decisions and decisions[place][0] != decision:
            raise InvalidInput(
                f"{path} has two labels for {column} {cell} of sample {sample}, in the lines {decisions[place][1]} and "
                f"{line}. Leave one of them."
            )
        decisions[place] = (decision, line)
    done = {
        place
        for place, (decision, _) in decisions.items()
        if old[place] == (IGNORED if decision is None else int(decision))
    }
    check_given(
        path,
        parser,
        [(line, given, float(old[place]), place in done) for line, given, place in compared],
    )
    return {place: decision for place, (decision, _) in decisions.items()}


def read_decisions(
    samples: Samples, path: str | Path, form: TextFormat | None = None
) -> dict[int, float | None]:
    """Return the decisions of a reviewed list: by sample, a class or regression target, None to drop the sample.

    Args:
        samples: Samples with one label or target each, of which the list was made.
        path: The list.
        form: How the column of the targets holds numbers, if they are text.

    Raises:
        UnreadableFile: The file is missing, empty or no table.
        InvalidInput: As for `apply_label_corrections`.
    """
    table, cells = _read_list(path, samples)
    parser = LabelParser(samples, cells, form)
    decisions: dict[int, float | None] = {}
    lines: dict[int, int] = {}
    compared: list[tuple[int, str, int]] = []
    for line, sample, label, given in table.itertuples():
        if not label.strip() and not given.strip():
            continue
        index = _parse_sample(cells.with_point(sample), samples, path)
        compared.append((line, given, index))
        if not label.strip():
            continue
        decision = parser.parse(label, f"{path}, line {line}")
        if index in decisions and decisions[index] != decision:
            raise InvalidInput(
                f"{path} has two labels for sample {sample}, in the lines {lines[index]} and {line}. Leave one of them."
            )
        decisions[index], lines[index] = decision, line
    labels = samples.y.flatten().tolist()
    check_given(
        path,
        parser,
        [
            (
                line,
                given,
                labels[index],
                index in decisions and are_equal(decisions[index], labels[index], samples),
            )
            for line, given, index in compared
        ],
    )
    _check_remaining(samples, decisions, path)
    return decisions


def read_lists(
    samples: Samples, paths: Sequence[str | Path], form: TextFormat | None = None
) -> dict[int, float | None]:
    """Return the decisions of several reviewed lists (`read_decisions`).

    Args:
        samples: Samples with one label or target each, of which the lists were made.
        paths: The lists.
        form: How the column of the targets holds numbers, if they are text.

    Raises:
        InvalidInput: As for `read_decisions`, or two lists contradict each other.
    """
    lists = [
        (each, {(index,): value for index, value in read_decisions(samples, each, form).items()})
        for each in paths
    ]
    decisions = {index: value for (index,), value in _join(samples, lists).items()}
    _check_remaining(samples, decisions, join_names(paths))
    return decisions


def _check_remaining(
    samples: Samples, decisions: Mapping[int, float | None], path: str | Path
) -> None:
    """Raise InvalidInput if no sample would remain."""
    if sum(decision is None for decision in decisions.values()) == len(samples):
        raise InvalidInput(f"{path} drops all {len(samples)} samples; one at least must remain.")


@overload
def apply_label_corrections(
    data: tuple[pandas.DataFrame, Any], path: ListPath
) -> tuple[pandas.DataFrame, Any]: ...


@overload
def apply_label_corrections(data: Any, path: ListPath) -> Samples: ...


@overload
def apply_label_corrections(data: Any, path: ListPath, *, target: str | int | None) -> Any: ...


@check_arguments
def apply_label_corrections(data: Any, path: ListPath, *, target: str | int | None = None) -> Any:
    r"""Return the data with the corrections of a reviewed list (of `to_csv` or `write_html`).

    Args:
        data: Data of which `find_label_issues` made the list, with the rows in the same order.
        path: CSV file (UTF-8; comma, semicolon or tab) or Parquet file with the columns `sample` (an index) and
            `label`: the correct label or target, "drop" to remove the sample ("(drop)", if a class is called "drop"),
            or nothing to keep its label. Class names are read with or without spaces around them, and in any case if
            one name alone fits; a blank one is written "(empty)". Numbers may have decimal commas, if columns are not
            separated by commas. Integer labels must occur in the data. If samples have several labels, the column
            `output` has the name of the label's column, or its number, and the label becomes 0 or 1. Labels of
            positions have the column `position`, and "drop" makes one -100; one-hot masks become masks of classes. If
            the list has the columns `given` and `n_rows`, its lines are compared with the labels of the data, and
            their number of rows. Lists of several reviewers of the same data are passed together, as a list of paths.
        target: Column of the labels or targets, if `data` has named columns (a frame, a mapping, a list of
            dictionaries, a Dataset), as for `find_label_issues`; else None.

    Returns:
        The samples that remain, in their order, with corrected labels. Data with `target`, and a pair (frame, labels),
        come back in their form, a table as a pandas frame, with their rows, columns, categories and transforms; amounts
        in text become numbers. Other data come back as `gs.Samples`.

    Raises:
        UnreadableFile: The file is missing, empty or no CSV table.
        InvalidInput: A column is missing, an index is outside the data, a label is unknown, lines contradict each
            other, no sample would remain, the data have another number of rows, or the labels in the column `given`
            are not those of the data (which may have the corrections already, if other lines agree).

    >>> import gapscope as gs
    >>> import tempfile
    >>> from pathlib import Path
    >>> train = gs.load_dataset("digits").train.first(300)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     review = Path(folder) / "review.csv"  # as `issues.to_csv(review)` writes it, filled in
    ...     _ = review.write_text("sample,label\n20,7\n18,drop\n")
    ...     corrected = gs.apply_label_corrections(train, review)
    >>> len(corrected), int(corrected.y[19])  # sample 20 follows the one that was dropped
    (299, 7)
    """
    paths: Sequence[str | Path] = [path] if isinstance(path, str | Path) else path
    passed = data
    column: Any = data[1] if is_list_or_tuple(data) and len(data) == 2 else None
    if target is not None:
        inputs, column = column_by_name(data, target)
        data = inputs, as_targets(column)[0]
    encoded, _, _ = encode_inputs(data)
    samples = with_class_masks(as_samples(encoded))
    if samples.targets is not None and samples.kind in PLACE_COLUMNS:
        samples.original(())  # indices mean nothing if the order changes
        targets = samples.targets.clone()
        lists = [(each, _read_places(samples, each)) for each in paths]
        for place, decision in _join(samples, lists).items():
            targets[place] = IGNORED if decision is None else int(decision)
        return replace(samples, targets=targets)
    if samples.targets is None and (missing := lacks_labels(data)):
        raise InvalidInput(missing)
    if require_targets(samples, "A list of corrections")[:1].numel() > 1:
        raise InvalidInput(
            "Corrections need one label or target per sample; got targets of shape "
            f"{list(samples.y.shape)}. Pass them one by one, (x, y[:, k])."
        )
    samples.original(())  # indices mean nothing if the order changes
    labels: Any = data[1] if isinstance(data, tuple) and len(data) == 2 else None
    form = getattr(labels, "attrs", {}).get(FORMAT)
    decisions = read_lists(samples, paths, form)
    if keeps_form(passed, target):
        if samples.kind == "regression":
            column = as_series(encoded[1]).astype(float)
        return with_corrections(passed, target, as_series(column), samples, decisions)
    targets = samples.y.clone()
    for index, decision in decisions.items():
        if decision is not None:
            targets[index] = decision
    kept = [index for index in range(len(samples)) if decisions.get(index, 0) is not None]
    notes = samples.notes
    if target is not None:
        notes += (f"A {type(passed).__name__} comes back as gs.Samples.",)
    samples = replace(samples, targets=targets, notes=notes)
    return samples.subset(torch.tensor(kept, device=targets.device))
