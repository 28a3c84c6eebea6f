"""`gapscope report --suspects`: the data that the records name, and a refusal where they name none."""

from __future__ import annotations

import pytest

from gapscope.base.errors import InvalidInput
from gapscope.base.specs import RunSpec
from gapscope.cli.report import _suspects
from gapscope.results.records import Record


def test_the_data_of_the_first_record_are_judged_as_they_are_trained_on() -> None:
    spec = RunSpec.from_dict({"data": {"name": "digits", "train_size": 150, "label_noise": 0.2}})
    shown = _suspects([Record(id="a", spec=spec.to_dict(), status="finished")], None)
    assert len(shown["suspects"].indices) == len(shown["images"]) == 150
    assert shown["suspects"].noise is not None and abs(shown["suspects"].noise.rate - 0.2) < 0.15


def test_networks_trained_elsewhere_name_no_data() -> None:
    with pytest.raises(InvalidInput, match="--suspects needs a pool whose networks gapscope trained"):
        _suspects([Record(id="a", spec={"width": 3}, status="finished")], None)
