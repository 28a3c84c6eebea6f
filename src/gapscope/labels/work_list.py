"""HTML page to review suspected label errors."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gapscope.base.samples import Samples
from gapscope.base.targets import IGNORED
from gapscope.labels.conflicting_copies import Labels, Pairs
from gapscope.labels.label_cells import DROP, count_rows, drop_word, written_names
from gapscope.labels.sample_details import SampleDetails
from gapscope.results.estimate import percent
from gapscope.results.pages import render_page
from gapscope.results.result import data_uri

if TYPE_CHECKING:
    import pandas

    from gapscope.labels.results import LabelIssues

# what a page shows, by judgment
MIN_CARDS, MAX_CARDS, MAX_PAIRS = 24, 500, 50
# columns, tokens and characters on a card, and labels of a pair that differ
MAX_COLUMNS, MAX_TOKENS, MAX_TEXT, MAX_LABELS = 16, 24, 600, 3
# smallest side of the frame around a pixel, as a fraction of the larger side of the picture
FRAME = 0.16


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _window(n: int, size: int, centre: int | None) -> range:
    """Return the numbers of at most `size` of n values: the first, or those around one of them."""
    start = 0
    if centre is not None:
        start = max(0, min(centre - size // 2, n - size))
    return range(start, min(start + size, n))


def _frame(place: tuple[int, ...], grid: tuple[int, ...], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return the size of a drawing in pixels of the labels, and the frame around a position.

    Args:
        place: Place of the label; empty for no frame.
        grid: Shape of the labels of a sample.
        shape: Height and width of the picture, for labels of one axis, which are those of its rows or columns.
    """
    if len(grid) > 1:
        height, width = grid[-2:]
        row, column = place[-2:] if place else (0, 0)
        tall = 1
        wide = 1
    else:
        height, width = shape
        is_row = grid[:1] == (height,)
        row, column = (place[-1], 0) if is_row and place else (0, place[-1] if place else 0)
        tall, wide = (1, width) if is_row else (height, 1)
    least = FRAME * max(height, width)
    sides = max(tall, least), max(wide, least)
    return {
        "height": height,
        "width": width,
        "top": round(row + (tall - sides[0]) / 2, 2),
        "left": round(column + (wide - sides[1]) / 2, 2),
        "tall": round(sides[0], 2),
        "wide": round(sides[1], 2),
        "is_framed": bool(place),
    }


class _Contents:
    """Contents of the samples of a page."""

    def __init__(self, samples: Samples | None, details: SampleDetails) -> None:
        self.samples = samples
        self.details = details
        self.table = self._table()
        if self.table is None:
            columns = None
        else:
            columns = self.table.select_dtypes("number")
        self.means = None if columns is None else columns.mean()
        self.spreads = None if columns is None else columns.std()

    def _table(self) -> pandas.DataFrame | None:
        """Return the columns of a table, named as in the data or by number."""
        if self.details.table is not None:
            return self.details.table.reset_index(drop=True)
        samples = self.samples
        if samples is None or samples.inputs.ndim != 2 or not samples.inputs.is_floating_point():
            return None
        import pandas

        columns = [f"column {k}" for k in range(samples.inputs.shape[1])]
        if len(samples.columns) == len(columns):
            columns = list(samples.columns)
        rows = samples.original(range(len(samples))).tolist()
        return pandas.DataFrame(samples.inputs.detach().cpu().numpy(), columns=columns, index=rows)

    def _is_far(self, name: Any, value: Any) -> bool:
        if self.means is None or self.spreads is None or name not in self.means.index:
            return False
        if not isinstance(value, numbers.Number):  # the gap of a nullable column
            return False
        # three standard deviations from the mean of the column
        return bool(abs(value - self.means[name]) > 3.0 * self.spreads[name] > 0)

    def _columns(self, index: int, place: tuple[int, ...]) -> dict[str, Any]:
        """Return the columns of a row, those around the position of a label where each has one."""
        row = self.table.loc[index] if self.table is not None else {}
        cells = [*row.items()]
        here = place[-1] if place and self._grid() == (len(cells),) else None
        shown = _window(len(cells), MAX_COLUMNS, here)
        columns = [
            (str(cells[k][0]), _cell(cells[k][1]), self._is_far(*cells[k]), k == here)
            for k in shown
        ]
        return {"columns": columns, "more": len(cells) - len(shown)}

    def _grid(self) -> tuple[int, ...]:
        """Return the shape of the labels of the positions of a sample; empty for other tasks."""
        if self.samples is None or self.samples.kind != "positions":
            return ()
        return tuple(self.samples.y.shape[1:])

    def _pictures(self, x: Tensor, position: int, place: tuple[int, ...]) -> dict[str, Any]:
        """Return a picture, and for a mask the picture of its labels, with the place of the label in both."""
        picture = data_uri(x) if x.is_floating_point() else ""
        grid = self._grid()
        if not picture or not grid or self.samples is None:
            return {"picture": picture}
        frame = _frame(place, grid, tuple(x.shape[-2:]))
        pictures = [("sample", picture)]
        if len(grid) > 1:
            labels = self.samples.y[position].detach().cpu()
            if labels.numel() == grid[-2] * grid[-1]:
                labels = labels.reshape(grid[-2:])
            else:
                labels = labels
            values = labels.double().masked_fill(labels == IGNORED, math.nan)
            pictures.append(("labels of sample", data_uri(values)))
        return {"picture": "", "drawings": [pair for pair in pictures if pair[1]], "frame": frame}

    def of(self, index: int, place: tuple[int, ...] = ()) -> dict[str, Any]:
        """Return picture, columns, tokens and name of a sample (empty where there is none).

        Args:
            index: Row number of the sample.
            place: Place of a label within the sample, which is marked; empty for none.
        """
        content: dict[str, Any] = {
            "sample": index,
            "picture": "",
            "drawings": [],
            "columns": [],
            "tokens": [],
        }
        content["name"] = self.details.name(index)[:MAX_TEXT]
        if self.table is not None:
            return content | self._columns(index, place)
        if self.samples is None:
            return content
        position = self.samples.position(index)
        x = self.samples.subset(torch.tensor([position])).parts[0][0]
        content |= self._pictures(x, position, place)
        if not content["picture"] and not content["drawings"]:
            values = x.flatten()
            if place and self._grid() == (len(values),):
                here = place[-1]
            else:
                here = None
            shown = _window(len(values), MAX_TOKENS, here)
            content["tokens"] = [(_cell(values[k].item()), k == here) for k in shown]
            content["begins"], content["ends"] = shown.start == 0, shown.stop == len(values)
        return content


