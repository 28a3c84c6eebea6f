"""HTML page to review suspected label errors."""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any

from gapscope.labels.corrections import DROP, drop_word, written_names
from gapscope.results.estimate import percent
from gapscope.results.pages import render_page
from gapscope.results.result import data_uri

if TYPE_CHECKING:
    import pandas

    from gapscope.labels.results import LabelIssues

# what a page shows, by judgment
MIN_CARDS, MAX_CARDS = 24, 500
# columns, tokens and characters on a card
MAX_COLUMNS, MAX_TOKENS, MAX_TEXT = 16, 24, 600


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


class _Contents:
    """Contents of the samples of a page."""

    def __init__(self, issues: LabelIssues) -> None:
        self.samples = issues.samples
        self.details = issues.details
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
        rows = samples.original(range(len(samples))).tolist()
        return pandas.DataFrame(samples.inputs.detach().cpu().numpy(), columns=columns, index=rows)

    def _is_far(self, name: Any, value: Any) -> bool:
        if self.means is None or self.spreads is None or name not in self.means.index:
            return False
        if not isinstance(value, numbers.Number):  # the gap of a nullable column
            return False
        # three standard deviations from the mean of the column
        return bool(abs(value - self.means[name]) > 3.0 * self.spreads[name] > 0)

    def of(self, index: int) -> dict[str, Any]:
        """Return picture, columns, tokens and name of a sample (empty where there is none)."""
        content: dict[str, Any] = {
            "sample": index,
            "picture": "",
            "columns": [],
            "more": 0,
            "text": "",
        }
        content["name"] = self.details.name(index)
        if self.table is not None:
            row = self.table.loc[index]
            shown = [*row.items()][:MAX_COLUMNS]
            content["columns"] = [
                (str(name), _cell(value), self._is_far(name, value)) for name, value in shown
            ]
            content["more"] = len(row) - len(shown)
        elif self.samples is not None:
            x = self.samples.inputs[self.samples.position(index)]
            content["picture"] = data_uri(x) if x.is_floating_point() else ""
            if not content["picture"]:
                content["text"] = ", ".join(map(_cell, x.flatten()[:MAX_TOKENS].tolist()))
        content["name"] = content["name"][:MAX_TEXT]
        return content


def _chance(probability: float) -> str:
    if math.isnan(probability):
        return ""
    return percent(probability)


def render(issues: LabelIssues, n: int | None = None) -> str:
    """Return a page with sentences, pairs of duplicates, and a card per sample with a field for the label.

    Args:
        issues: Ranking with its samples.
        n: Number of cards; None for the flagged samples, at least 24. At most 500.
    """
    n = min(n or max(issues.n_flagged, MIN_CARDS), MAX_CARDS, len(issues.indices))
    contents = _Contents(issues)
    table: Any = issues.to_pandas()
    rows = table.to_dict("records")
    by_sample = {int(row["sample"]): row for row in rows}

    def card(row: Any) -> dict[str, Any]:
        chances = {name: _chance(row[name]) for name in ("probability", "error_probability")}
        labels = {name: str(row[name]) for name in ("given", "suggested")}
        place = {"place_name": issues.place_name, "place": row.get(issues.place_name, "")}
        return (
            contents.of(int(row["sample"]))
            | labels
            | chances
            | place
            | {"flagged": bool(row["flagged"])}
        )

    if issues.samples is None:
        pairs = ()
        class_names = ()
    else:
        pairs = issues.conflicts[:50]  # what a page shows, by judgment
        class_names = issues.samples.class_names
    return render_page(
        "label_issues.html",
        title="Label issues",
        sentences=issues.sentences,
        cards=[card(row) for row in rows[:n]],
        pairs=[
            (card(by_sample[i]), card(by_sample[j]))
            for i, j in pairs
            if i in by_sample and j in by_sample
        ],
        place_name=issues.place_name,
        n_pairs=len(issues.conflicts),
        n_samples=len(issues.indices),
        classes=written_names(class_names),
        drop=drop_word(class_names),
        is_drop_renamed=drop_word(class_names) != DROP,
    )
