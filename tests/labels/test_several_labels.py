"""Errors in several labels per sample, and in labels of tokens and pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.labels.error_model import independent_labels
from gapscope.labels.results import LabelIssues

N, T = 150, 10


@pytest.fixture
def several() -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, three labels of which 5 % are flipped, and where."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 6, generator=generator)
    y = x @ torch.randn(6, 3, generator=generator) > 0
    wrong = torch.rand(N, 3, generator=generator) < 0.05
    return x, y ^ wrong, wrong


@pytest.fixture
def tags() -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, their labels of which 5 % are wrong, and where."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 30, (N, T), generator=generator)
    y = x % 4
    wrong = torch.rand(N, T, generator=generator) < 0.05
    y = torch.where(wrong, (y + 1) % 4, y)
    y[:, -1] = -100
    wrong[:, -1] = False
    return x, y, wrong


def auroc(issues: LabelIssues, wrong: Tensor) -> float:
    truth = wrong[(issues.indices, *issues.places.unbind(1))]
    return float(roc_auc_score(truth.numpy(), -torch.arange(len(truth)).numpy()))


def test_flipped_labels_come_first(several: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, wrong = several
    issues = gs.find_label_issues(None, (x, y))
    assert issues.kind == "multi-label" and len(issues.indices) == 3 * N
    assert auroc(issues, wrong) > 0.97
    assert torch.equal(issues.given_labels, y[issues.indices, issues.places[:, 0]].long())
    flagged = wrong[issues.indices, issues.places[:, 0]][: issues.n_flagged]
    assert issues.n_flagged > 5 and float(flagged.double().mean()) > 0.8


@pytest.mark.parametrize("source", ["tokens", "network", "features", "probabilities"])
def test_wrong_tags_come_first(tags: tuple[Tensor, Tensor, Tensor], source: str) -> None:
    x, y, wrong = tags
    torch.manual_seed(0)
    embedding = nn.Embedding(30, 16)
    network = nn.Sequential(embedding, nn.Linear(16, 4))
    clean = nn.functional.one_hot(x % 4, 4).double() * 0.9 + 0.025
    issues = {
        "tokens": lambda: gs.find_label_issues(None, (x, y)),
        "network": lambda: gs.find_label_issues(network, (x, y)),
        "features": lambda: gs.find_label_issues(features=embedding(x).detach(), labels=y),
        "probabilities": lambda: gs.find_label_issues(labels=y, pred_probs=clean.movedim(-1, 1)),
    }[source]()
    assert issues.kind == "positions" and len(issues.indices) == N * (T - 1)
    assert auroc(issues, wrong) > 0.95
    table = issues.to_pandas()
    assert list(table.columns[:3]) == ["sample", "position", "given"]


def test_gaps_between_the_numbers_of_tags_change_nothing(
    tags: tuple[Tensor, Tensor, Tensor],
) -> None:
    x, y, _ = tags
    gaps = torch.where(y < 0, y, 5 * y)
    probabilities = nn.functional.one_hot(x % 4, 4) * 0.6 + 0.1
    wide = torch.zeros(N, T, 16)
    wide[..., ::5] = probabilities
    for given, given_wide in ((None, None), (probabilities, wide)):
        first = gs.find_label_issues(None, (x, y), pred_probs=given)
        second = gs.find_label_issues(None, (x, gaps), pred_probs=given_wide)
        assert torch.equal(5 * first.given_labels, second.given_labels)
        assert torch.equal(5 * first.suggested_labels, second.suggested_labels)
        torch.testing.assert_close(first.error_probability, second.error_probability)
        assert first.n_flagged == second.n_flagged
        assert first.noise is not None and first.noise == second.noise


def test_samples_are_ranked_by_their_worst_labels(tags: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, wrong = tags
    issues = gs.find_label_issues(None, (x, y))
    ranked = issues.rank_samples()
    assert ranked["sample"].is_unique and len(ranked) == N and (ranked["labels"] == T - 1).all()
    # one doubtful label stands behind two
    odds = {
        sample: sorted(issues.log_odds[issues.indices == sample].tolist())[-2:]
        for sample in range(N)
    }
    assert ranked["sample"].tolist() == sorted(range(N), key=lambda sample: -sum(odds[sample]))
    first = ranked["sample"].head(20).tolist()
    assert float(wrong.any(1)[first].double().mean()) > 0.9


def test_corrections_reach_their_place(tmp_path: Path, tags: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, _ = tags
    path = tmp_path / "list.csv"
    path.write_text('sample,position,label\n3,0,2\n4,"1",drop\n5,2,\n')
    corrected = gs.apply_label_corrections((x, y), path).y
    assert corrected[3, 0] == 2 and corrected[4, 1] == -100
    corrected[3, 0], corrected[4, 1] = y[3, 0], y[4, 1]
    assert torch.equal(corrected, y)


def test_corrections_of_several_labels(
    tmp_path: Path, several: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, y, _ = several
    path = tmp_path / "list.csv"
    issues = gs.find_label_issues(None, (x, y))
    issues.to_csv(path)
    assert torch.equal(gs.apply_label_corrections((x, y), path).y, y)
    path.write_text(f"sample,output,label\n7,1,{1 - int(y[7, 1])}\n")
    assert torch.nonzero(gs.apply_label_corrections((x, y), path).y != y).tolist() == [[7, 1]]
    path.write_text("sample,output,label\n7,1,drop\n")
    with pytest.raises(InvalidInput, match="cannot be dropped"):
        gs.apply_label_corrections((x, y), path)


@pytest.mark.parametrize(("place", "label"), [("9, 9", "1"), ("99", "1"), ("x", "1"), ("0", "7")])
def test_places_and_labels_outside_are_named(
    tmp_path: Path, tags: tuple[Tensor, Tensor, Tensor], place: str, label: str
) -> None:
    path = tmp_path / "list.csv"
    path.write_text(f'sample,position,label\n3,"{place}",{label}\n')
    with pytest.raises(InvalidInput, match="line 2"):
        gs.apply_label_corrections(tags[:2], path)


def test_the_page_names_sample_and_position(
    tmp_path: Path, tags: tuple[Tensor, Tensor, Tensor]
) -> None:
    gs.find_label_issues(None, tags[:2]).write_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert (
        "'sample,position,given,label,n_rows\\n'" in page
        and 'data-place="' in page
        and ", position " in page
    )


def test_the_rate_holds_the_planted_one(
    several: tuple[Tensor, Tensor, Tensor], tags: tuple[Tensor, Tensor, Tensor]
) -> None:
    for x, y, wrong in (several, tags):
        noise = gs.estimate_label_noise(None, (x, y))
        assert noise == gs.find_label_issues(None, (x, y)).noise
        known = wrong[:, :-1] if wrong is tags[2] else wrong  # the last token has no label
        assert (
            noise.low <= float(known.double().mean()) <= noise.high < 0.3
            and noise.samples == known.numel()
        )


def test_clustered_errors_widen_the_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(4000) // 40
    single = torch.rand(4000, generator=generator) < 0.1
    clustered = (torch.rand(100, generator=generator) < 0.1)[groups]
    assert independent_labels(single, groups) > 2000
    assert 60 < independent_labels(clustered, groups) < 160
    # without a difference between the groups nothing is known of how they differ
    is_right = torch.zeros(80, dtype=torch.bool)
    assert independent_labels(is_right, groups[:80]) == len(groups[:80].unique())


@pytest.mark.parametrize("shape", [(N, 4), (N, 3, 2)])
def test_probabilities_of_another_shape_are_refused(
    several: tuple[Tensor, Tensor, Tensor], shape: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidInput, match=r"\[150, 3\] is needed"):
        gs.find_label_issues(None, several[:2], pred_probs=torch.full(shape, 0.5))


def test_probabilities_fitted_to_several_labels_give_no_rate(
    several: tuple[Tensor, Tensor, Tensor],
) -> None:
    x, y, wrong = several
    fitted = y * 0.96 + 0.02
    with pytest.raises(NotMeasurable, match="look fitted"):
        gs.estimate_label_noise(None, (x, y), pred_probs=fitted)
    issues = gs.find_label_issues(None, (x, y), pred_probs=fitted)
    assert issues.method != "pred_probs" and auroc(issues, wrong) > 0.9
    with pytest.raises(NotMeasurable, match=r"agree with 100\.0 %"):
        gs.estimate_label_noise(labels=y, pred_probs=fitted)
    for held_out in ((y ^ wrong) * 0.8 + 0.1, gs.out_of_sample(None, (x, y))):
        assert gs.find_label_issues(None, (x, y), pred_probs=held_out).method == "pred_probs"


def test_probabilities_fitted_to_positions_give_no_rate(
    tags: tuple[Tensor, Tensor, Tensor],
) -> None:
    x, y, wrong = tags
    fitted = nn.functional.one_hot(y.clamp_min(0), 4) * 0.9 + 0.025
    with pytest.raises(NotMeasurable, match="look fitted"):
        gs.estimate_label_noise(None, (x, y), pred_probs=fitted)
    assert auroc(gs.find_label_issues(None, (x, y), pred_probs=fitted), wrong) > 0.9
    with pytest.raises(NotMeasurable, match=r"agree with 100\.0 %"):
        gs.estimate_label_noise(labels=y, pred_probs=fitted)
    truth = nn.functional.one_hot(x % 4, 4) * 0.9 + 0.025
    assert gs.find_label_issues(None, (x, y), pred_probs=truth).noise is not None


def test_held_out_predictions_of_positions_are_accepted(
    tags: tuple[Tensor, Tensor, Tensor],
) -> None:
    x, y, wrong = tags
    held_out = gs.out_of_sample(None, (x, y))
    issues = gs.find_label_issues(None, (x, y), pred_probs=held_out)
    assert issues.method == "pred_probs" and auroc(issues, wrong) > 0.95
    alone = gs.find_label_issues(labels=y, pred_probs=held_out)
    assert torch.equal(alone.indices, issues.indices)
    other = y.clone()
    other[3, -1] = 0
    with pytest.raises(InvalidInput, match=r"\[9\] of sample 3"):
        gs.find_label_issues(None, (x, other), pred_probs=held_out)


@pytest.mark.thorough
def test_positions_are_predicted_without_their_group() -> None:
    """Slices of one patient confirm an error that they share."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 6, 10, generator=generator)
    y = (x @ torch.randn(10, 3, generator=generator)).argmax(-1)
    noise = torch.randint(0, 3, (30, 6), generator=generator)
    y = torch.where(torch.rand(30, 6, generator=generator) < 0.4, noise, y)
    x, y = x.repeat(4, 1, 1), y.repeat(4, 1)
    groups = torch.arange(30).repeat(4)
    data = gs.Samples(x, y, task="positions")
    copied, apart = gs.out_of_sample(None, data), gs.out_of_sample(None, data, groups=groups)
    assert copied.score > apart.score + 0.1 and apart.groups == 30 and apart.samples == 120
    assert "leave-one-group-out" in apart.method
    assert apart.high - apart.low > 1.3 * (copied.high - copied.low)
    forecast = gs.forecast_accuracy(None, data, groups=groups)
    assert forecast.groups == 30 and forecast.score == pytest.approx(apart.score)
    issues = gs.find_label_issues(None, data, groups=groups)
    assert issues.groups == 30 and "leave-one-group-out, 30 groups" in str(issues)
    assert len(issues.indices) == y.numel()


