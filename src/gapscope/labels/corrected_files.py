"""Files of tables with the corrections of a reviewed list."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.data.edited_files import EditedFile, open_for_edit
from gapscope.data.number_text import TextFormat, find_format
from gapscope.data.table_targets import FORMAT
from gapscope.labels.corrected_forms import class_cells
from gapscope.labels.label_cells import are_equal

if TYPE_CHECKING:
    import pandas


def _target_cells(
    path: Path, file: EditedFile, labels: pandas.Series, changes: Mapping[int, float]
) -> dict[int, Any]:
    """Return the cells of new regression targets, with the decimal mark and the unit of their column.

    Raises:
        InvalidInput: In that form they would be read as other numbers.
    """
    import pandas

    known: TextFormat | None = labels.attrs.get(FORMAT)
    texts = [file.text_of(row) for row in range(len(labels))]
    # numbers that are no amounts in text have a comma as decimal mark alone
    has_commas = known is None and any("," in text for text in texts if text)
    form = known or TextFormat("number", "," if has_commas else ".")
    column: list[Any] = [
        number if text is None else text for number, text in zip(labels, texts, strict=True)
    ]
    cells: dict[int, Any] = {}
    for row, value in changes.items():
        text = texts[row]
        if text is None:
            cells[row] = file.cell(value, row)
            continue
        column[row] = form.write(value, text.strip())
        cells[row] = file.cell(column[row] or value, row)
    is_read = all(isinstance(column[row], str) or texts[row] is None for row in changes)
    if not is_read or (known is not None and find_format(pandas.Series(column)) != known):
        row = next(iter(changes))
        raise InvalidInput(
            f"{path}: column {labels.name!r} holds amounts such as {texts[row]!r}, in whose form {changes[row]:.12g} "
            "would be read as something else. Write plain numbers into the column first, and make the list again."
        )
    return cells


def corrected_file(
    path: Path,
    labels: pandas.Series,
    samples: Samples,
    decisions: Mapping[int, float | None],
) -> bytes:
    """Return the content of a table's file with corrected labels and without the dropped rows, and otherwise as it is.

    Args:
        path: The file.
        labels: Its column of labels or targets.
        samples: The samples of the table.
        decisions: By sample, a regression target or a class; None to drop it.

    Raises:
        InvalidInput: The file has other rows than the table, or cannot hold a target.
    """
    file = open_for_edit(path, str(labels.name))
    if len(file.cells) != len(labels):
        raise InvalidInput(
            f"{path} has {len(file.cells)} rows as text, and {len(labels)} as a table. Save it as CSV (UTF-8)."
        )
    rows: list[int] = samples.original(torch.arange(len(samples))).tolist()
    old = samples.y.flatten().tolist()
    new = {
        rows[index]: decision
        for index, decision in decisions.items()
        if decision is not None and not are_equal(decision, old[index], samples)
    }
    if not new:
        cells = {}
    elif samples.kind == "regression":
        cells = _target_cells(path, file, labels, new)
    else:
        known = class_cells(samples, [file.cells[row] for row in rows], labels)
        cells = {row: known[int(code)] for row, code in new.items()}
    dropped = [rows[index] for index, decision in decisions.items() if decision is None]
    return file.edited(cells, dropped)
