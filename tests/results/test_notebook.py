"""Results in notebooks show their sentences, their table and a plot; long tables are cut."""

from __future__ import annotations

import pandas
import torch

import gapscope as gs
from gapscope.results.result import MAX_ROWS, picture, to_html


class _Plain:
    def to_pandas(self) -> pandas.DataFrame:
        return pandas.DataFrame({"a": range(MAX_ROWS + 3)})


def test_sentences_are_escaped_and_long_tables_cut() -> None:
    page = to_html(_Plain(), ["x < y"])
    assert "<p>x &lt; y</p>" in page and "3 more rows" in page
    assert page.count("<tr") == 1 + MAX_ROWS
    assert picture(_Plain()) == ""


def test_a_forecast_shows_all_three() -> None:
    x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
    forecast = gs.forecast_accuracy(None, (x, (x[:, 0] > 0).long()))
    page = forecast._repr_html_()
    assert forecast.headline in page and "<table" in page and "data:image/png;base64," in page


def test_a_monitor_without_recordings_has_no_plot() -> None:
    monitor = gs.Monitor((torch.eye(4), torch.arange(4) % 2), ["loss"])
    assert "<img" not in monitor._repr_html_()
    monitor.observe(torch.nn.Linear(4, 2), 1)
    assert "<img" in monitor._repr_html_()
