"""The page about one training, and its section on suspected label errors."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from gapscope.base.errors import InvalidInput
from gapscope.labels.canary_ranking import rank_label_issues
from gapscope.labels.results import LabelIssues, LabelNoiseEstimate
from gapscope.report import write_training_report
from gapscope.report.label_issues import label_issues_section
from gapscope.report.pool_view import MAX_SCROLLED
from gapscope.training.recordings import Recordings

IMAGES = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def make_issues(rate: float = 0.25, clean: float = 0.9) -> LabelIssues:
    margins = torch.arange(200.0).flip(0)  # the last sample is the most suspicious one
    labels = torch.arange(200) % 4
    noise = LabelNoiseEstimate(rate, 0.2, 0.3, clean, 200)
    return rank_label_issues(
        torch.arange(200), labels, (labels + 1) % 4, margins, torch.full((20,), 9.5), noise
    )


def test_the_lowest_margins_come_first_and_are_bounded() -> None:
    section = label_issues_section(make_issues(), IMAGES, ["cat", "dog", "<b>", "owl"])
    assert (
        len(section["cards"]) == MAX_SCROLLED and section["of"] == 200 and section["flagged"] == 50
    )
    first = section["cards"][0]
    assert (first["sample"], first["given"], first["suggested"], first["flagged"]) == (
        199,
        "owl",
        "cat",
        True,
    )
    assert [card["flagged"] for card in section["cards"]] == [True] * MAX_SCROLLED
    assert section["expected"] == "100 %" and "25.0 % of 200 labels" in section["noise"]


def test_a_weak_network_gives_no_noise_estimate(tmp_path: Path) -> None:
    section = label_issues_section(make_issues(clean=0.3), IMAGES)
    assert "cannot be estimated" in section["noise"] and section["expected"] == ""


ROWS = [
    {
        "ntk_trace": 2.0 * k,
        "alarm.ordinary": 0.1 * k,
        "alarm.canaries": 0.02 * k,
        "alarm.raised": float(k >= 6),
    }
    for k in range(1, 9)
]


def test_the_page_of_a_training_marks_the_moment_of_the_alarm(tmp_path: Path) -> None:
    path = write_training_report(
        Recordings(range(1, 9), ROWS), tmp_path / "training.html", title="<One>", suspects=make_issues(), images=IMAGES,
        classes=["cat", "dog", "<script>alert(1)</script>", "owl"],
    )  # fmt: skip
    text = path.read_text()
    assert "The alarm was raised at epoch 6" in text and "&lt;One&gt;" in text
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text and len(text) < 1_500_000
    # epoch 6 of 8 in both figures: memorization against learning, and the trace
    assert re.findall(r'class="moment raised" x1="([^"]*)"', text) == ["75.00%", "75.00%"]
    assert "Memorization against learning" in text and text.count("<img") == MAX_SCROLLED


def test_without_an_alarm_and_without_suspects_there_is_still_a_page(tmp_path: Path) -> None:
    rows = [{"ntk_trace": float(k)} for k in range(3)]
    text = write_training_report(
        Recordings(range(1, 4), rows), tmp_path / "training.html"
    ).read_text()
    assert "moment" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    assert "Memorization" not in text and "ntk_<wbr>trace" in text
    with pytest.raises(InvalidInput, match="the monitor has none"):
        write_training_report(Recordings([], []), tmp_path / "none.html")