def test_arrays_per_label_are_those_of_the_class_1(several: tuple[Tensor, Tensor, Tensor]) -> None:
    """Estimators of scikit-learn return one array [n, 2] per label."""
    x, y, wrong = several
    chances = (y ^ wrong) * 0.8 + 0.1
    arrays = [torch.stack([1 - p, p], 1).numpy() for p in chances.T]
    options: list[dict[str, Any]] = [{"data": (x, y)}, {"labels": y}]
    for data in options:
        expected = gs.find_label_issues(**data, pred_probs=chances)
        assert torch.equal(
            gs.find_label_issues(**data, pred_probs=arrays).indices, expected.indices
        )


def test_a_rare_label_is_named_not_checked(several: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, _ = several
    y = y.clone()
    y[:, 1] = torch.arange(N) < 2
    issues = gs.find_label_issues(None, (x, y))
    assert set(issues.places[:, 0].tolist()) == {0, 2} and "1 label is not checked" in " ".join(
        issues.notes
    )


def test_positions_of_one_class_are_refused_with_probabilities_too(
    tags: tuple[Tensor, Tensor, Tensor],
) -> None:
    x, y, _ = tags
    one = torch.where(y == -100, y, torch.zeros_like(y))
    for pred_probs in (None, torch.full((N, T, 4), 0.25)):
        with pytest.raises(InvalidInput, match="two classes or more"):
            gs.find_label_issues(None, (x, one), pred_probs=pred_probs)


def test_labels_of_a_frame_have_the_names_of_its_columns(
    tmp_path: Path, several: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, y, _ = several
    names = ["even", "2", "a, b"]
    frame = pandas.DataFrame(x.numpy())
    data: Any = (frame, pandas.DataFrame(y.int().numpy(), columns=names))
    issues = gs.find_label_issues(None, data)
    table = issues.to_pandas()
    assert table["output"].tolist() == [names[k] for k in issues.places[:, 0].tolist()]
    assert "even" in repr(issues)
    path, page = tmp_path / "list.csv", tmp_path / "page.html"
    issues.write_html(page)
    assert "output even" in page.read_text()
    row = table.iloc[0]
    k = names.index(row["output"])
    issues.to_csv(path)
    reviewed = pandas.read_csv(path).astype({"label": object})
    reviewed.loc[0, "label"] = str(row["suggested"])
    reviewed.to_csv(path, index=False)
    changed = gs.apply_label_corrections(data, path).y != y
    assert torch.nonzero(changed).tolist() == [[int(row["sample"]), k]]
    for cell, index in (("even ", 0), ("0", 0), ("2", 1), ('"a, b"', 2), ("1", 1)):
        path.write_text(f"sample,output,label\n7,{cell},{1 - int(y[7, index])}\n")
        changed = gs.apply_label_corrections(data, path).y != y
        assert torch.nonzero(changed).tolist() == [[7, index]]
    path.write_text("sample,output,label\n7,odd,1\n")
    with pytest.raises(
        InvalidInput, match=r"got the place 'odd'; .* or one of 'even', '2', 'a, b'"
    ):
        gs.apply_label_corrections(data, path)


def test_columns_that_are_numbered_stay_numbers(several: tuple[Tensor, Tensor, Tensor]) -> None:
    x, y, _ = several
    issues = gs.find_label_issues(None, (x, pandas.DataFrame(y.int().numpy())))
    assert issues.to_pandas()["output"].tolist() == issues.places[:, 0].tolist()


GRID = 6
MASK_FORMS = {
    "n1hw": lambda mask: mask[:, None],
    "nhw1": lambda mask: mask[..., None],
    "one-hot": lambda mask: torch.nn.functional.one_hot(mask).movedim(-1, 1),
}


@pytest.mark.thorough
@pytest.mark.parametrize("form", MASK_FORMS)
@pytest.mark.parametrize("has_network", [False, True])
def test_masks_with_another_axis_are_those_without(
    tmp_path: Path, form: str, has_network: bool
) -> None:
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(60, GRID, GRID, generator=generator) < 0.5).long()
    x = mask[:, None] + 0.3 * torch.randn(60, 1, GRID, GRID, generator=generator)
    mask[3, 1, 4] = 1 - mask[3, 1, 4]
    network = nn.Conv2d(1, 2, 3, padding=1) if has_network else None
    with_axis = MASK_FORMS[form](mask)
    first, second = (gs.find_label_issues(network, (x, y)) for y in (mask, with_axis))
    assert torch.equal(first.places, second.places) and torch.equal(first.indices, second.indices)
    assert int(second.places.min()) == 0 and int(second.places.max()) == GRID - 1
    if form == "one-hot":
        return
    path = tmp_path / "list.csv"
    path.write_text(f'sample,position,label\n3,"1, 4",{1 - int(mask[3, 1, 4])}\n')
    changed = gs.apply_label_corrections((x, with_axis), path).y != with_axis
    assert torch.nonzero(changed.reshape(mask.shape)).tolist() == [[3, 1, 4]]


def test_masks_with_another_axis_have_the_same_forecast() -> None:
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(60, GRID, GRID, generator=generator) < 0.5).long()
    x = mask[:, None] + 0.5 * torch.randn(60, 1, GRID, GRID, generator=generator)
    first, second = (gs.forecast_accuracy(None, (x, y)).score for y in (mask, mask[:, None]))
    assert first == second


