"""Sizes of stored results, and light forms that hold the same numbers and figures."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from gapscope_studies.kit.page import light_svg, stored_content

matplotlib.use("Agg")
RESULTS = Path(__file__).parents[2] / "results"
MAX_BYTES = 4 * 2**20


def test_the_stored_results_of_studies_take_less_than_four_megabytes() -> None:
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES


def test_a_light_figure_is_valid_smaller_and_shows_its_words() -> None:
    from io import StringIO

    from matplotlib.figure import Figure

    figure = Figure()
    axis = figure.add_subplot()
    axis.plot(np.sin(np.linspace(0, 9, 2000)), label="loss of the students")
    axis.legend()
    text = StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        figure.savefig(text, format="svg")
    light = light_svg(text.getvalue())
    ElementTree.fromstring(light)
    assert len(light) < 0.6 * len(text.getvalue()) and "loss of the students" in light
    assert light_svg(light).count("<style>") == 1


@pytest.mark.parametrize(("scale", "stays"), [("smoke", True), ("small", False)])
def test_raw_rows_are_stored_at_smoke_scale_alone(scale: str, stays: bool) -> None:
    numbers = stored_content({"scale": scale, "numbers": {"runs": [1], "means": [2]}})["numbers"]
    assert ("runs" in numbers) is stays and numbers["means"] == [2]
