"""The page of all claims, from stored results alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest

from gapscope.base.errors import InvalidInput
from gapscope.base.files import to_json
from gapscope.cli.study import available, load_study
from gapscope_studies.kit import overview
from gapscope_studies.kit.claims import OUTCOMES, ComparisonArm, claim, not_run
from gapscope_studies.kit.overview import section
from gapscope_studies.kit.page import BODY, MADE, light_svg, page_of, stored_content
from gapscope_studies.kit.study import Part, Study
from gapscope_studies.kit.summary import (
    SCALES,
    Finding,
    findings,
    lacks_training,
    rows_of,
    stored_claims,
)

NEVER_RUN: Any = None
STUDY = Study(
    name="toy2000",
    title="A toy",
    reference="Nobody 2000.",
    parts=tuple(
        Part(name, f"Part {name}", NEVER_RUN, f"{name} grows") for name in ("new", "old", "gone")
    ),
    untested=(not_run("Sec. 1", "it is beautiful", "no part"),),
)
VALUES = [1.0, 1.1, 0.9, 1.0, 1.2, 0.8]
matplotlib.use("Agg")
RESULTS = Path(__file__).parents[2] / "results"


def row_of(values: list[float]) -> dict[str, Any]:
    return claim(
        "Fig. 1", "it grows", "slope", values, above=0.0, compared=(), untrained="numbers"
    ).to_dict()


def write(results: Path, scale: str, part: str, **more: Any) -> None:
    folder = results / "toy2000" / scale
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_text(
        to_json({"scale": scale, "seeds": [0, 1], "numbers": {}, **more})
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    row = row_of(VALUES)
    stands = [
        {"what": "data", "paper": "CIFAR-10", "here": "digits"},
        {"what": "seeds", "paper": "", "here": "6"},
    ]
    write(tmp_path, "small", "new", claims=[row | {"outcome": "not held"}], stands_in_for=stands)
    write(tmp_path, "small", "old", claims=[])
    write(tmp_path, "smoke", "gone", claims=[row])
    return tmp_path


def test_stored_claims_are_evaluated_again_and_the_rest_names_why_not(results: Path) -> None:
    rows = rows_of(STUDY, results)
    assert [row.claim.verdict for row in rows] == [
        ("held", ""), ("not run", "no result at small or paper scale"), ("not run", "no part"),
    ]  # fmt: skip
    assert rows[0].run == "small: digits; 6 seeds"
    assert (rows[0].part, rows[0].page, rows[1].page) == ("new", "toy2000/small/new.md", "")


def test_the_larger_scale_counts(results: Path) -> None:
    write(results, "paper", "new", claims=[row_of([-value for value in VALUES])])
    assert rows_of(STUDY, results)[0].claim.outcome == "not held"


def test_the_section_has_counts_and_a_row_a_claim(results: Path) -> None:
    text = section(STUDY, results)
    assert "Claims of the paper's 3: 1 held, 2 not run." in text
    row = "| Fig. 1: it grows |  | slope: 1 [0.852, 1.15], 6 seeds | **held** | [small: digits; 6 seeds](toy2000/small/"
    decided, rest = text.split("<summary>Not decided: 2 claims")
    assert (
        row in decided
        and "| Sec. 1: it is beautiful |" in rest
        and rest.rstrip().endswith("</details>")
    )
    # what the paper used and what is used here
    assert "| new | data: CIFAR-10 | data: digits |" in rest


def test_findings_are_sentences_with_the_verdict_and_the_numbers(results: Path) -> None:
    growth = Finding(
        "new", "it gr", held="It grows by {value:.1f} [{low:.2f}, {high:.2f}] over {units} {unit}."
    )
    missing = Finding("gone", "it vanishes", held="-")
    study = replace(STUDY, findings=(growth, missing))
    assert findings(study, results) == [
        ("held", "It grows by 1.0 [0.85, 1.15] over 6 seeds. [Fig. 1](toy2000/small/new.md)", "")
    ]
    write(results, "small", "new", claims=[row_of(VALUES[:3])])
    assert findings(study, results) == [
        (
            "open",
            "Fig. 1: it grows: open (3 independent seeds, fewer than 6); slope 1 [0.752, 1.25], 3 seeds.",
            "",
        )
    ]
    with pytest.raises(InvalidInput, match="'it falls' names 0"):
        findings(replace(STUDY, findings=(Finding("new", "it falls"),)), results)


def test_a_second_claim_stands_in_the_sentence(results: Path) -> None:
    second = row_of([2.0, 2.0, 2.0]) | {"says": "it shrinks"}
    write(results, "small", "new", claims=[row_of(VALUES), second])
    growth = Finding(
        "new",
        "it grows",
        beside="it shrinks",
        held="{value:.0f} and {beside.value:.0f}, {beside.outcome}.",
    )
    assert findings(replace(STUDY, findings=(growth,)), results)[0][1].startswith("1 and 2, open.")


def test_an_open_claim_lacks_training_or_has_another_reason() -> None:
    arm = ComparisonArm(name="a", train_accuracy=0.1, chance=0.1, finished=True)
    doubts = [
        claim("", "", "", VALUES, above=0.0, compared=(replace(arm, train_accuracy=value),))
        for value in (0.1, 1)
    ]
    assert [lacks_training(each) for each in doubts] == [True, False]
    assert not lacks_training(
        claim("", "", "", VALUES[:3], above=0.0, compared=(replace(arm, train_accuracy=1.0),))
    )


@pytest.mark.thorough
def test_every_finding_of_the_studies_names_a_stored_claim() -> None:
    sentences = [finding for name in available() for finding in findings(load_study(name), RESULTS)]
    assert len(sentences) >= 10 and {outcome for outcome, *_ in sentences} <= set(OUTCOMES)


@pytest.mark.thorough
def test_every_stored_page_equals_its_json() -> None:
    """Made again they are the same: no verdict on a page is older than the guard."""
    for name in available():
        stems = [part.name for part in load_study(name).parts]
        for path in (RESULTS / name / scale / f"{stem}.md" for scale in SCALES for stem in stems):
            if path.exists():
                text = path.read_text()
                body = text.split(BODY)[1].split(MADE)[0]
                assert text == page_of(json.loads(path.with_suffix(".json").read_text()), body), (
                    path
                )


def test_no_stored_network_at_chance_carries_a_verdict() -> None:
    contents = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*/*/*.json"))]
    claims = [claim for content in contents for claim in stored_claims(content) if claim.compared]
    assert claims
    for result in claims:
        if any(
            c.train_accuracy is not None and c.train_accuracy - c.chance <= 0.05
            for c in result.compared
        ):
            assert result.outcome == "open"


def test_the_overview_opens_with_findings_by_outcome_and_counts_with_links(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    toy: Any = SimpleNamespace(name="toy", title="A Toy: two")
    sentences = [("open", "It may shrink.", ""), ("held", "It grows.", "")]
    monkeypatch.setattr(
        overview, "tally", lambda study, results, ours: [0] * 5 if ours else [1, 0, 2, 0, 0]
    )
    monkeypatch.setattr(overview, "count_lacking_training", lambda study, results, ours: 1)
    monkeypatch.setattr(overview, "findings", lambda study, results: sentences)
    assert overview._tally([toy], Path())[-2:] == [
        "| [toy](#a-toy-two) | 1 | 0 | 2 | 0 | 0 | 1 |",
        "",
    ]
    held, still_open = (
        ["## What holds", "", "- It grows. (toy)", ""],
        ["- It may shrink. (toy)", ""],
    )
    assert overview._findings([toy], Path()) == [*held, "## What is still open", "", *still_open]
    assert overview._findings([], Path()) == ["No findings yet.", ""]


def test_false_discoveries_are_adjusted_over_all_tested_claims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Benjamini-Hochberg of .03 among three p-values: .03 * 3 / 2."""
    monkeypatch.setattr(
        overview, "p_values", lambda claims: [(0.03, True), (0.5, False), (0.001, True)]
    )
    sentence = overview._discoveries([], Path())[0]
    assert sentence.startswith("2 decided claims") and "at most 4.5%; 0 of them" in sentence


MAX_BYTES = 5_000_000


def test_the_stored_results_of_studies_take_less_than_five_megabytes() -> None:
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
