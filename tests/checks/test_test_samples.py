"""Test samples that repeat training samples, or are very few, clear nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import gapscope as gs
from gapscope.checks.trials import Trial, TriedAdvice

X = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
Y = torch.randint(0, 2, (80,), generator=torch.Generator().manual_seed(1))
NEW = torch.randn(60, 4, generator=torch.Generator().manual_seed(2)), torch.arange(60) % 2


def memorizer() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(X), Y).backward()
        optimizer.step()
    return network


def with_copies(n: int) -> tuple[Tensor, Tensor]:
    return torch.cat([NEW[0][:n], X[: 60 - n]]), torch.cat([NEW[1][:n], Y[: 60 - n]])


def test_copies_of_training_samples_tell_nothing_of_new_data() -> None:
    network = memorizer()
    result = gs.check(network, (X, Y), test=with_copies(0), only=["GS101", "GS402"])
    assert [finding.code for finding in result.findings] == ["GS101"]
    assert result.headline.startswith("Test samples repeat training samples")
    of_data = gs.check(None, (X, Y), test=with_copies(0), only=["GS101"])
    assert of_data.headline == result.headline
    scale = torch.tensor([1.0, 1.0, 1.0, 1e4])
    test = with_copies(0)
    unscaled = gs.check(
        None, (X * scale, Y), test=(test[0] * scale, test[1]), only=["GS101", "GS105"]
    )
    assert len(unscaled.findings) == 2 and "need preparation" in unscaled.headline
    reasons = {item.code: item.reason for item in result.not_checked}
    assert "repeat training samples" in reasons["GS402"]
    assert "on test samples that all repeat training samples" in repr(result)


def test_copies_do_not_clear_memorized_labels() -> None:
    network = memorizer()
    result = gs.check(network, (X, Y), test=with_copies(0), only=["GS106"])
    assert [finding.code for finding in result.findings] == ["GS106"]


def test_the_test_samples_without_copies_are_scored() -> None:
    network = memorizer()
    whole = gs.check(network, (X, Y), test=(NEW[0][:40], NEW[1][:40]), only=["GS402"])
    part = gs.check(network, (X, Y), test=with_copies(40), only=["GS402"])
    assert [finding.code for finding in part.findings] == ["GS402"]
    words = "on test samples that are no near-exact copy of a training sample, 40 of 60"
    assert words in part.findings[0].evidence
    accuracy = whole.findings[0].evidence.split(", ")[1].split(" % ")[0]
    assert f", {accuracy} % " in part.findings[0].evidence


def test_an_estimator_is_scored_on_the_same_test_samples() -> None:
    tree = pytest.importorskip("sklearn.tree").DecisionTreeClassifier(random_state=0)
    tree.fit(X.numpy(), Y.numpy())
    data = X.numpy(), Y.numpy()
    whole = gs.check(tree, data, test=(NEW[0][:40].numpy(), NEW[1][:40].numpy()), only=["GS402"])
    x, y = with_copies(40)
    part = gs.check(tree, data, test=(x.numpy(), y.numpy()), only=["GS402"])
    words = "on test samples that are no near-exact copy of a training sample, 40 of 60"
    assert words in part.findings[0].evidence
    accuracy = whole.findings[0].evidence.split(", ")[1].split(" % ")[0]
    assert f", {accuracy} % " in part.findings[0].evidence
    copies = with_copies(0)
    none = gs.check(tree, data, test=(copies[0].numpy(), copies[1].numpy()), only=["GS402"])
    assert not none.findings
    assert not none.fine


def test_one_test_sample_clears_nothing() -> None:
    network = memorizer()
    with torch.no_grad():
        label = network(NEW[0][:1]).argmax(1)
    result = gs.check(network, (X, Y), test=(NEW[0][:1], label), only=["GS402"])
    assert not result.fine
    assert "too uncertain" in result.not_checked[0].reason


def test_a_record_notes_test_samples_that_repeat_training_samples() -> None:
    network = memorizer()
    for n in (0, 20, 60):
        record = gs.record_network(
            network, (X, Y), test=with_copies(n), name="a", measures=["parameter_norm"]
        )
        expected = [f"{60 - n} of 60 test samples repeat a training sample"] * (n < 60)
        assert [note.split(":")[0] for note in record.readings.notes] == expected


def test_a_gap_in_the_class_numbers_hides_no_shift() -> None:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    first, second = torch.arange(200) % 2, (torch.arange(200) % 100 < 27).long()
    for last in (1, 255):
        result = gs.check(None, (x, last * first), test=(x + 1e-3, last * second), only=["GS110"])
        assert any(f"class {last}: 50" in finding.evidence for finding in result.findings), last


def test_copies_by_content_are_claimed_of_pictures_and_tables_only() -> None:
    test = with_copies(40)
    result = gs.check(None, (X, Y), test=test, only=["GS101"])
    assert "pass pictures or texts" in result.findings[0].evidence
    pictures = [(x.reshape(-1, 1, 2, 2), y) for x, y in ((X, Y), test)]
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    result = gs.check(network, pictures[0], test=pictures[1], only=["GS101", "GS402"])
    assert "that repeat no training sample, 40 of 60" in repr(result)
    assert "pass pictures" not in repr(result)


def test_copies_that_are_not_scored_make_no_headline_beside_a_fix_that_helps() -> None:
    network = memorizer()
    result = gs.check(network, (X, Y), test=with_copies(40), only=["GS101", "GS402"])
    assert set(result.codes) == {"GS101", "GS402"}
    assert "much better than new data" in result.headline
    helps = Trial("learning rate / 10", 0.2, helps=True)
    trials = (helps, Trial("weight decay", 0.0), Trial("half the epochs", 0.0))
    tried = result.with_tried(TriedAdvice(trials, 0.5, 6.0), gs.TrainingSpec())
    assert tried.headline.endswith("a fix that was tried helps: learning rate / 10.")
    alone = replace(result, findings=tuple(f for f in result.findings if f.code == "GS101"))
    assert alone.headline.startswith("Test samples repeat training samples")


def centres(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples around one centre per class."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    return 4 * torch.eye(3, 4)[labels] + 0.5 * torch.randn(n, 4, generator=g), labels


CODES = ["GS110", "GS302", "GS401", "GS402", "GS403"]


def centred_classifier(*order: int) -> nn.Module:
    """The nearest centre, with scores in this order, half of whose rectifiers are never active."""
    network = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    weights = torch.cat([torch.eye(4), torch.zeros(4, 4)])
    network.load_state_dict(
        {"0.weight": weights, "0.bias": torch.full((8,), -0.1)}
        | {"2.weight": weights.T[list(order or (0, 1, 2))], "2.bias": torch.zeros(3)}
    )
    return network


def test_a_shift_of_the_test_samples_is_no_fault_of_training() -> None:
    train, (x, y) = centres(150, 0), centres(90, 1)
    result = gs.check(centred_classifier(), train, test=(-x, y), only=CODES)
    assert result.codes[0] == "GS110" and "GS403" in result.codes
    assert "test samples differ" in result.headline
    assert result.account is not None and result.account.expected is not None
    costs = {entry.name: entry.cost for entry in result.account.entries if entry.cost}
    gap = 1 - result.account.expected.value
    assert costs == {"shift of test samples": pytest.approx(gap)} and gap > 0.5
    assert {"GS401", "GS402"} <= {item.code for item in result.not_checked}
    of_data = gs.check(None, train, test=(-x, y), only=CODES)
    assert of_data.codes == ("GS110",) and "test samples differ" in of_data.headline
    judged = gs.check(centred_classifier(), train, test=(-x, y), only=CODES[1:], ignore=["GS110"])
    assert {"GS401", "GS402"} <= set(judged.codes)


def test_a_network_that_learned_too_little_is_judged_beside_a_shift() -> None:
    train, (x, y) = centres(150, 0), centres(90, 1)
    result = gs.check(centred_classifier(1, 0, 2), train, test=(x + 2, y), only=CODES)
    assert {"GS110", "GS401"} <= set(result.codes)
    costs = {finding.code: finding.cost for finding in result.findings}
    assert costs["GS401"] == pytest.approx(2 / 3, abs=0.01) and not costs["GS110"]


def test_a_shift_that_costs_nothing_hides_no_overfitting() -> None:
    # a running number beside the other columns, on which no label depends
    number = torch.arange(80.0)[:, None] / 80
    network = memorizer()
    first = network[0]
    assert isinstance(first, nn.Linear)
    first.weight = nn.Parameter(torch.cat([first.weight, torch.zeros(128, 1)], 1))
    first.in_features = 5
    test = torch.cat([NEW[0], 1 + number[:60]], 1), NEW[1]
    result = gs.check(network, (torch.cat([X, number], 1), Y), test=test, only=CODES)
    assert {"GS110", "GS402"} <= set(result.codes)
    assert next(f for f in result.findings if f.code == "GS110").cost == 0
    assert "test samples differ" not in result.headline


def test_the_part_of_a_gap_that_a_shift_explains_is_its_cost() -> None:
    g = torch.Generator().manual_seed(0)
    train, test = ((x, (x[:, 0] > 0).long()) for x in torch.randn(2, 150, 4, generator=g))
    noisy = test[0] + 2 * torch.randn(150, 4, generator=g), test[1]
    network = nn.Linear(4, 2, bias=False)
    network.load_state_dict({"weight": torch.tensor([[0.0, 0, 0, 0], [1, 0, 0, 0]])})
    result = gs.check(network, train, test=noisy, only=CODES, ignore=["GS107"])
    assert "GS110" in result.codes and not {"GS401", "GS402"} & set(result.codes)
    assert 0.05 < next(f.cost or 0 for f in result.findings if f.code == "GS110") < 0.4
    assert {"GS401", "GS402"} <= {item.code for item in result.not_checked}
