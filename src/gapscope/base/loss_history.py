"""Training losses of a history, one row per epoch, from the forms in which libraries log them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gapscope.base.columns import is_number, library_of
from gapscope.base.errors import InvalidInput, describe_value, join_names
from gapscope.base.type_guards import is_list_or_tuple, is_mapping

LOSS_NAMES = ("train_loss", "loss", "train_loss_epoch", "training_loss")
"""Names of the training loss: ours, that of transformers and Keras, of Lightning, of the memorization monitor."""
SUMMARY = "train_runtime"
"""Key of the last row of a Trainer's log: its `train_loss` is a mean over the whole training."""
ADVICE = (
    "Pass the history of gapscope.train, trainer.state.log_history of transformers, or one mapping per epoch such as "
    "{'epoch': 1, 'train_loss': 0.7}."
)


def _is_missing(value: Any) -> bool:
    return value is None or (is_number(value) and math.isnan(float(value)))


def _rows(history: Any) -> list[Mapping[str, Any]]:
    """Return the rows of a sequence of mappings, a frame, or a mapping of columns."""
    if library_of(history) == "pandas" and hasattr(history, "columns"):
        # rows of several kinds have missing values in a frame
        return [
            {str(name): value for name, value in row.items() if not _is_missing(value)}
            for row in history.to_dict("records")
        ]
    if is_mapping(history):
        if not all(is_list_or_tuple(column) for column in history.values()):
            raise InvalidInput(
                f"history must hold one mapping per epoch; got one mapping with {join_names(history)}. {ADVICE}"
            )
        lengths = sorted({len(column) for column in history.values()})
        if len(lengths) > 1:
            raise InvalidInput(
                f"Columns of history must have one length; got {lengths[0]} to {lengths[-1]}. {ADVICE}"
            )
        columns = zip(*history.values(), strict=True)
        return [dict(zip(history, values, strict=True)) for values in columns]
    if hasattr(history, "history"):  # the result of a training
        return _rows(history.history)
    if not hasattr(history, "__iter__") or isinstance(history, str):
        raise InvalidInput(
            f"history must hold one mapping per epoch; got {describe_value(history)}. {ADVICE}"
        )
    rows = list(history)
    if all(map(is_number, rows)):
        return [{"train_loss": loss} for loss in rows]
    for row in rows:
        if not is_mapping(row):
            raise InvalidInput(
                f"history must hold one mapping per epoch with a number train_loss; got {row!r:.60}. {ADVICE}"
            )
    return rows


def _epoch(row: Mapping[str, Any]) -> float | None:
    """Return the epoch of a row; None without one. Of a fractional one, as transformers logs, the epoch it is in."""
    epoch: Any = row.get("epoch")
    if not is_number(epoch) or not math.isfinite(float(epoch)):
        return None
    return math.ceil(float(epoch) - 1e-6)


def _per_epoch(rows: Sequence[Mapping[str, float]]) -> list[dict[str, float]]:
    """Return the mean loss of each epoch, of rows in the order of their epochs."""
    losses: dict[float, list[float]] = {}
    for row in rows:
        losses.setdefault(row["epoch"], []).append(row["train_loss"])
    return [
        {"epoch": epoch, "train_loss": sum(values) / len(values)}
        for epoch, values in losses.items()
    ]


def loss_history(history: Any, *, needs_every_epoch: bool = False) -> tuple[dict[str, float], ...]:
    """Return `train_loss` per epoch, in the order of the epochs.

    Rows without a loss (such as those of an evaluation) are omitted, and several rows of one epoch become their mean.
    Rows are sorted by `epoch`, unless their epochs begin again, as in several runs in a row. Values stay that are not
    finite.

    Args:
        history: One mapping per epoch or per log entry, a frame of these, a mapping of columns, a list of the training
            losses of the epochs, or an object with one of these as `history`; None for none.
        needs_every_epoch: Whether an epoch without a loss is an error.

    Raises:
        InvalidInput: The history has another form, or holds no training loss.
    """
    if history is None:
        return ()
    rows = _rows(history)
    if not rows:
        return ()
    logged = [row for row in rows if SUMMARY not in row]
    name = next((name for name in LOSS_NAMES if any(name in row for row in logged)), None)
    if name is None:
        keys = dict.fromkeys(key for row in rows for key in row)
        raise InvalidInput(
            f"history must hold train_loss (or loss) for every epoch; got rows with {join_names(keys) or 'nothing'}. "
            f"{ADVICE}"
        )
    result: list[dict[str, float]] = []
    without: set[float | None] = set()
    for row in logged:
        loss: Any = row.get(name)
        epoch = _epoch(row)
        if loss is None:
            without.add(epoch)
            continue
        if not is_number(loss):
            raise InvalidInput(
                f"history must hold one mapping per epoch with a number {name}; got {loss!r:.60}. {ADVICE}"
            )
        item = {"train_loss": float(loss)}
        if epoch is not None:
            item["epoch"] = epoch
        result.append(item)
    missing = without - {row["epoch"] for row in result if "epoch" in row}
    if needs_every_epoch and missing:
        raise InvalidInput(
            f"history must hold {name} for every epoch; {len(missing)} have none. {ADVICE}"
        )
    return tuple(_in_order(result))


def _in_order(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    """Return rows in the order of their epochs, one per epoch, if their epochs tell it; else as they are."""
    if not all("epoch" in row for row in rows):
        return rows
    epochs = [row["epoch"] for row in rows]
    are_different = len(set(epochs)) == len(epochs)
    if are_different or sorted(epochs) in (epochs, epochs[::-1]):
        return _per_epoch(sorted(rows, key=lambda row: row["epoch"]))
    return rows