def _chance(probability: float) -> str:
    if math.isnan(probability):
        return ""
    return percent(probability)


class _Pairs:
    """Cards of pairs of copies with different labels, with fields for their labels."""

    def __init__(self, issues: LabelIssues, contents: _Contents, rows: list[Any]) -> None:
        self.issues = issues
        self.contents = contents
        self.rows = {(int(row["sample"]), str(row.get(issues.place_name, ""))): row for row in rows}

    def _card(
        self, contents: _Contents, labels: Labels, row: int, places: list[tuple[int, ...]]
    ) -> dict[str, Any]:
        """Return the contents of a sample, and its label at each place."""
        is_test = contents is not self.contents
        samples: Any = contents.samples
        targets = samples.y[samples.position(row)].detach().cpu()
        shown: list[dict[str, Any]] = []
        for place in places[:MAX_LABELS]:
            name = labels.place_name(place) if place else ""
            ranked = None if is_test else self.rows.get((row, name))
            given = labels.named(targets[place] if place else targets)
            suggested = ""
            if ranked is not None:
                given = str(ranked["given"])
                suggested = str(ranked["suggested"])
            shown.append({"place": name, "given": given, "suggested": suggested})
        card = contents.of(row, places[0] if places else ())
        return card | {"labels": shown, "is_test": is_test, "n_more": len(places) - len(shown)}

    def of(self, pairs: Pairs, second: _Contents) -> list[Any]:
        """Return two cards per pair.

        Args:
            pairs: Row numbers of the samples, and of those of the second contents.
            second: Contents of the second samples of the pairs.
        """
        first_samples = self.contents.samples
        second_samples = second.samples
        if first_samples is None or second_samples is None:
            return []
        labels = Labels(first_samples, second_samples)
        cards: list[Any] = []
        for i, j in pairs:
            places = labels.places(first_samples.position(i), second_samples.position(j))
            cards.append(
                (
                    self._card(self.contents, labels, i, places),
                    self._card(second, labels, j, places),
                )
            )
        return cards


def _place_of(issues: LabelIssues, rank: int) -> tuple[int, ...]:
    """Return the place of a ranked label within its sample; empty for one label per sample."""
    if issues.kind != "positions" or not len(issues.places):
        return ()
    return tuple(issues.places[rank].tolist())


def render(issues: LabelIssues, n: int | None = None) -> str:
    """Return a page with sentences, pairs of duplicates, and a card per sample with a field for the label.

    Args:
        issues: Ranking with its samples.
        n: Number of cards; None for the flagged samples, at least 24. At most 500.
    """
    n = min(n or max(issues.n_flagged, MIN_CARDS), MAX_CARDS, len(issues.indices))
    contents = _Contents(issues.samples, issues.details)
    table: Any = issues.to_pandas()
    rows = table.to_dict("records")

    def card(rank: int, row: Any) -> dict[str, Any]:
        chances = {name: _chance(row[name]) for name in ("probability", "error_probability")}
        labels = {name: str(row[name]) for name in ("given", "suggested")}
        place = {"place_name": issues.place_name, "place": row.get(issues.place_name, "")}
        return (
            contents.of(int(row["sample"]), _place_of(issues, rank))
            | labels
            | chances
            | place
            | {"flagged": bool(row["flagged"])}
        )

    class_names = () if issues.samples is None else issues.samples.class_names
    pairs = _Pairs(issues, contents, rows)
    in_test: list[Any] = []
    if issues.test is not None:
        second = _Contents(issues.test, issues.test_details)
        in_test = pairs.of(issues.test_conflicts[:MAX_PAIRS], second)
    return render_page(
        "label_issues.html",
        title="Label issues",
        sentences=issues.sentences,
        cards=[card(rank, row) for rank, row in enumerate(rows[:n])],
        groups=[
            (
                "Duplicates with different labels",
                pairs.of(issues.conflicts[:MAX_PAIRS], contents),
                len(issues.conflicts),
            ),
            (
                "Test samples that repeat a training sample with another label",
                in_test,
                len(issues.test_conflicts),
            ),
        ],
        kind=issues.kind,
        place_name=issues.place_name,
        n_samples=len(issues.indices),
        n_rows=count_rows(issues.samples),
        classes=("0", "1") if issues.kind == "multi-label" else written_names(class_names),
        drop=drop_word(class_names),
        is_drop_renamed=drop_word(class_names) != DROP,
    )
