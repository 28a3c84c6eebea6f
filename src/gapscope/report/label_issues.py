"""Section of the training report: suspected label errors, as pictures if they are images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gapscope.report.pool_view import MAX_SCROLLED
from gapscope.results.estimate import percent
from gapscope.results.result import data_uri

if TYPE_CHECKING:
    from gapscope.labels.results import LabelIssues


def label_issues_section(
    issues: LabelIssues, images: Any = None, classes: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the estimated noise as a sentence, and one card per sample, lowest margins first.

    `images` are the training samples by position; only shapes [h, w], [1, h, w] and [3, h, w] are shown as pictures.
    """

    def class_name(label: int) -> str:
        if classes is not None and 0 <= label < len(classes):
            return classes[label]
        return str(label)

    cards: list[dict[str, Any]] = []
    table: Any = issues.to_pandas().head(MAX_SCROLLED)
    for row in table.to_dict("records"):
        picture = "" if images is None else data_uri(images[int(row["sample"])])
        labels = {name: class_name(int(row[name])) for name in ("given", "suggested")}
        cards.append({**row, **labels, "picture": picture})
    noise = issues.noise
    expected = issues.expected_precision
    return {
        "cards": cards,
        "noise": issues.note if noise is None else f"{repr(noise)[0].upper()}{repr(noise)[1:]}.",
        "flagged": issues.n_flagged,
        "expected": "" if math.isnan(expected) else percent(expected),
        "of": len(issues.indices),
        "pictures": any(card["picture"] for card in cards),
    }
