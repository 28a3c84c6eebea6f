"""The page of all claims, from stored results alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gapscope.base.files import to_json
from gapscope_studies.kit.claims import NO_NETWORKS, Claim, claim, not_run
from gapscope_studies.kit.page import BEFORE_THE_GUARD
from gapscope_studies.kit.study import Part, Study
from gapscope_studies.kit.summary import rows_of, section, stored_claims

STUDY = Study(
    name="toy2000",
    title="A toy",
    reference="Nobody 2000.",
    parts=tuple(Part(name, f"Part {name}", lambda setting: None, f"{name} grows") for name in ("new", "old", "gone")),  # type: ignore[arg-type,return-value]
    untested=(not_run("Sec. 1", "it is beautiful", "no part"),),
)
VALUES = [1.0, 1.1, 0.9, 1.0, 1.2, 0.8]


def old_row(seeds: int = 8, outcome: str = "held") -> dict[str, Any]:
    return {"source": "Fig. 2", "the paper says": "BN is better", "quantity": "loss of BN minus WN + dropout",
            "ours": -1.0, "low": -1.2, "high": -0.8, "seeds": seeds, "outcome": outcome}  # fmt: skip


def methods(*accuracies: float) -> dict[str, Any]:
    return {
        name: {"train_accuracy": [value] * 3} for name, value in zip(("BN", "WN + dropout"), accuracies, strict=True)
    }


def write(results: Path, scale: str, part: str, **more: Any) -> None:
    folder = results / "toy2000" / scale
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_text(to_json({"scale": scale, "seeds": [0, 1], "numbers": {}, **more}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    row = claim("Fig. 1", "it grows", "slope", VALUES, above=0.0, compared=NO_NETWORKS).to_dict()
    stands = [{"what": "data", "paper": "CIFAR-10", "here": "digits"}, {"what": "seeds", "paper": "", "here": "6"}]
    write(tmp_path, "small", "new", claims=[row | {"outcome": "not held"}], stands_in_for=stands)
    write(tmp_path, "small", "old")
    write(tmp_path, "smoke", "gone", claims=[row])
    return tmp_path


def test_stored_claims_are_judged_anew_and_the_rest_says_why_not(results: Path) -> None:
    rows = rows_of(STUDY, results)
    assert [row.claim.judged for row in rows] == [
        ("held", ""), ("open", BEFORE_THE_GUARD), ("not run", "no result at small or paper scale"),
        ("not run", "no part"),
    ]  # fmt: skip
    assert rows[0].run == "small: digits; 6 seeds" and rows[1].run == "small, 2 seeds"
    assert rows[0].page == "toy2000/small/new.md" and rows[2].page == ""


def test_the_larger_scale_counts(results: Path) -> None:
    row = claim("Fig. 1", "it grows", "slope", [-value for value in VALUES], above=0.0, compared=NO_NETWORKS).to_dict()
    write(results, "paper", "new", claims=[row])
    assert rows_of(STUDY, results)[0].claim.outcome == "not held"


@pytest.mark.parametrize(
    ("row", "accuracies", "outcome", "reason"),
    [
        (old_row(), (0.95, 0.9), "held", "stored before the guard"),
        (old_row(5), (0.95, 0.9), "open", "5 independent seeds, fewer than 6"),
        (old_row(), (0.95, 0.109), "open", "did not learn: WN + dropout (training accuracy 0.11)"),
        (old_row(outcome="not held"), (0.95, 0.9), "not held", "stored before the guard"),
        (
            old_row(),
            (0.95, 0.5),
            "open",
            "did not learn alike: training accuracy 0.50 (WN + dropout) against 0.95 (BN)",
        ),
    ],
)
def test_older_claims_keep_their_verdict_only_if_the_guard_has_no_doubt(
    row: dict[str, Any], accuracies: tuple[float, float], outcome: str, reason: str
) -> None:
    [found] = stored_claims({"numbers": {"claims": [row], "methods": methods(*accuracies)}}) or []
    assert found.judged == (outcome, reason)


def test_the_section_has_counts_findings_and_a_row_a_claim(results: Path) -> None:
    text = section(STUDY, results)
    assert "Claims of the paper's 4: 1 held, 1 open, 2 not run." in text
    assert "- Fig. 1: it grows: held; slope 1 [0.852, 1.15], 6 seeds." in text
    assert "| Fig. 1 | it grows |  | small: digits; 6 seeds | 1 [0.852, 1.15] | 6 seeds | **held** |" in text
    assert text.count("\n| ") == 2 + 4 and "### Ours" not in text


def test_the_projects_own_results_give_a_page() -> None:
    from gapscope.cli.study import available, load_study

    results = Path(__file__).parents[2] / "results"
    for name in available():
        for outcome, sentence, _ in load_study(name).claims(results):
            assert outcome in sentence


def test_no_stored_network_at_chance_carries_a_verdict() -> None:
    results = Path(__file__).parents[2] / "results"
    judged = []
    for path in sorted(results.glob("*/*/*.json")):
        content = json.loads(path.read_text())
        judged += [c for c in stored_claims(content) or [] if isinstance(c, Claim) and c.compared]
    assert judged
    for found in judged:
        if min(c.train_accuracy - c.chance for c in found.compared) <= 0.05:
            assert found.outcome == "open"
