"""Label noise and label issues of real data with flipped labels, and errors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.base.errors import InvalidInput, NotMeasurable
from gapscope.data import inject_label_noise as with_wrong_labels
from gapscope.labels.canary_ranking import rank_label_issues
from gapscope.labels.duplicates import duplicates_in_test
from gapscope.labels.results import LabelNoiseEstimate
from support.cases import CASES


def digits(rate: float, n: int = 400, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """Return an untrained network, images, labels of which a fraction is flipped, and which."""
    train = gs.load_dataset("digits").train.subset(torch.arange(n))
    generator = torch.Generator().manual_seed(seed)
    labels = with_wrong_labels(train.y, rate, 10, generator)
    network = gs.build_network(
        "fully_connected",
        input_shape=(1, 8, 8),
        n_outputs=10,
        generator=generator,
        n_hidden=2,
        width=64,
    )
    return network, train.inputs, labels, labels != train.y


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3])
def test_the_rate_of_digits(rate: float) -> None:
    network, x, y, _ = digits(rate)
    result = gs.estimate_label_noise(network, (x, y))
    assert abs(result.rate - rate) < 0.05 and result.low <= result.rate <= result.high
    assert result.clean_accuracy > 0.85 and result.samples == 400


def test_wrong_labels_stand_first() -> None:
    network, x, y, wrong = digits(0.2)
    result = gs.find_label_issues(network, (x, y))
    ranks = torch.empty(400).scatter_(0, result.indices, torch.arange(400.0))
    area = (
        ranks[~wrong].mean() - ranks[wrong].mean()
    ) / 400 + 0.5  # area under the ROC curve, ties aside
    assert area > 0.98
    flagged = result.indices[: result.n_flagged]
    precision, recall = (
        float(wrong[flagged].double().mean()),
        float(wrong[flagged].sum() / wrong.sum()),
    )
    assert recall > 0.75 and precision > 0.85 and precision > result.expected_precision - 0.1
    truth = gs.load_dataset("digits").train.targets
    assert truth is not None
    assert (
        float((result.suggested_labels[: result.n_flagged] == truth[flagged]).double().mean())
        > 0.75
    )


def test_nothing_is_sampled_from_the_global_stream_and_the_network_is_left_alone() -> None:
    network, x, y, _ = digits(0.1, n=120)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    torch.manual_seed(3)
    first = gs.find_label_issues(network, (x, y))
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))
    assert first.to_json() == gs.find_label_issues(network, (x, y)).to_json()
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_labels_without_a_meaning_get_no_rate_but_a_ranking() -> None:
    network, x, y, _ = digits(0.0, n=120)
    shuffled = y[torch.randperm(120, generator=torch.Generator().manual_seed(0))]
    with pytest.raises(NotMeasurable, match="cannot be estimated"):
        gs.estimate_label_noise(network, (x, shuffled))
    result = gs.find_label_issues(network, (x, shuffled))
    assert (
        result.noise is None
        and math.isnan(result.expected_precision)
        and len(result.indices) == 120
    )
    assert (
        "cannot be estimated" in repr(result) and result.flagged is None and result.n_flagged == 0
    )


@pytest.mark.parametrize("name", ["ResNet-18, narrow", "encoder"])
def test_networks_that_people_have(name: str) -> None:
    network, samples = CASES[name].make(108)
    result = gs.find_label_issues(network, samples)
    assert len(result.indices) == 108 and sorted(result.indices.tolist()) == list(range(108))


def test_messages() -> None:
    network, x, y, _ = digits(0.0, n=120)
    with pytest.raises(InvalidInput, match="Got 40 samples"):
        gs.estimate_label_noise(network, (x[:40], y[:40]))
    with pytest.raises(InvalidInput, match="one class"):
        gs.find_label_issues(network, (x, torch.zeros(120, dtype=torch.int64)))
    with pytest.raises(InvalidInput, match="classes, 10"):
        gs.find_label_issues(network, (x, y + 5))


@pytest.mark.thorough
def test_no_network_and_string_labels() -> None:
    _, x, y, wrong = digits(0.2)
    issues = gs.find_label_issues(
        features=x.flatten(1).numpy(), labels=numpy.array([f"class {k}" for k in y.tolist()])
    )
    assert issues.method in ("RBF ridge", "linear ridge") and issues.flagged is not None
    assert float(wrong[issues.flagged].double().mean()) > 0.85
    assert issues.to_pandas()["given"].iloc[0].startswith("class ")
    strict = issues.with_precision(0.75)
    assert strict.n_flagged > 0 and strict.expected_precision >= 0.75
    assert gs.find_label_issues(None, (x, y), precision=0.8).n_flagged > 0
    out_of_reach = issues.with_precision(0.97)
    assert (
        out_of_reach.n_flagged == 0
        and "No list reaches a precision of 97 %" in out_of_reach.sentences[-1]
    )


def test_regression_targets_with_gross_errors_stand_first() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=generator)
    y = x[:, :1] * 2 + 0.1 * torch.randn(200, 1, generator=generator)
    wrong = torch.arange(0, 200, 20)
    y[wrong] += 5
    issues = gs.find_label_issues(None, (x, y))
    assert set(issues.indices[:10].tolist()) == set(wrong.tolist())
    assert (
        issues.noise is not None
        and issues.flagged is not None
        and set(wrong.tolist()) <= set(issues.flagged.tolist())
    )
    noise = gs.estimate_label_noise(None, (x, y))
    assert (
        noise == issues.noise
        and noise.is_upper_bound
        and noise.low == 0
        and noise.rate >= 0.05
        and noise.r_squared > 0.95
    )
    assert "at most" in repr(noise) and "swapped targets" in repr(issues)
    with pytest.raises(NotMeasurable, match="R\\^2"):
        gs.estimate_label_noise(None, (x, y[torch.randperm(200, generator=generator)]))


def test_reviewed_regression_targets_come_back(tmp_path: Path) -> None:
    (tmp_path / "review.csv").write_text("sample,label\n3,2.5\n1,drop\n0,\n")
    corrected = gs.apply_label_corrections(
        (torch.randn(4, 2), torch.arange(4.0)[:, None]), tmp_path / "review.csv"
    )
    assert corrected.y.flatten().tolist() == [0, 2, 2.5]
    (tmp_path / "review.csv").write_text("sample,label\n3,high\n")
    with pytest.raises(InvalidInput, match=r"'high'.*number"):
        gs.apply_label_corrections(
            (torch.randn(4, 2), torch.arange(4.0)[:, None]), tmp_path / "review.csv"
        )
    with pytest.raises(InvalidInput, match=r"\[60, 2\].*one column"):
        gs.find_label_issues(None, (torch.randn(60, 2), torch.randn(60, 2)))


def test_a_reviewed_list_comes_back(tmp_path: Path) -> None:
    _, x, y, _ = digits(0.2)
    truth = gs.load_dataset("digits").train.targets
    issues = gs.find_label_issues(None, (x, y))
    issues.to_csv(tmp_path / "review.csv")
    table = pandas.read_csv(tmp_path / "review.csv", dtype={"label": str})
    assert truth is not None and issues.flagged is not None
    table["label"] = [
        str(int(truth[i])) if i in set(issues.flagged.tolist()) else "" for i in table["sample"]
    ]
    table.loc[0, "label"] = "drop"
    table.to_csv(tmp_path / "review.csv", index=False)
    corrected = gs.apply_label_corrections((x, y), tmp_path / "review.csv")
    assert len(corrected) == 399
    keep = torch.arange(400) != int(table["sample"][0])
    assert (
        int((corrected.y != truth[:400][keep]).sum())
        < int((y != truth[:400]).sum()) - issues.n_flagged // 2
    )
    table.loc[1, "label"] = "cat"
    table.to_csv(tmp_path / "review.csv", index=False)
    with pytest.raises(InvalidInput, match="'cat'"):
        gs.apply_label_corrections((x, y), tmp_path / "review.csv")


def test_the_page_escapes_and_shows_pictures(tmp_path: Path) -> None:
    _, x, y, _ = digits(0.2)
    names = numpy.array([f"<script>{k}" for k in y.tolist()])
    gs.find_label_issues(None, (x, names)).write_html(tmp_path / "issues.html", n=30)
    text = (tmp_path / "issues.html").read_text()
    assert (
        text.count("data:image/png;base64,") == 30
        and "<script>0" not in text
        and "&lt;script&gt;" in text
    )


def test_duplicates_with_two_labels_are_named() -> None:
    _, x, y, _ = digits(0.0)
    other = (y[:3] + 1) % 10
    issues = gs.find_label_issues(None, (torch.cat([x, x[:3]]), torch.cat([y, other])))
    assert {(0, 400), (1, 401), (2, 402)} <= set(issues.conflicts)


def test_duplicates_between_train_and_test_are_named() -> None:
    _, x, y, _ = digits(0.0)
    other = gs.load_dataset("digits").train.inputs[500:520]
    test = torch.cat([other[:10], x[5:7], x[9:10] + 1e-4, other[10:]])
    issues = gs.find_label_issues(None, (x, y), test=test)
    assert issues.test_duplicates == ((5, 10), (6, 11), (9, 12))
    assert "3 test samples" in repr(issues) and issues.to_dict()["test_duplicates"] == [
        [5, 10],
        [6, 11],
        [9, 12],
    ]
    with pytest.raises(InvalidInput, match=r"\[1, 8, 8\].*\[64\]"):
        gs.find_label_issues(None, (x, y), test=test.flatten(1))


def test_exact_duplicates_between_large_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapscope.labels.duplicates.MAX_SAMPLES", 100)
    x = torch.arange(80.0)[:, None]
    samples, test = gs.Samples(x), gs.Samples(torch.tensor([[100.0], [7.0], [7.0], [3.0]]))
    assert duplicates_in_test(samples, test) == ((7, 1), (7, 2), (3, 3))


def test_the_cut_of_hard_samples_uses_the_fraction() -> None:
    margins, canaries = torch.linspace(-1, 1, 100), torch.linspace(-1, 0, 50)
    labels = torch.zeros(100, dtype=torch.int64)
    noise = LabelNoiseEstimate(0.1, 0.05, 0.2, 0.9, 100)
    for fraction, expected in ((None, 10), (0.2, 20)):
        issues = rank_label_issues(
            torch.arange(100), labels, labels, margins, canaries, noise, fraction=fraction
        )
        assert issues.n_flagged == expected
        below = float((canaries <= margins[expected - 1]).double().mean())
        assert issues.expected_precision == pytest.approx(
            (fraction or 0.1) * below * 100 / expected
        )


@pytest.mark.thorough
def test_many_small_classes_and_constant_columns() -> None:
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(200, 8, generator=generator) * 5
    y = torch.arange(200).repeat_interleave(3)
    x = torch.cat(
        [centers[y] + 0.1 * torch.randn(600, 8, generator=generator), torch.ones(600, 1)], 1
    )
    y[[0, 100, 500]] = y[[300, 400, 50]]
    assert {0, 100, 500} <= set(gs.find_label_issues(None, (x, y)).indices[:12].tolist())
    with pytest.raises(InvalidInput, match="No input varies"):
        gs.find_label_issues(None, (torch.ones(60, 3), torch.arange(60) % 2))
    with pytest.raises(InvalidInput, match="finite; 1 of 600"):
        gs.find_label_issues(None, (x.index_fill(0, torch.tensor([4]), torch.nan), y))


@pytest.mark.thorough
def test_features_of_data_replace_its_inputs_and_keep_its_pictures(tmp_path: Path) -> None:
    train = gs.load_dataset("digits").train.subset(torch.arange(200))
    labels = with_wrong_labels(train.y, 0.1, 10, torch.Generator().manual_seed(0))
    labels[3] = -100  # no label: the features of all 200 are passed, too
    features = train.inputs.flatten(1)
    result = gs.find_label_issues(None, (torch.rand(200, 1, 8, 8), labels), features=features)
    alone = gs.find_label_issues(features=features, labels=labels)
    assert result.indices.tolist() == alone.indices.tolist() and 3 not in result.indices
    result.write_html(tmp_path / "review.html")
    assert (tmp_path / "review.html").read_text().count("data:image/png") >= 24
    graph = features.clone().requires_grad_() * 1.0  # straight from a network
    assert (
        gs.find_label_issues(None, (train.inputs, labels), features=graph).indices.tolist()
        == alone.indices.tolist()
    )
    noise = gs.estimate_label_noise(None, (train.inputs, labels), features=features)
    assert noise.rate == gs.estimate_label_noise(None, (features, labels)).rate


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": torch.rand(9, 2)}, r"for the 60 samples; got \[9, 2\]"),
        ({"features": torch.rand(60, 2), "pred_probs": torch.rand(60, 2)}, "as well as pred_probs"),
        ({"features": torch.rand(60, 2), "source": nn.Linear(2, 2)}, "as well as a network"),
    ],
)
def test_features_that_do_not_go_with_the_data(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        gs.find_label_issues(**{"data": (torch.rand(60, 2), torch.arange(60) % 2)} | options)  # type: ignore[arg-type]


def test_features_beside_data_with_labels_of_positions_are_refused() -> None:
    labels = torch.randint(0, 3, (60, 4))
    with pytest.raises(InvalidInput, match=r"features= \[n, T, d\]"):
        gs.find_label_issues(None, (torch.rand(60, 4, 3), labels), features=torch.rand(60, 4, 3))


def test_frames_and_lists_without_a_place_for_labels_get_one_sentence() -> None:
    frame = pandas.DataFrame({"a": range(60), "text": ["u", "v"] * 30})
    for data in (frame, frame[["a"]]):
        with pytest.raises(InvalidInput, match=r"DataFrame alone.*target="):
            gs.find_label_issues(None, data)
    lines = [(torch.rand(n, 3), torch.zeros(n).long()) for n in (3, 4, 5)]
    with pytest.raises(InvalidInput, match=r"list of 3 pairs.*-100"):
        gs.find_label_issues(None, lines)


def test_equal_targets_are_refused() -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    with pytest.raises(InvalidInput, match="all 3;"):
        gs.find_label_issues(None, (x, torch.full((60,), 3.0)))


def test_without_a_rate_no_probability_is_told() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(75, 4, generator=generator), torch.randint(0, 3, (75,), generator=generator)
    issues = gs.find_label_issues(None, (x, y))
    assert issues.noise is None and "cannot be estimated" in issues.note
    table = issues.to_pandas()
    assert table[["probability", "error_probability"]].isna().all(axis=None)
    assert table["margin"].head(20).mean() < table["margin"].tail(20).mean()
    assert issues.rank_samples()["error_probability"].isna().all()
    row = issues.to_dict()["rows"][0]
    assert row["error_probability"] is None or math.isnan(row["error_probability"])


def test_labels_of_noise_are_predicted_at_chance_and_none_is_flagged() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, generator=generator)
    y = torch.randint(0, 2, (200,), generator=generator)
    with pytest.raises(NotMeasurable, match=r"frequent class \(5\d %\)"):
        gs.estimate_label_noise(None, (x, y))
    issues = gs.find_label_issues(None, (x, y))
    assert issues.flagged is None
    table = issues.to_pandas()
    assert table["flagged"].dtype == bool and len(table[table["flagged"]]) == 0
