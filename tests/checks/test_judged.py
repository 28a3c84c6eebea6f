"""What a result says of things that were not looked at, of second data sets, and of users' other forms of data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import Samples
from gapscope.checks import list_checks
from gapscope.checks.costs import cost_of_labels, gain_of_twice_the_data
from gapscope.checks.trials import Trial, TriedAdvice
from gapscope.labels import kernel_views
from gapscope.results.estimate import IntervalEstimate
from gapscope.statistics.baselines import rbf_ridge, sample_features


def blobs(n: int = 120) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(n) % 3
    return torch.randn(3, 6, generator=g)[y] + 0.3 * torch.randn(n, 6, generator=g), y


def fitted(data: tuple[torch.Tensor, torch.Tensor], epochs: int = 30) -> nn.Module:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    gs.train(network, data, gs.TrainingSpec(epochs=epochs, learning_rate=0.05, momentum=0.9))
    return network


class Ids(nn.Module):
    """Counts ones in token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(2, 1), nn.Linear(1, 2)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.tensor([[-1.0], [1.0]]))
            self.output.weight.copy_(torch.tensor([[-9.0], [9.0]]))
            self.output.bias.zero_()

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.output(self.embedding(input_ids).mean(1))


def texts(n: int, seed: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 2, (n, 9), generator=torch.Generator().manual_seed(seed))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": (ids.sum(1) > 4).long(),
    }


def test_nothing_was_found_only_if_generalization_was_judged() -> None:
    data = blobs()
    network = fitted(data)
    assert gs.check(network, data, only=["GS101"]).headline.startswith("Not judged")
    assert gs.check(network, data, only=["GS101", "GS404"]).not_judged
    judged = gs.check(network, data, test=blobs(90), only=["GS402"])
    assert not judged.not_judged and judged.headline.startswith("Nothing was found")


@pytest.mark.thorough
def test_coin_toss_labels_are_a_finding_and_not_a_clean_bill() -> None:
    x = torch.randn(100, 6, generator=torch.Generator().manual_seed(1))
    y = torch.arange(100) % 3
    result = gs.check(fitted((x, y), epochs=200), (x, y))
    assert result.codes[0] == "GS106" and "Nothing was found" not in repr(result)
    assert result.account is not None and result.account.training > 0.9


@pytest.mark.thorough
def test_labels_of_positions_are_not_a_regressor() -> None:
    ids = torch.randint(0, 60, (160, 10))
    network = nn.Sequential(nn.Embedding(60, 12), nn.Linear(12, 4))
    result = gs.check(network, (ids, ids % 4))
    assert "regressor" not in repr(result) and result.headline.startswith("Not judged")


def test_a_second_data_set_has_its_own_layout() -> None:
    network = Ids()
    result = gs.check(network, texts(200, 0), test=texts(300, 1), only=["GS402"])
    assert result.codes == () and "100 % on test samples" in result.fine[0].evidence


def test_copies_between_training_and_test_samples_are_found() -> None:
    x, y = blobs()
    other = torch.randn(60, 6)
    result = gs.check(
        None, (x, y), test=(torch.cat([other, x[7:10]]), torch.zeros(63).long()), only=["GS101"]
    )
    assert (
        result.indices("GS101") == [7, 8, 9]
        and "3 of 63 test samples" in result.findings[0].evidence
    )


@pytest.mark.parametrize("n", [1, 2, 3])
def test_few_test_samples_have_wide_intervals(n: int) -> None:
    x, y = blobs()
    network = fitted((x, y))
    test = (x[:n], (y[:n] + 1) % 3)
    result = gs.check(network, (x, y), test=test, only=["GS402"])
    expected = result.account.expected if result.account is not None else None
    assert expected is not None and expected.value == 0 and expected.high > 0.45


def test_checks_of_the_data_need_no_network() -> None:
    result = gs.check(None, blobs())
    ran = {outcome.code for outcome in (*result.findings, *result.fine)}
    assert ran and all(code.startswith("GS1") for code in ran) and result.account is None


