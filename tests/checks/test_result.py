"""Result of `gapscope.check` in every form, its budget, and restoration."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import TensorDataset

import gapscope as gs
from gapscope.base.budget import BudgetSpent
from gapscope.base.errors import InvalidInput
from gapscope.base.samples import as_samples
from gapscope.checks import CheckResult, Finding, list_checks, register_check
from gapscope.checks.account import Account, Entry
from gapscope.checks.expected import Expected
from gapscope.checks.fixes import FIXES
from gapscope.checks.registry import _CHECKS


def images() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    y = torch.arange(240) % 3
    x = torch.randn(3, 1, 8, 8, generator=g)[y] + 0.3 * torch.randn(240, 1, 8, 8, generator=g)
    y = gs.data.inject_label_noise(y, 0.2, 3, g)
    return torch.cat([x, x[:12]]), torch.cat([y, y[:12]])


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(144, 3),
    )


@pytest.fixture(scope="module")
def result() -> CheckResult:
    return gs.check(network(), images(), time_budget=None)


def test_findings_that_are_information_only_are_not_certain() -> None:
    x = torch.randn(60, 2)
    imbalanced = gs.check(nn.Linear(2, 2), (x, torch.arange(60) // 55), only=["GS104"])
    uncertain = replace(imbalanced, findings=(replace(imbalanced.findings[0], code="GS103"),))
    assert "Not certain" not in imbalanced.headline and "(information)" not in repr(imbalanced)
    assert uncertain.headline.startswith("Not certain") and "(information)" in repr(uncertain)
    without = replace(imbalanced, has_network=False)
    assert without.headline == "These data limit what any network can learn from them."
    costly = replace(uncertain.findings[0], cost=0.05)
    cheap = replace(imbalanced.findings[0], code="GS105", cost=0.01)
    assert "need preparation" in replace(without, findings=(cheap,)).headline
    assert replace(imbalanced, findings=(costly, cheap)).headline.startswith(
        "Not certain: the data limit"
    )
    assert replace(imbalanced, findings=(replace(costly, cost=0.01), cheap)).headline.startswith(
        "The training run"
    )
    assert (
        "(information)" in uncertain._repr_html_()
        and uncertain.to_dict()["findings"][0]["information"]
    )


def test_pages_have_pictures_and_escape_what_they_show(result: CheckResult, tmp_path: Path) -> None:
    fragment = result._repr_html_()
    assert (
        fragment.count("<img") >= 12
        and "data:image/png;base64," in fragment
        and 'title="sample 240"' in fragment
    )
    path = tmp_path / "check.html"
    result.write_html(path)
    page = path.read_text(encoding="utf-8")
    assert fragment in page and page.startswith("<!doctype html>") and "<script" not in page


def test_names_of_classes_are_escaped() -> None:
    x = torch.randn(60, 2)
    labels = np.array(["<b>rare</b>"] * 3 + ["common"] * 57)
    page = gs.check(nn.Linear(2, 2), (x, labels), only=["GS104"])._repr_html_()
    assert "&lt;b&gt;rare" in page and "<b>rare" not in page


def test_the_link_of_a_finding_is_a_page() -> None:
    docs = Path(__file__).parents[2] / "docs"
    nav = (docs.parent / "mkdocs.yml").read_text()
    for code in list_checks():
        assert (docs / "checks" / f"{code.lower()}.md").exists(), code
        assert f"checks/{code.lower()}.md" in nav


@pytest.mark.parametrize("training", [True, False])
def test_network_modes_gradients_and_random_states_are_left_as_they_were(training: bool) -> None:
    x, y = images()
    checked = network().train(training)
    checked.get_submodule("1").eval()
    checked(x)[:, 0].sum().backward()
    initial = {name: tensor.clone() for name, tensor in checked.state_dict().items()}
    gradients = [
        parameter.grad.clone() for parameter in checked.parameters() if parameter.grad is not None
    ]
    modes = [module.training for module in checked.modules()]
    states = (torch.get_rng_state(), str(np.random.get_state()), random.getstate())
    gs.check(checked, (x, y), initial_state=initial, batch_size=20, time_budget=None)
    assert all(torch.equal(initial[name], tensor) for name, tensor in checked.state_dict().items())
    assert [module.training for module in checked.modules()] == modes
    left = [parameter.grad for parameter in checked.parameters() if parameter.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(left, gradients, strict=True))
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == str(np.random.get_state())
    assert states[2] == random.getstate()


def test_a_used_budget_leaves_the_rest_unchecked() -> None:
    result = gs.check(network(), images(), time_budget=0)
    assert len(result.findings) + len(result.fine) <= 1
    assert any("time_budget=None" in outcome.reason for outcome in result.not_checked)


def test_a_check_beyond_the_budget_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]

    def slow(checked: nn.Module, x: torch.Tensor) -> None:
        for _ in range(100):
            clock[0] += 1
            checked(x[:2])

    monkeypatch.setattr("gapscope.checks.network_checks.network_outputs", slow)
    monkeypatch.setattr("time.process_time", lambda: clock[0])
    result = gs.check(network(), images(), time_budget=10, only=["GS201"])
    assert clock[0] <= 12 and "time_budget=10 was spent" in result.not_checked[0].reason


@pytest.mark.parametrize(("seconds", "n"), [(0.001, 32), (0.06, 16), (0.2, 8), (10.0, 0)])
def test_a_kernel_is_that_of_the_samples_that_fit(
    monkeypatch: pytest.MonkeyPatch, seconds: float, n: int
) -> None:
    x, y = torch.randn(32, 4), torch.arange(32) % 2
    subject = nn.Linear(4, 2)
    sizes: list[int] = []

    def kernel(_: nn.Module, inputs: torch.Tensor, **options: object) -> torch.Tensor:
        sizes.append(len(inputs))
        return torch.eye(len(inputs))

    monkeypatch.setattr("gapscope.checks.network_checks.empirical_ntk", kernel)
    monkeypatch.setattr("gapscope.checks.network_checks.pass_seconds", lambda *_: 32 * seconds)
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    # a sample takes (1 + 2 * 2 outputs) passes, and half of the budget is for the kernel
    result = gs.check(
        subject,
        (x, y),
        initial_state=copy.deepcopy(subject.state_dict()),
        time_budget=10,
        only=["GS202"],
    )
    assert sizes == ([n] if n else [])
    assert bool(result.not_checked) == (n == 0)


def test_kernels_get_half_of_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    budgets: list[float | None] = []

    def forecast(*given: object, time_budget: float | None = None, **options: object) -> None:
        budgets.append(time_budget)
        raise InvalidInput("Not needed here.")

    monkeypatch.setattr("gapscope.checks.context.make_forecast", forecast)
    monkeypatch.setattr("time.process_time", lambda: 100.0)
    for budget in (30, None):
        gs.check(network(), images(), time_budget=budget, only=["GS204"])
    assert budgets == [15.0, None]


def test_an_interrupted_check_keeps_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gapscope.checks.ranked_labels.find_issues_of_samples", interrupt)
    result = gs.check(network(), images())
    assert "GS102" in {
        outcome.code for outcome in result.not_checked if outcome.reason == "interrupted"
    }
    assert "GS101" in result.codes and len(list_checks()) == len(result.to_pandas())


def test_a_headline_without_an_answer_praises_nothing() -> None:
    headline = gs.check(network(), images(), time_budget=0).headline
    assert "No check had an answer" in headline and "found nothing" not in headline


def test_unknown_codes_and_missing_targets_are_named() -> None:
    with pytest.raises(InvalidInput, match="GS777"):
        gs.check(network(), images(), only=["GS777"])
    with pytest.raises(InvalidInput, match="targets"):
        gs.check(network(), images()[0])
    with pytest.raises(InvalidInput, match="time_budget"):
        gs.check(network(), images(), time_budget=-1)
    with pytest.raises(InvalidInput, match="or None; got Sequential"):
        gs.check(network(), images(), initial_state=network())  # type: ignore[arg-type]
    unlabelled = gs.check(
        network(), images(), test=images()[0], history=[{"train_loss": 1.0}], only=["GS402"]
    )
    assert "no labels" in unlabelled.not_checked[0].reason
    assert any("test samples have no labels" in note for note in unlabelled.notes)
    assert "test samples have no labels: they are compared" in repr(unlabelled)


def test_an_estimate_beyond_the_budget_names_what_can_be_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def too_long(*given: object, **options: object) -> None:
        raise BudgetSpent("There is no estimate within time_budget=8.0. Pass a larger budget.")

    monkeypatch.setattr("gapscope.accuracy.accuracy_after_training.estimate_accuracy", too_long)
    result = gs.check(network(), images(), history=[{"train_loss": 1.0}], only=["GS402"])
    assert "time_budget=None" in repr(result) and "Pass test=" in repr(result)
    assert ".." not in repr(result) and "larger budget" not in repr(result)


def test_a_check_of_ones_own_runs_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    list_checks()
    monkeypatch.setattr("gapscope.checks.registry._CHECKS", dict(_CHECKS))

    @register_check("GS901", title="always")
    def always(context: object) -> Finding:
        """Report something."""
        return Finding("1 of 1", "nothing", cost=0.5)

    assert gs.check(network(), images(), only=["GS901"]).codes == ("GS901",)
    with pytest.raises(InvalidInput, match="GS101"):
        register_check("GS101", title="taken")(always)


def test_the_account_as_numbers_for_a_tracker() -> None:
    errors = Entry("label errors", ("GS102",), 0.1, (0.05, 0.15))
    few = Entry("too few samples", ("GS103",), 0.02, None)
    account = Account(0.99, Expected(0.8, 0.7, 0.9, "on test samples"), (errors, few), 0.08)
    assert account.metrics == {
        "training_accuracy": 0.99, "expected_accuracy": 0.8, "expected_accuracy_low": 0.7,
        "expected_accuracy_high": 0.9, "cost_label_errors": 0.1, "cost_label_errors_low": 0.05,
        "cost_label_errors_high": 0.15, "cost_too_few_samples": 0.02, "unexplained": 0.08,
    }  # fmt: skip
    assert replace(account, expected=None, entries=(), unexplained=None).metrics == {
        "training_accuracy": 0.99
    }


def test_label_errors_that_a_second_opinion_does_not_confirm_have_this_reason() -> None:
    x, y = load_wine(return_X_y=True, as_frame=True)
    y[[3, 60]] = [1, 2]
    result = gs.check(None, (x, y), only=["GS102", "GS105"])
    reason = result.not_checked[0].reason
    assert "random forest" in reason and "is needed" not in reason
    assert "column proline: 388 times" in result.findings[0].evidence
    assert "of 2 checks" in repr(result) and " CPU s)" in repr(result)


def test_costs_on_the_page_name_the_findings_that_share_them(
    result: CheckResult, tmp_path: Path
) -> None:
    codes = ("GS401", "GS403", "GS102", "GS108")
    costs = (0.078, 0.078, 0.02, None)
    findings = tuple(
        Finding("evidence", "action", cost=cost, code=code, title="title")
        for code, cost in zip(codes, costs, strict=True)
    )
    replace(result, findings=findings).write_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    for text in ("7.8 points, shared with GS403", "7.8 points, shared with GS401", "2.0 points<"):
        assert f"Expected cost: {text}" in page
    assert page.count("Expected cost") == 3


def test_a_dead_layer_is_named_as_one() -> None:
    torch.manual_seed(0)
    first = nn.Linear(4, 8)
    nn.init.constant_(first.bias, -100.0)
    network = nn.Sequential(first, nn.ReLU(), nn.Linear(8, 2))
    data = torch.randn(60, 4), torch.arange(60) % 2
    assert "layer '1'" in gs.check(network, data, only=["GS403"]).findings[0].evidence


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_units_of_sequences_are_on_the_last_axis(norm: type[nn.Module]) -> None:
    torch.manual_seed(0)
    first = nn.Linear(4, 8)
    with torch.no_grad():
        first.bias[:4] = -100.0
    network = nn.Sequential(first, norm(8), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
    data = torch.randn(60, 6, 4), torch.arange(60) % 2
    assert "4 of 8" in gs.check(network, data, only=["GS403"]).findings[0].evidence


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_new_data_in_any_form_are_scaled_as_the_training_inputs(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.arange(40.0).reshape(20, 2)
    y = torch.arange(20) % 2
    samples = as_samples((pandas.DataFrame(x.numpy(), columns=["a", "b"]), y.numpy()))
    monkeypatch.setattr(CheckResult, "best_fix", FIXES["standardize inputs"])
    result = CheckResult((), (), (), 20, 20, "classifier", 0.0, samples=samples)
    new = x[:5].to(dtype)
    frame = pandas.DataFrame(new.numpy(), columns=["a", "b"])
    expected = (x[:5] - x.mean(0)) / x.std(0, correction=0)
    for inputs in (new, new.tolist(), new.numpy(), frame, frame[["b", "a"]]):
        torch.testing.assert_close(result.map_inputs(inputs).float(), expected)
    pairs = (new, y[:5]), [new, y[:5]], TensorDataset(new, y[:5]), gs.Samples(new, y[:5])
    for pair in pairs:
        scaled = result.map_inputs(pair)
        torch.testing.assert_close(scaled.inputs, expected)
        assert torch.equal(scaled.y, y[:5])
    for wrong in (new[:, :1], frame[["a"]], [["a", "b"]], gs.Samples(new[:, :1], y[:5]), None):
        with pytest.raises(InvalidInput):
            result.map_inputs(wrong)