@pytest.mark.parametrize("place", ["5, 3", "5,3", "(5, 3)", "[5,3]", "5;3", "5.0, 3.0", "5 3"])
def test_places_as_people_write_them(tmp_path: Path, place: str) -> None:
    x, y = torch.rand(4, 1, 8, 8), torch.randint(0, 3, (4, 8, 8))
    y[0, 0, :3] = torch.arange(3)
    y[1, 5, 3] = 0
    (tmp_path / "list.csv").write_text(f'sample;Position;label\n1;"{place}";2\n')
    corrected = gs.apply_label_corrections((x, y), tmp_path / "list.csv").y
    assert torch.nonzero(corrected != y).tolist() == [[1, 5, 3]]
    for wrong in ("5.3", "53", "5, 3, 1"):
        (tmp_path / "list.csv").write_text(f'sample;position;label\n1;"{wrong}";2\n')
        with pytest.raises(InvalidInput, match="such as '0, 0'"):
            gs.apply_label_corrections((x, y), tmp_path / "list.csv")


def test_several_labels_as_spreadsheet_programs_write_them(
    tmp_path: Path, several: tuple[Tensor, Tensor, Tensor]
) -> None:
    x, y, _ = several
    y = y.clone()
    y[7] = torch.tensor([True, False, True])
    frame = pandas.DataFrame(y.numpy(), columns=["Red", "green", "blue"])
    text = "Sample;OUTPUT;Label\n7,0;red;FALSE\n7;1,0;True\n7;blue;0,0\n"
    (tmp_path / "list.csv").write_text(text)
    corrected = gs.apply_label_corrections((x.numpy(), frame), tmp_path / "list.csv").y
    assert corrected[7].tolist() == [False, True, False]
    (tmp_path / "list.csv").write_text("sample,output,label\n7,red,maybe\n")
    with pytest.raises(InvalidInput, match="0, 1 is needed") as caught:
        gs.apply_label_corrections((x.numpy(), frame), tmp_path / "list.csv")
    assert "drop" not in str(caught.value)


@pytest.mark.thorough
@pytest.mark.parametrize("axis", [1, -1])
def test_a_list_of_one_hot_masks_comes_back(tmp_path: Path, axis: int) -> None:
    x = torch.rand(60, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0.5).long()
    y[3, 5, 2] = 1 - y[3, 5, 2]
    one_hot = nn.functional.one_hot(y, 2).movedim(-1, axis)
    issues = gs.find_label_issues(None, (x, one_hot))
    issues.to_csv(tmp_path / "list.csv")
    table = pandas.read_csv(tmp_path / "list.csv", dtype={"label": object})
    assert (table["sample"][0], table["position"][0]) == (3, "5, 2")
    table.loc[0, "label"] = str(table["suggested"][0])
    table.to_csv(tmp_path / "list.csv", index=False)
    corrected = gs.apply_label_corrections((x, one_hot), tmp_path / "list.csv")
    assert torch.nonzero(corrected.y != y).tolist() == [[3, 5, 2]]
    issues.write_html(tmp_path / "page.html", n=1)
    assert (tmp_path / "page.html").read_text().count("<svg") == 2
