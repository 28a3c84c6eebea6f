"""Results in notebooks: their sentences, their table and a small plot, as HTML."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable
from typing import Any, cast

from gapscope.base.errors import GapscopeError

MAX_ROWS = 20


def picture(result: Any) -> str:
    """Return a result's plot as an inline image (empty without a plot)."""
    draw = getattr(result, "plot", None)
    if draw is None:
        return ""
    import matplotlib.pyplot as plt

    try:
        axes = draw()
    except GapscopeError:
        return ""
    figure = cast(Any, axes[0] if isinstance(axes, list) else axes).figure
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=60)
    plt.close(figure)  # notebooks would show an open figure a second time
    return f'<img alt="plot" src="data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}">'


def to_html(result: Any, sentences: Iterable[str], table: Any = None, *, index: bool = True) -> str:
    """Return paragraphs, table (default `result.to_pandas()`) and plot of a result."""
    table = result.to_pandas() if table is None else table
    lines = "".join(f"<p>{html.escape(line)}</p>" for line in sentences)
    rows = table.head(MAX_ROWS).to_html(float_format="{:.4g}".format, index=index)
    more = f"<p>{len(table) - MAX_ROWS} more rows: to_pandas()</p>" if len(table) > MAX_ROWS else ""
    return f"<div>{lines}{rows}{more}{picture(result)}</div>"