def test_a_fitted_estimator_is_judged_by_folds() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    x, y = (part.numpy() for part in blobs())
    estimator = linear_model.LogisticRegression().fit(x, y)
    result = gs.check(estimator, (x, y))
    assert not result.not_judged and result.account is not None and result.account.training == 1.0
    test = x[:30], (y[:30] + 1) % 3
    tested = gs.check(estimator, (x, y), test=test, only=["GS402"], ignore=["GS110"])
    assert tested.codes == ("GS402",)
    with pytest.raises(InvalidInput, match="predict"):
        gs.check(linear_model.LogisticRegression(), (x, y))


def interrupt(*given: Any, **options: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    "where", ["checks.data_checks.gain_of_twice_the_data", "accuracy.forecast_run.loo_baselines"]
)
def test_an_interrupt_inside_a_check_ends_the_check(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(f"gapscope.{where}", interrupt)
    data = blobs()
    result = gs.check(fitted(data), data)
    reasons = {outcome.code: outcome.reason for outcome in result.not_checked}
    assert result.interrupted and reasons["GS103"] == reasons["GS402"] == "interrupted"
    assert result.headline.startswith("Interrupted") and result.to_dict()["interrupted"]
    assert len(list_checks()) == len(result.to_pandas())


def test_arguments_of_other_networks_and_forms_are_refused() -> None:
    data = blobs()
    network = fitted(data)
    for state in ({}, nn.Linear(6, 3).state_dict()):
        with pytest.raises(InvalidInput, match="initial_state"):
            gs.check(network, data, initial_state=state)
    with pytest.raises(InvalidInput, match="history"):
        gs.check(network, data, history=[{"train_loss": "low"}])
    with pytest.raises(InvalidInput, match="must hold train_loss"):
        gs.check(network, data, history=[{"epoch": 1, "eval_loss": 1.0}])
    assert gs.check(network, data, history=None, only=["GS101"]).fine
    with pytest.raises(InvalidInput):
        gs.check(network, data, test=torch.randn(20, 4))


def test_a_part_of_the_data_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gapscope.checks.run.MAX_SAMPLES", 60)
    data = blobs()
    result = gs.check(fitted(data), data)
    assert "60 of 120" in repr(result) and (result.n_samples, result.n_rows, result.total) == (
        60,
        120,
        120,
    )
    # judged by all samples
    assert result.account is not None and result.account.expected is not None


@pytest.mark.thorough
def test_label_issues_use_the_kernels_of_the_forecast(monkeypatch: pytest.MonkeyPatch) -> None:
    # beyond 200 samples the kernel has landmarks
    monkeypatch.setattr("gapscope.statistics.baselines.MAX_EXACT", 200)
    monkeypatch.setattr("gapscope.statistics.baselines.N_LANDMARKS", 100)
    (x, y), calls = blobs(300), []
    labels = gs.data.inject_label_noise(y, 0.15, 3, torch.Generator().manual_seed(0))
    select = kernel_views.held_out_predictions

    def counted(*given: Any) -> Any:
        calls.append(given)
        return select(*given)

    monkeypatch.setattr("gapscope.labels.kernel_views.held_out_predictions", counted)
    shared = gs.check(None, (x, labels), only=["GS102", "GS103"]).label_issues
    assert shared is not None and not calls
    alone = gs.check(None, (x, labels), only=["GS102"]).label_issues
    direct = gs.find_label_issues(None, (x, labels))
    assert alone is not None and calls
    for issues in (alone, direct):
        assert torch.equal(issues.indices, shared.indices) and torch.equal(
            issues.margin, shared.margin
        )
        assert (
            torch.equal(issues.error_probability, shared.error_probability)
            and issues.noise == shared.noise
        )


@pytest.mark.parametrize("frequent", [0.5, 0.85, 0.92, 0.97])
def test_a_network_that_learned_a_rare_class_counts_as_trained(frequent: float) -> None:
    x = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    cut = x[:, 0].quantile(frequent)
    y = (x[:, 0] > cut).long()
    network = nn.Linear(3, 2)
    nn.init.zeros_(network.weight)
    for bias, is_trained in ((float(cut), True), (100.0, False)):  # the second predicts one class
        with torch.no_grad():
            network.weight[1, 0] = 1.0
            network.bias.copy_(torch.tensor([bias, 0.0]))
        result = gs.check(network, (x, y), only=["GS402"])
        reasons = [outcome.reason for outcome in result.not_checked]
        assert any("as an untrained one" in reason for reason in reasons) is not is_trained
        # held-out labels ask for a score
        account = gs.check(network, (x, y), test=(x + 0.01, y), only=["GS402"]).account
        assert account is not None and account.expected is not None


@pytest.mark.parametrize("weights", ["dead", "huge", "small"])
def test_a_network_that_failed_is_scored_and_not_taken_for_an_initial_one(weights: str) -> None:
    data, test = blobs(120), blobs(60)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        for parameter in network.parameters():
            # chance, with and without outputs that vary
            parameter.mul_({"dead": 0.0, "huge": 100.0, "small": 1e-3}[weights])
        if weights == "huge":
            network.get_parameter("2.weight").copy_(
                network.get_parameter("2.weight")[:1].expand(3, -1).clone()
            )
    codes = ["GS201", "GS202", "GS204", "GS302"]
    tested = gs.check(network, data, test=test, only=codes)
    account = tested.account
    assert account is not None and account.expected is not None
    assert account.expected.value < 0.5 and account.training < 0.5
    reasons = {outcome.code: outcome.reason for outcome in tested.not_checked}
    assert {"GS201", "GS202", "GS204"} <= set(reasons)
    assert all("initial_state=" in reason for reason in reasons.values())
    assert "GS302" in tested.codes
    alone = gs.check(network, data, only=codes)
    unclear = {o.code: o.reason for o in alone.not_checked}
    assert "training that failed" in unclear["GS202"] and "training that failed" in unclear["GS204"]
    # a score is what is asked for, not one of test samples without labels
    unlabelled = gs.check(network, data, test=test[0], only=codes)
    assert unlabelled.account is None


@pytest.mark.thorough
def test_the_account_adds_up() -> None:
    x, y = blobs(200)
    labels = gs.data.inject_label_noise(y, 0.2, 3, torch.Generator().manual_seed(0))
    network = fitted((x, labels), 150)
    result = gs.check(network, (x, labels), test=blobs(100))
    account = result.account
    assert account is not None and account.expected is not None and account.unexplained is not None
    assert account.training == pytest.approx(
        gs.measure(network, (x, labels), ["accuracy"]).values()["accuracy"]
    )
    assert sum(width for *_, width in account.segments) == pytest.approx(100, abs=0.05)
    assert np.all(
        np.diff([finding.cost for finding in result.findings if finding.cost is not None]) <= 0
    )


def test_label_errors_cost_a_network_that_memorizes_more() -> None:
    x, y = blobs(200)
    noisy = gs.data.inject_label_noise(y, 0.2, 3, torch.Generator().manual_seed(0))
    flagged = torch.nonzero(noisy != y).flatten()
    memorizing, robust = (
        cost_of_labels(Samples(x, noisy), flagged, 3, fraction) for fraction in (1.0, 0.0)
    )
    # a nearest neighbour has a wrong label for a fifth of the samples
    assert memorizing.low < 0.2 < memorizing.high + 0.05 and robust.value < 0.05
    # as accurate on held-out labels as the kernel machine: the network suffers as little
    new = IntervalEstimate(0.99, 0.97, 1.0)
    limited = cost_of_labels(Samples(x, noisy), flagged, 3, 1.0, new)
    assert limited.value < 0.05 and limited.high < memorizing.high / 2


def test_twice_the_data_are_worth_what_half_of_them_cost() -> None:
    digits = gs.load_dataset("digits").train
    samples = Samples(digits.inputs[:100], digits.y[:100])
    gain = gain_of_twice_the_data(samples, 10, 0)
    assert 0 < gain.low < gain.value < gain.high < 0.25
    # the same power law from half the error is worth half as much
    error = 1 - rbf_ridge(sample_features(samples), samples.y, n_classes=10).score
    half = gain_of_twice_the_data(samples, 10, 0, score=1 - error / 2)
    assert half.value == pytest.approx(gain.value / 2)
    easy = gain_of_twice_the_data(Samples(*blobs()), 3, 0)
    assert easy.low <= 0.01 and easy.value < 0.03


def test_indices_are_rows_of_the_data_that_were_passed() -> None:
    x, y = blobs(200)
    noisy = gs.data.inject_label_noise(y, 0.15, 3, torch.Generator().manual_seed(0))
    x, noisy = torch.cat([x, x[100:110]]), torch.cat([noisy, noisy[100:110]])
    dropped = noisy.clone()
    dropped[:30] = -100
    before, after = (
        gs.check(None, (x, labels), only=["GS101", "GS102"]) for labels in (noisy, dropped)
    )
    assert before.indices("GS101") == after.indices("GS101") == list(range(200, 210))
    assert after.label_issues is not None and int(after.label_issues.indices.min()) >= 30
    assert int(after.label_issues.indices.max()) > 180
    row = after.label_issues.indices[0]
    assert after.label_issues.given_labels[0] == noisy[row]


def test_several_labels_per_sample_and_named_classes_of_a_second_data_set() -> None:
    x = torch.randn(240, 6, generator=torch.Generator().manual_seed(0))
    several = (x[:, :3] > 0).long()
    result = gs.check(nn.Linear(6, 3), (x, several))
    assert result.headline.startswith("Not judged") and "multi-label" in repr(result)
    names = np.array(["a", "b", "c"])[x[:, :3].argmax(1).numpy()]
    network = nn.Linear(6, 3, bias=False)
    with torch.no_grad():
        network.weight.copy_(torch.eye(3, 6))
    rest = 120 + np.flatnonzero(names[120:] != "a")
    tested = gs.check(network, (x[:120], names[:120]), test=(x[rest], names[rest]), only=["GS402"])
    assert "100 % on test samples" in tested.fine[0].evidence


def test_an_initial_state_that_training_changed_too_is_refused() -> None:
    """Without a clone, a trained network would be called untrained."""
    data = blobs()
    network = fitted(data, 2)
    with pytest.raises(InvalidInput, match="shares its memory"):
        gs.check(network, data, initial_state=network.state_dict(), only=["GS303"])
    state = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    arrays: Any = {name: tensor.numpy() for name, tensor in state.items()}
    with pytest.raises(InvalidInput, match=r"tensors; 0\.weight .* ndarray"):
        gs.check(network, data, initial_state=arrays, only=["GS303"])
    state["0.weight"][0, 0] = torch.nan
    with pytest.raises(InvalidInput, match=r"must be finite; 0\.weight"):
        gs.check(network, data, initial_state=state, only=["GS303"])


def test_the_initial_state_of_a_diverged_network_is_one_of_this_network() -> None:
    data = blobs()
    network = fitted(data, 1)
    other = nn.Linear(6, 3).state_dict()
    with torch.no_grad():
        next(iter(network.parameters())).fill_(torch.nan)
    with pytest.raises(InvalidInput, match=r"0\.weight"):
        gs.check(network, data, initial_state=other, only=["GS302"])


def test_too_few_samples_and_one_class_are_not_cleared() -> None:
    x, y = blobs()
    for network in (None, fitted((x, y), 1)):
        with pytest.raises(InvalidInput, match="or more; got 1"):
            gs.check(network, (x[:1], y[:1]))
    for part in ((x, torch.zeros_like(y)), (x[:20], y[:20]), (x[:, :1], y)):
        result = gs.check(None, part, only=["GS107"])
        assert result.not_checked and not result.fine
    tried = gs.check(
        fitted((x, y), 1),
        (x, torch.zeros_like(y)),
        train_fn=gs.TrainingSpec(epochs=1),
        max_trainings=3,
        only=["GS104"],
    ).tried
    assert tried == "all labels are of one class: there is nothing to learn"


def test_gradients_that_are_not_finite_are_no_correlation() -> None:
    data = blobs()
    network = fitted(data, 1)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1e30)
    result = gs.check(network, data, only=["GS201", "GS202"])
    assert result.codes == ("GS201",) and "NaN or infinite" in result.not_checked[0].reason


