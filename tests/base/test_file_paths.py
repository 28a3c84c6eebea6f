"""Paths of files are no texts, in any form of data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.file_paths import are_file_paths
from gapscope.data.frames import encode_frame

N = 60
LABELS = ["rose", "lily"] * (N // 2)
PATHS = [f"data/{name}/image {k}.jpg" for k, name in enumerate(LABELS)]


@pytest.mark.parametrize(
    "data",
    [
        (pandas.DataFrame({"path": PATHS}), LABELS),
        (pandas.DataFrame({"path": map(Path, PATHS)}), LABELS),
        (pandas.DataFrame({"path": PATHS, "id": range(N)}), LABELS),
        (PATHS, LABELS),
        (numpy.array(PATHS), numpy.array(LABELS)),
        {"path": PATHS, "label": LABELS},
        [{"path": path, "label": label} for path, label in zip(PATHS, LABELS, strict=True)],
    ],
)
def test_paths_are_refused_in_every_form(data: Any) -> None:
    for function in (gs.forecast_accuracy, gs.find_label_issues, gs.estimate_label_noise, gs.check):
        with pytest.raises(InvalidInput, match="paths of files"):
            function(None, data)
    with pytest.raises(InvalidInput, match="paths of files"):
        gs.out_of_sample(None, data)


def test_paths_beside_features_are_dropped() -> None:
    frame = pandas.DataFrame({"path": PATHS, "x": numpy.arange(N) ** 2})
    encoded, notes = encode_frame(frame)
    assert list(encoded) == ["x"] and "path: dropped" in notes[0]
    texts = [f"text {k} of {k + 1}" for k in range(N)]
    result = gs.out_of_sample(None, {"path": PATHS, "text": texts, "label": LABELS})
    alone = gs.out_of_sample(None, {"text": texts, "label": LABELS})
    assert result.score == alone.score and any("path" in note for note in result.notes)


def test_what_is_a_path() -> None:
    assert are_file_paths(["a.png", "http://host/b.JPG?size=2", None, "C:\\x\\y.nii.gz"])
    assert not are_file_paths(["see photo.jpg, it is good", "a text"])
    assert not are_file_paths([1.5, None]) and not are_file_paths(["e.g.", "U.S."])
