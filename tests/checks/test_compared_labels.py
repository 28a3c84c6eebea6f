"""Test labels that contradict what the training samples predict are a finding of GS110."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.checks.compared_labels import _near_groups
from gapscope.checks.result import CheckResult
from gapscope.statistics.renumbering import class_marks, find_renumbering, mark_correlations

ORDER = torch.tensor([1, 2, 0])


def draw(kind: str, seed: int, n: int = 120) -> tuple[Tensor, Tensor]:
    """Samples of one kind, whose targets follow from their inputs."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 3, generator=g)
    if kind == "regression":
        return x, x[:, :1] + 0.1 * torch.randn(n, 1, generator=g)
    if kind == "multi-label":
        return x, x > 0
    if kind == "positions":
        ids = torch.randint(0, 9, (n, 4), generator=g)
        return ids, ids % 3
    labels = torch.arange(n) % 3
    return x + 4 * torch.eye(3)[labels], labels


def shift_of(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> CheckResult:
    return gs.check(None, train, test=test, only=["GS110"])


@pytest.mark.parametrize("kind", ["classification", "multi-label", "positions"])
def test_another_order_of_the_classes_is_named(kind: str) -> None:
    train, (x, y) = draw(kind, 0), draw(kind, 1)
    # class 0 of the training samples is called 1 in the test samples, column 1 is the first one
    other = y[:, ORDER] if kind == "multi-label" else ORDER[y]
    result = shift_of(train, (x, other))
    assert result.codes == ("GS110",) and "number the classes otherwise" in result.headline
    pairs = ["1 read as 0", "2 read as 1", "0 read as 2"]
    if kind == "multi-label":
        pairs = [f"label {i} read as label {int(ORDER[i])}" for i in range(3)]
    assert all(pair in result.findings[0].evidence for pair in pairs)
    assert shift_of(train, (x, y)).fine


def test_classes_that_are_missing_among_the_test_samples_do_not_matter() -> None:
    train, (x, y) = draw("classification", 0), draw("classification", 1)
    result = shift_of(train, (x[y < 2], y[y < 2] + 1))
    assert "100 % with 1 read as 0, 2 read as 1 (" in result.findings[0].evidence


@pytest.mark.parametrize("kind", ["classification", "multi-label", "regression", "positions"])
def test_labels_in_another_order_of_the_rows_are_found(kind: str) -> None:
    train, (x, y) = draw(kind, 0), draw(kind, 1)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    result = shift_of(train, (x, y[order]))
    assert result.codes == ("GS110",) and "error of predictions" in result.findings[0].evidence


def test_another_sign_of_the_targets_is_named() -> None:
    train, (x, y) = draw("regression", 0), draw("regression", 1)
    evidence = shift_of(train, (x, -y)).findings[0].evidence
    assert evidence.startswith("the target: lower where predictions are higher")


def test_training_has_no_cost_where_the_test_labels_have_other_numbers() -> None:
    train, (x, y) = draw("classification", 0), draw("classification", 1)
    network = nn.Linear(3, 3)
    network.load_state_dict({"weight": torch.eye(3), "bias": torch.zeros(3)})
    result = gs.check(network, train, test=(x, ORDER[y]), only=["GS110", "GS302", "GS401", "GS402"])
    assert result.codes == ("GS110",) and "number the classes otherwise" in result.headline
    assert result.account is not None
    assert [entry.name for entry in result.account.entries] == ["shift of test samples"]


def test_a_rare_class_that_is_never_predicted_has_no_other_number() -> None:
    # all are predicted as class 0, which is rare among the given labels
    predicted = class_marks(torch.zeros(300, dtype=torch.long), 2)
    given = class_marks((torch.arange(300) % 10 > 0).long(), 2)
    assert find_renumbering(predicted, given) is None


def test_chance_finds_no_other_numbers() -> None:
    g = torch.Generator().manual_seed(0)
    for _ in range(50):
        predicted, given = (
            class_marks(torch.randint(0, 8, (20,), generator=g), 8) for _ in range(2)
        )
        assert find_renumbering(predicted, given) is None


def test_classes_that_are_confused_in_training_too_have_no_other_numbers() -> None:
    predicted = class_marks(torch.arange(200) % 2, 2)
    usual = mark_correlations(predicted, ~predicted)
    assert find_renumbering(predicted, ~predicted, usual) is None
    found = find_renumbering(predicted, ~predicted)
    assert found is not None and (found.before, found.after) == (0, 1)
    assert found.read_as == {0: 1, 1: 0}


def test_a_network_of_other_class_numbers_is_not_taken_for_an_untrained_one_without_a_word() -> (
    None
):
    x, y = draw("classification", 0)
    network = nn.Linear(3, 3)
    network.load_state_dict({"weight": torch.eye(3), "bias": torch.zeros(3)})
    reason = gs.check(network, (x, ORDER[y]), only=["GS401"]).not_checked[0].reason
    assert "1 read as 0, 2 read as 1, 0 read as 2" in reason
    nn.init.normal_(network.weight, generator=torch.Generator().manual_seed(0))
    shuffled = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    reason = gs.check(network, (x, shuffled), only=["GS401"]).not_checked[0].reason
    assert "constant" in reason and "read as" not in reason


def test_samples_of_new_persons_contradict_no_recordings_of_others() -> None:
    for seed in range(4):
        g = torch.Generator().manual_seed(seed)
        persons = torch.randn(200, 8, generator=g)
        y = (persons[:, 0] + torch.randn(200, generator=g) > 0).long()
        x = persons[:100].repeat_interleave(3, 0) + 0.1 * torch.randn(300, 8, generator=g)
        train = x, y[:100].repeat_interleave(3)
        result = shift_of(train, (persons[100:], y[100:]))
        assert not any("error of" in finding.evidence for finding in result.findings)


def test_groups_of_near_rows_leave_others_to_predict_them() -> None:
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    assert _near_groups(torch.cat([x, x + 100]), 60).bincount().max() <= 30
    pairs = torch.cat(
        [x.repeat_interleave(2, 0) + torch.tensor([0.0, 1e-4]).repeat(60)[:, None], x + 0.05]
    )
    assert torch.equal(_near_groups(pairs[:150], 120)[::2], _near_groups(pairs[:150], 120)[1::2])
    few_values = torch.arange(90).remainder(7)[:, None].double()
    assert len(_near_groups(few_values, 60).unique()) == 60