def test_a_fix_that_helps_is_not_followed_by_an_all_clear() -> None:
    interval = IntervalEstimate(0.1, 0.05, 0.15)
    trial = Trial("learning rate / 10", 0.1, interval, interval, helps=True)
    data = blobs()
    result = gs.check(fitted(data), data, only=["GS101"])
    assert not result.findings
    result = result.with_tried(TriedAdvice((trial,), 0.8, 6.0), gs.TrainingSpec())
    for judged in (result, replace(result, not_judged="")):
        assert judged.headline.endswith("a fix that was tried helps: learning rate / 10.")


class Embedding(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(super().forward(input), dim=1)


class AlwaysDropped(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(super().forward(input), 0.5, training=True)


@pytest.mark.parametrize(
    ("network", "start"),
    [(Embedding(6, 8), "Outputs are rows of length 1"), (AlwaysDropped(6, 3), "Outputs differ")],
)
def test_notes_on_the_outputs_are_printed(network: nn.Module, start: str) -> None:
    result = gs.check(network, blobs(), only=["GS104"])
    assert any(note.startswith(start) for note in result.notes)
    assert start in repr(result)
    measured = gs.measure(network, blobs(), ["accuracy"])
    assert start in repr(measured)


class WithUnused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        self.pooler = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_weights_that_forward_does_not_use_are_no_finding() -> None:
    network, (x, y) = WithUnused(), blobs()
    initial = {name: weight.clone() for name, weight in network.state_dict().items()}
    gs.train(network, (x, y), gs.TrainingSpec(epochs=3))
    result = gs.check(network, (x, y), initial_state=initial, only=["GS303"])
    assert result.fine and "1 parameter that forward does not use" in result.fine[0].evidence
    network.load_state_dict({**network.state_dict(), "used.0.weight": initial["used.0.weight"]})
    result = gs.check(network, (x, y), initial_state=initial, only=["GS303"])
    assert [finding.code for finding in result.findings] == ["GS303"]
    assert "used.0.weight" in result.findings[0].evidence
    assert "pooler" not in result.findings[0].evidence


class Failing(nn.Module):
    def __init__(self, calls: int) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.calls = calls

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("no memory left on the card")
        return self.layer(x)


def test_an_error_of_the_network_in_a_later_pass_is_a_reason() -> None:
    x, y = blobs()
    result = gs.check(Failing(2), (x, y), only=["GS104", "GS202"])
    assert [outcome.code for outcome in result.fine] == ["GS104"]
    assert (
        result.not_checked[0].reason
        == "The network must run on all samples; Failing raised RuntimeError: no memory left on the card. Find the "
        "samples that its forward refuses, and correct or drop them"
    )


def test_repeats_with_another_label_are_to_be_decided_first() -> None:
    x, y = blobs()
    again = torch.cat([y, (y[:20] + 1) % 3])
    (finding,) = gs.check(None, (torch.cat([x, x[:20]]), again), only=["GS101"]).findings
    assert "20 pairs with different labels" in finding.evidence
    assert finding.action.startswith("find out which label is right")
    (plain,) = gs.check(
        None, (torch.cat([x, x[:20]]), torch.cat([y, y[:20]])), only=["GS101"]
    ).findings
    assert plain.action.startswith("remove them")


def test_a_network_that_predicts_one_class_is_not_called_robust() -> None:
    x, y = blobs()
    network = nn.Linear(6, 3)
    nn.init.zeros_(network.weight)
    history = [{"train_loss": loss} for loss in (3.0, 2.0, 1.5, 1.2)]
    result = gs.check(network, (x, y), test=(x[:40], y[:40]), history=history, only=["GS404"])
    assert result.not_checked and "one class" in result.not_checked[0].reason


class _Overflowing(nn.Module):
    """Network of which one sample's outputs are NaN."""

    def __init__(self, network: nn.Module, row: torch.Tensor) -> None:
        super().__init__()
        self.network = network
        self.row = row

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where((x == self.row).all(1, keepdim=True), float("nan"), self.network(x))


def test_outputs_that_are_not_finite_are_a_finding() -> None:
    x, y = blobs()
    data = x[:80], y[:80]
    network = _Overflowing(fitted(data), x[3])
    result = gs.check(network, data, time_budget=None)
    assert result.codes[0] == "GS302" and "1 of 80 samples are NaN" in str(result)
    assert "accuracy" not in str(result).splitlines()[3]
    network.row = x[100]
    result = gs.check(network, data, test=(x[80:], y[80:]), time_budget=None)
    assert result.codes[0] == "GS302" and "1 of 40 test samples are NaN" in str(result)
