"""Costs of findings are at most what is missing on new data, in every form of the result, and so is the headline."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import gapscope as gs
from gapscope.base.errors import InvalidInput
from gapscope.checks.account import cap_costs, order_findings
from gapscope.checks.expected import Expected
from gapscope.results.estimate import IntervalEstimate
from gapscope.results.outcomes import Finding, Fine


def expected(value: float, low: float, high: float) -> Expected:
    return Expected(value, low, high, "on test samples")


def test_costs_and_their_intervals_are_at_most_what_is_missing() -> None:
    found = [
        Finding("errors", "correct", code="GS102", cost=0.2, interval=(0.06, 0.3)),
        Finding("gain", "collect", code="GS103", cost=0.2, interval=(0.1, 0.3)),
        Finding("small", "collect", code="GS105", cost=0.01),
        Finding("gap", "regularize", code="GS402"),
    ]
    new = expected(0.98, 0.95, 1.0)
    capped = cap_costs(found, new)
    assert [type(outcome) for outcome in capped] == [Finding, Fine, Finding, Finding]
    errors = capped[0]
    assert isinstance(errors, Finding) and errors.interval is not None
    assert errors.cost == pytest.approx(0.02)
    assert errors.interval == pytest.approx((0.02, 0.05))
    assert (
        errors.evidence == "errors; cost limited to what is missing: 2.0 points (on test samples)"
    )
    assert cap_costs(capped, new) == capped
    copies = Expected(1.0, 0.9, 1.0, "on copies", unclear="all are copies", is_new=False)
    assert cap_costs(found, copies) == cap_costs(found, None) == found


def test_the_interval_of_a_shortfall_is_capped_too() -> None:
    tuned = Finding("low", "tune", code="GS401", cost=0.02)
    ordered = order_findings([tuned], IntervalEstimate(0.02, 0.0, 0.3), expected(0.98, 0.95, 1.0))
    assert ordered[0].interval == pytest.approx((0.0, 0.05))


def solved_regression(n: int) -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(0)
    x = torch.randn(200, n)
    network = nn.Linear(n, 1)
    with torch.no_grad():
        network.bias.zero_()
        targets = network(x)
    return network, (x, targets)


def test_more_data_add_nothing_to_a_network_that_predicts_everything() -> None:
    network, (x, y) = solved_regression(40)
    result = gs.check(
        network, (x[:60], y[:60]), test=(x[60:], y[60:]), only=["GS103", "GS401", "GS402"]
    )
    assert not result.findings
    assert result.headline.startswith("Nothing was found")
    assert result.account is not None and not result.account.entries
    fine = next(outcome for outcome in result.fine if outcome.code == "GS103")
    assert "a kernel machine gains" in fine.evidence and "0.00 of R^2 (on test" in fine.evidence


class Product(nn.Module):
    """Network that learned the product of two inputs, from weights that did not hold it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 2, bias=False)
        self.last = nn.Linear(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        return self.last(h[:, :1] * h[:, 1:])


def test_features_that_training_has_changed_are_no_limit() -> None:
    torch.manual_seed(0)
    x = torch.randn(500, 12)
    y = (x[:, 0] * x[:, 1] > 0).long()
    network = Product()
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with torch.no_grad():
        network.first.weight.copy_(torch.eye(12)[:2])
        network.last.weight.copy_(torch.tensor([[-9.0], [9.0]]))
        network.last.bias.zero_()
    options = {"initial_state": initial, "only": ["GS204", "GS401"]}
    result = gs.check(network, (x[:300], y[:300]), test=(x[300:], y[300:]), **options)
    assert not result.findings and result.headline.startswith("Nothing was found")
    fine = next(outcome for outcome in result.fine if outcome.code == "GS204")
    assert "after training 100 % on test samples" in fine.evidence
    # nor does the gain of a kernel machine that is far worse stand for that of the network
    y[300:310] = 1 - y[300:310]
    result = gs.check(network, (x[:300], y[:300]), test=(x[300:], y[300:]), only=["GS103", "GS401"])
    more = next(outcome for outcome in result.not_checked if outcome.code == "GS103")
    assert "far above" in more.reason and "learning_curve" in more.reason


def solved_classes() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    y = torch.arange(300) % 3
    x = 0.05 * torch.randn(300, 4)
    x[torch.arange(300), y] += 1
    network = nn.Linear(4, 3)
    with torch.no_grad():
        network.weight.copy_(torch.eye(4)[:3])
        network.bias.zero_()
    return network, x, y


def test_findings_that_cost_next_to_nothing_make_no_headline_and_all_forms_agree() -> None:
    network, x, y = solved_classes()
    x[:, 3] = 1e4 * torch.rand(300)  # unscaled
    result = gs.check(network, (x[:150], y[:150]), test=(x[150:], y[150:]), only=["GS105", "GS401"])
    assert result.codes == ("GS105",)
    assert result.headline == (
        "Nothing large was found: no finding costs this classifier a point of its accuracy."
    )
    account = result.account
    assert account is not None and account.expected is not None
    missing = 1 - account.expected.value
    stored = json.loads(json.dumps(result.to_dict()))
    costs = [account.metrics.get("cost_training", 0.0), stored["findings"][0]["cost"]]
    assert costs == [missing, missing] == [0.0, 0.0]
    assert result.headline in result._repr_html_()


def test_an_expected_accuracy_that_is_shown_was_judged() -> None:
    network, x, y = solved_classes()
    initial = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    initial["weight"] += 1
    data, test = (x[:150], y[:150]), (x[150:], y[150:])
    result = gs.check(network, data, test=test, initial_state=initial, only=["GS303"])
    assert result.account is not None and result.account.expected is not None
    assert result.headline.startswith(
        "Not judged: whether these data allow a higher accuracy (GS401"
    )


@pytest.mark.parametrize("codes", ["GS102", "GS102,GS105"])
def test_one_text_names_checks(codes: str) -> None:
    data = torch.rand(40, 3), torch.arange(40) % 2
    listed = codes.split(",")
    for text, by_list in (
        (gs.check(None, data, only=codes), gs.check(None, data, only=listed)),
        (gs.check(None, data, ignore=codes), gs.check(None, data, ignore=listed)),
    ):
        for part in ("findings", "fine", "not_checked", "total"):
            assert text.to_dict()[part] == by_list.to_dict()[part]
    with pytest.raises(InvalidInput, match="Got check 'GS9'"):
        gs.check(None, data, only="GS9")
